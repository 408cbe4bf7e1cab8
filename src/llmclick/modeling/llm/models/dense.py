"""Decoders of Llama's shape written out on their own weights: training's forward and backward pass, and decoding.

transformers' modules and autograd spend most of a small model's time on a CPU between the matrix products. This is the same
arithmetic with nothing in between: tokens without padding, one product for the layers that share an input, gradients added
where they belong. Families of another shape keep transformers' own code; `why_not` says which and why.

Shapes: N tokens, B rows of a batch, D hidden size, H query heads, K key-value heads, d head size, I feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from llmclick.modeling.llm.models.attention import Block, Group, Span, attend, attend_backward, blocks_of
from llmclick.modeling.llm.models.base import LanguageModel
from llmclick.modeling.llm.models.head import EmbeddingGradient, Head
from llmclick.modeling.llm.models.projection import Projection, can_join, gradient_of, keeps_plain

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose layers are: norm, attention with rotary positions, norm, SiLU-gated feed-forward. Tested one by one."""

_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary frequencies that do not depend on the length of the sequence at hand."""

KeepKeys = Callable[[int, Tensor, Tensor], None]
"""Told by each layer (its index, keys [N, K, d], values [N, K, d])."""


def why_not(model: LanguageModel) -> str | None:
    """Why this model keeps transformers' own code; None if its decoder can be written out."""
    config = model.module.config
    kind = str(config.model_type)
    if model.device.type != "cpu":
        return f"it runs on {model.device.type}"
    if model.family != "transformer" or kind not in MODEL_TYPES:
        return f"{kind} is not among {', '.join(MODEL_TYPES)}"
    if str(config.hidden_act) not in ("silu", "swish"):
        return f"its activation is {config.hidden_act}"
    windows = getattr(config, "layer_types", None) or ["full_attention"]
    if set(windows) != {"full_attention"} or (kind == "mistral" and config.sliding_window is not None):
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
    decoder = DenseDecoder(model, torch.float32)
    flat_N = torch.cat([ids_BT[0], ids_BT[1, :4]])
    positions_N = torch.cat([torch.arange(length) for length in lengths])
    blocks = blocks_of([Group(Span(0, 7), []), Group(Span(7, 4), [])], decoder.heads, torch.device("cpu"))
    ours_ND = decoder.forward(flat_N, positions_N, blocks, torch.arange(11))
    theirs = [model.hidden(ids_BT[at, :length][None], torch.arange(length)[None])[0] for at, length in enumerate(lengths)]
    theirs_ND = torch.cat(theirs).float()
    return torch.allclose(ours_ND, theirs_ND, rtol=1e-3, atol=1e-3 * float(theirs_ND.abs().max()))


@dataclass
class Tape:
    """What a forward pass keeps for its backward pass: about 14 D + 6 I bytes a token and layer in bf16."""

    ids_N: Tensor
    blocks: Sequence[Block]
    scored_M: Tensor
    cos_N1d: Tensor
    sin_N1d: Tensor
    layers: list[dict[str, Tensor]] = field(default_factory=list)
    last_MD: Tensor | None = None


