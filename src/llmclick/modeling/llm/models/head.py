"""The output head and the embedding as training sees them: logits, and gradients that never exist twice.

Shapes: N positions, D hidden size, V vocabulary. A head of 248k ids is a third of a small model: its bf16 copy is made slice
by slice where it is needed, and so is its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from llmclick.modeling.llm.models.linear import few_rows_linear
from llmclick.modeling.llm.models.packed_matrix import PackedMatrix
from llmclick.modeling.llm.models.products import operand, product_dtype
from llmclick.modeling.llm.models.projection import add_product, gradient_of, packed, packed_linear

if TYPE_CHECKING:
    from llmclick.modeling.llm.models.base import LanguageModel

SLICE = 2**25
"""Values of the head that are converted, or whose gradient is computed, at a time: 64 MB in bf16, 128 where bf16 is widened."""

_KEPT = 2**25
"""A head of at most so many values keeps its copy (64 or 128 MB) from one refresh to the next."""

_WAITING_BYTES = 64 * 2**20


class Head:
    """The head of `model`, computing in `dtype`. Its weight's gradient waits until it is worth writing."""

    def __init__(self, model: LanguageModel, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        self._product = product_dtype(dtype, model.device)
        self._short_VD: Tensor | None = None
        self._ready: list[Tensor] = []  # slices in the matrix unit's layout, or as products read them
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._empty = False
        self.alone = False
        """Whether nobody else adds to the weight's `.grad` between `clear_gradient` and `finish_gradient`."""
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Brings the bf16 copies up to the weights. Nothing to do in float32."""
        frozen = not self.model.head_weight.requires_grad
        if self.dtype == torch.float32 or (frozen and self._ready):
            return
        weight_VD = self.model.head_weight.detach()
        self._ready = []
        if self._short_VD is None and weight_VD.numel() <= _KEPT:
            self._short_VD = torch.empty_like(weight_VD, dtype=self._product)
        for span in self._slices():
            short = weight_VD[span].to(self.dtype)
            if self._short_VD is not None:
                self._short_VD[span] = short
            plain = short.to(self._product) if self._short_VD is None else self._short_VD[span]
            laid_out = None if self._widens else packed(short)
            self._ready.append(plain if laid_out is None else laid_out)

    @property
    def _widens(self) -> bool:
        """Whether operands in bf16 are multiplied in float32."""
        return self._product != self.dtype

    def release(self) -> None:
        """Gives back the copies."""
        self._short_VD = None
        self._ready = []
        self._waiting.clear()

    def logits(self, hidden: Tensor, matrix: PackedMatrix | None = None) -> Tensor:
        """Logits [..., V] of hidden states [..., D], in float32 where the product is; from what `pack` gave, where it fits."""
        with torch.autocast(hidden.device.type, enabled=False):
            if matrix is not None and matrix.fits(hidden.numel() // hidden.shape[-1]):
                flat_ND = operand(hidden.reshape(-1, hidden.shape[-1]), self.dtype, self._product)
                logits = matrix.product(flat_ND, self._bias()).view(*hidden.shape[:-1], -1)
            elif self.dtype == torch.float32:
                logits = few_rows_linear(hidden.float(), self.model.head_weight, self.model.head_bias)
            else:
                parts = [part for _, part in self._short_logits(hidden.reshape(-1, hidden.shape[-1]))]
                logits = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).view(*hidden.shape[:-1], -1)
            if not self.model.plain_head:
                logits = logits.to(self.dtype)  # as autograd's pass over such a head, in `logprobs`, computes them
            return self.model.finish_logits(logits)

    @torch.no_grad()
    def logits_into(self, hidden_ND: Tensor, out_NV: Tensor) -> None:
        """Writes hidden @ weight.T + bias into `out_NV` (float32), of a head that does nothing more to its logits."""
        with torch.autocast(hidden_ND.device.type, enabled=False):
            if self.dtype == torch.float32:
                torch.mm(hidden_ND.float(), self.model.head_weight.T, out=out_NV)
                if self.model.head_bias is not None:
                    out_NV.add_(self.model.head_bias)
                return
            for span, part in self._short_logits(hidden_ND):
                out_NV[:, span] = part

    def _short_logits(self, hidden_ND: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the vocabulary with their logits [N, slice] in the precision of the product."""
        short_ND = operand(hidden_ND, self.dtype, self._product)
        bias_V = self._bias()
        for at, span in enumerate(self._slices()):
            ready = self._ready[at] if self._ready else None
            bias = None if bias_V is None else bias_V[span]
            if ready is not None and ready.is_mkldnn:
                yield span, packed_linear(short_ND, None, ready, bias)
            else:
                yield span, few_rows_linear(short_ND, self._plain(span) if ready is None else ready, bias)

    def _bias(self) -> Tensor | None:
        bias_V = self.model.head_bias
        return None if bias_V is None else operand(bias_V.detach(), self.dtype, self._product)

    @torch.no_grad()
    def pack(self, rows: int) -> PackedMatrix | None:
        """The weights as they are now, laid out for so many rows; None for a large head, or if products are not in float32."""
        if self._product != torch.float32 or self.model.head_weight.numel() > _KEPT:
            return None
        return PackedMatrix(self._plain(slice(None)), rows)

    def for_training(self) -> None:
        """Gives back the copy of a large head while activations need the room; see Projection.for_training."""
        if self._short_VD is None:
            self._ready = []

    def _plain(self, span: slice) -> Tensor:
        """Some rows of the weight rounded to the compute precision, as products read them."""
        if self._short_VD is None:
            return operand(self.model.head_weight.detach()[span], self.dtype, self._product)
        return self._short_VD[span]

    @torch.no_grad()
    def backward(self, grad_NV: Tensor, hidden_ND: Tensor) -> Tensor:
        """d loss / d hidden [N, D] in float32, given d loss / d logits [N, V] of logits = hidden @ weight.T + bias.

        Gradients of weight and bias, where they train, are added to their `.grad` (the weight's by `finish_gradient`).
        """
        weight_VD, bias_V = self.model.head_weight, self.model.head_bias
        with torch.autocast(grad_NV.device.type, enabled=False):
            if bias_V is not None and bias_V.requires_grad:
                gradient_of(bias_V).add_(grad_NV.sum(dim=0).to(bias_V.dtype))
            short_NV = operand(grad_NV, self.dtype, self._product)
            if self.dtype == torch.float32 or self._short_VD is not None:
                plain_VD = weight_VD.detach() if self._short_VD is None else self._short_VD
                grad_ND = (short_NV @ plain_VD).float()
            else:
                grad_ND = torch.zeros(len(grad_NV), weight_VD.shape[1], device=grad_NV.device)
                for span in self._slices():
                    grad_ND += short_NV[:, span] @ self._plain(span)
            if weight_VD.requires_grad:
                short = (short_NV, operand(hidden_ND.detach(), self.dtype, self._product))
                if sum(grad.nbytes for grad, _ in (*self._waiting, short)) > _WAITING_BYTES:
                    self._waiting.append(short)
                    self._write()
                elif self.dtype == torch.float32:  # not converted, so it is the caller's own memory
                    self._waiting.append((short_NV.clone(), short[1]))
                else:
                    self._waiting.append(short)
        return grad_ND

    def clear_gradient(self) -> set[int]:
        """The ids of the parameters whose gradient counts as zero from now on, without its memory being touched."""
        self._waiting.clear()
        weight_VD = self.model.head_weight
        self._empty = weight_VD.requires_grad and self.alone
        return {id(weight_VD)} if self._empty else set()

    @torch.no_grad()
    def finish_gradient(self) -> None:
        """After this the weight's `.grad` is complete."""
        if self._waiting:
            self._write()
        elif self._empty:
            gradient_of(self.model.head_weight).zero_()
            self._empty = False

    def _write(self) -> None:
        grads, inputs = zip(*self._waiting, strict=True)
        grad_NV, hidden_ND = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in (grads, inputs))
        self._waiting.clear()
        gradient_VD = gradient_of(self.model.head_weight)
        for span in self._slices():
            if self._empty and grad_NV.dtype == gradient_VD.dtype:
                torch.mm(grad_NV[:, span].T, hidden_ND, out=gradient_VD[span])
            elif self._empty:
                gradient_VD[span] = grad_NV[:, span].T @ hidden_ND
            else:
                add_product(gradient_VD[span], grad_NV[:, span], hidden_ND)
        self._empty = False

    def _slices(self) -> list[slice]:
        rows, width = self.model.head_weight.shape
        size = max(1, SLICE // width)
        return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


class EmbeddingGradient:
    """The gradient of the embedding's rows that were looked up; autograd's own is a dense tensor of the whole vocabulary."""

    def __init__(self, embedding: nn.Embedding, head: Head) -> None:
        self.weight_VD: Tensor = embedding.weight
        self._padding_id = embedding.padding_idx  # torch gives its row no gradient for being looked up
        self._head = head
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def embed(self, ids_BT: Tensor) -> Tensor:
        """Embeddings [B, T, D], a leaf whose gradient comes here in the backward pass."""
        embedded = torch.nn.functional.embedding(ids_BT, self.weight_VD.detach()).requires_grad_()
        if self.weight_VD.requires_grad:
            embedded.register_hook(lambda grad: self.add(ids_BT, grad))  # type: ignore[no-untyped-call]
        return embedded

    @torch.no_grad()
    def add(self, ids: Tensor, grad: Tensor) -> None:
        """Keeps d loss / d embedding [..., D] of the ids [...] for `finish`."""
        self._waiting.append((ids.reshape(-1), grad.reshape(-1, grad.shape[-1])))
        if sum(part.nbytes for _, part in self._waiting) > _WAITING_BYTES:
            self.finish()

    def clear(self) -> None:
        """Forgets what waits."""
        self._waiting.clear()

    @torch.no_grad()
    def finish(self) -> None:
        """Adds what waits to the weight's `.grad`."""
        if self._waiting and self.weight_VD is self._head.model.head_weight:
            self._head.finish_gradient()  # the two share their gradient, and the head's may overwrite
        for ids_N, grad_ND in self._waiting:
            if self._padding_id is not None:
                real_n = (ids_N != self._padding_id).nonzero().squeeze(1)
                ids_N, grad_ND = ids_N[real_n], grad_ND[real_n]
            gradient_of(self.weight_VD).index_add_(0, ids_N, grad_ND.to(self.weight_VD.dtype))
        self._waiting.clear()
