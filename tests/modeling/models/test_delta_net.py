"""The written-out gated-delta-net layer against transformers' module and autograd, each sequence alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import DynamicCache, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from llmclick.modeling.llm.models import delta_net
from llmclick.modeling.llm.models.delta_net import DeltaNet, sequences_of
from llmclick.modeling.llm.models.layout import Group, Span
from tests.modeling.models.groups import Lengths, groups_of

WIDTH, HIDDEN = 4, 12
CPU = torch.device("cpu")

LAYOUTS: dict[str, Lengths] = {
    "mixed": [(5, [3, 1, 6]), (2, [4, 1]), (9, []), (1, [2]), (3, [1, 1])],
    "even": [(4, [3, 3]), (4, [3, 3])],
    "prompts alone": [(4, []), (6, []), (1, [])],
    "several chunks": [(70, [2, 66]), (3, [130])],
}

HEADS = {"as many keys": (2, 2, 8, 8), "fewer keys": (2, 6, 4, 8), "one key head": (1, 3, 8, 4)}
"""Key heads, value heads, key size, value size."""


def layer_of(heads: str, seed: int = 1) -> Qwen3_5GatedDeltaNet:
    key_heads, value_heads, key_size, value_size = HEADS[heads]
    config = Qwen3_5TextConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=key_size,
        linear_value_head_dim=value_size,
        linear_conv_kernel_dim=WIDTH,
        # A first token's output is a multiple of q k, which the norm divides by itself: ill-conditioned where that is near 0.
        rms_norm_eps=0.05,
    )
    layer = Qwen3_5GatedDeltaNet(config, 0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.5 if parameter.dim() > 1 else 0.3))
            if name.startswith("norm"):
                parameter.add_(1)
    return layer


def with_adapters(layer: Any, seed: int = 2) -> Any:
    """Random low-rank adapters on some of the linear layers; all else is frozen."""
    layer.requires_grad_(False)
    config = LoraConfig(r=2, lora_alpha=3, target_modules=["in_proj_qkv", "in_proj_z", "in_proj_a", "out_proj"])
    inject_adapter_in_model(config, layer)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return layer


def made(heads: str, kind: str) -> Any:
    layer = layer_of(heads)
    if kind == "lora":
        return with_adapters(layer)
    return layer.requires_grad_(kind == "plain")


def places(span: Span) -> list[int]:
    return list(range(span.start, span.start + span.length))


def by_sequence(layer: Any, in_ND: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
    """transformers' outputs [N, D]: of a prompt alone, and of each row behind its prompt."""
    out: list[Any] = [None] * len(in_ND)
    for group in groups:
        prompt = places(group.prompt)
        for span in (Span(0, 0), *group.rows):
            values = layer(in_ND[prompt + places(span)][None])[0]
            for at, place in enumerate(prompt + places(span)):
                if out[place] is None:
                    out[place] = values[at]
    return torch.stack(out)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    assert float(other.norm()) > 0
    return float((one - other).norm() / other.norm())


def both_ways(heads: str, kind: str, lengths: Lengths, prompts_first: bool, dtype: torch.dtype) -> dict[str, tuple[Any, Any]]:
    """Output, d loss / d input and all gradients: ours in `dtype` and transformers' in float32. Ours twice, added up."""
    groups = groups_of(lengths, prompts_first)
    layer, reference = made(heads, kind), made(heads, kind)
    generator = torch.Generator().manual_seed(7)
    tokens = sum(length + sum(rows) for length, rows in lengths)
    in_ND, grad_ND = (torch.randn(tokens, HIDDEN, generator=generator).to(dtype) for _ in range(2))
    leaf = in_ND.float().requires_grad_()
    expected = by_sequence(reference, leaf, groups)
    expected.backward(grad_ND.float())

    net = DeltaNet(layer, dtype, True)
    sequences = sequences_of(groups, WIDTH, CPU)
    with torch.no_grad():
        for _ in range(2):
            kept = {"in": in_ND}
            out = net.forward(in_ND, sequences, kept)
            grad_in = net.backward(grad_ND.clone(), sequences, kept)
        for projection in net.projections:
            projection.finish_gradient()
    assert out.dtype == grad_in.dtype == dtype
    found = {"out": (out, expected.detach()), "in": (grad_in, leaf.grad)}
    pairs = zip(layer.named_parameters(), reference.parameters(), strict=True)
    for (name, ours), theirs in pairs:
        assert ours.requires_grad == theirs.requires_grad
        if theirs.grad is None:
            assert ours.grad is None, name
        else:
            found[name] = (ours.grad / 2, theirs.grad)
    return {name: (one.float(), other) for name, (one, other) in found.items()}


