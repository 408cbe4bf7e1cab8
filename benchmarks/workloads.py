"""The three workloads of the speed table: prompts a step, group size, accumulation, new tokens, filler in the prompt."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    prompts: int  # per micro-batch
    group: int
    accumulation: int
    new: int
    filler: int


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
    """A reward that gives every group a spread, so that both sides train on every group."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % 7 / 6
