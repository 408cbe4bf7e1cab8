"""What the scripts of TRL's side share: a clock around each optimizer step, and a reward that notes what was sampled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workloads import silent_groups, spread


@dataclass
class Record:
    """Seconds by step; length and reward of every completion, in order."""

    seconds: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def clock(self) -> Any:
        """A callback for TRL's trainer."""
        from transformers import TrainerCallback

        record = self

        class Clock(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                self.start = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                record.seconds.append(time.perf_counter() - self.start)

        return Clock()

    def reward(self) -> Callable[..., list[float]]:
        """The reward with seven values, as TRL calls it."""

        def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
            self.lengths.extend(len(ids) for ids in completion_ids)
            self.rewards.extend(given := [spread(completion[0]["content"]) for completion in completions])
            return given

        return reward

    def silent(self, completions: int, group: int) -> list[int]:
        """Silent groups of each step of that many completions."""
        return [
            silent_groups(self.rewards[step * completions : (step + 1) * completions], group)
            for step in range(len(self.seconds))
        ]
