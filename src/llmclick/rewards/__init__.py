"""Rewards: what a completion is worth for its row.

    reward(completion: str, row: dict, params: dict) -> float | bool | int | None

`REWARDS` holds them by name. The shipped ones are the modules of this package; a user's own are typed into
`modeling/llm/methods/grpo.py` or into files that `pipeline.imports` names. Nothing here imports torch or pydantic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmclick.registry import Registry

#: completion, row, params -> a finite number, or None for "does not apply to this row".
Reward = Callable[[str, dict[str, Any], dict[str, Any]], float | bool | int | None]

REWARDS: Registry[Reward] = Registry("reward", "llmclick.rewards")

from llmclick.rewards import choice, gym, math, numbers, regex, structured, text  # noqa: E402, F401  # each registers itself

__all__ = ["REWARDS", "Reward"]