@pytest.fixture(params=[(4096, 8), (6, 1)], ids=["few batches", "many batches"])
def _batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens together as a run computes; and at most six, of sequences of nearly one length."""
    for name, value in zip(("_PLACES", "_SHORT"), request.param, strict=True):
        monkeypatch.setattr(delta_net, name, value)


@pytest.mark.usefixtures("_batches")
@pytest.mark.parametrize("kind", ["plain", "frozen", "lora"])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("prompts_first", [True, False], ids=["prompts-first", "groups"])
def test_outputs_and_gradients_are_transformers(lengths: Lengths, heads: str, kind: str, prompts_first: bool) -> None:
    """Output, d loss / d input and the gradient of every parameter that trains, to a relative L2 distance of 1e-5.

    To 3e-5 those of the decay's two parameters: sums over all tokens of what mostly cancels.
    """
    found = both_ways(heads, kind, lengths, prompts_first, torch.float32)
    assert len(found) == {"plain": 11, "frozen": 2, "lora": 10}[kind]
    distances = {name: distance(*pair) for name, pair in found.items()}
    assert {name: d for name, d in distances.items() if d > (3e-5 if name in ("A_log", "dt_bias") else 1e-5)} == {}


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("kind", ["plain", "lora"])
def test_bf16_is_close(heads: str, kind: str) -> None:
    """In bf16 what goes in and out of the two projections is rounded, to 2^-9 of itself at most: 2^-9 / sqrt(3) on average.

    Weights, the joint output, the second input and its output are four such roundings on the way forward (the input itself is
    the same for both), and as many on the way back. Normalising and gating pass a relative error on with a slope of about 1 or
    2, so an L2 distance of 8 roundings of 2^-9, each counted twice, is the bound: 3 percent.
    """
    found = both_ways(heads, kind, LAYOUTS["mixed"], True, torch.bfloat16)
    assert {name: d for name, (one, other) in found.items() if (d := distance(one, other)) > 16 * 2**-9} == {}


@pytest.mark.parametrize("heads", HEADS)
def test_states_and_windows_are_a_caches(heads: str) -> None:
    """What a prompt leaves behind is what transformers' cache holds, zeros in front of a prompt shorter than the window."""
    groups = groups_of(LAYOUTS["mixed"], True)
    layer = layer_of(heads)
    in_ND = torch.randn(sum(span.length for span in spans_of(groups)), HIDDEN, generator=torch.Generator().manual_seed(3))
    kept = {"in": in_ND}
    with torch.no_grad():
        expected = [cached(layer, in_ND[places(group.prompt)][None]) for group in groups]
        DeltaNet(layer, torch.float32, True).forward(in_ND, sequences_of(groups, WIDTH, CPU), kept)
    for at, cache in enumerate(expected):
        window = cache.layers[0].conv_states[0][0]
        assert torch.allclose(kept["window"][at], window[:, -(WIDTH - 1) :], rtol=0, atol=1e-5)
        assert torch.allclose(kept["state"][at], cache.layers[0].recurrent_states[0][0], rtol=0, atol=1e-5)


def spans_of(groups: Sequence[Group]) -> list[Span]:
    return [span for group in groups for span in (group.prompt, *group.rows)]


def cached(layer: Any, in_1TD: torch.Tensor) -> DynamicCache:
    config = Qwen3_5TextConfig(num_hidden_layers=1, layer_types=["linear_attention"])
    cache = DynamicCache(config=config)
    layer(in_1TD, cache=cache)
    return cache


@pytest.mark.parametrize("kind", ["plain", "lora"])
@pytest.mark.parametrize("heads", HEADS)
def test_steps_are_a_longer_sequences_forward(heads: str, kind: str) -> None:
    """Four tokens one by one behind prompts of 1, 2 and 6: the outputs of transformers' forward over all, to 1e-5."""
    groups = groups_of([(1, []), (2, []), (6, [])], True)
    layer, reference = made(heads, kind), made(heads, kind)
    generator = torch.Generator().manual_seed(4)
    in_ND, in_B4D = torch.randn(9, HIDDEN, generator=generator), torch.randn(3, 4, HIDDEN, generator=generator)
    net = DeltaNet(layer, torch.float32, True)
    kept = {"in": in_ND}
    with torch.no_grad():
        net.forward(in_ND, sequences_of(groups, WIDTH, CPU), kept)
        window, state = kept["window"].clone(), kept["state"].clone()
        ours_B4D = torch.stack([net.step(in_BD, window, state, {}) for in_BD in in_B4D.unbind(1)], dim=1)
        for at, group in enumerate(groups):
            whole = torch.cat([in_ND[places(group.prompt)], in_B4D[at]])
            theirs_4D = reference(whole[None])[0, -4:]
            assert distance(ours_B4D[at], theirs_4D) < 1e-5
            after = {"in": whole}
            net.forward(whole, sequences_of([Group(Span(0, len(whole)), [])], WIDTH, CPU), after)
            assert distance(state[at], after["state"][0]) < 1e-5
            assert torch.allclose(window[at], after["window"][0], rtol=0, atol=1e-5)


