"""One call of a reward, whatever happens in it: the same in process and in a worker."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

from llmclick.rewards import Reward
from llmclick.rewards.imports import own_traceback

#: Failures of the machinery, which score 0 and are counted. "error" is the reward's own.
CONTAINED = ("timeout", "died", "memory")


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # differs from call to call, and says nothing
#: Largest size of a reward: its square, summed over a batch, still is a number.
LARGEST = 1e12


@dataclass(frozen=True)
class Outcome:
    """What a call gave: a finite number or None; or a `failure` ("error", "timeout", "died", "memory") and what to tell."""

    value: float | None = None
    failure: str = ""
    detail: str = ""
    completion: str = ""  # of a trial with a right answer: what was tried

    @property
    def brief(self) -> str:
        """`detail` on one line: what happened, and the last line of what was written about it."""
        first, *rest = self.detail.strip().splitlines() or [""]
        return f"{first} {rest[-1].strip()}" if rest else first


def call(reward: Reward, completion: str, row: dict[str, Any], params: dict[str, Any]) -> Outcome:
    """Calls a reward and never raises, KeyboardInterrupt aside."""
    try:
        return _checked(reward(completion, row, params))
    except KeyboardInterrupt:
        raise
    except MemoryError:
        return Outcome(failure="memory", detail="it ran out of memory")
    except BaseException as error:
        return Outcome(failure="error", detail=f"it raised {type(error).__name__}\n{own_traceback(error)}")


def call_right(right: Any, reward: Reward, row: dict[str, Any], again: dict[str, Any], params: dict[str, Any]) -> Outcome:
    """Makes a right completion from the row and scores it (`again` is a second copy of the row)."""
    try:
        completion = right(row, params)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(failure="error", detail=f"its right= raised {type(error).__name__}\n{own_traceback(error)}")
    if not isinstance(completion, str):
        return Outcome(failure="error", detail=f"its right= gave {type(completion).__name__}, not a text")
    outcome = call(reward, completion, again, params)
    return Outcome(outcome.value, outcome.failure, outcome.detail, completion)


def _checked(value: object) -> Outcome:
    if value is None:
        return Outcome()
    if not isinstance(value, Real) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a number of numpy or torch
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # nobody will await it, and Python would warn
        return Outcome(
            failure="error", detail="it is an async function, and its calls are not awaited: write def, not async def"
        )
    if not isinstance(value, (Real, Fraction)):
        shown = _ADDRESS.sub("", repr(value))[:80]
        count = f" with {len(value)} items" if isinstance(value, (list, tuple)) else ""
        return Outcome(
            failure="error",
            detail=f"it returned {type(value).__name__}{count} {shown}; one number (or None) for one completion is expected",
        )
    try:
        number = float(value)
    except (OverflowError, ValueError):
        number = math.inf
    if not math.isfinite(number):
        return Outcome(
            failure="error", detail=f"it returned {number}, and one such value would make every advantage of its group NaN"
        )
    if abs(number) > LARGEST:
        return Outcome(
            failure="error",
            detail=f"it returned {number:.3g}; beyond {LARGEST:.0e} the spread of a group's rewards has no meaning left",
        )
    return Outcome(number)
