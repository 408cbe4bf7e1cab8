"""Micro-batches: every row once, within the bounds, from lengths alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from llmclick.interfaces import Completion
from llmclick.modeling.llm.training.batch import SampledBatch, plan, plan_packed

BOUNDS = [(8, 8192), (3, 120), (1, 60), (2, 30), (8, 1)]


def sampled(prompts: list[int], completions: list[int], group_size: int, seed: int = 0) -> SampledBatch:
    """A batch of these lengths; `seed` decides everything else."""
    generator = np.random.default_rng(seed)
    rows = len(completions)
    return SampledBatch(
        prompts=[generator.integers(0, 99, size=length).tolist() for length in prompts],
        completions=[
            Completion(generator.integers(0, 99, size=length).tolist(), generator.normal(size=length).tolist(), "stop", 0.0)
            for length in completions
        ],
        group_size=group_size,
        advantages_B=generator.normal(size=rows),
        silent_B=np.zeros(rows, dtype=bool),
        masked_B=np.zeros(rows, dtype=bool),
    )


def random_batch(seed: int, group_size: int = 4) -> SampledBatch:
    """Seven prompts of 1 to 40 tokens, completions of 1 to 30."""
    generator = np.random.default_rng(seed)
    prompts = generator.integers(1, 41, size=7).tolist()
    return sampled(prompts, generator.integers(1, 31, size=7 * group_size).tolist(), group_size, seed)


@pytest.mark.parametrize(("batch_size", "micro_tokens"), BOUNDS)
@pytest.mark.parametrize("seed", range(4))
def test_plan_keeps_its_bounds(seed: int, batch_size: int, micro_tokens: int) -> None:
    """Every row once, behind its prompt; at most batch_size prompts and micro_tokens padded tokens, unless it is one alone."""
    batch = random_batch(seed)
    rows = [row for row in range(28) if row % 5]
    chunks = plan(batch, rows, batch_size, micro_tokens)
    assert sorted(row for chunk in chunks for micro in chunk.micro_batches for row in micro) == rows
    for chunk in chunks:
        assert {row // 4 for micro in chunk.micro_batches for row in micro} == set(chunk.prompts)
        assert len(chunk.prompts) <= batch_size
        longest = max(len(batch.prompts[prompt]) for prompt in chunk.prompts)
        assert len(chunk.prompts) == 1 or len(chunk.prompts) * longest <= micro_tokens
        for micro in chunk.micro_batches:
            assert len(micro) == 1 or len(micro) * max(map(batch.length, micro)) <= micro_tokens


@pytest.mark.parametrize(("batch_size", "micro_tokens"), BOUNDS)
@pytest.mark.parametrize("seed", range(4))
def test_plan_packed_keeps_its_bounds(seed: int, batch_size: int, micro_tokens: int) -> None:
    """Every row once, behind its own prompt; at most batch_size prompts and micro_tokens tokens, prompts included.

    Only a group that has more tokens than that may exceed them, alone in its micro-batch: by its prompt and one half of
    micro_tokens in completions, or by a single row.
    """
    batch = random_batch(seed)
    rows = [row for row in range(28) if row % 5]
    micro_batches = plan_packed(batch, rows, batch_size, micro_tokens)
    assert sorted(row for micro in micro_batches for _, members in micro for row in members) == rows
    for micro in micro_batches:
        assert len(micro) <= batch_size
        assert all(row // 4 == prompt for prompt, members in micro for row in members)
        prompts = [len(batch.prompts[prompt]) for prompt, _ in micro]
        completions = [sum(map(batch.length, members)) for _, members in micro]
        if sum(prompts) + sum(completions) > micro_tokens:
            assert len(micro) == 1
            assert len(micro[0][1]) == 1 or completions[0] <= micro_tokens // 2


def test_plan_packed_by_hand() -> None:
    """Micro-batches of 20 tokens, most tokens first: behind a prompt of 10 no two of 8, 7, 6, 5 fit; small groups share one.

    2 + 8 and 3 + 5 tokens are 18, but two prompts: not with batch_size 1. The first group has 36 tokens with its prompt.
    """
    batch = sampled([10, 2, 3], [8, 7, 6, 5, 2, 2, 2, 2, 1, 1, 1, 2], 4)
    assert plan_packed(batch, range(12), 8, 20) == [
        [(0, (0,))],
        [(0, (1,))],
        [(0, (2,))],
        [(0, (3,))],
        [(1, (4, 5, 6, 7)), (2, (11, 8, 9, 10))],
    ]
    assert plan_packed(batch, range(4, 12), 1, 20) == [[(1, (4, 5, 6, 7))], [(2, (11, 8, 9, 10))]]
    assert plan_packed(batch, range(4), 8, 36) == [[(0, (0, 1, 2, 3))]]
    assert plan_packed(batch, range(4), 8, 35) == [[(0, (0, 1, 2))], [(0, (3,))]]


def test_a_long_prompt_is_forwarded_few_times() -> None:
    """A prompt longer than micro_tokens: each micro-batch still holds half of micro_tokens in completions."""
    batch = sampled([100], [5] * 8, 8)
    assert plan_packed(batch, range(8), 8, 40) == [[(0, (0, 1, 2, 3))], [(0, (4, 5, 6, 7))]]


def test_plans_depend_on_lengths_alone() -> None:
    """Other ids, log-probabilities and advantages of the same lengths, and rows asked for in another order: the same plan."""
    batch = random_batch(3)
    other = sampled([len(prompt) for prompt in batch.prompts], [batch.length(row) for row in range(28)], 4, seed=99)
    other = dataclasses.replace(other, silent_B=~other.silent_B)
    shuffled = np.random.default_rng(1).permutation(28).tolist()
    for bounds in BOUNDS:
        assert plan(other, shuffled, *bounds) == plan(batch, range(28), *bounds)
        assert plan_packed(other, shuffled, *bounds) == plan_packed(batch, range(28), *bounds)
