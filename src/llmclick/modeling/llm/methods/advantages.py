"""Advantages: how much better than its group's mean a completion was."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Scale = Literal["group", "batch", "none"]

STD_EPSILON = 1e-4
"""Added to a standard deviation before dividing by it."""


def silent_groups(rewards_PG: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which groups carry no signal: the largest reward equals the smallest. Shape [P]."""
    silent_P: npt.NDArray[np.bool_] = rewards_PG.max(axis=1) == rewards_PG.min(axis=1)
    return silent_P


def group_advantages(rewards_PG: npt.NDArray[np.float64], scale: Scale) -> npt.NDArray[np.float64]:
    """Advantages [P, G] of the rewards [P, G] of one sampling batch.

    A = R - mean of its group, divided by `std + 1e-4` (n - 1) of its group (`group`: GRPO, https://arxiv.org/abs/2402.03300),
    of all rewards of the batch (`batch`), or by nothing (`none`: Dr. GRPO, https://arxiv.org/abs/2503.20783).
    A silent group's advantages are exactly 0: the formula would leave up to 6e-4 of rounding.
    """
    centred_PG = rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
    if scale == "group":
        centred_PG = centred_PG / (rewards_PG.std(axis=1, ddof=1, keepdims=True) + STD_EPSILON)
    elif scale == "batch":
        centred_PG = centred_PG / (rewards_PG.std(ddof=1) + STD_EPSILON)
    return np.where(silent_groups(rewards_PG)[:, None], 0.0, centred_PG)
