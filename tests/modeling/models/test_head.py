"""The head's logits and gradients in slices, and the embedding's gradient by rows, against autograd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from llmclick.modeling.llm.models import head as head_module
from llmclick.modeling.llm.models.head import EmbeddingGradient, Head
from tests.tiny import load_tiny, tiny_dense

TIGHT, ROUNDED = 1e-6, 0.006
"""Relative L2 distances: rounding of fp32, and of the factors and results in bf16."""


@pytest.fixture(scope="module")
def untied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dense(tmp_path_factory.mktemp("untied"), tie=False)


@pytest.fixture(params=["tied", "untied", "untied with bias"])
def model(request: pytest.FixtureRequest, dense_folder: Path, untied_folder: Path) -> Any:
    loaded = load_tiny(dense_folder if request.param == "tied" else untied_folder)
    assert loaded.tied == (request.param == "tied")
    if request.param == "untied with bias":
        loaded.module.lm_head.bias = torch.nn.Parameter(random(loaded.vocab_size))
    return loaded


def head_of(model: Any, dtype: torch.dtype = torch.float32, alone: bool = True) -> Head:
    head = Head(model, dtype)
    head.alone = alone
    return head


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def distance(one: torch.Tensor | None, other: torch.Tensor) -> float:
    assert one is not None
    return float((one.float() - other.float()).norm() / other.float().norm())


def backward(head: Head, calls: Sequence[int], seed: int = 0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """d loss / d hidden, d weight and d bias of one step of those calls, ours and autograd's.

    The caller overwrites its gradient's memory after each call.
    """
    weight, bias = head.model.head_weight, head.model.head_bias
    hidden, grad = random(sum(calls), weight.shape[1], seed=seed), random(sum(calls), weight.shape[0], seed=seed + 50)
    head.clear_gradient()
    if bias is not None:
        bias.grad = None
    parts = []
    for part_grad, part_hidden in zip(grad.split(calls), hidden.split(calls), strict=True):
        memory = part_grad.clone()
        parts.append(head.backward(memory, part_hidden))
        memory.fill_(torch.nan)
    head.finish_gradient()
    leaves = [hidden.requires_grad_(), *(p.detach().requires_grad_() for p in (weight, bias) if p is not None)]
    logits = functional.linear(*leaves)
    return [torch.cat(parts), *(p.grad.clone() for p in (weight, bias) if p is not None)], list(  # type: ignore[union-attr]
        torch.autograd.grad(logits, leaves, grad)
    )


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("calls", [[1], [30], [7, 1, 40]])
def test_backward_is_autograds(model: Any, dtype: torch.dtype, calls: list[int]) -> None:
    """Gradients of hidden states, weight and bias; the weight's over NaN that a former step left in its memory."""
    head = head_of(model, dtype)
    for seed in range(2):
        for one, other in zip(*backward(head, calls, seed), strict=True):
            assert distance(one, other) < (TIGHT if dtype == torch.float32 else ROUNDED)
        model.head_weight.grad.fill_(torch.nan)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_are_the_whole(model: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head too large for a copy, in slices of 100 of its 320 ids: logits and gradients as without; also without packing."""
    whole = head_of(model, dtype)
    hidden = random(12, model.head_weight.shape[1], seed=7)
    logits = whole.logits(hidden)
    gradients, _ = backward(whole, [20, 3])
    monkeypatch.setattr(head_module, "SLICE", 100 * model.head_weight.shape[1] + 5)
    monkeypatch.setattr(head_module, "_KEPT", 0)
    sliced = head_of(model, dtype)
    assert [len(range(320)[span]) for span in sliced._slices()] == [100, 100, 100, 20]
    for _ in range(2):
        # bf16's products are summed slice by slice in fp32: half a unit in the last place of a part.
        assert distance(sliced.logits(hidden), logits) < (TIGHT if dtype == torch.float32 else ROUNDED)
        for one, other in zip(backward(sliced, [20, 3])[0], gradients, strict=True):
            assert distance(one, other) < (TIGHT if dtype == torch.float32 else ROUNDED)
        sliced.for_training()


def test_waiting_gradients_are_written_when_they_are_many(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room to wait: each call writes, the first over what was there and the others on top of it."""
    monkeypatch.setattr(head_module, "_WAITING_BYTES", 0)
    head = head_of(model)
    for seed in range(2):
        for one, other in zip(*backward(head, [5, 2, 9], seed), strict=True):
            assert distance(one, other) < TIGHT


@pytest.mark.usefixtures("bf16_products")
def test_logits_are_the_weights_product(model: Any) -> None:
    """hidden @ weight.T + bias, for any leading shape; weights that moved count at once in fp32, after `refresh` in bf16."""
    hidden = random(2, 3, model.head_weight.shape[1])
    heads = {dtype: head_of(model, dtype) for dtype in (torch.float32, torch.bfloat16)}
    for _ in range(2):
        expected = functional.linear(hidden, model.head_weight.detach().clone(), model.head_bias)
        for dtype, head in heads.items():
            assert head.logits(hidden).shape == (2, 3, 320)
            assert distance(head.logits(hidden), expected) < (TIGHT if dtype == torch.float32 else ROUNDED)
            memory = torch.full((6, 320), torch.nan)
            head.logits_into(hidden.view(6, -1), memory)
            assert distance(memory.view(2, 3, 320), head.logits(hidden)) < TIGHT
        with torch.no_grad():
            model.head_weight.mul_(-1.5)
        for head in heads.values():
            head.refresh()


def test_a_head_that_is_not_alone_adds(model: Any) -> None:
    """Where autograd adds to the same gradient in between, nothing is overwritten and nothing is set to zero."""
    head = head_of(model, alone=False)
    assert head.clear_gradient() == set()
    model.head_weight.grad = torch.zeros_like(model.head_weight)
    grad, hidden = random(6, 320), random(6, model.head_weight.shape[1])
    head.backward(grad, hidden)
    model.head_weight.grad.add_(3.0)
    head.finish_gradient()
    assert torch.allclose(model.head_weight.grad, grad.T @ hidden + 3, atol=1e-5)
    head.clear_gradient()
    head.finish_gradient()
    assert torch.allclose(model.head_weight.grad, grad.T @ hidden + 3, atol=1e-5)


def test_a_frozen_head_gets_no_gradient(model: Any) -> None:
    """The hidden states' is computed all the same, and without a backward pass nothing appears either."""
    model.module.requires_grad_(False)
    head = head_of(model)
    assert head.clear_gradient() == set()
    grad = random(6, 320)
    assert distance(head.backward(grad, random(6, model.head_weight.shape[1])), grad @ model.head_weight) < TIGHT
    head.finish_gradient()
    assert model.head_weight.grad is None


# ---- the embedding


@pytest.mark.parametrize("room", [2**26, 0])
def test_embedding_gradient_is_autograds(model: Any, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that repeat within a call and between calls, a head's gradient before, between or behind; over a stale gradient.

    Tied weights get the sum of both. With `room` 0 every call writes at once.
    """
    monkeypatch.setattr(head_module, "_WAITING_BYTES", room)
    head = head_of(model)
    weight: torch.Tensor = model.module.get_input_embeddings().weight
    embedding = EmbeddingGradient(model.module.get_input_embeddings(), head)
    ids = [torch.tensor([[5, 9, 5], [319, 5, 1]]), torch.tensor([[9, 9]])]
    factors = [random(*some.shape, weight.shape[1], seed=at) for at, some in enumerate(ids)]
    hidden, grad = random(4, weight.shape[1], seed=8), random(4, 320, seed=9)
    for order in ("head first", "head between", "head last", "no head"):
        for parameter in (weight, model.head_weight):
            parameter.grad = torch.full_like(parameter, torch.nan)
        if id(weight) not in head.clear_gradient():
            weight.grad = torch.zeros_like(weight)
        embedding.clear()
        for at, (some, factor) in enumerate(zip(ids, factors, strict=True)):
            if (order, at) in (("head first", 0), ("head between", 1)):
                head.backward(grad, hidden)
            embedded = embedding.embed(some)
            assert torch.equal(embedded, weight.detach()[some])
            (embedded * factor).sum().backward()
        if order == "head last":
            head.backward(grad, hidden)
        head.finish_gradient()
        embedding.finish()
        leaf = weight.detach().requires_grad_()
        padding = model.module.get_input_embeddings().padding_idx
        loss = sum(
            (functional.embedding(some, leaf, padding) * factor).sum() for some, factor in zip(ids, factors, strict=True)
        )
        if model.tied and order != "no head":
            loss = loss + (functional.linear(hidden, leaf) * grad).sum()
        assert distance(weight.grad, torch.autograd.grad(loss, leaf)[0]) < TIGHT, order  # type: ignore[arg-type]
        if not model.tied:
            other = grad.T @ hidden if order != "no head" else torch.zeros(320, weight.shape[1])
            assert torch.allclose(model.head_weight.grad, other, atol=1e-5), order


def test_a_frozen_embedding_starts_the_graph_and_gets_nothing(model: Any) -> None:
    """Its output requires a gradient, so that layers behind it have one; the weight's own stays None."""
    weight = model.module.get_input_embeddings().weight
    model.module.requires_grad_(False)
    embedding = EmbeddingGradient(model.module.get_input_embeddings(), head_of(model))
    embedded = embedding.embed(torch.tensor([[4, 7]]))
    (embedded * 2).sum().backward()
    embedding.finish()
    assert float(embedded.grad.min()) == 2.0  # type: ignore[union-attr]
    assert weight.grad is None


@pytest.mark.usefixtures("bf16_products")
def test_a_head_that_bends_its_logits_rounds_them_as_its_training_pass_does(tmp_path: Path) -> None:
    """A soft cap in bf16: what is sampled from is what autograd's pass computes, number for number but for sums' order."""
    model = load_tiny(tiny_dense(tmp_path, style="gemma2"))
    model.module.config.final_logit_softcapping = 2.0
    assert not model.plain_head
    hidden = random(40, model.head_weight.shape[1], seed=3)
    with torch.autocast("cpu", torch.bfloat16):
        trained = model.logits(hidden.clone().requires_grad_()).detach()
    sampled = head_of(model, torch.bfloat16).logits(hidden)
    assert float((sampled.float() == trained.float()).float().mean()) > 0.9
