"""The chunked gated delta rule and its backward against a plain loop over tokens, autograd and transformers' own chunks."""

from __future__ import annotations

import math

import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from llmclick.modeling.llm.models import delta_rule as module
from llmclick.modeling.llm.models.delta_rule import delta_rule, delta_rule_backward

LENGTHS = [1, 7, 8, 64, 65, 150]
STATES, KEY, VALUE = 3, 6, 5

Inputs = dict[str, torch.Tensor]


def inputs(length: int, rows: int, *, with_state: bool, decay: float = 0.3, repeated: bool = False) -> Inputs:
    """Normalised queries (scaled) and keys, and all else at the sizes that a layer gives; float32."""
    generator = torch.Generator().manual_seed(length + rows)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    qk = normal(STATES, rows, 2, length, KEY)
    if repeated:
        qk[:, :, 1] = qk[:, :, 1, :1] + 0.01 * qk[:, :, 1]
    qk = qk / qk.norm(dim=-1, keepdim=True)
    qk[:, :, 0] *= KEY**-0.5
    made = {
        "qk": qk,
        "v": normal(STATES, rows, length, VALUE),
        "g": -decay * torch.rand(STATES, rows, length, generator=generator),
        "b": torch.rand(STATES, rows, length, generator=generator) * (0.05 if repeated else 1.0) + (0.95 if repeated else 0.0),
    }
    if with_state:
        made["state"] = normal(STATES, KEY, VALUE)
    return made


