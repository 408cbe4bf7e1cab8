"""Waiting for what a test asserts, instead of looking once and hoping that the machine was quick."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 120.0
"""Seconds that a state may take to come. Only a test that fails waits so long, and a busy machine is no failure."""


def until(holds: Callable[[], T], what: str = "", seconds: float = LIMIT) -> T:
    """Asks until the answer is true, and returns it; fails after `seconds` and says `what` never held."""
    end = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < end, f"never, in {seconds:g} s: {what or holds}"
        time.sleep(0.01)
    return answer


def becomes(read: Callable[[], T], wanted: T, seconds: float = LIMIT) -> None:
    """Reads until it is `wanted`; fails after `seconds` with what was read last."""
    end = time.monotonic() + seconds
    while (found := read()) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    assert found == wanted


def busy() -> float:
    """How many times over the machine's cores are asked for: what is bounded in seconds gets that much more of them."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
