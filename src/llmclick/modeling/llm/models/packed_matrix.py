"""Float32 weights in the layout that MKL multiplies from, for as long as one batch is decoded.

MKL lays the weights out anew in every product. For the few rows of a decoding batch that is up to half of the product's time,
and decoding multiplies by the same weights once a token. The layout is made for one number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MOST_ROWS = 256
"""More rows hide the layout's cost: at 512 a product from it is one seventh faster, at 64 two fifths."""

FEWEST_TOKENS = 16
"""Laying all weights out takes as long as what it saves in five to twelve tokens."""


class PackedMatrix:
    """A weight [M, K] that products of `rows` rows, or of more than half as many, read."""

    def __init__(self, weight_MK: Tensor, rows: int) -> None:
        self._weight_MK = weight_MK
        self._rows = rows
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight_MK, rows)

    def fits(self, rows: int) -> bool:
        """Whether this is the quicker way for so many rows."""
        return self._rows < 2 * rows <= 2 * self._rows

    def product(self, x_NK: Tensor, bias_M: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias` [N, M]; rows that `x` lacks are filled with zeros, and their results cut off."""
        missing = self._rows - len(x_NK)
        full_RK = functional.pad(x_NK, (0, 0, 0, missing)) if missing else x_NK.contiguous()
        y_RM: Tensor = torch.ops.mkl._mkl_linear(full_RK, self._packed, self._weight_MK, bias_M, self._rows)
        return y_RM[: len(x_NK)]


PackedMatrices = Mapping[Any, PackedMatrix]
"""By the projection, or the head, whose weights they are."""


def pays(rows: int, tokens: int) -> bool:
    """Whether weights should be laid out to decode so many rows for at most so many tokens; a function of these alone."""
    return 1 < rows <= MOST_ROWS and tokens >= FEWEST_TOKENS and _available()


def _available() -> bool:
    # Private operators, which torch's own compiler calls for the same purpose.
    return torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_reorder_linear_weight")  # type: ignore[no-untyped-call]