class DenseDecoder:
    """The decoder of a language model on that model's own parameters, computing in `dtype` (bfloat16 or float32)."""

    def __init__(self, model: LanguageModel, dtype: torch.dtype, head: Head | None = None) -> None:
        decoder = model.module.get_decoder()
        config = model.module.config
        keep_plain = keeps_plain(decoder)
        self.dtype = dtype
        self.heads = int(config.num_attention_heads)
        self.key_heads = int(config.num_key_value_heads)
        self._rotary = decoder.rotary_emb
        self.embedding = EmbeddingGradient(decoder.embed_tokens, head) if head is not None else None
        self._embedding = decoder.embed_tokens.weight
        self._norm = _Norm(decoder.norm)
        self._layers = [_Layer(layer, self.heads, self.key_heads, dtype, keep_plain) for layer in decoder.layers]
        self.projections = [projection for layer in self._layers for projection in layer.projections]

    # ---- training

    @torch.no_grad()
    def forward(
        self,
        ids_N: Tensor,
        positions_N: Tensor,
        blocks: Sequence[Block],
        scored_M: Tensor,
        *,
        training: bool = False,
        keep_keys: KeepKeys | None = None,
    ) -> Any:
        """Hidden states [M, D] after the final norm of the tokens `scored_M`, in float32; with `training` also a Tape."""
        with torch.autocast(ids_N.device.type, enabled=False):
            cos_N1d, sin_N1d = self._rope(positions_N)
            tape = Tape(ids_N, blocks, scored_M, cos_N1d, sin_N1d)
            x_ND = functional.embedding(ids_N, self._embedding)
            for index, layer in enumerate(self._layers):
                kept: dict[str, Tensor] = {}
                x_ND = layer.forward(x_ND, tape, kept)
                if keep_keys is not None:
                    keep_keys(index, kept["k"], kept["v"])
                if training:
                    tape.layers.append(kept)
            tape.last_MD = x_ND.index_select(0, scored_M)
            hidden_MD = self._norm(tape.last_MD)
        return (hidden_MD, tape) if training else hidden_MD

    @torch.no_grad()
    def backward(self, tape: Tape, grad_MD: Tensor) -> None:
        """Adds the gradients of all parameters that train, given d loss / d hidden [M, D]. The tape is used up."""
        assert tape.last_MD is not None
        with torch.autocast(grad_MD.device.type, enabled=False):
            grad_ND = tape.last_MD.new_zeros(len(tape.ids_N), grad_MD.shape[1])
            grad_ND.index_add_(0, tape.scored_M, self._norm.backward(grad_MD.float(), tape.last_MD))
            for layer in reversed(self._layers):
                grad_ND = layer.backward(grad_ND, tape, tape.layers.pop())
            if self.embedding is not None and self._embedding.requires_grad:
                self.embedding.add(tape.ids_N, grad_ND)

    # ---- decoding

    def step(self, ids_B: Tensor, positions_B: Tensor, cache: DenseCache, mask_BS: Tensor | None) -> Tensor:
        """Hidden states [B, D] of one further token a row, whose keys and values go into the cache.

        `mask_BS`, 0 for real keys and -inf for padding, covers the cached positions and the new one; None without padding.
        """
        with torch.autocast(ids_B.device.type, enabled=False):
            cos_B1d, sin_B1d = self._rope(positions_B)
            mask_B11S = None if mask_BS is None else mask_BS[:, None, None].to(self.dtype)
            x_BD = functional.embedding(ids_B, self._embedding)
            for index, layer in enumerate(self._layers):
                x_BD = layer.step(x_BD, cos_B1d, sin_B1d, cache, index, mask_B11S)
            cache.length += 1
            return self._norm(x_BD)

    def _rope(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, 1, d / 2] in float32; the two halves of a head share them."""
        cos, sin = self._rotary(self._embedding, position_ids=positions_N[None])
        half = cos.shape[-1] // 2
        return cos[0, :, None, :half].float().contiguous(), sin[0, :, None, :half].float().contiguous()


class DenseCache:
    """Keys and values of all layers in buffers laid out once, [B, K, room, d]; `length` positions of them are filled."""

    def __init__(self) -> None:
        self.keys = self.values = torch.empty(0)
        self.length = 0

    def lay_out(self, decoder: DenseDecoder, rows: int, length: int) -> None:
        """Memory for prompts of that length, which the caller fills at once."""
        shape = (len(decoder._layers), rows, decoder.key_heads, length, decoder._layers[0].head_size)
        self.keys, self.values = (torch.empty(shape, dtype=decoder.dtype) for _ in range(2))
        self.length = length

    def widened(self, rows_B: Tensor, room: int) -> DenseCache:
        """The rows named (repeats allowed), with room for that many more positions."""
        other = DenseCache()
        other.length = self.length
        layers, _, heads, _, size = self.keys.shape
        for name in ("keys", "values"):
            wide = torch.empty(layers, len(rows_B), heads, self.length + room, size, dtype=self.keys.dtype)
            for old, new in zip(getattr(self, name), wide, strict=True):
                new[:, :, : self.length] = old[:, :, : self.length].index_select(0, rows_B)
            setattr(other, name, wide)
        return other

    def keep(self, rows_B: Tensor) -> None:
        """Keeps the rows named, in ascending order."""
        for name in ("keys", "values"):
            buffer = getattr(self, name)
            for layer in buffer:
                layer[: len(rows_B), :, : self.length] = layer[:, :, : self.length].index_select(0, rows_B)
            setattr(self, name, buffer[:, : len(rows_B)])


class _Norm:
    """Root-mean-square norm (arXiv 1910.07467) in float32: y = w x / sqrt(mean(x^2) + eps)."""

    def __init__(self, module: Any) -> None:
        self.weight: Tensor = module.weight
        self._eps = float(module.variance_epsilon)

    def __call__(self, x: Tensor) -> Tensor:
        return (x * self._scale(x)).mul_(self.weight.detach())

    def _scale(self, x: Tensor) -> Tensor:
        """1 / sqrt(mean(x^2) + eps), with one pass over x; torch's own rms_norm takes six on a CPU."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return length.square_().mul_(1 / x.shape[-1]).add_(self._eps).rsqrt_()

    def backward(self, grad: Tensor, x: Tensor) -> Tensor:
        """d loss / d x in float32, given d loss / d y and x; the weight's gradient is added to its `.grad`."""
        scale = self._scale(x)
        unit = x * scale
        if self.weight.requires_grad:
            gradient_of(self.weight).add_((grad * unit).reshape(-1, x.shape[-1]).sum(dim=0))
        grad = grad * self.weight.detach()
        along = torch.linalg.vecdot(grad, unit)[..., None].mul_(1 / x.shape[-1])
        return grad.addcmul_(unit, along, value=-1).mul_(scale)


