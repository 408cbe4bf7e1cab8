"""The reward for a form: regex."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from llmclick.rewards import REWARDS
from llmclick.rewards.answers import strip_ends
from llmclick.rewards.params import is_bool, is_text, one_of, param


def _is_pattern(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return "write a regular expression as text"
    try:
        re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        return f"write a pattern that compiles: {error}"
    return None


@dataclass(frozen=True)
class RegexParams:
    """Parameters of regex."""

    pattern: str = param(None, "the regular expression, in Python's syntax", lambda v: v if v is None else _is_pattern(v))
    pattern_key: str = param(
        None, "instead of pattern: key of the row that holds one", lambda v: v if v is None else is_text(v)
    )
    match: str = param("search", "search: anywhere in the completion; full: the whole completion", one_of("search", "full"))
    ignore_case: bool = param(False, "whether upper and lower case are the same", is_bool)
    dotall: bool = param(True, "whether . also matches a line break", is_bool)

    def __post_init__(self) -> None:
        if (self.pattern is None) == (self.pattern_key is None):
            raise ValueError("exactly one of pattern and pattern_key is needed")


def _pattern(row: dict[str, Any], params: dict[str, Any]) -> object:
    key = params.get("pattern_key")
    return row.get(key) if isinstance(key, str) else params.get("pattern")


def _refuse(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    reason = _is_pattern(_pattern(row, params))
    return None if reason is None else f"the row's pattern cannot be used: {reason}"


@REWARDS.register("regex", params=RegexParams, refuses=_refuse)
def regex(completion: str, row: dict[str, Any], params: dict[str, Any]) -> float:
    r"""1 if a regular expression matches the completion, otherwise 0.

    White space and turn markers at the ends are taken away first; reasoning stays, so that a pattern can ask for it. `.`
    matches a line break unless `dotall: false`. It runs in a worker under the reward's timeout: a pattern can take for ever.

    | completion | row | params | result |
    |---|---|---|---|
    | "Answer: 42" | {} | {"pattern": "\\d+"} | 1 |
    | "Answer: 42" | {} | {"pattern": "\\d+", "match": "full"} | 0 |
    | " 42\n" | {} | {"pattern": "\\d+", "match": "full"} | 1 |
    | "42<|im_end|>" | {} | {"pattern": "^\\d+$"} | 1 |
    | "<think>\na\n</think>\nb" | {} | {"pattern": "<think>.*</think>.+", "match": "full"} | 1 |
    | "a\nb" | {} | {"pattern": "a.b", "dotall": false} | 0 |
    | "YES" | {} | {"pattern": "yes"} | 0 |
    | "YES" | {} | {"pattern": "yes", "ignore_case": true} | 1 |
    | "ab" | {"form": "a."} | {"pattern_key": "form"} | 1 |
    | "ab" | {} | {"pattern": "("} | 0 |
    """
    pattern = _pattern(row, params)
    if not isinstance(pattern, str) or _is_pattern(pattern) is not None:
        return 0.0
    flags = re.DOTALL if params.get("dotall") is not False else re.NOFLAG
    if params.get("ignore_case") is True:
        flags |= re.IGNORECASE
    compiled = re.compile(pattern, flags)
    text = strip_ends(completion)
    return float((compiled.fullmatch(text) if params.get("match") == "full" else compiled.search(text)) is not None)
