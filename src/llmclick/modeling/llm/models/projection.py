"""Linear layers that read the same input, as one matrix product with its backward written out.

Shapes: N tokens, K input size, M output sizes of all layers together, r rank of a low-rank adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from llmclick.modeling.llm.models.linear import few_rows_linear
from llmclick.modeling.llm.models.packed_matrix import PackedMatrix
from llmclick.modeling.llm.models.products import operand, product_dtype

_PACKED_FOR = 64
"""Rows that a packed matrix is laid out for; measured from 4 to 1,200 rows, no other value is faster at any of them."""

_FEW, _ENOUGH = 320, 640
"""A micro-batch of few tokens leaves its weight gradients for later, until enough tokens are together: writing a gradient costs
the same for 100 tokens as for 600."""


class Projection:
    """One or several linear layers on the same input: q, k and v; gate and up.

    The layers' weights become views of one matrix [M, K], and so do their gradients: one product where there were several,
    while every layer keeps its own parameters under their own names. In bf16 a copy in the layout that the processor's matrix
    unit reads is kept beside it, without which each call would lay it out anew; and with `keep_plain` a plain one for the
    backward pass, which otherwise converts the weights once more. `refresh` renews them. On a processor without such a unit
    there is one copy, of bf16 numbers in float32 (see products.py), and where torch has no such layout a plain one in bf16,
    whatever `keep_plain` says.
    """

    def __init__(self, layers: Sequence[Any], dtype: torch.dtype, keep_plain: bool = True, *, waits: bool = True) -> None:
        self._layers = list(layers)
        bases = [_base(layer) for layer in self._layers]
        self.weights = [base.weight for base in bases]
        self._biases = [base.bias for base in bases if base.bias is not None]
        self.sizes = [int(weight.shape[0]) for weight in self.weights]
        self._dtype = dtype
        self._product = product_dtype(dtype, self.weights[0].device)
        self._keep_plain = keep_plain
        self._waits = waits  # whether there is room for gradients that are written later
        self.weight_MK = _joined(self.weights)
        self._bias_M = _joined(self._biases) if self._biases else None
        self._gradient_MK: Tensor | None = None
        self._short_MK: Tensor | None = None
        self._packed: Tensor | None = None
        self._short_bias_M: Tensor | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._empty = False
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Brings the bf16 copies up to the weights."""
        frozen = not self.weights[0].requires_grad
        ready = self._short_MK if self._packed is None else self._packed
        if self._dtype == torch.float32 or (frozen and ready is not None):
            return
        self._packed = None
        if self._short_MK is None:
            self._short_MK = operand(self.weight_MK, self._dtype, self._product)
        else:
            self._short_MK.copy_(self.weight_MK.to(self._dtype))
        if not self._widens:
            self._packed = packed(self._short_MK)
            if not self._keep_plain and self._packed is not None:
                self._short_MK = None
        self._short_bias_M = None if self._bias_M is None else operand(self._bias_M, self._dtype, self._product)

    @property
    def _widens(self) -> bool:
        """Whether operands in bf16 are multiplied in float32."""
        return self._product != self._dtype

    def for_training(self) -> None:
        """Gives back the copies for sampling while activations need the room: weights are then converted when used.

        A policy calls it before every training pass or before none: no number depends on whether a copy happens to exist.
        """
        if not self._keep_plain:
            self._short_MK = self._packed = None

    def release(self) -> None:
        """Gives back the copies and the gradient's memory."""
        self._short_MK = self._packed = self._gradient_MK = None
        self._waiting.clear()

    def __call__(self, x_NK: Tensor, matrix: PackedMatrix | None = None) -> Tensor:
        """[N, M] in the compute precision, of x in that precision; from `matrix`, what `pack` gave, where it fits."""
        wide_NK = x_NK.to(self._product)
        if self._product == torch.float32:
            bias_M = self._short_bias_M if self._widens else self._bias_M
            if matrix is not None and matrix.fits(len(x_NK)):
                y_NM = matrix.product(wide_NK, bias_M).to(self._dtype)
            else:
                y_NM = few_rows_linear(wide_NK, self._plain(), bias_M).to(self._dtype)
        else:
            y_NM = packed_linear(x_NK, self._plain() if self._packed is None else None, self._packed, self._short_bias_M)
        for adapter, part in self._adapters():
            low_Nr = operand(functional.linear(wide_NK, self._matrix(adapter.a_rK)), self._dtype, self._product)
            part_NM = y_NM[:, part]
            part_NM += functional.linear(low_Nr, self._matrix(adapter.b_Mr)).to(self._dtype) * adapter.scale
        return y_NM

    @torch.no_grad()
    def pack(self, rows: int) -> PackedMatrix | None:
        """The weights as they are now, laid out for products of so many rows; None unless those are in float32."""
        return PackedMatrix(self._plain(), rows) if self._product == torch.float32 else None

    @torch.no_grad()
    def backward(self, grad_NM: Tensor, x_NK: Tensor) -> Tensor:
        """d loss / d x [N, K]; gradients of the weights that train are added to their `.grad`."""
        wide_NM = grad_NM.to(self._product)
        grad_NK = (wide_NM @ self._plain()).to(self._dtype)
        if self.weights[0].requires_grad:
            self._waiting.append((wide_NM, x_NK))
            waiting = sum(len(grad) for grad, _ in self._waiting)
            if not self._waits or len(grad_NM) > _FEW or waiting >= _ENOUGH:
                self._write()
            elif self._dtype == torch.float32:  # not converted, so it may be the caller's own memory
                self._waiting[-1] = (grad_NM.clone(), x_NK)
        if self._biases and self._biases[0].requires_grad:
            sums = torch.split(grad_NM.sum(dim=0, dtype=torch.float32), self.sizes)
            for bias, bias_part in zip(self._biases, sums, strict=True):
                gradient_of(bias).add_(bias_part)
        adapters = self._adapters()
        wide_NK = x_NK.to(self._product) if adapters else x_NK
        for adapter, part in adapters:
            part_NM = wide_NM[:, part]
            a_rK, b_Mr = self._matrix(adapter.a_rK), self._matrix(adapter.b_Mr)
            grad_Nr = operand((part_NM @ b_Mr).mul_(adapter.scale), self._dtype, self._product)
            grad_NK += (grad_Nr @ a_rK).to(self._dtype)
            add_product(gradient_of(adapter.a_rK), grad_Nr, wide_NK)
            add_product(gradient_of(adapter.b_Mr), part_NM, functional.linear(wide_NK, a_rK).mul_(adapter.scale))
        return grad_NK

    def clear_gradient(self) -> set[int]:
        """The ids of the parameters whose gradient counts as zero from now on, without its memory being touched."""
        self._waiting.clear()
        self._empty = self.weights[0].requires_grad
        return {id(weight) for weight in self.weights} if self._empty else set()

    def _plain(self) -> Tensor:
        """The weights [M, K] rounded to the compute precision, as products read them."""
        return self._matrix(self.weight_MK) if self._short_MK is None else self._short_MK

    def _matrix(self, weight: Tensor) -> Tensor:
        return operand(weight.detach(), self._dtype, self._product)

    @torch.no_grad()
    def finish_gradient(self) -> None:
        """After the last backward of a step: the weights' `.grad` is complete."""
        if self._waiting:
            self._write()
        elif self._empty:
            self._gradient().zero_()
            self._empty = False

    def _write(self) -> None:
        """Adds what waits to the gradient, or writes it where nothing was before."""
        grads, inputs = zip(*self._waiting, strict=True)
        grad_NM, x_NK = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in (grads, inputs))
        self._waiting.clear()
        x_NK = x_NK.to(self._product)
        gradient_MK = self._gradient()
        if not self._empty:
            add_product(gradient_MK, grad_NM, x_NK)
        elif grad_NM.dtype == gradient_MK.dtype:
            torch.mm(grad_NM.T, x_NK, out=gradient_MK)
        else:
            gradient_MK.copy_(grad_NM.T @ x_NK)
        self._empty = False

    def _gradient(self) -> Tensor:
        """The gradient of the joined matrix, of which the layers' own gradients are views."""
        own = self.weights[0].grad
        if self._gradient_MK is None or own is None or own.data_ptr() != self._gradient_MK.data_ptr():
            # Filled at once where it counts as zero: see _write and finish_gradient.
            whole_MK = torch.empty_like(self.weight_MK) if self._empty else torch.zeros_like(self.weight_MK)
            for weight, part in zip(self.weights, torch.split(whole_MK, self.sizes), strict=True):
                if weight.grad is not None and not self._empty:
                    part.copy_(weight.grad)
                weight.grad = part.detach()
            self._gradient_MK = whole_MK
        return self._gradient_MK

    def _adapters(self) -> list[tuple[_LowRank, slice]]:
        found = []
        start = 0
        for layer, size in zip(self._layers, self.sizes, strict=True):
            if not isinstance(layer, nn.Linear) and not layer.disable_adapters:
                for name in layer.active_adapters:
                    found.append((_LowRank(layer, name), slice(start, start + size)))
            start += size
        return found