class _Layer:
    """One decoder layer: x + attention(norm(x)), then + feed-forward(norm(x))."""

    def __init__(self, layer: Any, heads: int, key_heads: int, dtype: torch.dtype, keep_plain: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        qkv, output, gate_up, down = (Projection(layers, dtype, keep_plain) for layers in _projections(layer))
        self.qkv, self.output, self.gate_up, self.down = qkv, output, gate_up, down
        self.norm, self.mlp_norm = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.q_norm, self.k_norm = (
            _Norm(getattr(attention, name)) if hasattr(attention, name) else None for name in ("q_norm", "k_norm")
        )
        self.heads, self.key_heads = heads, key_heads
        self.head_size = int(attention.head_dim)
        self.scale = float(attention.scaling)
        self.inner = int(getattr(mlp.gate_proj, "base_layer", mlp.gate_proj).weight.shape[0])
        self.dtype = dtype

        self.projections = (qkv, output, gate_up, down)

    def forward(self, x_ND: Tensor, tape: Tape, kept: dict[str, Tensor]) -> Tensor:
        """The layer's output [N, D]; what its backward pass needs goes into `kept`."""
        kept["x"] = x_ND
        kept["in"] = self.norm(x_ND).to(self.dtype)
        kept["q"], kept["k"], values = self._heads(kept["in"], tape.cos_N1d, tape.sin_N1d, kept)
        kept["v"] = values.contiguous()  # a view would keep queries and keys as they were before they were turned
        kept["out"] = attend(kept["q"], kept["k"], kept["v"], tape.blocks, self.scale)
        kept["middle"] = x_ND = x_ND + self.output(kept["out"])
        kept["mlp_in"] = self.mlp_norm(x_ND).to(self.dtype)
        kept["gate_up"] = self.gate_up(kept["mlp_in"])
        gate, up = torch.split(kept["gate_up"], self.inner, dim=1)
        return x_ND + self.down(functional.silu(gate).mul_(up))

    def backward(self, grad_ND: Tensor, tape: Tape, kept: dict[str, Tensor]) -> Tensor:
        """d loss / d input [N, D] (float32, in the memory of `grad_ND`), given d loss / d output."""
        gate, up = torch.split(kept["gate_up"], self.inner, dim=1)
        silu = functional.silu(gate)
        inner = self.down.backward(grad_ND.to(self.dtype), silu * up)
        grad_gate_up = torch.empty_like(kept["gate_up"])
        torch.mul(inner, silu, out=grad_gate_up[:, self.inner :])
        grad_gate_up[:, : self.inner] = torch.ops.aten.silu_backward(inner.mul_(up), gate)
        grad_in = self.gate_up.backward(grad_gate_up, kept["mlp_in"])
        grad_ND += self.mlp_norm.backward(grad_in.float(), kept["middle"])

        grad_out = self.output.backward(grad_ND.to(self.dtype), kept["out"])
        heads = attend_backward(grad_out, kept["out"], kept["q"], kept["k"], kept["v"], tape.blocks, self.scale)
        grad_in = self.qkv.backward(self._heads_backward(*heads, tape.cos_N1d, tape.sin_N1d, kept), kept["in"])
        grad_ND += self.norm.backward(grad_in.float(), kept["x"])
        return grad_ND

    def step(
        self, x_BD: Tensor, cos_B1d: Tensor, sin_B1d: Tensor, cache: DenseCache, index: int, mask_B11S: Tensor | None
    ) -> Tensor:
        """The layer's output [B, D] for one further token of each row."""
        q_BHd, k_BKd, v_BKd = self._heads(self.norm(x_BD).to(self.dtype), cos_B1d, sin_B1d, {})
        keys, values, at = cache.keys[index], cache.values[index], cache.length
        keys[:, :, at] = k_BKd
        values[:, :, at] = v_BKd
        out = functional.scaled_dot_product_attention(
            q_BHd[:, :, None],
            keys[:, :, : at + 1],
            values[:, :, : at + 1],
            attn_mask=mask_B11S,
            scale=self.scale,
            enable_gqa=self.heads != self.key_heads,
        )
        x_BD = x_BD + self.output(out.reshape(len(x_BD), -1))
        gate, up = torch.split(self.gate_up(self.mlp_norm(x_BD).to(self.dtype)), self.inner, dim=1)
        return x_BD + self.down(functional.silu(gate).mul_(up))

    def _heads(self, x: Tensor, cos: Tensor, sin: Tensor, kept: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, H, d], keys and values [N, K, d], with their positions turned in."""
        joint = self.qkv(x)
        turning = self.heads + self.key_heads
        both = joint[:, : turning * self.head_size].view(len(x), turning, self.head_size)
        values = joint[:, turning * self.head_size :].view(len(x), self.key_heads, self.head_size)
        if self.q_norm is not None and self.k_norm is not None:
            kept["raw"] = both
            wide = torch.cat([self.q_norm(both[:, : self.heads].float()), self.k_norm(both[:, self.heads :].float())], dim=1)
        else:
            wide = both.float()
        turned = _turn(wide, cos, sin, torch.empty_like(wide, dtype=self.dtype))
        return turned[:, : self.heads], turned[:, self.heads :], values

    def _heads_backward(
        self, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, cos: Tensor, sin: Tensor, kept: dict[str, Tensor]
    ) -> Tensor:
        """d loss / d the joint projection's output [N, (H + 2 K) d], from those of q, k and v in float32."""
        tokens = len(grad_q)
        joint = torch.empty(tokens, self.heads + 2 * self.key_heads, self.head_size, dtype=self.dtype)
        parts = ((grad_q, self.q_norm, 0, self.heads), (grad_k, self.k_norm, self.heads, self.heads + self.key_heads))
        for grad, norm, start, end in parts:
            # A rotation's transpose is the rotation back.
            if norm is None:
                _turn(grad, cos, -sin, joint[:, start:end])
            else:
                back = _turn(grad, cos, -sin, torch.empty_like(grad))
                joint[:, start:end] = norm.backward(back, kept["raw"][:, start:end].float())
        joint[:, self.heads + self.key_heads :] = grad_v
        return joint.view(tokens, -1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864): the halves (a, b) of each head become (a cos - b sin, b cos + a sin)."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    out[..., :half] = (a * cos).addcmul_(b, sin, value=-1)
    out[..., half:] = (b * cos).addcmul_(a, sin)
    return out


def _projections(layer: Any) -> tuple[list[nn.Module], ...]:
    """A decoder layer's linear layers, those with the same input together."""
    attention, mlp = layer.self_attn, layer.mlp
    return (
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [mlp.gate_proj, mlp.up_proj],
        [mlp.down_proj],
    )
