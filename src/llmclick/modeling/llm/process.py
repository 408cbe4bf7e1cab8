"""Settings of this process that make training faster, in the one place that makes them."""

from __future__ import annotations

import contextlib
import functools
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def prepare_environment() -> None:
    """Called before torch is imported; what the user has set stays.

    OpenMP's threads spin while they wait for each other, in torch's build on Linux for milliseconds. When anything else runs on
    the machine the one that is waited for may not be on a core, and the others spin its time away: with two busy neighbours on
    two cores decoding took three to five times as long. Sleeping at once is no better: to wake costs 80 microseconds on a
    virtual machine, and decoding is thousands of short products. So they spin for a fraction of a millisecond, then sleep.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def map_large_blocks() -> None:
    """For a large model: blocks from 8 MB on are mapped and given back at once, so that no holes are left between them.

    Memory before speed: to fault those pages in again took a model of 0.75 billion parameters a third of its step.
    """
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").mallopt(_M_MMAP_THRESHOLD, 8 * 2**20)


def trim_memory() -> None:
    """Gives free memory back to the system, where what comes next does not fit the holes that activations leave."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


class HeapWatch:
    """Gives memory back when the process has grown since the first steps: differing lengths leave holes that add up."""

    def __init__(self) -> None:
        self._usual: int | None = None

    def after_step(self, step: int) -> None:
        """Told after every optimizer step. The first one does not count: the optimizer's state comes with it."""
        size = _resident_pages()
        if size is None or step < 2:
            return
        if self._usual is None:
            self._usual = size
        elif size > 1.02 * self._usual:
            trim_memory()


def _resident_pages() -> int | None:
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1])


@functools.cache
def prepare_process() -> None:
    """Called once before weights are loaded.

    On Linux with glibc freed activations are returned to the kernel and faulted in again on every step. With trimming off
    everything below 32 MB stays with the process. What is larger is still mapped and given back: kept in the heap too, such
    blocks leave holes between small ones, and a run grew by 0.3 GB a step. Elsewhere nothing is done.
    """
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
            libc.mallopt(_M_TRIM_THRESHOLD, -1)  # -1: never trim