class _LowRank:
    """The two matrices of a low-rank adapter on one layer: y += scale * x A' B'."""

    def __init__(self, layer: Any, name: str) -> None:
        self.a_rK: Tensor = layer.lora_A[name].weight
        self.b_Mr: Tensor = layer.lora_B[name].weight
        self.scale = float(layer.scaling[name])


def add_product(gradient_MK: Tensor, left_NM: Tensor, right_NK: Tensor) -> None:
    """Adds left' right to a float32 gradient."""
    if left_NM.dtype == gradient_MK.dtype:
        gradient_MK.addmm_(left_NM.T, right_NK)
    else:
        gradient_MK.add_(left_NM.T @ right_NK)


def gradient_of(parameter: Tensor) -> Tensor:
    """A parameter's `.grad`, zeros if it has none yet."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def packed(weight_MK: Tensor) -> Tensor | None:
    """A bf16 matrix in the layout of the processor's matrix unit, or None where this torch has no such layout."""
    if weight_MK.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight_MK, _PACKED_FOR)  # type: ignore[no-any-return]
    except (AttributeError, RuntimeError):
        return None


def packed_linear(x_NK: Tensor, weight_MK: Tensor | None, packed_weight: Tensor | None, bias_M: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` [N, M], with the packed matrix where there is one."""
    if packed_weight is None:
        assert weight_MK is not None
        return functional.linear(x_NK, weight_MK, bias_M)
    y_NM: Tensor = torch.ops.mkldnn._linear_pointwise(x_NK, packed_weight, bias_M, "none", [], "")
    return y_NM


class _Product(torch.autograd.Function):
    """A projection inside autograd's graph: its weights' gradients go where the projection puts them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, projection: Projection, dtype: torch.dtype) -> Tensor:
        flat_NK = x.reshape(-1, x.shape[-1]).to(dtype)
        ctx.save_for_backward(flat_NK)
        ctx.projection, ctx.like = projection, x
        with torch.autocast(x.device.type, enabled=False):
            return projection(flat_NK).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (flat_NK,) = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False), torch.no_grad():
            grad_NK = ctx.projection.backward(grad.reshape(-1, grad.shape[-1]).to(flat_NK.dtype), flat_NK)
        return grad_NK.to(ctx.like.dtype).view(ctx.like.shape), None, None


def project_in_bf16(decoder: nn.Module) -> list[Projection]:
    """Has every linear layer of a decoder, under autocast, compute by a projection of its own. Returns them.

    Elsewhere the layers compute as before. Autograd knows such a layer by its input alone, which therefore has to require
    gradients even if nothing before it trains.
    """
    adapted = {id(layer.base_layer) for layer in decoder.modules() if hasattr(layer, "base_layer")}
    keep_plain = keeps_plain(decoder)
    projections = []
    layer: Any
    for layer in decoder.modules():
        is_plain = type(layer) is nn.Linear and id(layer) not in adapted and not _is_low_rank(layer, decoder)
        if (is_plain or hasattr(layer, "base_layer")) and can_join([layer]):
            projection = Projection([layer], torch.bfloat16, keep_plain, waits=keep_plain)
            layer.__dict__["projection"] = projection
            layer.__dict__["projected_from"] = layer.forward
            layer.__dict__["forward"] = MethodType(_projected, layer)
            projections.append(projection)
    return projections


def _projected(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if not torch.is_autocast_enabled(x.device.type):
        return self.projected_from(x, *args, **kwargs)  # type: ignore[no-any-return]
    return _Product.apply(x, self.projection, torch.bfloat16)  # type: ignore[no-any-return]


def _is_low_rank(layer: nn.Module, decoder: nn.Module) -> bool:
    """Whether this is one of an adapter's two small matrices, which the adapted layer's projection computes."""
    other: Any
    for other in decoder.modules():
        if hasattr(other, "lora_A") and any(layer is inner for inner in (*other.lora_A.values(), *other.lora_B.values())):
            return True
    return False


def keeps_plain(decoder: nn.Module) -> bool:
    """Whether the linear layers are small enough together for further copies: at most 512 MB in bf16, 1 GB in float32."""
    return sum(layer.weight.numel() for layer in decoder.modules() if type(layer) is nn.Linear) <= 2**28


def can_join(layers: Sequence[Any]) -> bool:
    """Whether all are linear layers (or adapters around them) that agree about a bias and about training."""
    bases = [_base(layer) for layer in layers]
    return (
        all(type(base) is nn.Linear and base.weight.dtype == torch.float32 for base in bases)
        and len({base.bias is None for base in bases}) == 1
        and len({base.weight.requires_grad for base in bases}) == 1
        and all(isinstance(layer, nn.Linear) or _is_plain_adapter(layer) for layer in layers)
    )


def _is_plain_adapter(layer: Any) -> bool:
    return not layer.merged and not layer.lora_variant and all(name in layer.lora_A for name in layer.active_adapters)


def _base(layer: Any) -> Any:
    return getattr(layer, "base_layer", layer)


@torch.no_grad()
def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """The parameters one after another in one tensor, of which each becomes a view."""
    if len(parameters) == 1:
        return parameters[0].detach()
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, [len(parameter) for parameter in parameters]), strict=True):
        parameter.data = part
    return whole
