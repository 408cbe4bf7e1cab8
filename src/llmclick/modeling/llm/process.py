"""Settings of this process that make training faster, in the one place that makes them."""

from __future__ import annotations

import contextlib
import functools
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def prepare_environment() -> None:
    """Called before torch is imported; what the user has set stays.

    OpenMP's threads spin while they wait for each other. When anything else runs on the machine the one that is waited for
    may not be on a core, and the others spin its time away: with two busy neighbours on two cores decoding took three to five
    times as long as with sleeping waits.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@functools.cache
def prepare_process() -> None:
    """Called once before weights are loaded.

    On Linux with glibc freed activations are returned to the kernel and faulted in again on every step. With
    `M_MMAP_MAX` 0 and trimming off they stay with the process. Elsewhere nothing is done.
    """
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(_M_MMAP_MAX, 0)
            libc.mallopt(_M_TRIM_THRESHOLD, -1)  # -1: never trim
