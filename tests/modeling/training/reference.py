"""A slow, plain implementation of one optimizer step's loss: one unpadded forward per completion, formulas written out."""

from __future__ import annotations

import torch

from llmclick.modeling.llm.models.base import LanguageModel
from llmclick.modeling.llm.training.batch import SampledBatch


def sequence_logprobs(model: LanguageModel, prompt: list[int], ids: list[int], temperature: float) -> torch.Tensor:
    """Log-probabilities [T] of a completion's tokens, with gradient, from the whole model's own forward."""
    logits = model.module(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float() / temperature
    if model.suppressed_ids:
        logits = logits.index_fill(1, torch.tensor(model.suppressed_ids), -torch.inf)
    return logits.log_softmax(dim=1).gather(1, torch.tensor(ids)[:, None])[:, 0]


def plain_loss(
    model: LanguageModel,
    batch: SampledBatch,
    *,
    method: str,
    average: str,
    ratio: str,
    temperature: float,
    longest: int,
    clip: float,
    beta: float = 0.0,
    old: dict[int, torch.Tensor] | None = None,
    reference: dict[int, torch.Tensor] | None = None,
) -> torch.Tensor:
    """The loss of DESIGN's formulas over all completions that are not masked, silent ones included."""
    rows = [row for row in range(len(batch.completions)) if not batch.masked_B[row]]
    tokens = sum(batch.length(row) for row in rows)
    loss = torch.zeros(())
    for row in rows:
        logprobs = sequence_logprobs(
            model, list(batch.prompts[row // batch.group_size]), batch.completions[row].ids, temperature
        )
        before = logprobs.detach() if old is None else old[row]
        log_ratio = logprobs - before
        r = (log_ratio.mean() if ratio == "sequence" else log_ratio).exp()
        a = float(batch.advantages_B[row])
        if method == "grpo":
            gain = torch.minimum(r * a, r.clamp(1 - clip, 1 + clip) * a)
        else:
            gain = r.detach().clamp(max=1 + clip) * a * logprobs
        gain = gain * torch.ones_like(logprobs)
        if reference is not None:
            x = logprobs - reference[row]
            gain = gain - beta * log_ratio.detach().exp() * x.detach() * logprobs
        weight = {
            "token": 1 / tokens,
            "sequence": 1 / (len(logprobs) * len(rows)),
            "constant": 1 / (len(rows) * longest),
        }[average]
        loss = loss - weight * gain.sum()
    return loss
