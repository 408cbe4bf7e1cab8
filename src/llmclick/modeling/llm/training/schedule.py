"""The learning-rate schedule."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(step: int, steps: int, lr: float, schedule: Schedule, warmup: float) -> float:
    """Learning rate of optimizer step `step` (from 0) of `steps`.

    Rises linearly over the first `warmup` share of the steps, (step + 1) / warm steps, then stays (`constant`) or falls to 0
    at the end: `linear`, 1 - x, or `cosine`, (1 + cos(pi x)) / 2, with x the share of the remaining steps already taken.
    """
    warm = math.ceil(Fraction(repr(warmup)) * steps)  # of the decimals that were written: 0.07 of 100 steps is 7
    if step < warm:
        return lr * (step + 1) / warm
    share = (step - warm) / max(steps - warm, 1)
    if schedule == "linear":
        return lr * (1 - share)
    if schedule == "cosine":
        return lr * (1 + math.cos(math.pi * share)) / 2
    return lr
