"""Declared parameters of a reward: a dataclass whose fields carry what `explain` prints and what a value must be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

#: Returns why the value cannot work, or None.
Check = Callable[[object], str | None]


def param(default: object, help: str, check: Check) -> Any:
    """A field of a params dataclass. Without a default (`dataclasses.MISSING`) the user must give it."""
    if isinstance(default, (list, dict)):
        raise TypeError("a default is immutable")
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


def is_bool(value: object) -> str | None:
    """Check: true or false."""
    return None if isinstance(value, bool) else "write true or false"


def is_text(value: object) -> str | None:
    """Check: a text that is not blank."""
    return None if isinstance(value, str) and value.strip() else "write a text"


def one_of(*words: str) -> Check:
    """Check: one of these words."""

    def check(value: object) -> str | None:
        return None if value in words else "write " + " or ".join(words)

    return check


def answer_key() -> Any:
    """The field `answer` that the rewards with a gold share."""
    return param("answer", "key of the row that holds the right answer", is_text)
