"""A gated-delta-net layer (arXiv 2412.06464, as in Qwen3.5) over tokens without padding, with its backward written out.

Projections, a short causal convolution over each channel, the gated delta rule (delta_rule.py), a norm gated by a further
projection, and a projection back. A prompt is computed once; its rows continue from its last state and its last inputs of the
convolution.

Shapes: N tokens, D hidden size, C = 2 J K + H V convolved channels (queries, keys, values), w taps of the convolution, J key
heads, H value heads, K and V key and value size of a head; P prompts; in a batch Q of them, G rows of each at most, T tokens of
a row at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from llmclick.modeling.llm.models.delta_rule import delta_rule, delta_rule_backward
from llmclick.modeling.llm.models.layout import Group, Span
from llmclick.modeling.llm.models.norm import Norm
from llmclick.modeling.llm.models.packed_matrix import PackedMatrices
from llmclick.modeling.llm.models.projection import Projection, gradient_of

Item = TypeVar("Item")

_NORM_EPS = 1e-6
"""Added to the squared length of queries and keys."""

_BLOCK = 32
"""Tokens that the convolution takes at a time: 0.8 MB of 6144 channels."""

_PLACES = 4096
"""Tokens of a batch of sequences, padding included: some 100 kB each while they are computed, at the size of Qwen3.5-0.8B."""

_SHORT = 8
"""Sequences of up to so many tokens are computed together."""

_STATES = 32
"""States that a step takes at a time, so that each is fetched once and not three times: 2 MB at 128 x 128."""


@dataclass(frozen=True)
class Batch:
    """Sequences of about the same length that are computed together: rows of Q prompts, G of each at most, T tokens at most."""

    places_QGT: Tensor
    """Their tokens, padded on the right."""
    prompts_Q: Tensor
    """Which prompts these are, or whose rows; one may occur several times."""
    all_prompts: bool
    """Whether that is every prompt once and in order."""

    def states(self, state_PHKV: Tensor) -> Tensor:
        """The states [Q, H, K, V] of these prompts."""
        return state_PHKV if self.all_prompts else state_PHKV.index_select(0, self.prompts_Q)


@dataclass(frozen=True)
class Sequences:
    """Where each sequence's tokens lie among N packed ones; N itself, the place of a row of zeros, stands for none."""

    tokens: int
    first_F: Tensor
    """The first w - 1 tokens of every prompt and row. Behind them, a token's predecessors are those packed before it."""
    before_uF: Tensor
    """The w - 1 tokens before each of these in its own sequence, farthest first; a row's go back into its prompt."""
    prompts: tuple[Batch, ...]
    rows: tuple[Batch, ...]
    """Those that continue a prompt."""
    last_Pu: Tensor
    """The last w - 1 tokens of each prompt, padded on the left."""


def sequences_of(groups: Sequence[Group], width: int, device: torch.device) -> Sequences:
    """The layout for a convolution of `width` taps; a function of the groups alone."""
    tokens = sum(span.length for group in groups for span in (group.prompt, *group.rows))
    last_Pu = torch.full((len(groups), width - 1), tokens)
    first: list[Tensor] = []
    before: list[Tensor] = []

    def look_back(span: Span, front_u: Tensor) -> Tensor:
        """Notes the first tokens, behind `front_u`; the last w - 1 tokens of all."""
        own = torch.arange(span.start, span.start + span.length)
        whole = torch.cat([front_u, own])
        first.append(own[: width - 1])
        before.extend(whole[at : at + width - 1] for at in range(len(first[-1])))
        return whole[span.length :]

    for at, group in enumerate(groups):
        last_Pu[at] = look_back(group.prompt, last_Pu[at])
        for row in group.rows:
            look_back(row, last_Pu[at])
    return Sequences(
        tokens=tokens,
        first_F=torch.cat(first).to(device),
        before_uF=torch.stack(before, dim=1).to(device),
        prompts=_batches([[group.prompt] for group in groups], tokens, device),
        rows=_batches([group.rows for group in groups], tokens, device),
        last_Pu=last_Pu.to(device),
    )


