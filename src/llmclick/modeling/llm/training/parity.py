"""The parity probe: before the first update, sampler and trainer must agree about the tokens that were sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmclick.errors import TrainingStopped

if TYPE_CHECKING:
    from llmclick.modeling.llm.training.batch import SampledBatch
    from llmclick.modeling.llm.training.policy import Policy
    from llmclick.modeling.llm.training.statistics import StepStatistics

BOUNDS = {"fp32": 2e-3, "bf16": 0.08}
"""Largest healthy mean |logprob difference| of a prompt's completions, in nats, by compute precision.

Calibrated with four completions of 16 tokens per prompt. Healthy: the embedded model 5e-6 in fp32 and 0.025 to 0.033 in bf16, a
tiny random dense model 0 and 0.003, a tiny random hybrid 0 and 0.008; on hybrids with strong decay fp32 rounding reaches 4e-4.
The fault it has to catch, a left-padded prefill without position_ids: on the embedded model 0.14 to 0.18 for a prompt padded
by one token, 2.2 for ten; on the tiny models 0.2 (dense) and 0.017 (hybrid).
"""


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
