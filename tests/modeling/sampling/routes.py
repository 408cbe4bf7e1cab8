"""Completions of two ways of computing one distribution: equal but for draws that lie between two tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from llmclick.interfaces import Completion, Request
from llmclick.modeling.llm.sampling.random import completion_key, uniforms

BOUND = 1e-4
"""Log-probabilities of two ways in float32 differ by at most 1e-5 on these models (1e-4 is ten times that), and so do sums of
probabilities: a number nearer than this to the border of two tokens may draw either."""


def plain_logits(model: Any, request: Request, completion: Completion) -> torch.Tensor:
    """Logits [T, V] that predict the completion's tokens, from one unpadded forward of the whole model."""
    ids = torch.tensor([[*request.ids, *completion.ids]])
    with torch.no_grad():
        logits: torch.Tensor = model.module(input_ids=ids).logits[0, len(request.ids) - 1 : -1].float()
    if model.suppressed_ids:
        logits[:, list(model.suppressed_ids)] = -torch.inf
    return logits


def assert_same(
    model: Any,
    asked: Sequence[Request],
    ours: Sequence[Sequence[Completion]],
    theirs: Sequence[Sequence[Completion]],
    *,
    seed: int,
    stream: str,
    temperature: float | None,
) -> None:
    """Token for token, and to 1e-4 in log-probability and entropy.

    Two completions may part where the plain `model` has both tokens equally likely (greedy), or puts the drawn number on the
    border between them; what follows was drawn behind another text.
    """
    for request, group, others in zip(asked, ours, theirs, strict=True):
        for sample, (one, other) in enumerate(zip(group, others, strict=True)):
            at = next((k for k, (a, b) in enumerate(zip(one.ids, other.ids, strict=False)) if a != b), None)
            assert one.logprobs[:at] == pytest.approx(other.logprobs[:at], abs=BOUND)
            if at is None:
                assert (one.ids, one.stop) == (other.ids, other.stop)
                assert one.entropy == pytest.approx(other.entropy, abs=BOUND)
                continue
            lower, upper = sorted((one.ids[at], other.ids[at]))
            logits_V = plain_logits(model, request, one)[at].double()
            if temperature is None:
                assert float(logits_V.max() - logits_V[[lower, upper]].min()) < BOUND
                continue
            number = float(uniforms(np.array([completion_key(seed, stream, request.row_id, sample)]), at)[0])
            cumulative_V = (logits_V / temperature).softmax(dim=0).cumsum(dim=0)
            assert float(cumulative_V[lower]) == pytest.approx(number, abs=BOUND)
            assert float(cumulative_V[upper - 1]) == pytest.approx(number, abs=BOUND)
