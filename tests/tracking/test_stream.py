"""stdout and stderr of the command line: whatever becomes of their readers, the work goes on."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

from llmclick.tracking.stream import MOST, Output, Unblocked


def over(descriptor: int, output: Output, *, patient: bool = False) -> Unblocked:
    return Unblocked(os.fdopen(descriptor, "w", encoding="utf-8", closefd=False), output, patient=patient)


def read_all(descriptor: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += os.read(descriptor, size - len(found))
    return found


def test_a_reader_that_stands_still_stops_nobody() -> None:
    """A megabyte into a pipe of 64 kB that nobody reads: `write` returns, a limited drain says that some is left; when the
    reader goes on, it gets every byte in order."""
    here, there = os.pipe()
    output = Output()
    stream = over(there, output)
    text = "".join(f"line {number}: ä\n" for number in range(60_000))
    for line in text.splitlines(keepends=True):
        stream.write(line)
    assert not output.drain(0.05)
    assert read_all(here, len(text.encode())) == text.encode()
    assert output.drain(10)
    assert stream.failure is None


def test_a_reader_that_leaves_and_a_full_device() -> None:
    """Neither raises: the failure is kept, and what follows is left out."""
    output = Output()
    here, there = os.pipe()
    os.close(here)
    left, full = over(there, output), over(os.open("/dev/full", os.O_WRONLY), output)
    for stream in (left, full):
        stream.write("one")
        stream.write("two")
    assert output.drain(10)
    assert isinstance(left.failure, BrokenPipeError)
    assert full.failure is not None
    assert full.failure.errno == errno.ENOSPC


def test_two_streams_on_one_pipe_keep_their_order() -> None:
    """Progress and results on the same terminal come in the order they were written in."""
    here, there = os.pipe()
    output = Output()
    progress, results = over(there, output), over(os.dup(there), output, patient=True)
    for number in range(200):
        (results if number % 3 == 0 else progress).write(f"{number} ")
    assert output.drain(10)
    assert os.read(here, 1 << 16).decode().split() == [str(number) for number in range(200)]


def test_results_wait_where_progress_is_left_out() -> None:
    """With MOST bytes waiting, a line of progress is left out at once, and a result waits until there is room."""
    here, there = os.pipe()
    output = Output()
    progress, results = over(there, output), over(os.dup(there), output, patient=True)
    progress.write("x" * (MOST + (1 << 17)))  # more than the pipe takes beside it
    progress.write("left out")
    writer = threading.Thread(target=lambda: results.write("result"))
    writer.start()
    time.sleep(0.1)
    assert writer.is_alive()
    found = read_all(here, MOST + (1 << 17) + len("result"))
    writer.join(10)
    assert found.endswith(b"xresult")


def test_a_descriptor_that_does_not_block(tmp_path: Path) -> None:
    """A pipe that somebody made non-blocking takes every byte all the same."""
    here, there = os.pipe()
    os.set_blocking(there, False)
    output = Output()
    stream = over(there, output)
    stream.write("y" * (1 << 20))
    assert read_all(here, 1 << 20) == b"y" * (1 << 20)
    assert output.drain(10)
    assert stream.failure is None