def _batches(rows: Sequence[Sequence[Span]], padding: int, device: torch.device) -> tuple[Batch, ...]:
    """The rows of each prompt in batches: padding adds at most half to a length and to the number of a prompt's rows."""
    alike: dict[tuple[int, int], list[tuple[int, list[Span]]]] = {}
    for prompt, some in enumerate(rows):
        by_length: dict[int, list[Span]] = {}
        for span in some:
            by_length.setdefault(_rounded(max(span.length, _SHORT)), []).append(span)
        for length, spans in by_length.items():
            for part in _parts(spans, _PLACES // length):
                alike.setdefault((length, _rounded(len(part))), []).append((prompt, part))
    batches = []
    for (length, count), members in alike.items():
        for some_members in _parts(members, _PLACES // (length * count)):
            prompts = [prompt for prompt, _ in some_members]
            batches.append(
                Batch(
                    places_QGT=_padded([spans for _, spans in some_members], padding).to(device),
                    prompts_Q=torch.tensor(prompts, dtype=torch.int64, device=device),
                    all_prompts=prompts == list(range(len(rows))),
                )
            )
    return tuple(batches)


def _rounded(number: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... that is not below the number."""
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if power >= 4 and number <= power * 3 // 4 else power


def _parts(items: list[Item], most: int) -> list[list[Item]]:
    size = max(1, most)
    return [items[at : at + size] for at in range(0, len(items), size)]


def _padded(spans: Sequence[Sequence[Span]], padding: int) -> Tensor:
    """[sequences, most rows of one, most tokens of a row]."""
    most = max(map(len, spans))
    length = max(span.length for some in spans for span in some)
    places = torch.full((len(spans), most, length), padding)
    for at, some in enumerate(spans):
        for row, span in enumerate(some):
            places[at, row, : span.length] = torch.arange(span.start, span.start + span.length)
    return places


class DeltaNet:
    """The mixer of a decoder layer on the parameters of a transformers Qwen3_5GatedDeltaNet, computing in `dtype`.

    Only the projections' inputs and outputs are in `dtype`; everything between them is float32.
    """

    def __init__(self, layer: Any, dtype: torch.dtype, keep_plain: bool) -> None:
        self.dtype = dtype
        self.heads, self.key_heads = int(layer.num_v_heads), int(layer.num_k_heads)
        self.value_size, self.key_size = int(layer.head_v_dim), int(layer.head_k_dim)
        self.keys = 2 * self.key_heads * self.key_size
        self.values = self.heads * self.value_size
        self.channels = self.keys + self.values
        inputs = [layer.in_proj_qkv, layer.in_proj_z, layer.in_proj_b, layer.in_proj_a]
        self.input = Projection(inputs, dtype, keep_plain)
        self.output = Projection([layer.out_proj], dtype, keep_plain)
        self.projections = (self.input, self.output)
        self.taps: Tensor = layer.conv1d.weight
        self.dt_bias: Tensor = layer.dt_bias
        self.rate_log: Tensor = layer.A_log
        self.norm = Norm(layer.norm.weight, float(layer.norm.variance_epsilon))

    # ---- training

    def forward(self, in_ND: Tensor, sequences: Sequences, kept: dict[str, Tensor]) -> Tensor:
        """The layer's output [N, D] in `dtype`; what its backward pass needs goes into `kept`.

        Also what decoding starts from behind the prompts: `state` [P, H, K, V] in float32, `window` [P, C, w - 1] in `dtype`.
        """
        kept["joint"] = joint = self.input(in_ND)
        raw_nC = _with_zeros(joint[:, : self.channels])
        kept["window"] = raw_nC[sequences.last_Pu].mT.to(self.dtype, memory_format=torch.contiguous_format)
        tokens = _Tokens(self, joint, self._convolved(raw_nC, sequences))
        core_nHV = torch.empty(sequences.tokens + 1, self.heads, self.value_size, device=joint.device)
        kept["state"] = state_PHKV = torch.empty(
            len(sequences.last_Pu), self.heads, self.key_size, self.value_size, device=joint.device
        )
        for batch in sequences.prompts:
            prompts = _Padded(tokens, batch.places_QGT)
            out, state = delta_rule(*prompts.inputs)
            assert state is not None
            state_PHKV.index_copy_(0, batch.prompts_Q, state.view(-1, *state_PHKV.shape[1:]))
            prompts.unpad(out, core_nHV)
        for batch in sequences.rows:
            rows = _Padded(tokens, batch.places_QGT)
            out, _ = delta_rule(*rows.inputs, batch.states(state_PHKV).flatten(0, 1), final=False)
            rows.unpad(out, core_nHV)
        kept["core"] = core_NHV = core_nHV[:-1]
        gate_NHV = functional.silu(self._gate(joint))
        return self.output(gate_NHV.mul_(self.norm(core_NHV)).to(self.dtype).view(len(joint), -1))

    def backward(self, grad_ND: Tensor, sequences: Sequences, kept: dict[str, Tensor]) -> Tensor:
        """d loss / d input [N, D] given d loss / d output, both in `dtype`; adds the gradients of the parameters that train."""
        joint, core_NHV, state_PHKV = kept["joint"], kept["core"], kept["state"]
        grad_joint = torch.empty_like(joint)
        grad_core_NHV = self._gated_backward(grad_ND, joint, core_NHV, grad_joint)

        raw_nC = _with_zeros(joint[:, : self.channels])
        tokens = _Tokens(self, joint, self._convolved(raw_nC, sequences))
        grads = _Gradients(tokens)
        grad_state_PHKV = torch.zeros_like(state_PHKV) if sequences.rows else None
        for batch in sequences.rows:
            rows = _Padded(tokens, batch.places_QGT)
            states = batch.states(state_PHKV)
            *parts, grad_state = delta_rule_backward(rows.pad(grad_core_NHV), None, *rows.inputs, states.flatten(0, 1))
            grads.take(rows, *parts)
            assert grad_state is not None
            assert grad_state_PHKV is not None
            grad_state_PHKV.index_add_(0, batch.prompts_Q, grad_state.view(states.shape))
        for batch in sequences.prompts:
            prompts = _Padded(tokens, batch.places_QGT)
            grad_last = None if grad_state_PHKV is None else batch.states(grad_state_PHKV).flatten(0, 1)[:, None]
            *parts, _ = delta_rule_backward(prompts.pad(grad_core_NHV), grad_last, *prompts.inputs)
            grads.take(prompts, *parts)

        grad_mixed_NC = grads.mixed()
        torch.ops.aten.silu_backward.grad_input(grad_mixed_NC, tokens.mixed_NC, grad_input=grad_mixed_NC)
        grad_joint[:, : self.channels] = self._convolved_backward(grad_mixed_NC, raw_nC, sequences)
        self._strengths_backward(grads, tokens, grad_joint)
        return self.input.backward(grad_joint, kept["in"])

    # ---- decoding

    def step(self, in_BD: Tensor, window_BCu: Tensor, state_BHKV: Tensor, packed: PackedMatrices) -> Tensor:
        """The layer's output [B, D] for one further token a row; `window_BCu` and `state_BHKV` are brought up to it in place.

        With k S and q S from one pass over the old state: o = e^g q S + (q k') b (v - e^g k S).
        """
        joint = self.input(in_BD, packed.get(self.input))
        tokens = _Tokens(self, joint, self._convolved_step(joint[:, : self.channels], window_BCu))
        many = len(joint) * self.heads
        qk_X2K = tokens.qk_n2JK[:-1].repeat_interleave(self.repeats, dim=2).transpose(1, 2).reshape(many, 2, self.key_size)
        b_X11, decay_X11 = (x[:-1].view(many, 1, 1) for x in (tokens.b_nH, tokens.g_nH.exp()))
        v_X1V, state_XKV = tokens.v_NHV.view(many, 1, -1), state_BHKV.view(many, self.key_size, self.value_size)
        overlap_X11 = torch.linalg.vecdot(qk_X2K[:, :1], qk_X2K[:, 1:])[:, :, None]
        core_X1V = torch.empty_like(v_X1V)
        for start in range(0, many, _STATES):
            some = slice(start, start + _STATES)
            read_X2V = torch.bmm(qk_X2K[some], state_XKV[some]).mul_(decay_X11[some])
            delta_X1V = torch.sub(v_X1V[some], read_X2V[:, 1:]).mul_(b_X11[some])
            state_XKV[some].mul_(decay_X11[some]).baddbmm_(qk_X2K[some, 1:].mT, delta_X1V)
            torch.addcmul(read_X2V[:, :1], overlap_X11[some], delta_X1V, out=core_X1V[some])
        normed_BHV = self.norm(core_X1V.view(len(joint), self.heads, self.value_size))
        gated_BE = functional.silu(self._gate(joint)).mul_(normed_BHV).to(self.dtype).view(len(joint), -1)
        return self.output(gated_BE, packed.get(self.output))

    # ---- parts

    @property
    def repeats(self) -> int:
        """Value heads that share a key head."""
        return self.heads // self.key_heads

    def _gate(self, joint: Tensor) -> Tensor:
        """The gate's input [N, H, V] in float32, never the joint projection's own memory."""
        gate = joint[:, self.channels : self.channels + self.values]
        return gate.to(torch.float32, copy=True).view(len(joint), self.heads, self.value_size)

    def _taps(self) -> Tensor:
        """[w, C], the token's own last."""
        return self.taps.detach()[:, 0].T.float().contiguous()

    def _convolved(self, raw_nC: Tensor, sequences: Sequences) -> Tensor:
        """The convolution's output [N, C], before its activation."""
        taps_wC = self._taps()
        mixed_NC = torch.empty_like(raw_nC[:-1])
        for start, end in _blocks(len(mixed_NC)):
            torch.mul(raw_nC[start:end], taps_wC[-1], out=mixed_NC[start:end])
            for back, tap_C in enumerate(taps_wC[:-1].flip(0), start=1):
                at = max(start, back)
                mixed_NC[at:end].addcmul_(raw_nC[at - back : max(end - back, 0)], tap_C)
        first_FC = raw_nC.index_select(0, sequences.first_F) * taps_wC[-1]
        for places_F, tap_C in zip(sequences.before_uF, taps_wC, strict=False):
            first_FC.addcmul_(raw_nC.index_select(0, places_F), tap_C)
        return mixed_NC.index_copy_(0, sequences.first_F, first_FC)

    def _convolved_step(self, raw_BC: Tensor, window_BCu: Tensor) -> Tensor:
        """The convolution's output [B, C] for one further input a row, which moves into the window."""
        *before, own = self._taps()
        mixed_BC: Tensor = raw_BC * own
        for at, tap_C in enumerate(before):
            mixed_BC.addcmul_(window_BCu[:, :, at].float(), tap_C)
        for at in range(1, len(before)):
            window_BCu[:, :, at - 1] = window_BCu[:, :, at]
        window_BCu[:, :, -1] = raw_BC
        return mixed_BC

    def _convolved_backward(self, grad_NC: Tensor, raw_nC: Tensor, sequences: Sequences) -> Tensor:
        """d loss / d the convolution's input [N, C], given that of its output, whose memory is used up."""
        taps_wC = self._taps()
        sums_wC = torch.zeros_like(taps_wC) if self.taps.requires_grad else None
        grad_raw_nC = torch.zeros_like(raw_nC)
        first_FC = grad_NC.index_select(0, sequences.first_F)
        grad_NC.index_fill_(0, sequences.first_F, 0)
        for start, end in _blocks(len(grad_NC)):
            for at, tap_C in enumerate(taps_wC):
                back = len(taps_wC) - 1 - at
                reader_NC = grad_NC[start + back : end + back]  # the tokens that read these
                read = slice(start, start + len(reader_NC))
                grad_raw_nC[read].addcmul_(reader_NC, tap_C)
                if sums_wC is not None:
                    sums_wC[at] += torch.linalg.vecdot(reader_NC, raw_nC[read], dim=0)
        for at, places_F in enumerate([*sequences.before_uF, sequences.first_F]):
            grad_raw_nC.index_add_(0, places_F, first_FC * taps_wC[at])
            if sums_wC is not None:
                sums_wC[at] += torch.linalg.vecdot(first_FC, raw_nC.index_select(0, places_F), dim=0)
        if sums_wC is not None:
            gradient_of(self.taps).add_(sums_wC.T[:, None])
        return grad_raw_nC[:-1]

    def _gated_backward(self, grad_ND: Tensor, joint: Tensor, core_NHV: Tensor, grad_joint: Tensor) -> Tensor:
        """d loss / d core [N, H, V] through output projection, gate and norm; the gate's own goes into `grad_joint`."""
        gate_NHV = self._gate(joint)
        unit_NHV, scale_NH1 = self.norm.unit(core_NHV)
        normed_NHV, open_NHV = self.norm.output(unit_NHV), functional.silu(gate_NHV)
        grad_gated = self.output.backward(grad_ND, (normed_NHV * open_NHV).to(self.dtype).view(len(joint), -1))
        grad_NHV = grad_gated.float().view(core_NHV.shape)
        grad_gate = torch.ops.aten.silu_backward(normed_NHV.mul_(grad_NHV), gate_NHV)
        grad_joint[:, self.channels : self.channels + self.values] = grad_gate.view(len(joint), -1)
        grad_normed: Tensor = open_NHV.mul_(grad_NHV)
        return self.norm.backward(grad_normed, unit_NHV, scale_NH1)

    def _strengths_backward(self, grads: _Gradients, tokens: _Tokens, grad_joint: Tensor) -> None:
        """The write strengths' and decays' projections: b = sigmoid(y), g = -e^(A_log) softplus(x + dt_bias)."""
        b_NH, g_NH, grad_g_NH = tokens.b_nH[:-1], tokens.g_nH[:-1], grads.g_nH[:-1]
        grad_x_NH = grad_g_NH * tokens.shifted_NH.sigmoid() * -self.rate_log.detach().float().exp()
        both_N2H = grad_joint[:, self.channels + self.values :].view(len(grad_joint), 2, self.heads)
        both_N2H[:, 0] = grads.b_nH[:-1] * b_NH * (1 - b_NH)
        both_N2H[:, 1] = grad_x_NH
        if self.dt_bias.requires_grad:
            gradient_of(self.dt_bias).add_(grad_x_NH.sum(dim=0))
        if self.rate_log.requires_grad:
            gradient_of(self.rate_log).add_((grad_g_NH * g_NH).sum(dim=0))


class _Tokens:
    """What the delta rule takes of each token, in float32; where it matters with a row of zeros behind the N real ones."""

    def __init__(self, net: DeltaNet, joint: Tensor, mixed_NC: Tensor) -> None:
        tokens = len(joint)
        self.net = net
        self.mixed_NC = mixed_NC
        self.v_NHV = functional.silu(mixed_NC[:, net.keys :]).view(tokens, net.heads, net.value_size)
        both_N2JK = functional.silu(mixed_NC[:, : net.keys]).view(tokens, 2, net.key_heads, net.key_size)
        length: Tensor = torch.linalg.vector_norm(both_N2JK, dim=-1, keepdim=True)
        self.scale_N2J1 = length.square_().add_(_NORM_EPS).rsqrt_()
        self.scale_N2J1[:, 0] *= net.key_size**-0.5
        self.qk_n2JK = both_N2JK.new_empty(tokens + 1, *both_N2JK.shape[1:])
        torch.mul(both_N2JK, self.scale_N2J1, out=self.qk_n2JK[:-1])
        self.qk_n2JK[-1] = 0
        strengths_N2H = joint[:, net.channels + net.values :].view(tokens, 2, net.heads).float()
        self.shifted_NH = strengths_N2H[:, 1] + net.dt_bias.detach()
        self.b_nH = _with_zeros(strengths_N2H[:, 0].sigmoid())
        self.g_nH = _with_zeros(functional.softplus(self.shifted_NH) * -net.rate_log.detach().float().exp())


class _Padded:
    """The tokens at `places_QGT`, head by head: what the delta rule reads, and the way back."""

    def __init__(self, tokens: _Tokens, places_QGT: Tensor) -> None:
        net = tokens.net
        self._net = net
        prompts, rows, length = places_QGT.shape
        self._shape = (prompts, net.heads, rows, length)
        places = places_QGT[:, None]
        heads = torch.arange(net.heads, device=places.device)[:, None, None]
        both = torch.arange(2, device=places.device)[:, None]
        self._at = (places * net.heads + heads).view(-1)
        # Where g, b, q and k are zero, values and gradients may be anything finite: padding takes those of the last token.
        self._near = (places.clamp(max=len(tokens.v_NHV) - 1) * net.heads + heads).view(-1)
        self._qk_at = ((places[..., None, :] * 2 + both) * net.key_heads + (heads // net.repeats)[..., None]).view(-1)
        self.inputs = (
            _select(tokens.qk_n2JK, self._qk_at).view(-1, rows, 2, length, net.key_size),
            self.pad(tokens.v_NHV),
            tokens.g_nH.view(-1).index_select(0, self._at).view(-1, rows, length),
            tokens.b_nH.view(-1).index_select(0, self._at).view(-1, rows, length),
        )

    def pad(self, x_NHV: Tensor) -> Tensor:
        """[Q H, G, T, V]."""
        return _select(x_NHV, self._near).view(-1, *self._shape[2:], x_NHV.shape[-1])

    def unpad(self, x: Tensor, into: Tensor) -> None:
        """Writes [Q H, G, T, V] or [Q H, G, T] to the tokens of `into`, [N + 1, H, V] or [N + 1, H]."""
        size = into.shape[2:]
        into.view(-1, *size).index_copy_(0, self._at, x.reshape(-1, *size))

    def unpad_qk(self, x: Tensor, into_n2JK: Tensor) -> None:
        """Writes [Q H, G, 2, T, K], summed over the value heads that share a key head."""
        net = self._net
        prompts, size = self._shape[0], net.key_size
        index = self._qk_at
        if net.repeats > 1:
            x = x.view(prompts, net.key_heads, net.repeats, -1).sum(dim=2)
            index = index.view(prompts, net.key_heads, net.repeats, -1)[:, :, 0].reshape(-1)
        into_n2JK.view(-1, size).index_copy_(0, index, x.reshape(-1, size))


class _Gradients:
    """d loss / d what the delta rule takes of each token."""

    def __init__(self, tokens: _Tokens) -> None:
        self._tokens = tokens
        self.qk_n2JK = torch.empty_like(tokens.qk_n2JK)
        self.v_nHV = tokens.v_NHV.new_empty(len(tokens.v_NHV) + 1, *tokens.v_NHV.shape[1:])
        self.g_nH, self.b_nH = torch.empty_like(tokens.g_nH), torch.empty_like(tokens.b_nH)

    def take(self, padded: _Padded, qk: Tensor, v: Tensor, g: Tensor, b: Tensor) -> None:
        """Keeps those of some sequences."""
        padded.unpad_qk(qk, self.qk_n2JK)
        padded.unpad(v, self.v_nHV)
        padded.unpad(g, self.g_nH)
        padded.unpad(b, self.b_nH)

    def mixed(self) -> Tensor:
        """d loss / d the activated convolution's output [N, C]: for y = x s / |x| it is (dy - (y dy) y / s^2) s / |x|."""
        tokens = self._tokens
        net = tokens.net
        mixed_NC = torch.empty_like(tokens.mixed_NC)
        grad, y = self.qk_n2JK[:-1], tokens.qk_n2JK[:-1]
        along = torch.linalg.vecdot(grad, y)[..., None]
        along[:, 0] *= net.key_size
        grad.addcmul_(y, along, value=-1)
        torch.mul(grad, tokens.scale_N2J1, out=mixed_NC[:, : net.keys].view(grad.shape))
        mixed_NC[:, net.keys :] = self.v_nHV[:-1].view(len(mixed_NC), -1)
        return mixed_NC


def _blocks(tokens: int) -> list[tuple[int, int]]:
    """Runs of so few tokens that their channels stay in the processor's cache from one tap to the next."""
    return [(start, min(start + _BLOCK, tokens)) for start in range(0, tokens, _BLOCK)]


def _select(x_NHd: Tensor, index: Tensor) -> Tensor:
    return x_NHd.view(-1, x_NHd.shape[-1]).index_select(0, index)


def _with_zeros(x_NC: Tensor) -> Tensor:
    """[N + 1, C] in float32, the last row 0."""
    out_nC = torch.empty(len(x_NC) + 1, x_NC.shape[1], device=x_NC.device)
    out_nC[:-1] = x_NC
    out_nC[-1] = 0
    return out_nC
