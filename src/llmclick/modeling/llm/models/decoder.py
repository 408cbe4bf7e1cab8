"""Decoders written out on their own weights: training's forward and backward pass, and decoding.

transformers' modules and autograd spend most of a small model's time on a CPU between the matrix products. This is the same
arithmetic with nothing in between: tokens without padding, one product for the layers that share an input, gradients added
where they belong. Families of another shape keep transformers' own code; `why_not` says which and why.

Shapes: N tokens, B rows of a batch, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from llmclick.modeling.llm.models.attention import blocks_of
from llmclick.modeling.llm.models.base import LanguageModel
from llmclick.modeling.llm.models.decoder_cache import DecoderCache
from llmclick.modeling.llm.models.delta_net import DeltaNet, sequences_of
from llmclick.modeling.llm.models.head import EmbeddingGradient, Head
from llmclick.modeling.llm.models.layout import Group, Layout, Rotation, Span, positions_in
from llmclick.modeling.llm.models.norm import norm_of
from llmclick.modeling.llm.models.packed_matrix import PackedMatrices, pays
from llmclick.modeling.llm.models.products import product_dtype
from llmclick.modeling.llm.models.projection import Projection, can_join, keeps_plain
from llmclick.modeling.llm.models.self_attention import SelfAttention

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_5_text")
"""Families whose layers are: norm, attention with rotary positions or a gated delta net, norm, SiLU-gated feed-forward.
Tested one by one."""

_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary frequencies that do not depend on the length of the sequence at hand."""

_LAYERS = {"full_attention", "linear_attention"}

KeepStates = Callable[["Layer", dict[str, Tensor]], None]
"""Told by each layer, in order, what it has kept: attention its keys "k" and values "v", a delta net "state" and "window"."""


def why_not(model: LanguageModel) -> str | None:
    """Why this model keeps transformers' own code; None if its decoder can be written out."""
    config = model.module.config
    kind = str(config.model_type)
    if model.device.type != "cpu":
        return f"it runs on {model.device.type}"
    if kind not in MODEL_TYPES:
        return f"{kind} is not among {', '.join(MODEL_TYPES)}"
    if str(config.hidden_act) not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds - _LAYERS - {"sliding_attention"}:
        return f"it has layers of kind {min(kinds - _LAYERS)}"
    if "linear_attention" in kinds and config.linear_conv_kernel_dim < 2:
        return "its convolution sees one token"
    if "sliding_attention" in kinds or (kind == "mistral" and config.sliding_window is not None):
        return "it attends in a sliding window"
    rope = str((config.rope_parameters or {}).get("rope_type", "default"))
    if rope not in _ROPES:
        return f"its rotary positions are {rope}"
    joint = [projection for layer in model.module.get_decoder().layers for projection in _projections(layer)]
    if not all(can_join(layers) for layers in joint):
        return "some of its linear layers train and others that share their input do not, or they are of an unknown kind"
    return None if _agrees(model) else "the written-out decoder gives other numbers"


@torch.no_grad()
def _agrees(model: LanguageModel) -> bool:
    """Two sequences of different length through both codes."""
    lengths = (7, 4)
    ids_BT = torch.arange(14).view(2, 7).remainder(model.vocab_size)
    decoder = Decoder(model, torch.float32)
    flat_N = torch.cat([ids_BT[0], ids_BT[1, :4]])
    ours_ND = decoder.forward(flat_N, decoder.layout([Group(Span(0, 7), []), Group(Span(7, 4), [])]), torch.arange(11))
    theirs = [model.hidden(ids_BT[at, :length][None], torch.arange(length)[None])[0] for at, length in enumerate(lengths)]
    theirs_ND = torch.cat(theirs).float()
    return torch.allclose(ours_ND, theirs_ND, rtol=1e-3, atol=1e-3 * float(theirs_ND.abs().max()))


@dataclass
class Tape:
    """What a forward pass keeps for its backward pass.

    For Llama's layers (12 + 4 K / H) D + 4 I bytes a token and layer in bf16, with H query heads, K key-value heads and
    the inner size I of the feed-forward part. A gated delta net keeps its joint projection, its core's output in float32
    and each prompt's last state.
    """

    ids_N: Tensor
    layout: Layout
    scored_M: Tensor
    layers: list[dict[str, Tensor]]
    last_MD: Tensor


