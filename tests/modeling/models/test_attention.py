"""Packed attention and its backward against one masked softmax over all tokens and autograd."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from llmclick.modeling.llm.models import attention, products
from llmclick.modeling.llm.models.attention import (
    Block,
    Blocks,
    Square,
    attend,
    attend_backward,
    attend_cached,
    blocks_of,
)
from llmclick.modeling.llm.models.layout import Group
from tests.modeling.models.groups import Lengths, groups_of

HEADS, KEY_HEADS, SIZE, SCALE = 6, 2, 8, 0.3

LAYOUTS: dict[str, Lengths] = {
    "two prompts, unequal rows": [(5, [3, 1, 4]), (7, [2])],
    "a prompt without rows": [(5, []), (5, [3, 3])],
    "prompts alone": [(4, []), (6, []), (1, [])],
    "one prompt, equal rows": [(6, [4, 4, 4, 4])],
    "one token each": [(1, [1, 1]), (1, [1])],
    "many": [(9, [1, 7, 2, 12]), (2, [15, 1]), (9, []), (3, [5]), (8, [1, 1, 1, 6, 2])],
    "a short prompt before a long one": [(1, [9]), (12, [2, 2])],
}

BLOCK_SIZES = [10**9, 4000, 1200, 600, 200, 30, 1]
"""Scores of a block, all heads together: everything at once, down to one query at a time."""


def allowed(groups: Sequence[Group], tokens: int) -> torch.Tensor:
    """[N, N], whether a query may see a key: in its own span what is not behind it, and in a row its whole prompt."""
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    for group in groups:
        prompt = slice(group.prompt.start, group.prompt.start + group.prompt.length)
        seen[prompt, prompt] = torch.ones(group.prompt.length, group.prompt.length).tril().bool()
        for row in group.rows:
            own = slice(row.start, row.start + row.length)
            seen[own, prompt] = True
            seen[own, own] = torch.ones(row.length, row.length).tril().bool()
    return seen


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    repeats = HEADS // KEY_HEADS
    scores = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(repeats, 1)) * SCALE
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    return torch.einsum("hij,jhd->ihd", weights, v.repeat_interleave(repeats, 1)).reshape(len(q), -1)


@pytest.fixture(autouse=True)
def _no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, however few the tokens are, where a test does not say otherwise."""
    monkeypatch.setattr(attention, "WHOLE_TOKENS", 0)


def laid_out(groups: Sequence[Group]) -> Blocks:
    return blocks_of(groups, HEADS, KEY_HEADS, torch.device("cpu"))


def blocks(groups: Sequence[Group]) -> list[Block]:
    found = laid_out(groups)
    assert not isinstance(found, Square)
    return list(found)


