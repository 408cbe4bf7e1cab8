"""Log-probabilities of given tokens, and their gradient, without ever holding [tokens, vocabulary] as a whole.

Positions are taken in chunks. A chunk's logits are computed once: its log-probabilities decide d loss / d logprob, and the
gradient flows to the hidden states and into the head's `.grad` before the next chunk's logits exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from llmclick.modeling.llm.models.base import LanguageModel
    from llmclick.modeling.llm.models.head import Head

CHUNK_BYTES = 128 * 2**20
"""Memory of one chunk of logits in float32: 682 positions of a vocabulary of 49k, 135 of one of 248k."""

Slope = Callable[[slice, Tensor], Tensor]
"""(positions, their logprobs [n]) -> d loss / d logprob [n]."""


def token_logprobs(head: Head, hidden_ND: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
    """Log-probability [N] (float32) of each target id after each hidden state, at the sampling temperature. No gradient."""
    out_N = torch.empty(targets_N.shape[0], dtype=torch.float32, device=hidden_ND.device)
    with torch.no_grad():
        for span in _spans(head.model, targets_N.shape[0]):
            logits_NV = _logits(head, hidden_ND[span], temperature)
            out_N[span] = _pick(logits_NV, targets_N[span]) - logits_NV.logsumexp(dim=1)
    return out_N


def logprobs_with_gradient(
    head: Head, hidden_ND: Tensor, targets_N: Tensor, temperature: float, slope: Slope
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N], and d loss / d hidden [N, D]; the head keeps d loss / d head for its `finish_gradient`.

    `slope` is asked for each chunk. p = softmax(logits / temperature); d logprob / d logits = (onehot - p) / temperature.
    """
    hidden_ND = hidden_ND.detach()
    model = head.model
    weight_VD, bias_V = model.head_weight, model.head_bias
    logprobs_N = torch.empty(targets_N.shape[0], dtype=torch.float32, device=hidden_ND.device)
    grad_ND = torch.empty_like(hidden_ND)
    spans = _spans(model, targets_N.shape[0])
    memory_NV = torch.empty(max(span.stop - span.start for span in spans), model.vocab_size, device=hidden_ND.device)
    for span in spans:
        if model.plain_head:
            with torch.no_grad():
                _plain_chunk(head, hidden_ND, targets_N, temperature, slope, span, logprobs_N, grad_ND, memory_NV)
            continue
        # A head that bends its logits (a soft cap, a scale): autograd knows the derivative.
        with torch.enable_grad():
            leaf_nD = hidden_ND[span].requires_grad_()
            logits_NV = _temper(model, model.logits(leaf_nD), temperature)
            chosen_n = _pick(logits_NV, targets_N[span]) - logits_NV.logsumexp(dim=1)
        logprobs_N[span] = chosen_n.detach()
        inputs = [leaf_nD, *(p for p in (weight_VD, bias_V) if p is not None and p.requires_grad)]
        grads = torch.autograd.grad(chosen_n, inputs, slope(span, chosen_n.detach()))
        grad_ND[span] = grads[0]
        for parameter, grad in zip(inputs[1:], grads[1:], strict=True):
            _add_grad(parameter, grad)
    return logprobs_N, grad_ND


def _plain_chunk(
    head: Head,
    hidden_ND: Tensor,
    targets_N: Tensor,
    temperature: float,
    slope: Slope,
    span: slice,
    logprobs_N: Tensor,
    grad_ND: Tensor,
    memory_NV: Tensor,
) -> None:
    """One chunk of `logprobs_with_gradient` for logits = hidden @ weight.T + bias, in `memory_NV`."""
    logits_NV = memory_NV[: span.stop - span.start]
    head.logits_into(hidden_ND[span], logits_NV)
    if head.model.suppressed_ids:
        logits_NV.index_fill_(1, torch.tensor(head.model.suppressed_ids, device=logits_NV.device), -torch.inf)
    if temperature != 1.0:
        logits_NV.div_(temperature)
    chosen_n = _pick(logits_NV, targets_N[span])
    largest_n1 = logits_NV.amax(dim=1, keepdim=True)
    weights_NV = logits_NV.sub_(largest_n1).exp_()
    total_n1 = weights_NV.sum(dim=1, keepdim=True)
    logprobs_N[span] = chosen_n - largest_n1[:, 0] - total_n1[:, 0].log()
    slope_n1 = (slope(span, logprobs_N[span]) / temperature)[:, None]
    # d loss / d logits = slope * (onehot - p), built in the memory of the logits.
    grad_NV = weights_NV.mul_(-slope_n1 / total_n1)
    grad_NV.scatter_add_(1, targets_N[span][:, None], slope_n1)
    grad_ND[span] = head.backward(grad_NV, hidden_ND[span])


def _logits(head: Head, hidden_ND: Tensor, temperature: float) -> Tensor:
    """Logits [n, V] in float32 at the temperature, -inf at suppressed ids; a tensor that may be overwritten."""
    return _temper(head.model, head.logits(hidden_ND), temperature)


def _temper(model: LanguageModel, logits_NV: Tensor, temperature: float) -> Tensor:
    logits_NV = logits_NV.float()
    if model.suppressed_ids:
        logits_NV = logits_NV.index_fill(1, torch.tensor(model.suppressed_ids, device=logits_NV.device), -torch.inf)
    return logits_NV / temperature if temperature != 1.0 else logits_NV


def _pick(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    return logits_NV.gather(1, targets_N[:, None]).squeeze(1)


def _add_grad(parameter: Tensor, grad: Tensor) -> None:
    parameter.grad = grad.to(parameter.dtype) if parameter.grad is None else parameter.grad.add_(grad)


def _spans(model: LanguageModel, positions: int) -> list[slice]:
    size = max(1, CHUNK_BYTES // (4 * model.vocab_size))
    return [slice(start, min(start + size, positions)) for start in range(0, positions, size)]
