"""The parity probe: silent on healthy code, loud when sampler and trainer see different positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from llmclick.errors import TrainingStopped
from llmclick.interfaces import Request
from llmclick.modeling.llm.compute import Precision
from llmclick.modeling.llm.sampling import local
from llmclick.modeling.llm.training.batch import SampledBatch
from llmclick.modeling.llm.training.parity import check_parity
from llmclick.modeling.llm.training.policy import Policy
from llmclick.modeling.llm.training.step import accumulate_gradient
from tests.modeling.training.test_step import load, objective
from tests.sampling import how


def without_positions(mask_PS: torch.Tensor) -> torch.Tensor:
    """The fault: a left-padded prefill that forgets its position_ids."""
    return torch.arange(mask_PS.shape[1]).expand(mask_PS.shape[0], -1)


def probe(folder: Path, precision: Precision) -> None:
    """A first batch of four prompts of which only the second is padded, by one token."""
    policy = Policy(load(folder).model, precision)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(3, 90, size=size).tolist() for size in (12, 11, 12, 12)]
    sampler = local.LocalSampler(policy.sampler_model, seed=3, autocast=policy.autocast)
    asked = [Request(f"row-{k}", prompt) for k, prompt in enumerate(prompts)]
    groups = sampler.sample(asked, how(temperature=0.8, new=8))
    completions = [completion for group in groups for completion in group]
    rows = len(completions)
    batch = SampledBatch(prompts, completions, 4, np.ones(rows), np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool))
    policy.zero_gradients()
    statistics = accumulate_gradient(policy, batch, objective(), batch.denominators(8), first=True)
    check_parity(policy, batch, statistics)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_healthy_code_passes(any_folder: Path, precision: Precision) -> None:
    """Dense and hybrid, fp32 and bf16: nothing is said."""
    probe(any_folder, precision)


@pytest.mark.parametrize(("family", "precision"), [("dense", "fp32"), ("dense", "bf16"), ("hybrid", "fp32")])
def test_one_shifted_prompt_is_caught(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, family: str, precision: Precision
) -> None:
    """Prefill positions shifted by one in one prompt of four: the run stops with that prompt and both numbers.

    (On the tiny random hybrid in bf16 the fault moves log-probabilities by 0.014, less than healthy rounding may.)
    """
    monkeypatch.setattr(local, "positions_of", without_positions)
    with pytest.raises(TrainingStopped, match=r"prompt 2 .* differ by 0\.\d+ nats .* at most 0\.\d+"):
        probe(request.getfixturevalue(f"{family}_folder"), precision)
