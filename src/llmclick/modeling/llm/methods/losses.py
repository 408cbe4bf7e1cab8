"""The objectives, as pure functions on tensors.

Everything is per sampled token and shaped [B, T] (B sequences, T tokens) or [B, 1] where it is one number per sequence.
`logprobs` are the current policy's and carry the gradient; `old` ones are the policy's at the first step on the same samples.
What a training step minimises is `-(policy objective) + beta * KL`, summed with the weights of `token_weights`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Average = Literal["token", "sequence", "constant"]
RatioLevel = Literal["token", "sequence"]

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to +-20: exp(20) is 5e8, beyond which a float32 product only loses meaning."""

SAMPLER_WEIGHT_CAP = 2.0
"""Largest weight of the sampler correction (truncated importance sampling)."""


def importance_ratio(logprobs_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, level: RatioLevel) -> Tensor:
    """r = exp(logprobs - old) [B, T], the log-ratio clamped to +-20.

    `sequence`: every token of a sequence gets exp(mean of its log-ratios), the ratio of GSPO (https://arxiv.org/abs/2507.18071).
    """
    log_ratio_BT = logprobs_BT - old_BT
    if level == "sequence":
        counts_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio_BT = ((log_ratio_BT * mask_BT).sum(dim=1, keepdim=True) / counts_B1).expand_as(log_ratio_BT)
    return log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def grpo_objective(ratio_BT: Tensor, advantage_B1: Tensor, low: float, high: float) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A): PPO's clipped surrogate (https://arxiv.org/abs/1707.06347) with GRPO's A."""
    return torch.minimum(ratio_BT * advantage_B1, ratio_BT.clamp(1 - low, 1 + high) * advantage_B1)


def cispo_objective(logprobs_BT: Tensor, ratio_BT: Tensor, advantage_B1: Tensor, clip: float) -> Tensor:
    """sg(min(r, 1 + clip)) A logprobs: CISPO (https://arxiv.org/abs/2506.13585), the importance weight capped at 1 + clip.

    The weight carries no gradient and has no lower bound, so no token is ever left out of the update.
    """
    return ratio_BT.detach().clamp(max=1 + clip) * advantage_B1 * logprobs_BT


def sampler_weight(old_BT: Tensor, sampler_BT: Tensor) -> Tensor:
    """w = min(exp(old - sampler), 2), without gradient: corrects for a sampler whose numbers differ from the trainer's."""
    return (old_BT - sampler_BT).detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp().clamp(max=SAMPLER_WEIGHT_CAP)


def kl_objective(logprobs_BT: Tensor, old_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """A term [B, T] whose gradient is r x grad(logprobs), x = logprobs - reference, r the *token* ratio to the old policy.

    r x is the derivative of r (exp(-x) - 1 + x), and its mean over tokens of the old policy is the gradient of
    KL(policy || base) of the next token. Written as sg(r x) logprobs so that no exponential of x is differentiated: a clamp
    inside the differentiated k3 estimator turns the gradient over. The value of the term means nothing; see `kl_estimate`.
    """
    ratio_BT = (logprobs_BT - old_BT).detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    return (ratio_BT * (logprobs_BT - reference_BT).detach()) * logprobs_BT


def kl_estimate(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """exp(-x) - 1 + x per token [B, T], the k3 estimate of the KL, for the log alone; the exponent is clamped at 20."""
    x_BT = (logprobs_BT - reference_BT).detach()
    return (-x_BT).clamp(max=LOG_RATIO_BOUND).exp() - 1 + x_BT


@dataclass(frozen=True)
class Denominators:
    """What one optimizer step divides by: known before its first backward, silent groups included, masked completions not.

    `tokens` and `sequences` count the scored ones of the whole step, over all micro-batches; `longest` is max_new_tokens.
    """

    tokens: int
    sequences: int
    longest: int


def token_weights(mask_BT: Tensor, average: Average, denominators: Denominators) -> Tensor:
    """The weight [B, T] of each token in the step's objective; 0 where `mask` is 0.

    `token`: 1 / scored tokens of the step. `sequence`: 1 / (tokens of its sequence * sequences of the step).
    `constant`: 1 / (sequences * max_new_tokens).
    """
    if average == "token":
        return mask_BT / max(denominators.tokens, 1)
    if average == "sequence":
        return mask_BT / (mask_BT.sum(dim=1, keepdim=True).clamp(min=1) * max(denominators.sequences, 1))
    return mask_BT / max(denominators.sequences * denominators.longest, 1)


def clipped_by_grpo(ratio_BT: Tensor, advantage_B1: Tensor, low: float, high: float) -> Tensor:
    """Where GRPO's clip changes the gradient: A > 0 and r > 1 + high, or A < 0 and r < 1 - low."""
    return ((advantage_B1 > 0) & (ratio_BT > 1 + high)) | ((advantage_B1 < 0) & (ratio_BT < 1 - low))


def clipped_by_cispo(ratio_BT: Tensor, advantage_B1: Tensor, clip: float) -> Tensor:
    """Where CISPO's cap changes the weight: r > 1 + clip."""
    return (ratio_BT > 1 + clip) & (advantage_B1 != 0)
