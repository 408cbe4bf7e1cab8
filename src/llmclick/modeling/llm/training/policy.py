"""The policy: the model that trains, the weights that move, and the weights that the sampler uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llmclick.modeling.llm.sampling.weights import sampling_copy

if TYPE_CHECKING:
    from llmclick.modeling.llm.compute import Precision
    from llmclick.modeling.llm.models.adapters import Adapter
    from llmclick.modeling.llm.models.base import LanguageModel


class Policy:
    """A language model with fp32 weights of which `trainable` move; forwards run in bf16 under `autocast` if asked to.

    `sampler_model` is the same model in fp32, and in bf16 a model whose matrices are bf16 copies, renewed by `refresh`.
    """

    def __init__(self, model: LanguageModel, precision: Precision, adapter: Adapter | None = None) -> None:
        self.model = model
        self.precision = precision
        self.adapter = adapter
        self.trainable: dict[str, Tensor] = {
            name: parameter for name, parameter in model.module.named_parameters() if parameter.requires_grad
        }
        self._copy = sampling_copy(model) if precision == "bf16" else None

    @property
    def sampler_model(self) -> LanguageModel:
        """What the sampler decodes with."""
        return self._copy.model if self._copy else self.model

    def refresh(self) -> None:
        """Brings the sampler's copy, if there is one, up to the weights that train."""
        if self._copy:
            self._copy.refresh()

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Computes matrix products in bf16 if the precision says so; the fp32 weights' casts are kept while it is open."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """The base model: the same weights with the adapter off."""
        assert self.adapter is not None, "beta > 0 without an adapter is refused when the config is read"
        with self.adapter.disabled():
            yield

    def zero_gradients(self) -> None:
        """Gradients become zero tensors, so that a step without any signal is a step with gradient zero."""
        for parameter in self.trainable.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def weight_sums(self) -> Tensor:
        """The sum of each trainable tensor: differs when a weight has moved."""
        with torch.no_grad():
            wide = torch.float32 if self.model.device.type == "mps" else torch.float64
            return torch.stack([parameter.sum(dtype=wide) for parameter in self.trainable.values()])

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Sets the trainable weights by name, and the sampler's copy with them."""
        with torch.no_grad():
            for name, parameter in self.trainable.items():
                parameter.copy_(tensors[name])
        self.refresh()
