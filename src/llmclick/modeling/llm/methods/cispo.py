"""The method of `recipe: llm_cispo`. Imports without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from llmclick.config.methods import CispoMethod


class Cispo:
    """Clipped importance-sampling policy optimization (https://arxiv.org/abs/2506.13585): weights capped at 1 + clip."""

    def __init__(self, config: CispoMethod) -> None:
        self.clip = config.clip

    def objective(self, logprobs_BT: Tensor, ratio_BT: Tensor, advantage_B1: Tensor, weight_BT: Tensor | None) -> Tensor:
        """sg(w min(r, 1 + clip)) A logprobs, w the sampler correction."""
        from llmclick.modeling.llm.methods.losses import cispo_objective

        objective_BT = cispo_objective(logprobs_BT, ratio_BT, advantage_B1, self.clip)
        return objective_BT if weight_BT is None else weight_BT * objective_BT

    def clipped(self, ratio_BT: Tensor, advantage_B1: Tensor) -> Tensor:
        """Where the cap changes the weight."""
        from llmclick.modeling.llm.methods.losses import clipped_by_cispo

        return clipped_by_cispo(ratio_BT, advantage_B1, self.clip)

    def announce(self) -> list[str]:
        """The cap in words."""
        return [f"importance weights capped at {1 + self.clip:g}"]
