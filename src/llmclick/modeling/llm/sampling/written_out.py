"""Decoding with a written-out decoder: what the local sampler sees as a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmclick.modeling.llm.models.base import LanguageModel
from llmclick.modeling.llm.models.decoder import Decoder, Layer
from llmclick.modeling.llm.models.decoder_cache import DecoderCache
from llmclick.modeling.llm.models.head import Head
from llmclick.modeling.llm.models.layout import Group, Span


class WrittenOutModel(LanguageModel):
    """The language model `model`, with hidden states and logits from its written-out decoder. It samples and never trains."""

    def __init__(self, model: LanguageModel, decoder: Decoder, head: Head) -> None:
        vars(self).update(vars(model))
        self.decoder = decoder
        self.head = head

    def new_cache(self, *, training: bool) -> Any:
        """An empty cache; its memory is laid out when the prompts' lengths are known."""
        return DecoderCache()

    def hidden(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor,
        mask_BS: Tensor | None = None,
        cache: Any = None,
        keep: slice | None = None,
    ) -> Tensor:
        """As LanguageModel.hidden: prompts padded on the left into an empty cache (or none), or one further token a row."""
        if cache is not None and cache.length:
            return self.decoder.step(ids_BT[:, 0], positions_BT[:, 0], cache, _hidden_keys(mask_BS))[:, None]
        rows, length = ids_BT.shape
        real_BT = torch.ones_like(ids_BT) if mask_BS is None else mask_BS
        places_N = real_BT.reshape(-1).nonzero().squeeze(1)
        lengths = real_BT.sum(dim=1).tolist()
        starts = [sum(lengths[:row]) for row in range(rows)]
        layout = self.decoder.layout(
            [Group(Span(start, real), []) for start, real in zip(starts, lengths, strict=True)],
            positions_BT.expand(rows, length).reshape(-1)[places_N],
        )
        if cache is not None:
            self.decoder.lay_out(cache, rows, length)
        buffers = iter(() if cache is None else zip(cache.keys, cache.values, strict=True))

        def keep_states(layer: Layer, kept: dict[str, Tensor]) -> None:
            if "state" in kept:
                cache.states.append(kept["state"])
                cache.windows.append(kept["window"])
                return
            for buffer, states in zip(next(buffers), (kept["k"], kept["v"]), strict=True):
                padded = states.new_zeros(rows * length, *states.shape[1:]).index_copy_(0, places_N, states)
                buffer.copy_(padded.view(rows, length, *states.shape[1:]).transpose(1, 2))

        hidden_ND = self.decoder.forward(
            ids_BT.reshape(-1)[places_N],
            layout,
            torch.arange(len(places_N), device=self.device),
            keep_states=None if cache is None else keep_states,
        )
        flat: Tensor = hidden_ND.new_zeros(rows * length, hidden_ND.shape[1]).index_copy_(0, places_N, hidden_ND)
        hidden_BTD = flat.view(rows, length, -1)
        return hidden_BTD if keep is None else hidden_BTD[:, keep]

    def logits(self, hidden: Tensor, cache: Any = None) -> Tensor:
        """As LanguageModel.logits."""
        assert self.head is not None
        return self.head.logits(hidden, None if cache is None else cache.packed.get(self.head))

    def select(self, cache: Any, rows: Tensor) -> Any:
        """The cache with the rows named, in ascending order and each once."""
        cache.keep(rows)
        if not all(matrix.fits(len(rows)) for matrix in cache.packed.values()):
            cache.packed = {}  # rows only become fewer
        return cache

    def widen(self, cache: Any, rows: Tensor, room: int) -> Any:
        """The cache with each row repeated as `rows` says, with room for that many more tokens."""
        assert self.head is not None
        wide = cache.widened(rows, room)
        wide.packed = self.decoder.pack(len(rows), room, self.head)
        return wide


def _hidden_keys(mask_BS: Tensor | None) -> Tensor | None:
    """0 for real keys and -inf for padding, or None if nothing is padded."""
    if mask_BS is None or bool(mask_BS.all()):
        return None
    return torch.zeros(mask_BS.shape, device=mask_BS.device).masked_fill_(mask_BS == 0, -torch.inf)
