"""stdout and stderr that neither stop nor end a run: what nobody reads waits, or is given up, and the work goes on.

A write to a pipe blocks while its reader is slow, for ever if the reader stands still; to a pipe without a reader, a dropped
terminal or a full device it fails. None of these says anything about the run, so texts are queued and a thread writes them.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from collections import deque
from typing import TextIO

MOST = 1 << 22
"""Bytes of progress that wait for a reader (run.log has every line): a bar that nobody reads for days fills it."""


class Output:
    """A queue of texts and the thread that writes them, one for stdout and stderr: on a terminal their order counts."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Unblocked, bytes]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, stream: Unblocked, data: bytes) -> None:
        """Queue bytes for a stream. With `MOST` waiting already, progress is left out, and results wait for room."""
        with self._changed:
            while stream.patient and self._bytes > MOST:
                self._changed.wait()
            if not data or stream.failure is not None or self._bytes > MOST:
                return
            self._waiting.append((stream, data))
            self._bytes += len(data)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                self._thread.start()

    def drain(self, seconds: float | None) -> bool:
        """Wait until all is written or given up, `seconds` at most (None: as long as it takes). False if some is left."""
        end = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while self._bytes:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                stream, data = self._waiting.popleft()
            if stream.failure is None:
                try:
                    write_all(stream.fileno(), data)
                except OSError as error:
                    stream.failure = error
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()


class Unblocked(io.TextIOBase):
    """A text stream over a file descriptor whose `write` returns at once and never raises.

    `failure` is what ended the writing (a reader that left, a full device), None while all is well; what comes after it is left
    out. A `patient` one (results, not progress) leaves nothing out for a reader that is slow.
    """

    def __init__(self, stream: TextIO, output: Output, *, patient: bool) -> None:
        self._descriptor = stream.fileno()
        self._encoding = stream.encoding or "utf-8"
        self._output = output
        self.patient = patient
        self.failure: OSError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's own."""
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        """What the encoding lacks is escaped."""
        return "backslashreplace"

    def fileno(self) -> int:
        """The descriptor behind it."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Queue a text. Returns its length."""
        self._output.put(self, text.encode(self._encoding, self.errors))
        return len(text)

    def flush(self) -> None:
        """Nothing to do: the thread writes as fast as the reader takes it."""


def write_all(descriptor: int, data: bytes) -> None:
    """Write bytes to a descriptor, also to one that somebody made non-blocking. Raises OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def open_standard_streams() -> None:
    """Open what a process was started without, stdin, stdout or stderr, so that no other file takes its number."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, mode)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def unblock_standard_streams() -> Output:
    """Put an `Unblocked` over stdout and stderr, where they are descriptors. Returns what writes for both."""
    output = Output()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            stream.flush()
            setattr(sys, name, Unblocked(stream, output, patient=name == "stdout"))
        except (OSError, ValueError, AttributeError):
            continue  # a program that runs us has put a stream of its own there
    return output
