"""The method of `recipe: llm_grpo`, and the place for your own rewards. Imports without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmclick.rewards import REWARDS as REWARDS

if TYPE_CHECKING:
    from torch import Tensor

    from llmclick.config.methods import GrpoMethod

# Write your own rewards here:
#
#     @REWARDS.register("my_reward")
#     def my_reward(completion: str, row: dict, params: dict) -> float: ...


class Grpo:
    """Group Relative Policy Optimization (https://arxiv.org/abs/2402.03300): the ratio clipped to 1 - clip .. 1 + clip_high."""

    def __init__(self, config: GrpoMethod) -> None:
        self.low = config.clip
        self.high = config.clip if config.clip_high is None else config.clip_high

    def objective(self, logprobs_BT: Tensor, ratio_BT: Tensor, advantage_B1: Tensor, weight_BT: Tensor | None) -> Tensor:
        """min(r A, clip(r) A), times the sampler correction."""
        from llmclick.modeling.llm.methods.losses import grpo_objective

        objective_BT = grpo_objective(ratio_BT, advantage_B1, self.low, self.high)
        return objective_BT if weight_BT is None else weight_BT * objective_BT

    def clipped(self, ratio_BT: Tensor, advantage_B1: Tensor) -> Tensor:
        """Where the clip changes the gradient."""
        from llmclick.modeling.llm.methods.losses import clipped_by_grpo

        return clipped_by_grpo(ratio_BT, advantage_B1, self.low, self.high)

    def announce(self) -> list[str]:
        """The clip in words."""
        return [f"policy ratio clipped to {1 - self.low:g} .. {1 + self.high:g}"]
