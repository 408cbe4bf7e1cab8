"""What decoding with a written-out decoder remembers of each row: keys and values, windows and states.

Shapes: B rows, K key-value heads, d head size; of a delta net C convolved channels, w its window, H heads of sizes K and V.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llmclick.modeling.llm.models.packed_matrix import PackedMatrices


class DecoderCache:
    """Buffers laid out once: keys and values [layers, B, K, room, d], `length` positions of them filled.

    `packed` are weights laid out for its rows; they go when it goes.
    `windows` [B, C, w - 1] and `states` [B, H, K, V] belong to the layers with a state, in order; nothing there grows.
    """

    def __init__(self) -> None:
        self.keys = self.values = torch.empty(0)
        self.windows: list[Tensor] = []
        self.states: list[Tensor] = []
        self.length = 0
        self.packed: PackedMatrices = {}

    def lay_out(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Memory for the keys and values of prompts, [layers, B, K, length, d], which the caller fills at once."""
        self.keys, self.values = (torch.empty(tuple(shape), dtype=dtype) for _ in range(2))
        self.length = shape[3]

    def widened(self, rows_B: Tensor, room: int) -> DecoderCache:
        """The rows named (repeats allowed), with room for that many more positions."""
        other = DecoderCache()
        other.length = self.length
        layers, _, heads, _, size = self.keys.shape
        for name in ("keys", "values"):
            wide = torch.empty(layers, len(rows_B), heads, self.length + room, size, dtype=self.keys.dtype)
            for old, new in zip(getattr(self, name), wide, strict=True):
                new[:, :, : self.length] = old[:, :, : self.length].index_select(0, rows_B)
            setattr(other, name, wide)
        other.windows = [window.index_select(0, rows_B) for window in self.windows]
        other.states = [state.index_select(0, rows_B) for state in self.states]
        return other

    def keep(self, rows_B: Tensor) -> None:
        """Keeps the rows named, in ascending order."""
        for name in ("keys", "values"):
            buffer = getattr(self, name)
            for layer in buffer:
                layer[: len(rows_B), :, : self.length] = layer[:, :, : self.length].index_select(0, rows_B)
            setattr(self, name, buffer[:, : len(rows_B)])
        for parts in (self.windows, self.states):
            for at, part in enumerate(parts):
                parts[at] = part.index_select(0, rows_B)
