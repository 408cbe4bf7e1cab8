"""SIGINT and SIGTERM during a run: it stops where nothing is lost; a second one leaves at once.

Signals belong to the process, so what was asked for is kept here and not handed around.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from llmclick.errors import Interrupted


@dataclass
class _Asked:
    once: bool = False
    notify: Callable[[str], None] | None = None  # set while what runs stops itself


_asked = _Asked()


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt, which leaves this context as Interrupted; inside `deferred` it only asks."""
    _asked.once, _asked.notify = False, None
    try:
        before = {number: signal.signal(number, _on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: llmclick.run called from a program of its own
        before = {}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; finished stages are kept, and the same command continues") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred(notify: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """For work that stops itself at its next boundary: yields `asked?`, and `notify` is told when a signal asks."""
    _asked.notify = notify
    try:
        yield asked
    finally:
        _asked.notify = None


def asked() -> bool:
    """Whether a signal came."""
    return _asked.once


def _on_signal(number: int, _: FrameType | None) -> None:
    if _asked.once:
        if sys.stderr.isatty():
            os.write(2, b"\x1b[?25h")  # a progress bar hides the cursor
        # Every file appears whole or not at all, so leaving here is as safe as a kill.
        os._exit(Interrupted.exit_code)
    _asked.once = True
    if _asked.notify is None:
        raise KeyboardInterrupt
    _asked.notify(f"{signal.Signals(number).name}: stopping at the next step boundary (once more: at once)")
