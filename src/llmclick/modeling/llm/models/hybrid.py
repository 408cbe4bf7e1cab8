"""Qwen3.5: gated-delta-net layers with full attention in between; only the text model of the multimodal checkpoint is loaded.

Shapes: B sequences, T new positions, H value heads, K and V key and value size of a head, C convolved channels.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from llmclick.modeling.llm.models.base import LanguageModel, load_checked
from llmclick.modeling.llm.models.source import Source


def load_hybrid(source: Source, dtype: torch.dtype | Literal["auto"]) -> Any:
    """Qwen3_5ForCausalLM with every weight in `dtype`; the vision tower and the multi-token-prediction head stay on disk."""
    from transformers import Qwen3_5ForCausalLM

    module = load_checked(source, Qwen3_5ForCausalLM.from_pretrained, dtype=dtype)
    for layer in delta_net_layers(module):
        layer.fast_step = True
        # A bound method, not a closure: a deep copy of the module binds it to the copied layer.
        layer.forward = MethodType(_delta_net_forward, layer)
    return module


def delta_net_layers(module: Any) -> list[Any]:
    """The gated-delta-net layers of a model. `layer.fast_step = False` gives transformers' own arithmetic back."""
    return [layer.linear_attn for layer in module.model.layers if hasattr(layer, "linear_attn")]


class HybridModel(LanguageModel):
    """A Qwen3.5 text model. Its cache cannot be cropped: a recurrent state knows no earlier one."""

    family = "hybrid"

    def new_cache(self, *, training: bool) -> Any:
        """An empty cache whose recurrent states are replaced, never overwritten, so that gradients flow through it."""
        cache = DynamicCache(config=self.module.config)
        cache.layers = [
            DeltaNetState() if kind == "linear_attention" else layer
            for kind, layer in zip(self.module.config.layer_types, cache.layers, strict=True)
        ]
        return cache