def by_token(given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule as it is defined, one token after another."""
    qk, v, g, b = (given[name] for name in ("qk", "v", "g", "b"))
    states, rows, _, length, size = qk.shape
    state = qk.new_zeros(states, rows, size, v.shape[-1])
    if "state" in given:
        state = state + given["state"][:, None]
    outs = []
    for at in range(length):
        q, k = qk[:, :, 0, at], qk[:, :, 1, at]
        state = state * g[:, :, at, None, None].exp()
        error = v[:, :, at] - torch.einsum("ygk,ygkv->ygv", k, state)
        state = state + torch.einsum("ygk,ygv->ygkv", k, error * b[:, :, at, None])
        outs.append(torch.einsum("ygk,ygkv->ygv", q, state))
    return torch.stack(outs, dim=2), state


def expected(given: Inputs, with_final: bool) -> tuple[list[torch.Tensor], Inputs, torch.Tensor, torch.Tensor]:
    """Output and last states, the gradients of all that was given, and d loss / d the two, from the loop in float64."""
    leaves = {name: x.double().requires_grad_() for name, x in given.items()}
    out, state = by_token(leaves)
    generator = torch.Generator().manual_seed(5)
    grad_out, grad_state = (torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (out, state))
    loss = (out * grad_out).sum() + ((state * grad_state).sum() if with_final else 0)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return [out.detach(), state.detach()], dict(zip(leaves, gradients, strict=True)), grad_out.float(), grad_state.float()


def close(one: torch.Tensor | None, other: torch.Tensor, bound: float = 1e-5) -> None:
    assert one is not None
    assert one.dtype == torch.float32
    assert one.shape == other.shape
    assert float((one.double() - other).abs().max()) <= bound * max(1e-3, float(other.abs().max()))


def backward(given: Inputs, grad_out: torch.Tensor, grad_state: torch.Tensor | None) -> dict[str, torch.Tensor | None]:
    d_qk, d_v, d_g, d_b, d_state = delta_rule_backward(grad_out, grad_state, **named(given))
    return {"qk": d_qk, "v": d_v, "g": d_g, "b": d_b} | ({"state": d_state} if "state" in given else {})


def named(given: Inputs) -> Inputs:
    names = {"qk": "qk_YG2LK", "v": "v_YGLV", "g": "g_YGL", "b": "b_YGL", "state": "state_YKV"}
    return {names[name]: x for name, x in given.items()}


@pytest.mark.parametrize("with_final", [True, False], ids=["final", "no-final"])
@pytest.mark.parametrize("with_state", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_outputs_and_gradients_are_the_loops(length: int, rows: int, with_state: bool, with_final: bool) -> None:
    """Outputs, last states and the gradients of everything given, to 1e-5 of their largest number."""
    given = inputs(length, rows, with_state=with_state)
    (out, state), gradients, grad_out, grad_state = expected(given, with_final)
    ours, ours_state = delta_rule(**named(given), final=with_final)
    close(ours, out)
    if with_final:
        close(ours_state, state)
    else:
        assert ours_state is None
    ours_gradients = backward(given, grad_out, grad_state if with_final else None)
    assert ours_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        close(ours_gradients[name], gradient)


@pytest.mark.parametrize("decay", [0.0, 30.0], ids=["none", "e^-30"])
@pytest.mark.parametrize("length", [8, 64, 100])
def test_no_and_overwhelming_decay(length: int, decay: float) -> None:
    """g = 0 throughout, and decays whose inverse overflows within a chunk: still finite, still the loop's.

    The sum c of up to 64 such g is rounded to float32, and with it the exponents c_i - c_j.
    """
    given = inputs(length, 2, with_state=True, decay=decay)
    bound = max(1e-5, 64 * decay * 2**-24)
    (out, state), gradients, grad_out, grad_state = expected(given, True)
    ours, ours_state = delta_rule(**named(given))
    close(ours, out, bound)
    close(ours_state, state, bound)
    for name, gradient in backward(given, grad_out, grad_state).items():
        close(gradient, gradients[name], bound)


@pytest.mark.parametrize("length", [16, 64, 100])
def test_the_same_key_again_and_again(length: int) -> None:
    """A token repeated at full strength and without decay: A is nearly all ones, and its powers are more than float32 resolves.

    (A^32 has entries up to 62 choose 31, while the inverse of I + A has none above 1.)
    """
    given = inputs(length, 1, with_state=True, decay=0.0, repeated=True)
    (out, state), gradients, grad_out, grad_state = expected(given, True)
    ours, ours_state = delta_rule(**named(given))
    close(ours, out)
    close(ours_state, state)
    for name, gradient in backward(given, grad_out, grad_state).items():
        close(gradient, gradients[name])


@pytest.mark.parametrize("with_state", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize("length", LENGTHS)
def test_outputs_are_transformers(length: int, with_state: bool) -> None:
    """transformers' chunked code on the same numbers, outputs and last states to 1e-5."""
    given = inputs(length, 1, with_state=with_state)
    q, k = given["qk"][:, 0, 0], given["qk"][:, 0, 1]
    theirs, their_state = torch_chunk_gated_delta_rule(
        (q * KEY**0.5)[:, :, None],
        k[:, :, None],
        given["v"][:, 0, :, None],
        given["g"][:, 0, :, None],
        given["b"][:, 0, :, None],
        initial_state=given["state"][:, None] if with_state else None,
        output_final_state=True,
    )
    ours, ours_state = delta_rule(**named(given))
    close(ours[:, 0], theirs[:, :, 0])
    close(ours_state, their_state)


@pytest.mark.parametrize(("length", "real"), [(8, 3), (64, 50), (70, 66), (150, 20)])
def test_padding_changes_nothing(length: int, real: int) -> None:
    """Right padding with g = b = q = k = 0 and any value and gradient there: the real tokens' numbers are those without it."""
    given = inputs(length, 2, with_state=True)
    for name, axis in (("qk", 3), ("g", 2), ("b", 2)):
        given[name].narrow(axis, real, length - real).zero_()
    short = {name: x if name == "state" else x.narrow(3 if name == "qk" else 2, 0, real) for name, x in given.items()}
    (out, state), gradients, grad_out, grad_state = expected(short, True)
    padding = torch.full((STATES, 2, length - real, VALUE), 7.0)
    ours, ours_state = delta_rule(**named(given))
    close(ours[:, :, :real], out)
    close(ours_state, state)
    ours_gradients = backward(given, torch.cat([grad_out, padding], dim=2), grad_state)
    for name, gradient in gradients.items():
        found = ours_gradients[name]
        assert found is not None
        close(found if name == "state" else found.narrow(3 if name == "qk" else 2, 0, real), gradient)


def test_chunks_of_any_length_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """23 tokens at once and in chunks of at most 1, 5 and 8, by the same loop."""
    given = inputs(23, 2, with_state=True)
    (out, state), gradients, grad_out, grad_state = expected(given, True)
    for size in (1, 5, 8):
        monkeypatch.setattr(module, "CHUNK", size)
        ours, ours_state = delta_rule(**named(given))
        close(ours, out)
        close(ours_state, state)
        for name, gradient in backward(given, grad_out, grad_state).items():
            close(gradient, gradients[name])


@pytest.mark.parametrize("decay", [10.0, 20.0])
def test_the_gradient_of_strong_decays_is_no_rounding_noise(decay: float) -> None:
    """A head that forgets nearly everything: d g is of the size of e^-10 or e^-20, and right to 1e-3 of that."""
    given = inputs(40, 2, with_state=True, decay=0.1)
    given["g"] -= decay
    _, gradients, grad_out, _ = expected(given, False)
    _, _, d_g, _, _ = delta_rule_backward(grad_out, None, *given.values())
    assert 0 < float(gradients["g"].abs().max()) < 30 * math.exp(-decay)
    assert float((d_g.double() - gradients["g"]).norm() / gradients["g"].norm()) < 1e-3
