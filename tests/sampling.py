"""How tests sample, in one line."""

from __future__ import annotations

from llmclick.interfaces import Sampling


def how(
    group: int = 4, stream: str = "train/0", *, temperature: float | None = 1.0, new: int = 24, together: int = 512
) -> Sampling:
    return Sampling(group, temperature, new, stream, together)
