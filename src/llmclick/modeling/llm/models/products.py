"""The precision in which matrix products run on a processor.

A unit for bf16 multiplies two bf16 numbers exactly, adds in float32 and rounds the sum once. float32 does the same to operands
that are bf16 numbers, and on a processor without such a unit it is four times as fast as the emulation of torch's libraries.
The head's sums stay in float32 there: nothing but a pass over the vocabulary would come of rounding them.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from llmclick.modeling.llm.compute import has_bf16


def product_dtype(dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.dtype:
    """What products of operands in `dtype` are computed in: float32 for bf16 on a CPU that would emulate it."""
    return torch.float32 if dtype == torch.bfloat16 and emulates_bf16(torch.device(device)) else dtype


@functools.cache
def emulates_bf16(device: torch.device) -> bool:
    """Whether this is a CPU without arithmetic for bf16."""
    return device.type == "cpu" and not has_bf16("cpu")


def operand(x: Tensor, dtype: torch.dtype, product: torch.dtype) -> Tensor:
    """`x` rounded to `dtype`, as a tensor in the precision of the product."""
    return x.to(dtype).to(product)
