"""The policy: the model that trains, the weights that move, and the weights that the sampler uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from llmclick.modeling.llm.models.decoder import Decoder, why_not
from llmclick.modeling.llm.models.head import EmbeddingGradient, Head
from llmclick.modeling.llm.models.products import product_dtype
from llmclick.modeling.llm.models.projection import Projection, keeps_plain, project_in_bf16
from llmclick.modeling.llm.process import map_large_blocks, trim_memory
from llmclick.modeling.llm.sampling.weights import SamplingCopy, sampling_copy
from llmclick.modeling.llm.sampling.written_out import WrittenOutModel

if TYPE_CHECKING:
    from llmclick.modeling.llm.compute import Precision
    from llmclick.modeling.llm.models.adapters import Adapter
    from llmclick.modeling.llm.models.base import LanguageModel


DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Policy:
    """A language model with fp32 weights of which `trainable` move; forwards run in bf16 under `autocast` if asked to.

    `decoder` is the model's decoder written out, where its family has one and `written_out` does not forbid it; else `general`
    says why not. `sampler_model` is what the sampler decodes with: that decoder, or the model, in bf16 with matrices that are
    copies, renewed by `refresh`.
    """

    def __init__(
        self, model: LanguageModel, precision: Precision, adapter: Adapter | None = None, *, written_out: bool = True
    ) -> None:
        self.model = model
        self.precision = precision
        self.adapter = adapter
        self.trainable: dict[str, Tensor] = {
            name: parameter for name, parameter in model.module.named_parameters() if parameter.requires_grad
        }
        self.general = why_not(model) if written_out else "it was switched off"
        # A small model is quicker if freed memory stays with the process from step to step; a large one would not fit. The
        # written-out decoder keeps so few activations that there is room for bf16 copies beside them, but not for float32 ones.
        large = not keeps_plain(model.module.get_decoder())
        widens = product_dtype(DTYPES[precision], model.device) != DTYPES[precision]
        self._trims = large and self.general is not None
        self._drops_copies = large and (self.general is not None or widens)
        if self._trims:
            map_large_blocks()
        self.head = Head(model, DTYPES[precision])
        self.decoder = Decoder(model, DTYPES[precision], self.head) if self.general is None else None
        self._written_out: WrittenOutModel | None = None
        self._copy: SamplingCopy | None = None
        self._projections: list[Projection] = []
        self._embedding: EmbeddingGradient | None = None
        if self.decoder is not None:
            self._written_out = WrittenOutModel(model, self.decoder, self.head)
            self._projections, self._embedding = self.decoder.projections, self.decoder.embedding
        elif model.device.type == "cpu":
            if type(model.module.get_input_embeddings()) is nn.Embedding:
                self._embedding = EmbeddingGradient(model.module.get_input_embeddings(), self.head)
            if precision == "bf16":
                self._projections = project_in_bf16(model.module.get_decoder())
                model.projected = True
            model.head, model.embedding = self.head, self._embedding
        elif precision == "bf16":
            self._copy = sampling_copy(model)
        # Autograd adds to the weight at once: for a head that bends its logits, and for an embedding that it shares.
        self.head.alone = model.plain_head and (self._embedding is not None or not model.tied)

    @property
    def sampler_model(self) -> LanguageModel:
        """What the sampler decodes with."""
        if self._written_out is not None:
            return self._written_out
        return self._copy.model if self._copy else self.model

    def refresh(self) -> None:
        """Brings the copies of the weights, if there are any, up to those that train."""
        for part in self._parts():
            part.refresh()
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
        """Gradients count as zero, so that a step without any signal is a step with gradient zero.

        Those that are written and not added to keep their memory as it is until `finish_gradients`.
        """
        cleared = set().union(*(part.clear_gradient() for part in self._parts()))
        if self._embedding is not None:
            self._embedding.clear()
        for parameter in self.trainable.values():
            if id(parameter) in cleared:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def for_training(self) -> None:
        """Before each training pass: copies for sampling that are too large to stay make room."""
        self.head.for_training()
        if self._drops_copies:
            for projection in self._projections:
                projection.for_training()
        if self._trims:
            trim_memory()

    def _parts(self) -> list[Projection | Head]:
        return [*self._projections, self.head]

    def finish_gradients(self) -> None:
        """After a step's last backward pass: every `.grad` is complete."""
        for part in self._parts():
            part.finish_gradient()
        if self._embedding is not None:
            self._embedding.finish()
        if self._trims:
            trim_memory()

    def release(self) -> None:
        """Gives back gradients and copies of the weights: no step follows."""
        for parameter in self.trainable.values():
            parameter.grad = None
        for part in self._parts():
            part.release()
        self._copy = None
        trim_memory()

    def weight_sums(self) -> Tensor:
        """The sum of each trainable tensor: differs when a weight has moved."""
        with torch.no_grad():
            wide = torch.float32 if self.model.device.type == "mps" else torch.float64
            # Part by part: a sum in float64 converts what it sums first.
            return torch.stack(
                [
                    torch.stack([part.sum(dtype=wide) for part in torch.split(parameter.reshape(-1), 2**22)]).sum()
                    for parameter in self.trainable.values()
                ]
            )

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Sets the trainable weights by name, and the sampler's copy with them."""
        with torch.no_grad():
            for name, parameter in self.trainable.items():
                parameter.copy_(tensors[name])
        self.refresh()
