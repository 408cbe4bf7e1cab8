"""The learner in this process: a policy, its gradient, and AdamW."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmclick.interfaces import NotFinite, NothingMoved
from llmclick.modeling.llm.process import trim_memory
from llmclick.modeling.llm.training.optim import adamw, clip_gradient, gradient_norm
from llmclick.modeling.llm.training.step import accumulate_gradient

if TYPE_CHECKING:
    from llmclick.modeling.llm.training.batch import SampledBatch
    from llmclick.modeling.llm.training.policy import Policy
    from llmclick.modeling.llm.training.statistics import StepStatistics
    from llmclick.modeling.llm.training.step import Objective

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW remembers of each parameter."""


class LocalLearner:
    """`interfaces.Learner` on one process's weights. `moved` says whether an update has changed a weight yet."""

    def __init__(self, policy: Policy, weight_decay: float) -> None:
        self.policy = policy
        self.optimizer = adamw(policy.trainable, 0.0, weight_decay)
        self.moved = False

    def gradient(self, batch: SampledBatch, objective: Objective, *, first: bool) -> StepStatistics:
        """See `interfaces.Learner`."""
        self.policy.zero_gradients()
        return accumulate_gradient(self.policy, batch, objective, batch.denominators(objective.max_new_tokens), first)

    def update(self, lr: float, max_norm: float) -> float:
        """See `interfaces.Learner`. After the first gradient that is not zero, weights must have moved."""
        norm = gradient_norm(self.policy.trainable.values())
        if not bool(norm.isfinite()):
            raise NotFinite
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        clip_gradient(self.optimizer, norm, max_norm)
        if not self.optimizer.state:
            trim_memory()
        before = None if self.moved or not float(norm) or not lr else self.policy.weight_sums()
        self.optimizer.step()
        if before is not None:
            self.moved = not torch.equal(before, self.policy.weight_sums())
            if not self.moved:
                raise NothingMoved(float(norm))
        return float(norm)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `interfaces.WeightSource`."""
        yield from self.policy.model.state_dict().items()

    def tensors(self) -> dict[str, Tensor]:
        """What a snapshot keeps: `weights/NAME`, and `optimizer/MOMENT/NAME`."""
        kept: dict[str, Tensor] = {}
        for name, parameter in self.policy.trainable.items():
            kept[f"weights/{name}"] = parameter.detach()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                kept[f"optimizer/{key}/{name}"] = value
        return kept

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `tensors` gave."""
        self.policy.load({name.removeprefix("weights/"): t for name, t in tensors.items() if name.startswith("weights/")})
        for name, parameter in self.policy.trainable.items():
            for key in MOMENTS:
                if (value := tensors.get(f"optimizer/{key}/{name}")) is not None:
                    self.optimizer.state[parameter][key] = value.to(parameter.device)

    def release(self) -> None:
        """Gives back what only further steps would need: gradients, the optimizer's state, copies of the weights."""
        self.optimizer.state.clear()
        self.policy.release()