class Decoder:
    """The decoder of a language model on that model's own parameters, computing in `dtype` (bfloat16 or float32)."""

    def __init__(self, model: LanguageModel, dtype: torch.dtype, head: Head | None = None) -> None:
        decoder = model.module.get_decoder()
        keep_plain = keeps_plain(decoder)
        self.dtype = dtype
        self._packs = keep_plain
        self._rotary = decoder.rotary_emb
        self.embedding = EmbeddingGradient(decoder.embed_tokens, head) if head is not None else None
        self._embedding = decoder.embed_tokens.weight
        self._norm = norm_of(decoder.norm)
        self.layers = [Layer(layer, dtype, keep_plain) for layer in decoder.layers]
        self.projections = [projection for layer in self.layers for projection in layer.projections]

    def layout(self, groups: Sequence[Group], positions_N: Tensor | None = None) -> Layout:
        """How the tokens of these groups lie, as the layers want to know it; their positions follow if none are given."""
        device = self._embedding.device
        attention = self._first(SelfAttention)
        heads, key_heads = (1, 1) if attention is None else (attention.heads, attention.key_heads)
        delta_net = self._first(DeltaNet)
        sequences = None if delta_net is None else sequences_of(groups, int(delta_net.taps.shape[-1]), device)
        rotation = self._rotation(positions_in(groups).to(device) if positions_N is None else positions_N)
        return Layout(blocks_of(groups, heads, key_heads, device), rotation, sequences)

    def _first(self, kind: type[Any]) -> Any:
        return next((layer.mixer for layer in self.layers if isinstance(layer.mixer, kind)), None)

    # ---- whole sequences

    @torch.no_grad()
    def forward(
        self,
        ids_N: Tensor,
        layout: Layout,
        scored_M: Tensor,
        *,
        keep_states: KeepStates | None = None,
    ) -> Tensor:
        """Hidden states [M, D] after the final norm of the tokens `scored_M`, in float32."""
        with torch.autocast(ids_N.device.type, enabled=False):
            return self._norm(self._last(ids_N, layout, keep_states).index_select(0, scored_M))

    @torch.no_grad()
    def record(self, ids_N: Tensor, layout: Layout, scored_M: Tensor) -> tuple[Tensor, Tape]:
        """What `forward` gives, bit for bit, and what `backward` needs."""
        layers: list[dict[str, Tensor]] = []
        with torch.autocast(ids_N.device.type, enabled=False):
            last_MD = self._last(ids_N, layout, lambda _, kept: layers.append(kept)).index_select(0, scored_M)
            return self._norm(last_MD), Tape(ids_N, layout, scored_M, layers, last_MD)

    def _last(self, ids_N: Tensor, layout: Layout, keep_states: KeepStates | None) -> Tensor:
        """The last layer's output [N, D]."""
        x_ND = functional.embedding(ids_N, self._embedding)
        for layer in self.layers:
            kept: dict[str, Tensor] = {}
            x_ND = layer.forward(x_ND, layout, kept)
            if keep_states is not None:
                keep_states(layer, kept)
        return x_ND

    @torch.no_grad()
    def backward(self, tape: Tape, grad_MD: Tensor) -> None:
        """Adds the gradients of all parameters that train, given d loss / d hidden [M, D]. The tape is used up."""
        with torch.autocast(grad_MD.device.type, enabled=False):
            grad_ND = tape.last_MD.new_zeros(len(tape.ids_N), grad_MD.shape[1])
            grad_ND.index_add_(0, tape.scored_M, self._norm.backward(grad_MD.float(), *self._norm.unit(tape.last_MD)))
            for layer in reversed(self.layers):
                grad_ND = layer.backward(grad_ND, tape.layout, tape.layers.pop())
            if self.embedding is not None and self._embedding.requires_grad:
                self.embedding.add(tape.ids_N, grad_ND)

    # ---- decoding

    def lay_out(self, cache: DecoderCache, rows: int, length: int) -> None:
        """Memory in the cache for the keys and values of prompts."""
        attention = [layer.mixer for layer in self.layers if isinstance(layer.mixer, SelfAttention)]
        heads, size = (attention[0].key_heads, attention[0].head_size) if attention else (1, 1)
        cache.lay_out((len(attention), rows, heads, length, size), product_dtype(self.dtype, self._embedding.device))

    def pack(self, rows: int, tokens: int, head: Head) -> PackedMatrices:
        """The weights laid out for decoding so many rows for at most so many tokens, where that pays and there is room."""
        if not self._packs or not pays(rows, tokens):
            return {}
        parts: tuple[Projection | Head, ...] = (*self.projections, head)
        return {part: matrix for part in parts if (matrix := part.pack(rows)) is not None}

    def step(self, ids_B: Tensor, positions_B: Tensor, cache: DecoderCache, mask_BS: Tensor | None) -> Tensor:
        """Hidden states [B, D] of one further token a row, which goes into the cache.

        `mask_BS`, 0 for real keys and -inf for padding, covers the cached positions and the new one; None without padding.
        """
        with torch.autocast(ids_B.device.type, enabled=False):
            rotation = self._rotation(positions_B)
            mask_B11S = None if mask_BS is None else mask_BS[:, None, None].to(cache.keys.dtype)
            keys, states = iter(zip(cache.keys, cache.values, strict=True)), iter(zip(cache.windows, cache.states, strict=True))
            x_BD = functional.embedding(ids_B, self._embedding)
            for layer in self.layers:
                in_BD = layer.norm(x_BD).to(self.dtype)
                if isinstance(layer.mixer, SelfAttention):
                    x_BD = x_BD + layer.mixer.step(in_BD, rotation, *next(keys), cache.length, mask_B11S, cache.packed)
                else:
                    x_BD = x_BD + layer.mixer.step(in_BD, *next(states), cache.packed)
                x_BD = layer.feed_forward(x_BD, {}, cache.packed)
            cache.length += 1
            return self._norm(x_BD)

    def _rotation(self, positions_N: Tensor) -> Rotation:
        cos, sin = self._rotary(self._embedding, position_ids=positions_N[None])
        return Rotation.of(cos[0], sin[0])


