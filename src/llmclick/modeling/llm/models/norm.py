"""The root-mean-square norm written out, with its backward pass.

Shapes: [..., D], D the size that is normed over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmclick.modeling.llm.models.projection import gradient_of


class Norm:
    """Root-mean-square norm (arXiv 1910.07467) in float32: y = (w + offset) x / sqrt(mean(x^2) + eps).

    `offset` is 1 for families that store a norm's weight as its difference from 1 (Qwen3.5).
    """

    def __init__(self, weight: Tensor, eps: float, offset: float = 0.0) -> None:
        self.weight = weight
        self._eps = torch.tensor(eps, device=weight.device)
        self._offset = offset

    def __call__(self, x: Tensor) -> Tensor:
        """Of x in any precision, in float32."""
        return (x * self._scale(x)).mul_(self._factor())

    def unit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x / sqrt(mean(x^2) + eps) and that factor [..., 1], of which output and gradient are made."""
        scale = self._scale(x)
        return x * scale, scale

    def output(self, unit: Tensor) -> Tensor:
        """The norm's output again, bit for bit."""
        return unit * self._factor()

    def backward(self, grad: Tensor, unit: Tensor, scale: Tensor) -> Tensor:
        """d loss / d x in float32, given d loss / d y and what `unit` gave; the weight's gradient is added to its `.grad`."""
        if self.weight.requires_grad:
            gradient_of(self.weight).add_((grad * unit).reshape(-1, unit.shape[-1]).sum(dim=0))
        grad = grad * self._factor()
        along = torch.linalg.vecdot(grad, unit)[..., None]
        return grad.addcmul_(unit, along, value=-1 / unit.shape[-1]).mul_(scale)

    def _factor(self) -> Tensor:
        weight = self.weight.detach()
        return weight + self._offset if self._offset else weight

    def _scale(self, x: Tensor) -> Tensor:
        """1 / sqrt(mean(x^2) + eps), with one pass over x; torch's own rms_norm takes six on a CPU."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self._eps, length, length, value=1 / x.shape[-1]).rsqrt_()


def norm_of(module: Any) -> Norm:
    """The norm of a transformers module: Llama's kind, or Qwen3.5's around 1."""
    if hasattr(module, "variance_epsilon"):
        return Norm(module.weight, float(module.variance_epsilon))
    return Norm(module.weight, float(module.eps), offset=1.0)
