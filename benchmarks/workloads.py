"""The three workloads of the speed table: prompts a step, group size, accumulation, new tokens, filler in the prompt."""

from __future__ import annotations

import random
import statistics
import zlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    prompts: int  # per micro-batch
    group: int
    accumulation: int
    new: int
    filler: int

    @property
    def completions(self) -> int:
        """Of one optimizer step."""
        return self.prompts * self.accumulation * self.group


WORKLOADS = {
    "A": Workload(prompts=2, group=4, accumulation=2, new=8, filler=0),
    "B": Workload(prompts=4, group=8, accumulation=1, new=64, filler=0),
    "C": Workload(prompts=4, group=8, accumulation=1, new=8, filler=60),
}


def rows(filler: int, count: int = 200) -> list[dict[str, str]]:
    """Arithmetic rows behind `filler` sentences."""
    rng = random.Random(0)
    made = []
    for _ in range(count):
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        text = "Some context. " * filler + f"What is {a} plus {b}? Reply with the number only."
        made.append({"prompt": text, "answer": str(a + b)})
    return made


def spread(text: str) -> float:
    """A reward with seven values: a group is silent only if all of its completions happen to get the same one."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % 7 / 6


def silent_groups(rewards: Sequence[float], group: int) -> int:
    """How many groups of `group` neighbours got one and the same reward."""
    return sum(len(set(rewards[start : start + group])) == 1 for start in range(0, len(rewards), group))


def comparable(silent: Sequence[int]) -> list[int]:
    """Which steps of one process count: none is the first, and if any trained on all of its groups, only such ones."""
    after = range(1, len(silent))
    return [step for step in after if not silent[step]] or list(after)


def typical(values: Sequence[float], steps: Sequence[int]) -> float:
    """The median over `steps`."""
    return round(statistics.median(values[step] for step in steps), 3)
