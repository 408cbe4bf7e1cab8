"""Drawing tokens by inverse distribution function: one pass over the vocabulary, then a search among block sums."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 256
"""Ids per block. The search looks at V / 256 block sums and then at 256 ids."""

AT_ONCE = 2**19
"""Logits that are drawn from together on a CPU: a dozen passes over 2 MB stay in its cache."""


class Draw(NamedTuple):
    """Drawn ids [B], their log-probabilities [B] (float32) and the distributions' entropies [B], in nats."""

    ids_B: Tensor
    logprobs_B: Tensor
    entropies_B: Tensor


def draw(logits_BV: Tensor, uniforms_B: Tensor, temperature: float, suppressed: Tensor | None = None) -> Draw:
    """Draws one id per row from softmax(logits / temperature) over the ids that are not suppressed.

    `logits_BV` float32, overwritten; `uniforms_B` float64 in [0, 1). Id k is drawn when u * total lies in
    [sum of weights before k, that sum + its weight), so an id of probability 0 is never drawn, nor one past the vocabulary.
    """
    rows = len(logits_BV) if logits_BV.device.type != "cpu" else max(1, AT_ONCE // logits_BV.shape[1])
    parts = [
        _draw(logits_bV, uniforms_b, temperature, suppressed)
        for logits_bV, uniforms_b in zip(torch.split(logits_BV, rows), torch.split(uniforms_B, rows), strict=True)
    ]
    return parts[0] if len(parts) == 1 else Draw(*map(torch.cat, zip(*parts, strict=True)))


def _draw(logits_BV: Tensor, uniforms_B: Tensor, temperature: float, suppressed: Tensor | None) -> Draw:
    shifted_BV = _shift(logits_BV, temperature, suppressed)
    weights_BV = shifted_BV.exp()
    blocks_BN, tail = _block_sums(weights_BV)
    cumulative_BN = blocks_BN.cumsum(dim=1)
    total_B1 = cumulative_BN[:, -1:]

    target_B1 = uniforms_B.to(torch.float64)[:, None] * total_B1
    block_B1 = _first_above(cumulative_BN, target_B1, blocks_BN > 0)
    before_B1 = cumulative_BN.gather(1, block_B1) - blocks_BN.gather(1, block_B1)
    ids_BK = block_B1 * BLOCK + torch.arange(BLOCK, device=logits_BV.device)
    inside_BK = weights_BV.gather(1, ids_BK.clamp(max=tail)).to(torch.float64).masked_fill_(ids_BK > tail, 0.0)
    offset_B1 = _first_above(inside_BK.cumsum(dim=1), target_B1 - before_B1, inside_BK > 0)
    # Past the vocabulary only where logits are NaN, and then the log-probability is NaN as well.
    ids_B1 = (block_B1 * BLOCK + offset_B1).clamp(max=tail)

    log_total_B = total_B1.log().squeeze(1)
    logprobs_B = shifted_BV.gather(1, ids_B1).squeeze(1).to(torch.float64) - log_total_B
    if suppressed is not None:
        shifted_BV.index_fill_(1, suppressed, 0.0)  # their weight is 0, and 0 * -inf would be NaN
    mean_B = torch.linalg.vecdot(weights_BV, shifted_BV).to(torch.float64) / total_B1.squeeze(1)
    return Draw(ids_B1.squeeze(1), logprobs_B.float(), (log_total_B - mean_B).float())


def greedy(logits_BV: Tensor, suppressed: Tensor | None = None) -> Draw:
    """The most probable id of each row, the lowest one among equals, with its log-probability at temperature 1."""
    shifted_BV = _shift(logits_BV, 1.0, suppressed)
    ids_B = shifted_BV.argmax(dim=1)
    logprobs_B = shifted_BV.gather(1, ids_B[:, None]).squeeze(1) - shifted_BV.exp().sum(dim=1).log()
    return Draw(ids_B, logprobs_B, torch.zeros_like(logprobs_B))


def _shift(logits_BV: Tensor, temperature: float, suppressed: Tensor | None) -> Tensor:
    if suppressed is not None:
        logits_BV.index_fill_(1, suppressed, -torch.inf)
    if temperature != 1.0:
        logits_BV.div_(temperature)
    return logits_BV.sub_(logits_BV.amax(dim=1, keepdim=True))


def _block_sums(weights_BV: Tensor) -> tuple[Tensor, int]:
    """Sums [B, N] of each block of ids in float64, and the last id."""
    vocabulary = weights_BV.shape[1]
    whole = vocabulary // BLOCK * BLOCK
    sums_BN = weights_BV[:, :whole].view(weights_BV.shape[0], -1, BLOCK).sum(dim=2).to(torch.float64)
    if whole < vocabulary:
        rest_B1 = weights_BV[:, whole:].sum(dim=1, keepdim=True).to(torch.float64)
        sums_BN = torch.cat([sums_BN, rest_B1], dim=1) if whole else rest_B1
    return sums_BN, vocabulary - 1


def _first_above(cumulative_BN: Tensor, target_B1: Tensor, possible_BN: Tensor) -> Tensor:
    """Index [B, 1] of the first entry whose sum so far exceeds the target, else (rounding, u -> 1) the last possible one."""
    found_B1 = torch.searchsorted(cumulative_BN, target_B1, right=True)
    last_B1 = (cumulative_BN.shape[1] - 1) - possible_BN.flip(1).to(torch.int8).argmax(dim=1, keepdim=True)
    return torch.minimum(found_B1, last_B1)