@pytest.mark.parametrize("block_scores", [*BLOCK_SIZES, 0])
@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("prompts_first", [True, False])
def test_output_and_gradients_are_a_masked_softmaxs(
    monkeypatch: pytest.MonkeyPatch, lengths: Lengths, block_scores: int, prompts_first: bool
) -> None:
    """Output and the gradients of q, k and v to 1e-5, however the queries are cut into blocks (0: one square)."""
    monkeypatch.setattr(attention, "BLOCK_SCORES", block_scores)
    if not block_scores:
        monkeypatch.setattr(attention, "WHOLE_TOKENS", 100)
    groups = groups_of(lengths, prompts_first)
    assert isinstance(laid_out(groups), Square) == (not block_scores)
    tokens = sum(length + sum(rows) for length, rows in lengths)
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(tokens, heads, SIZE, generator=generator).requires_grad_() for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    expected = plain(2 * q, k, v, allowed(groups, tokens))
    grad = torch.randn(expected.shape, generator=generator)
    gradients = torch.autograd.grad(expected, (q, k, v), grad)
    with torch.no_grad():
        ours = attend(2 * q, k, v, laid_out(groups), SCALE)
        ours_q, ours_k, ours_v = attend_backward(grad, ours, 2 * q, k, v, laid_out(groups), SCALE)
    assert torch.allclose(ours, expected, rtol=0, atol=1e-5)
    for one, other in zip((2 * ours_q, ours_k, ours_v), gradients, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-5 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("emulated", [True, False])
@pytest.mark.parametrize("square", [True, False])
def test_large_scores_in_bf16(monkeypatch: pytest.MonkeyPatch, square: bool, emulated: bool) -> None:
    """Scores of some hundreds: in bf16 they would be off by 1 and more, and the output by its own size; they are float32.

    What is left is the rounding of what is multiplied, to 1 in 256: 0.8 percent of the gradients is measured.
    """
    monkeypatch.setattr(attention, "BLOCK_SCORES", 600)
    monkeypatch.setattr(attention, "WHOLE_TOKENS", 100 if square else 0)
    monkeypatch.setattr(products, "emulates_bf16", lambda device: emulated)
    lengths = LAYOUTS["many"]
    groups = groups_of(lengths, True)
    tokens = sum(length + sum(rows) for length, rows in lengths)
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(tokens, heads, SIZE, generator=generator) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    q, k, v = (12 * q).bfloat16(), (12 * k).bfloat16(), v.bfloat16()
    leaves = [x.float().requires_grad_() for x in (q, k, v)]
    expected = plain(*leaves, allowed(groups, tokens))
    grad = torch.randn(expected.shape, generator=generator).bfloat16()
    gradients = torch.autograd.grad(expected, leaves, grad.float())
    ours = attend(q, k, v, laid_out(groups), SCALE)
    ours_gradients = attend_backward(grad, ours, q, k, v, laid_out(groups), SCALE)
    for one, other in zip((ours, *ours_gradients), (expected.detach(), *gradients), strict=True):
        assert float((one - other).norm() / other.norm()) < 0.015


@pytest.mark.parametrize("block_scores", BLOCK_SIZES)
@pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
def test_blocks_hold_each_query_once_within_their_bound(
    monkeypatch: pytest.MonkeyPatch, lengths: Lengths, block_scores: int
) -> None:
    """Only a block of one query may have more scores than BLOCK_SCORES."""
    monkeypatch.setattr(attention, "BLOCK_SCORES", block_scores)
    found = blocks(groups_of(lengths, True))
    queries = torch.cat([block.tokens for block in found])
    assert queries.sort().values.tolist() == list(range(sum(length + sum(rows) for length, rows in lengths)))
    for block in found:
        prompts, rows, queries_of, keys = block.shape
        if HEADS * prompts * rows * queries_of * (keys + queries_of) > block_scores:
            assert (prompts, rows, queries_of) == (1, 1, 1)


def test_a_long_prompt_is_cut_by_its_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 tokens, 6 heads and 240 scores: 40 for a head, so 4 queries at a time behind the 0, 4 and 8 before them."""
    monkeypatch.setattr(attention, "BLOCK_SCORES", 240)
    assert [block.shape for block in blocks(groups_of([(10, [])], True))] == [(1, 1, 4, 0), (1, 1, 4, 4), (1, 1, 2, 8)]


def test_a_long_row_is_cut_by_its_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 10 behind a prompt of 6, 48 scores a head: 3 queries at a time (48 / 16) behind 6 + 0, 3, 6, 9."""
    monkeypatch.setattr(attention, "BLOCK_SCORES", 48 * HEADS)
    assert [block.shape for block in blocks(groups_of([(6, [10])], True))] == [
        (1, 1, 6, 0),
        (1, 1, 3, 6),
        (1, 1, 3, 9),
        (1, 1, 3, 12),
        (1, 1, 1, 15),
    ]


def test_rows_are_cut_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 1, 4, 2, 4 behind a prompt of 2, 50 scores a head: the fours together (2 x 4 x 6 = 48), then 2 and 1."""
    monkeypatch.setattr(attention, "BLOCK_SCORES", 50 * HEADS)
    assert [block.shape for block in blocks(groups_of([(2, [1, 4, 2, 4])], True))] == [
        (1, 1, 2, 0),
        (1, 2, 4, 2),
        (1, 2, 2, 2),
    ]


def test_blocks_are_a_function_of_lengths_alone() -> None:
    """The same groups packed in another order have blocks of the same shapes."""
    one, other = ([block.shape for block in blocks(groups_of(LAYOUTS["many"], first))] for first in (True, False))
    assert one == other


@pytest.mark.parametrize("keys", [1, 7, 40])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("products_from", [0, 10**9])
def test_one_query_over_cached_keys(monkeypatch: pytest.MonkeyPatch, keys: int, padded: bool, products_from: int) -> None:
    """Against a softmax in float64, with keys in buffers that have room for more, by both ways of computing it."""
    monkeypatch.setattr(attention, "PRODUCTS_FROM", products_from)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(3, HEADS, SIZE, generator=generator)
    k, v = (torch.randn(3, KEY_HEADS, 50, SIZE, generator=generator)[:, :, :keys] for _ in range(2))
    hidden = torch.zeros(3, keys)
    if padded:
        hidden[1, : keys - 1] = -torch.inf
    wide_k, wide_v = (x.double().repeat_interleave(HEADS // KEY_HEADS, dim=1) for x in (k, v))
    scores = torch.einsum("bhd,bhsd->bhs", q.double(), wide_k) * SCALE + hidden[:, None].double()
    expected = torch.einsum("bhs,bhsd->bhd", scores.softmax(dim=-1), wide_v)
    ours = attend_cached(q, k, v, hidden[:, None, None] if padded else None, SCALE)
    assert torch.allclose(ours.double(), expected, atol=1e-5)