class Layer:
    """One decoder layer: x + mixer(norm(x)), then + feed-forward(norm(x)); the mixer is attention or a gated delta net."""

    def __init__(self, layer: Any, dtype: torch.dtype, keep_plain: bool) -> None:
        mlp = layer.mlp
        self.mixer: SelfAttention | DeltaNet
        if hasattr(layer, "linear_attn"):
            self.mixer = DeltaNet(layer.linear_attn, dtype, keep_plain)
        else:
            self.mixer = SelfAttention(layer.self_attn, dtype, keep_plain)
        self._gate_up = Projection([mlp.gate_proj, mlp.up_proj], dtype, keep_plain)
        self._down = Projection([mlp.down_proj], dtype, keep_plain)
        self.norm, self._mlp_norm = norm_of(layer.input_layernorm), norm_of(layer.post_attention_layernorm)
        self.dtype = dtype
        self.projections = (*self.mixer.projections, self._gate_up, self._down)

    def forward(self, x_ND: Tensor, layout: Layout, kept: dict[str, Tensor]) -> Tensor:
        """The layer's output [N, D]; what its backward pass needs goes into `kept`."""
        kept["x"] = x_ND
        in_ND = self.norm(x_ND).to(self.dtype)
        if isinstance(self.mixer, SelfAttention):
            x_ND = x_ND + self.mixer.forward(in_ND, layout, kept)
        else:
            assert layout.sequences is not None
            x_ND = x_ND + self.mixer.forward(in_ND, layout.sequences, kept)
        return self.feed_forward(x_ND, kept, {})

    def feed_forward(self, x_ND: Tensor, kept: dict[str, Tensor], packed: PackedMatrices) -> Tensor:
        """x + feed-forward(norm(x))."""
        kept["middle"] = x_ND
        kept["gate_up"] = self._gate_up(self._mlp_norm(x_ND).to(self.dtype), packed.get(self._gate_up))
        gate, up = kept["gate_up"].chunk(2, dim=1)
        return x_ND + self._down(functional.silu(gate).mul_(up), packed.get(self._down))

    def backward(self, grad_ND: Tensor, layout: Layout, kept: dict[str, Tensor]) -> Tensor:
        """d loss / d input [N, D] (float32, in the memory of `grad_ND`), given d loss / d output."""
        gate, up = kept["gate_up"].chunk(2, dim=1)
        silu = functional.silu(gate)
        inner = self._down.backward(grad_ND.to(self.dtype), silu * up)
        grad_gate_up = torch.empty_like(kept["gate_up"])
        grad_gate, grad_up = grad_gate_up.chunk(2, dim=1)
        torch.mul(inner, silu, out=grad_up)
        grad_gate.copy_(torch.ops.aten.silu_backward(inner.mul_(up), gate))
        unit_scale = self._mlp_norm.unit(kept["middle"])
        grad_in = self._gate_up.backward(grad_gate_up, self._mlp_norm.output(unit_scale[0]).to(self.dtype))
        grad_ND += self._mlp_norm.backward(grad_in.float(), *unit_scale)

        unit_scale = self.norm.unit(kept["x"])
        kept["in"] = self.norm.output(unit_scale[0]).to(self.dtype)
        if isinstance(self.mixer, SelfAttention):
            grad_in = self.mixer.backward(grad_ND.to(self.dtype), layout, kept)
        else:
            assert layout.sequences is not None
            grad_in = self.mixer.backward(grad_ND.to(self.dtype), layout.sequences, kept)
        grad_ND += self.norm.backward(grad_in.float(), *unit_scale)
        return grad_ND


def _projections(layer: Any) -> tuple[list[nn.Module], ...]:
    """A decoder layer's linear layers, those with the same input together."""
    mlp = layer.mlp
    if hasattr(layer, "linear_attn"):
        net = layer.linear_attn
        mixer = ([net.in_proj_qkv, net.in_proj_z, net.in_proj_b, net.in_proj_a], [net.out_proj])
    else:
        attention = layer.self_attn
        mixer = ([attention.q_proj, attention.k_proj, attention.v_proj], [attention.o_proj])
    return (*mixer, [mlp.gate_proj, mlp.up_proj], [mlp.down_proj])
