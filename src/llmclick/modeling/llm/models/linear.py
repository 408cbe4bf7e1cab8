"""Linear layers for few rows on a CPU: the same product, asked for in the order that the BLAS computes quickly.

For x [M, K] and weight [N, K] with M between 9 and 48, MKL takes two to three times as long for x @ weight.T as for
weight @ x.T: it packs the large matrix for the first and the small one for the second. Decoding a batch is made of these.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FEWEST, MOST = 9, 48
"""Rows for which the turned product is quicker (measured on AVX-512 and plain AVX2 code paths)."""


def few_rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` [..., N] for x [..., K]: turned around for few rows of float32 on a CPU without gradient."""
    rows = x.numel() // x.shape[-1]
    if FEWEST <= rows <= MOST and is_turned(x, weight):
        # Contiguous: attention leaves its fast kernel for queries whose last dimension is not.
        flat = torch.mm(weight, x.reshape(rows, -1).t()).t().contiguous()
        if bias is not None:
            flat = flat + bias
        return flat.reshape(*x.shape[:-1], weight.shape[0])
    return functional.linear(x, weight, bias)


def is_turned(x: Tensor, weight: Tensor) -> bool:
    """Whether the turned product applies here at all."""
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def speed_up_linears(module: nn.Module) -> None:
    """Gives every plain linear layer of a model on a CPU `few_rows_linear` as its forward."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            # A bound method, not a closure: a deep copy of the module binds it to the copied layer.
            layer.__dict__["forward"] = MethodType(_forward, layer)


def restore_linears(module: nn.Module) -> None:
    """Takes `speed_up_linears` back."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__dict__.pop("forward", None)


def _forward(self: Any, x: Tensor) -> Tensor:
    return few_rows_linear(x, self.weight, self.bias)