def test_bf16_steps_are_a_longer_sequences_forward() -> None:
    """In bf16 a step and the packed forward differ by the last rounding of the output, half a unit of 2^-8, and little more."""
    net = DeltaNet(layer_of("fewer keys"), torch.bfloat16, True)
    in_ND = torch.randn(8, HIDDEN, generator=torch.Generator().manual_seed(4)).bfloat16()
    kept, whole = {"in": in_ND[:5]}, {"in": in_ND}
    with torch.no_grad():
        net.forward(in_ND[:5], sequences_of([Group(Span(0, 5), [])], WIDTH, CPU), kept)
        out = net.forward(in_ND, sequences_of([Group(Span(0, 8), [])], WIDTH, CPU), whole)
        for at in range(5, 8):
            step = net.step(in_ND[at : at + 1], kept["window"], kept["state"], {})
            assert distance(step[0].float(), out[at].float()) < 2**-8
    assert kept["window"].dtype == torch.bfloat16
    # A product of one row may be summed in another order than that of eight, and then round to the neighbouring bf16 number.
    assert torch.allclose(kept["window"].float(), whole["window"].float(), rtol=2**-7, atol=1e-5)


def test_layout() -> None:
    """Prompts of 2 and 5 tokens, the first with rows of 1 and 3 behind it; 11 stands for no token."""
    groups = [Group(Span(0, 2), [Span(2, 1), Span(3, 3)]), Group(Span(6, 5), [])]
    found = sequences_of(groups, WIDTH, CPU)
    before = dict(zip(found.first_F.tolist(), found.before_uF.T.tolist(), strict=True))
    assert before == {
        0: [11, 11, 11],
        1: [11, 11, 0],
        2: [11, 0, 1],
        3: [11, 0, 1],
        4: [0, 1, 3],
        5: [1, 3, 4],
        6: [11, 11, 11],
        7: [11, 11, 6],
        8: [11, 6, 7],
    }
    (prompts,), (rows,) = found.prompts, found.rows
    assert prompts.places_QGT.tolist() == [[[0, 1, 11, 11, 11]], [[6, 7, 8, 9, 10]]]
    assert (prompts.prompts_Q.tolist(), prompts.all_prompts) == ([0, 1], True)
    assert rows.places_QGT.tolist() == [[[2, 11, 11], [3, 4, 5]]]
    assert (rows.prompts_Q.tolist(), rows.all_prompts) == ([0], False)
    assert found.last_Pu.tolist() == [[11, 0, 1], [8, 9, 10]]


def test_one_long_row_does_not_pad_the_others() -> None:
    """31 rows of 10 and 2 of 500 behind a prompt of 40: by hand 500, 40, and 31 x 10 rounded up to 32 rows at most."""
    lengths = [(40, [10] * 31 + [500, 500])]
    found = sequences_of(groups_of(lengths, True), WIDTH, CPU)
    assert [tuple(batch.places_QGT.shape) for batch in found.prompts] == [(1, 1, 40)]
    assert sorted(tuple(batch.places_QGT.shape) for batch in found.rows) == [(1, 2, 500), (1, 31, 10)]


@pytest.mark.parametrize("most", [4096, 300])
def test_padding_stays_within_its_bounds(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Random lengths and numbers of rows: each token once, at most half more for padding either way, no batch too large."""
    monkeypatch.setattr(delta_net, "_PLACES", most)
    draw = torch.Generator().manual_seed(1)

    def number(below: int) -> int:
        return int(torch.randint(1, below, (), generator=draw))

    lengths = [(number(200), [number(90) for _ in range(number(40))]) for _ in range(9)]
    tokens = sum(length + sum(rows) for length, rows in lengths)
    found = sequences_of(groups_of(lengths, True), WIDTH, CPU)
    seen = torch.cat([batch.places_QGT.flatten() for batch in (*found.prompts, *found.rows)])
    assert seen[seen < tokens].sort().values.tolist() == list(range(tokens))
    for batch in (*found.prompts, *found.rows):
        assert batch.places_QGT.numel() <= most
        row_tokens = (batch.places_QGT < tokens).sum(dim=2)
        rows = (row_tokens > 0).sum(dim=1)
        assert int(row_tokens.max()) <= max(8, 1.5 * int(row_tokens[row_tokens > 0].min()))
        assert int(rows.max()) <= 1.5 * int(rows.min())


def test_frozen_layers_keep_no_gradient() -> None:
    """Without anything to train, backward leaves every `.grad` empty (also those between the projections)."""
    layer = made("fewer keys", "frozen")
    groups = groups_of(LAYOUTS["mixed"], True)
    sequences = sequences_of(groups, WIDTH, CPU)
    in_ND = torch.randn(sequences.tokens, HIDDEN)
    net, kept = DeltaNet(layer, torch.float32, True), {"in": in_ND}
    with torch.no_grad():
        net.backward(net.forward(in_ND, sequences, kept), sequences, kept)
    assert all(parameter.grad is None for parameter in layer.parameters())
