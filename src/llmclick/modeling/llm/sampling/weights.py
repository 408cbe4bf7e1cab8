"""The sampler's bf16 copy of fp32 weights: matrices are copied, everything else is shared with the model that trains."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from llmclick.modeling.llm.models.base import LanguageModel


@dataclass(frozen=True)
class SamplingCopy:
    """`model` decodes under autocast; `pairs` are (bf16 copy, fp32 original) of every matrix of a linear layer."""

    model: LanguageModel
    pairs: tuple[tuple[Tensor, Tensor], ...]

    def refresh(self) -> None:
        """Copies the originals' present values."""
        with torch.no_grad():
            torch._foreach_copy_([short for short, _ in self.pairs], [full for _, full in self.pairs])


def sampling_copy(model: LanguageModel) -> SamplingCopy:
    """A copy of `model` with the same modules, whose linear layers hold bf16 matrices.

    Embeddings, norms and other small parameters stay the very tensors that train: the numbers of a bf16 forward differ from
    the trainer's autocast only in what the layout of a batch does to rounding.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    memo: dict[int, object] = {id(tensor): tensor for tensor in (*model.module.parameters(), *model.module.buffers())}
    module = copy.deepcopy(model.module, memo)
    originals = dict(model.module.named_modules())
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            full = originals[name].weight
            short = nn.Parameter(full.detach().to(torch.bfloat16), requires_grad=False)
            layer.weight = short
            pairs.append((short, full))
    twin = copy.copy(model)
    twin.module = module
    return SamplingCopy(twin, tuple(pairs))
