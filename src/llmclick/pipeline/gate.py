"""The gate: paired metrics of base and trained model, their intervals, and the bounds they have to meet. No torch.

docs/gate.md says the same in words, with the rates at which it errs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from llmclick.pipeline.intervals import FEWEST, paired_interval, per_prompt

EQUAL = 1e-9
"""A bound that is met to this is met, and an interval's end this close to 0 is at 0: more than rounding can do, less than
anybody means."""


class Bounds(Protocol):
    """The `validation` section of a config, as far as the gate reads it."""

    @property
    def min(self) -> Mapping[str, float]:
        """Lower bounds on the trained model's means."""

    @property
    def max(self) -> Mapping[str, float]:
        """Upper bounds on them."""

    @property
    def gain(self) -> Mapping[str, float]:
        """Bounds on the paired improvement; a negative one bounds the loss (non-inferiority)."""


@dataclass(frozen=True)
class Measured:
    """One metric: means over the rows it exists for, their difference and its 95 % interval. None: no such value.

    `n` rows have `prompts` distinct prompts, of which `changed` have another sum after training. `interval` says whose ends the
    interval has: bootstrap, sign-flip or both; None where there is none, as below `FEWEST` prompts.
    """

    base: float | None
    trained: float | None
    difference: float | None
    low: float | None
    high: float | None
    n: int
    prompts: int = 0
    changed: int = 0
    interval: str | None = None


