"""A key-value cache whose memory is laid out once: no concatenation per token, rows kept or dropped by index."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class PreallocatedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values in buffers of fixed size, [B, heads, prompt + new tokens, head size]."""

    def __init__(self, keys: Tensor, values: Tensor, indices_B: Tensor, room: int) -> None:
        super().__init__()
        self.length = keys.shape[-2]
        self._key_buffer = _fan_out(keys, indices_B, room)
        self._value_buffer = _fan_out(values, indices_B, room)
        self.is_initialized = True
        self._show()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffers exist from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes the new positions behind the others and returns all that are filled."""
        end = self.length + key_states.shape[-2]
        self._key_buffer[:, :, self.length : end] = key_states
        self._value_buffer[:, :, self.length : end] = value_states
        self.length = end
        self._show()
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that a query of this length sees."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """How many positions are filled."""
        return self.length

    def get_max_length(self) -> int:
        """How many positions fit."""
        return self._key_buffer.shape[-2]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps the rows named, in that order (at most as many as there are)."""
        rows = beam_idx.shape[0]
        for name in ("_key_buffer", "_value_buffer"):
            buffer = getattr(self, name)
            buffer[:rows, :, : self.length] = buffer[:, :, : self.length].index_select(0, beam_idx)
            setattr(self, name, buffer[:rows])
        self._show()

    def _show(self) -> None:
        self.keys = self._key_buffer[:, :, : self.length]
        self.values = self._value_buffer[:, :, : self.length]


def preallocate(prompt_cache: Cache, indices_B: Tensor, room: int) -> Cache | None:
    """The prompts' cache fanned out to rows `indices_B` with room for that many more tokens.

    None when a layer is of another kind than plain full attention (sliding windows, recurrent states): such a family keeps
    the cache that its own code makes.
    """
    if any(type(layer).__name__ != "DynamicLayer" for layer in prompt_cache.layers):
        return None
    return Cache(layers=[PreallocatedLayer(layer.keys, layer.values, indices_B, room) for layer in prompt_cache.layers])


def _fan_out(states: Tensor, indices_B: Tensor, room: int) -> Tensor:
    heads, length, size = states.shape[1:]
    buffer = torch.empty(indices_B.shape[0], heads, length + room, size, dtype=states.dtype, device=states.device)
    buffer[:, :, :length] = states.index_select(0, indices_B)
    return buffer