class DeltaNetState(LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """What one gated-delta-net layer remembers: the last inputs of its convolution [B, C, 3] and its state [B, H, K, V].

    transformers' own layer copies into fixed memory, which destroys what a backward pass still needs; this one assigns.
    """

    def __init__(self) -> None:
        self.conv_state: Tensor | None = None
        self.recurrent_state: Tensor | None = None
        self.number_of_states = 1
        # Makes transformers send single tokens through update_conv_state too, instead of through a kernel that works in place.
        self.record_past = True

    @property
    def conv_states(self) -> dict[int, Tensor | None]:
        """The convolution's inputs as transformers asks for them."""
        return {0: self.conv_state}

    @property
    def recurrent_states(self) -> dict[int, Tensor | None]:
        """The recurrent state as transformers asks for it."""
        return {0: self.recurrent_state}

    @property
    def has_previous_state(self) -> dict[int, bool]:
        """Whether anything has been seen yet."""
        return {0: self.conv_state is not None}

    @property
    def is_conv_states_initialized(self) -> dict[int, bool]:
        """As transformers asks for it."""
        return {0: self.conv_state is not None}

    @property
    def is_recurrent_states_initialized(self) -> dict[int, bool]:
        """As transformers asks for it."""
        return {0: self.recurrent_state is not None}

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is laid out in advance."""

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int = 4, **kwargs: Any) -> Tensor:
        """Takes the new inputs [B, C, T] and returns them with those that the convolution still sees in front."""
        if self.conv_state is not None:
            full = torch.cat([self.conv_state, conv_states], dim=-1)
        else:
            full = functional.pad(conv_states, (conv_kernel_size - 1, 0))
        # A copy, so that a long prompt's inputs are not kept alive by their last three.
        self.conv_state = full[..., full.shape[-1] - (conv_kernel_size - 1) :].clone()
        return full

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Replaces the state."""
        self.recurrent_state = recurrent_states
        return recurrent_states

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps or repeats rows by index."""
        if self.conv_state is not None:
            self.conv_state = self.conv_state.index_select(0, beam_idx.to(self.conv_state.device))
        if self.recurrent_state is not None:
            self.recurrent_state = self.recurrent_state.index_select(0, beam_idx.to(self.recurrent_state.device))

    def reset(self) -> None:
        """Forgets everything."""
        self.conv_state = self.recurrent_state = None

    def crop(self, tokens_to_remove: int) -> None:
        """Raises: a recurrent state has no way back."""
        raise RuntimeError("a gated-delta-net state cannot be cropped")


def _delta_net_forward(
    self: Any, hidden_states: Tensor, cache: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
) -> Tensor:
    """A gated-delta-net layer's forward [B, T, D]: one token after another in fewer passes, the rest in transformers' code.

    Off CUDA transformers has no kernels for these layers and runs plain torch. There the chunk length is cut to the input's: it
    is 64 otherwise, and eight tokens would pay for 64.
    """
    if self.fast_step and not hidden_states.is_cuda:
        length = hidden_states.shape[1]
        if length == 1 and cache is not None:
            state = cache.layers[self.layer_idx]
            if isinstance(state, DeltaNetState) and state.recurrent_state is not None and state.conv_state is not None:
                return _one_token(self, hidden_states[:, 0], state)[:, None]
        kwargs["chunk_size"] = next(size for size in (8, 16, 32, 64) if length <= size or size == 64)
    output: Tensor = type(self).forward(self, hidden_states=hidden_states, cache=cache, attention_mask=attention_mask, **kwargs)
    return output


def _one_token(layer: Any, hidden_BD: Tensor, state: DeltaNetState) -> Tensor:
    """One decoding step of the gated delta rule, out [B, D].

    With decay d and write strength b: S <- d S + k (b (v - d k'S))', out = q'S = d q'S_old + (q'k) b (v - d k'S_old). So k'S
    and q'S come from one pass over the old state and the update from one more.
    """
    assert state.conv_state is not None
    assert state.recurrent_state is not None
    rows = hidden_BD.shape[0]
    new_BC = layer.in_proj_qkv(hidden_BD)
    window_BC4 = torch.cat([state.conv_state, new_BC[:, :, None].to(state.conv_state.dtype)], dim=2)
    state.conv_state = window_BC4[:, :, 1:]
    mixed_BC = functional.silu((window_BC4 * layer.conv1d.weight[:, 0]).sum(dim=2)).to(new_BC.dtype)
    query, key, value = torch.split(mixed_BC, [layer.key_dim, layer.key_dim, layer.value_dim], dim=1)
    heads = layer.num_v_heads
    query_key = torch.stack([query, key], dim=1).view(rows, 2, layer.num_k_heads, layer.head_k_dim).float()
    query_key = query_key * torch.rsqrt(query_key.square().sum(dim=3, keepdim=True) + 1e-6)
    if layer.num_k_heads != heads:
        query_key = query_key.repeat_interleave(heads // layer.num_k_heads, dim=2)
    query_key = query_key.transpose(1, 2).reshape(rows * heads, 2, layer.head_k_dim)
    value_N1V = value.reshape(rows * heads, 1, layer.head_v_dim).float()
    write_N11 = layer.in_proj_b(hidden_BD).sigmoid().float().reshape(-1, 1, 1)
    decay_BH = (-layer.A_log.float().exp() * functional.softplus(layer.in_proj_a(hidden_BD).float() + layer.dt_bias)).exp()
    decay_N11 = decay_BH.reshape(-1, 1, 1)
    with torch.autocast(hidden_BD.device.type, enabled=False):
        memory_NKV = state.recurrent_state.reshape(rows * heads, layer.head_k_dim, layer.head_v_dim)
        read_N2V = torch.bmm(query_key, memory_NKV) * decay_N11
        delta_N1V = (value_N1V - read_N2V[:, 1:]) * write_N11
        query_N1K, key_N1K = query_key[:, :1], query_key[:, 1:]
        overlap_N11 = (query_N1K * key_N1K).sum(dim=2, keepdim=True)
        out_N1V = (read_N2V[:, :1] + overlap_N11 * delta_N1V) * layer.head_k_dim**-0.5
        # Under inference mode nobody needs the old state, and the cache's rows are its own.
        decayed_NKV = memory_NKV.mul_(decay_N11) if torch.is_inference_mode_enabled() else memory_NKV * decay_N11
        write = decayed_NKV.baddbmm_ if torch.is_inference_mode_enabled() else decayed_NKV.baddbmm
        state.recurrent_state = write(key_N1K.transpose(1, 2), delta_N1V).view(rows, heads, layer.head_k_dim, layer.head_v_dim)
    out = layer.norm(
        out_N1V.reshape(-1, layer.head_v_dim).to(new_BC.dtype), layer.in_proj_z(hidden_BD).reshape(-1, layer.head_v_dim)
    )
    projected: Tensor = layer.out_proj(out.reshape(rows, -1))
    return projected
