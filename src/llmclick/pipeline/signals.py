"""Signals during a run: it stops where nothing is lost; a second SIGINT or SIGTERM leaves at once.

A handler may run in the middle of a write, inside any lock: it sets a flag and prints nothing. What runs asks for the flag at
its next boundary and says it then. Signals belong to the process, so what was requested is kept here and not handed around.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from llmclick.errors import Interrupted

HANDLED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
"""Ctrl-C, a supervisor, a connection that drops, a batch system's warning."""
INSISTENT = (signal.SIGINT, signal.SIGTERM)
"""A second one of these leaves at once. A dropped connection sends SIGHUP twice, which is no second thought."""


@dataclass
class _Requested:
    stop: int = 0  # the first signal's number
    insisted: bool = False  # whether one of INSISTENT came
    said: bool = False
    deferred: bool = False  # set while what runs stops itself


_requested = _Requested()


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt, which leaves this context as Interrupted; inside `deferred` it only asks.

    A signal that the process was started to ignore (SIGHUP under nohup) stays ignored.
    """
    global _requested
    _requested = _Requested()
    try:
        before = {number: signal.signal(number, _on_signal) for number in HANDLED if signal.getsignal(number) != signal.SIG_IGN}
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
    """For work that stops itself at its next boundary: yields `should_stop`, which tells `notify` once when a signal came."""

    def should_stop() -> bool:
        if _requested.stop and not _requested.said:
            _requested.said = True
            notify(f"{signal.Signals(_requested.stop).name}: stopping after this step (send it again to quit now)")
        return stop_requested()

    _requested.deferred = True
    try:
        yield should_stop
    finally:
        _requested.deferred = False


def stop_requested() -> bool:
    """Whether a signal came."""
    return bool(_requested.stop)


def _on_signal(number: int, _: FrameType | None) -> None:
    if _requested.insisted and number in INSISTENT:
        if os.isatty(2) and select.select([], [2], [], 0)[1]:
            os.write(2, b"\x1b[?25h")  # a progress bar hides the cursor
        # Every file appears whole or not at all, so leaving here is as safe as a kill.
        os._exit(Interrupted.exit_code)
    first = not _requested.stop
    _requested.stop = _requested.stop or number
    _requested.insisted = _requested.insisted or number in INSISTENT
    if first and not _requested.deferred:
        raise KeyboardInterrupt
