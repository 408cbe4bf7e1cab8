"""Where the seconds of a step go."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator


class Stopwatch:
    """Seconds by what they were spent on since `start`."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new step begins."""
        self._began = time.perf_counter()
        self._spent: Counter[str] = Counter()

    @contextlib.contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Count the seconds inside as spent on `what`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._spent[what] += time.perf_counter() - began  # type: ignore[assignment]  # a Counter counts floats as well

    def seconds(self) -> dict[str, float]:
        """Seconds by what they were spent on, 0 for what did not happen, and `total` since the start."""
        names = ("sample", "score", "gradient", "update", "sync")
        return {name: float(self._spent[name]) for name in names} | {"total": time.perf_counter() - self._began}
