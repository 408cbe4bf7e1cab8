"""Float32 weights in the layout that MKL multiplies from, for as long as one batch is decoded.

MKL lays the weights out anew in every product. For the few rows of a decoding batch that is up to half of the product's time,
and decoding multiplies by the same weights once a token. The layout is made for one number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MOST_ROWS = 256
"""With more rows the product itself takes the time: from the layout it is one tenth faster at 256 rows, two fifths at 64."""

FEWEST_TOKENS = 16
"""Laying all weights out takes as long as what it saves in five to twelve tokens."""


class PackedMatrix:
    """A weight [M, K] laid out for products of `rows` rows; it also serves fewer, down to more than half."""

    def __init__(self, weight_MK: Tensor, rows: int) -> None:
        self._weight_MK = weight_MK  # not a copy; the operator asks for its shape
        self._rows = rows
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight_MK, rows)

    def fits(self, rows: int) -> bool:
        """Whether `product` takes so many rows. Below half, filling up costs more than the layout saves."""
        return self._rows < 2 * rows <= 2 * self._rows

    def product(self, x_NK: Tensor, bias_M: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias` [N, M]; rows that `x` lacks are filled with zeros, and their results cut off."""
        missing = self._rows - len(x_NK)
        assert missing >= 0, f"laid out for {self._rows} rows, not {len(x_NK)}"
        full_RK = functional.pad(x_NK, (0, 0, 0, missing)) if missing else x_NK.contiguous()
        y_RM: Tensor = torch.ops.mkl._mkl_linear(full_RK, self._packed, self._weight_MK, bias_M, self._rows)
        return y_RM[: len(x_NK)]


PackedMatrices = Mapping[Any, PackedMatrix]
"""By the projection, or the head, whose weights they are."""


def pays(rows: int, tokens: int) -> bool:
    """Whether weights should be laid out to decode so many rows for at most so many tokens.

    A function of these and of this torch's build, never of what was computed before: a resumed run decides the same.
    """
    return 1 < rows <= MOST_ROWS and tokens >= FEWEST_TOKENS and _available()


@functools.cache
def _available() -> bool:
    """Whether this torch has the two operators. They are private, and its own compiler calls them for the same purpose."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        PackedMatrix(torch.ones(2, 2), 2).product(torch.ones(2, 2))
    except (AttributeError, RuntimeError):
        return False
    return True