@dataclass(frozen=True)
class Bound:
    """One bound, whether it was met, and why not."""

    kind: str
    metric: str
    bound: float
    value: float | None
    passed: bool
    why: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the gate says about `rows` held-out rows of `prompts` distinct prompts."""

    metrics: dict[str, Measured]
    bounds: list[Bound]
    rows: int
    prompts: int
    notices: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool | None:
        """Whether every bound was met; None where there is no bound, so that nothing was judged."""
        return all(bound.passed for bound in self.bounds) if self.bounds else None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "passed": self.passed,
            "rows": self.rows,
            "prompts": self.prompts,
            "metrics": {name: vars(measured) for name, measured in self.metrics.items()},
            "bounds": [vars(bound) for bound in self.bounds],
            "notices": self.notices,
        }


@dataclass(frozen=True)
class _Pairs:
    """A metric of both models on the rows for which it exists, and the prompt of each row."""

    before: list[float]
    after: list[float]
    prompts: list[Hashable]

    @property
    def differences(self) -> list[float]:
        return [after - before for before, after in zip(self.before, self.after, strict=True)]


def judge(
    base: Sequence[Mapping[str, Any]],
    trained: Sequence[Mapping[str, Any]],
    bounds: Bounds,
    rewards: Sequence[str],
    seed: int,
    prompts: Sequence[Hashable],
) -> Verdict:
    """Compares the answers of both models to the same rows, in the same order; `prompts` is what the models read for each row.

    min and max compare means. A gain of 0 or more passes when the mean difference is at least the bound and the interval lies
    above 0, a negative one when the interval lies above the bound. A missing or non-finite metric fails every bound on it.
    """
    pairs = {name: _pairs(name, base, trained, prompts) for name in metric_names(rewards)}
    metrics = {name: _measure(found, seed) for name, found in pairs.items()}
    judged = [
        *(_against_mean("min", name, bound, metrics) for name, bound in bounds.min.items()),
        *(_against_mean("max", name, bound, metrics) for name, bound in bounds.max.items()),
        *(_gain(name, bound, metrics.get(name), pairs.get(name)) for name, bound in bounds.gain.items()),
    ]
    notices = [_unseen(bound, pairs[bound.metric]) for bound in judged if bound.passed and bound.kind == "gain"]
    if not judged:
        notices = ["validation has no bounds: the numbers are reported, nothing was judged"]
    return Verdict(metrics, judged, len(prompts), len(set(prompts)), [notice for notice in notices if notice])


def metric_names(rewards: Sequence[str]) -> list[str]:
    """The metrics of a validation, in the order they are shown."""
    return ["reward", *(f"reward/{name}" for name in rewards), "pass_rate", "length", "truncated"]


def metric_of(name: str, answer: Mapping[str, Any]) -> float | None:
    """A metric of one answer; None if a reward did not apply to the row."""
    if name == "reward":
        return float(answer["reward"])
    if name.startswith("reward/"):
        value = answer["rewards"].get(name.removeprefix("reward/"))
        return None if value is None else float(value)
    if name == "pass_rate":
        return float(answer["passed"])
    if name == "length":
        return float(answer["tokens"])
    return float(answer["stop"] == "length")


def exact_mean(values: Sequence[float]) -> Fraction | None:
    """The mean without any rounding, so that three rows of 0.7 have the mean 0.7; None without values or if one is infinite or
    NaN."""
    if not values or not all(map(math.isfinite, values)):
        return None
    return sum(map(Fraction, values), Fraction(0)) / len(values)


def _pairs(
    name: str, base: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]], prompts: Sequence[Hashable]
) -> _Pairs:
    rows = zip(base, trained, prompts, strict=True)
    both = [(metric_of(name, before), metric_of(name, after), prompt) for before, after, prompt in rows]
    found = [(before, after, prompt) for before, after, prompt in both if before is not None and after is not None]
    return _Pairs(*(list(column) for column in zip(*found, strict=True))) if found else _Pairs([], [], [])


def _measure(pairs: _Pairs, seed: int) -> Measured:
    n, prompts = len(pairs.prompts), len(set(pairs.prompts))
    before, after = exact_mean(pairs.before), exact_mean(pairs.after)
    base, trained = (None if mean is None else float(mean) for mean in (before, after))
    if before is None or after is None:
        return Measured(base, trained, None, None, None, n, prompts)
    sums, _ = per_prompt(pairs.differences, pairs.prompts)
    changed = int((np.abs(sums) > EQUAL).sum())
    difference = float(after - before)
    if prompts < FEWEST:
        return Measured(base, trained, difference, None, None, n, prompts, changed)
    interval = paired_interval(pairs.differences, pairs.prompts, seed)
    return Measured(base, trained, difference, interval.low, interval.high, n, prompts, changed, interval.method)


def _against_mean(kind: str, name: str, bound: float, metrics: Mapping[str, Measured]) -> Bound:
    value = metrics[name].trained if name in metrics else None
    if value is None:
        return Bound(kind, name, bound, None, False, f"{name} has no finite value")
    passed = value >= bound - EQUAL if kind == "min" else value <= bound + EQUAL
    word = "below" if kind == "min" else "above"
    return Bound(kind, name, bound, value, passed, "" if passed else f"{name} is {_told(value, bound)}, {word} {bound:g}")


def _gain(name: str, bound: float, measured: Measured | None, pairs: _Pairs | None) -> Bound:
    if measured is None or pairs is None or measured.difference is None:
        return Bound("gain", name, bound, None, False, f"{name} has no finite value")
    difference, low = measured.difference, measured.low
    why = ""
    if low is None:
        seen = f"{measured.prompts} held-out prompt{'s' if measured.prompts != 1 else ''}"
        cannot = "show a gain" if bound >= 0 else "rule out a loss"
        why = f"{seen} cannot {cannot}, it takes at least {FEWEST}: hold out more"
    elif bound < 0:
        if low < bound - EQUAL:
            why = f"the interval of the difference reaches down to {_told(low, bound)}, below {bound:g}"
            why += _too_few(-bound, pairs) if difference >= bound - EQUAL else ""
    elif difference < bound - EQUAL:
        why = f"{name} changed by {_told(difference, bound, '+')}, less than {bound:g}" + _too_few(bound, pairs)
    elif low <= EQUAL:
        why = f"the interval of the difference reaches down to {low:+.3g}"
        if measured.changed < FEWEST:
            why += f"; only {measured.changed} of {measured.prompts} prompts changed, a gain shows in {FEWEST} or more"
        why += _too_few(bound, pairs)
    return Bound("gain", name, bound, difference, not why, why)


def _too_few(margin: float, pairs: _Pairs) -> str:
    """Says so when so few prompts could not show the asked gain, or rule out the loss, even if it were so.

    A mean over m prompts that deviate from it by a standard deviation of s has a 95 % half-width of 1.96 s / sqrt(m); it has to
    be below the margin.
    """
    sums, rows = per_prompt(pairs.differences, pairs.prompts)
    if margin <= 0 or len(sums) < 2:
        return ""
    parts = (sums - rows * sums.sum() / rows.sum()) * len(sums) / rows.sum()
    spread = float(np.std(parts, ddof=1))
    needed = max(FEWEST, math.ceil((1.96 * spread / margin) ** 2))
    if needed <= len(sums):
        return ""
    return f"; {len(sums)} prompts are too few to see a difference of {margin:g} here, about {needed} would do"


def _unseen(bound: Bound, pairs: _Pairs) -> str:
    """What a loss that is ruled out does not say, where no prompt got worse: m prompts without a loss rule out, at 97.5 % on
    one side, a loss in more than 1 - 0.025 ** (1 / m) of all prompts."""
    sums, _ = per_prompt(pairs.differences, pairs.prompts)
    share = 1 - 0.025 ** (1 / len(sums))
    if bound.bound >= 0 or share <= -bound.bound or (sums < -EQUAL).any():
        return ""
    return (
        f"gain {bound.metric} {bound.bound:g} is met: no prompt got worse. {len(sums)} prompts cannot exclude that up to "
        f"{share:.0%} of all prompts do; hold out more rows to be surer"
    )


def _told(value: float, bound: float, sign: str = "") -> str:
    """A value in as many digits as tell it from the bound that it missed."""
    for digits in range(4, 17):
        if float(text := f"{value:{sign}.{digits}g}") != float(f"{bound:.{digits}g}"):
            return text
    return f"{value:{sign}.17g}"
