"""The parity probe: before the first update, sampler and trainer must agree about the tokens that were sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmclick.errors import TrainingStopped

if TYPE_CHECKING:
    from llmclick.modeling.llm.training.batch import SampledBatch
    from llmclick.modeling.llm.training.policy import Policy
    from llmclick.modeling.llm.training.step import StepStatistics

BOUNDS = {"fp32": 2e-3, "bf16": 0.1}
"""Largest healthy mean |logprob difference| of one completion of 8 tokens or more, in nats, by compute precision."""


def check_parity(policy: Policy, batch: SampledBatch, statistics: StepStatistics) -> None:
    """Compares the log-probabilities of the first batch, prompt by prompt, so that one bad prompt is not averaged away.

    Raises TrainingStopped with both numbers when a prompt's completions differ by more than precision explains.
    """
    bound = BOUNDS[policy.precision]
    by_prompt: dict[int, list[int]] = {}
    for row in statistics.row_mismatch:
        by_prompt.setdefault(row // batch.group_size, []).append(row)
    for prompt, rows in by_prompt.items():
        tokens = sum(map(batch.length, rows))
        mean = sum(statistics.row_mismatch[row] * batch.length(row) for row in rows) / tokens
        # A handful of tokens is a noisy mean: give few tokens more room, as the error of a mean shrinks with their root.
        allowed = bound * max(1.0, (32 / tokens) ** 0.5)
        if mean > allowed:
            raise TrainingStopped(
                f"sampler and trainer disagree about prompt {prompt + 1} of the first batch: log-probabilities of the same "
                f"tokens differ by {mean:.3g} nats on average, {policy.precision} explains at most {allowed:.3g}. "
                "Nothing was trained. This is a fault in the model's code path, not in your config; please report the model"
            )
