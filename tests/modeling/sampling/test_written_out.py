"""Decoding with the written-out decoder: the tokens, log-probabilities and distribution of the general path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmclick.interfaces import Completion, Request
from llmclick.modeling.llm.compute import Precision
from llmclick.modeling.llm.models import packed_matrix, products
from llmclick.modeling.llm.models.packed_matrix import PackedMatrix
from llmclick.modeling.llm.sampling.local import LocalSampler
from llmclick.modeling.llm.sampling.written_out import WrittenOutModel
from llmclick.modeling.llm.training.policy import Policy
from tests.modeling.sampling import routes
from tests.sampling import how
from tests.tiny import load_tiny, tiny_dense, tiny_family

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5": {"hybrid": True},
    "llama": {},
    "mistral-untied": {"style": "mistral", "tie": False},
    "qwen2": {"style": "qwen2"},
    "qwen3": {"style": "qwen3"},
}

SEED, STREAM = 11, "train/0"

PROMPTS = {"padded": [3, 17, 1, 8, 30], "equal": [6, 6, 6], "one prompt": [9], "one token": [1]}
"""Lengths of prompts that are sampled together."""


@pytest.fixture(params=FAMILIES, scope="module")
def family_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_family(tmp_path_factory.mktemp("family"), **FAMILIES[request.param])


def requests(lengths: Sequence[int]) -> list[Request]:
    generator = np.random.default_rng(5)
    return [Request(f"row-{k}", generator.integers(3, 300, size=length).tolist()) for k, length in enumerate(lengths)]


def sampled(
    folder: Path,
    lengths: Sequence[int],
    *,
    written_out: bool,
    precision: Precision = "fp32",
    temperature: float | None = 1.0,
    group: int = 1,
    new: int = 24,
    rows: int = 512,
) -> list[list[Completion]]:
    """Completions of each prompt, from a policy with its decoder written out or without."""
    policy = Policy(load_tiny(folder), precision, written_out=written_out)
    assert isinstance(policy.sampler_model, WrittenOutModel) == written_out
    sampler = LocalSampler(policy.sampler_model, seed=SEED, autocast=policy.autocast)
    return sampler.sample(requests(lengths), how(group, STREAM, temperature=temperature, new=new, together=rows))


def flat(groups: Sequence[Sequence[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def assert_same(
    folder: Path,
    lengths: Sequence[int],
    ours: Sequence[Sequence[Completion]],
    theirs: Sequence[Sequence[Completion]],
    temperature: float | None = 1.0,
) -> None:
    """What routes.assert_same says, of the model in `folder`."""
    asked = requests(lengths)
    routes.assert_same(load_tiny(folder), asked, ours, theirs, seed=SEED, stream=STREAM, temperature=temperature)


@pytest.mark.parametrize("lengths", PROMPTS.values(), ids=PROMPTS)
def test_greedy_tokens_are_the_general_paths(family_folder: Path, lengths: list[int]) -> None:
    """Prompts of different lengths, of one length, one alone, and one of a single token."""
    ours, theirs = (sampled(family_folder, lengths, written_out=each, temperature=None) for each in (True, False))
    assert_same(family_folder, lengths, ours, theirs, None)


@pytest.mark.parametrize("lengths", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_tokens_are_the_general_paths(family_folder: Path, lengths: list[int], temperature: float) -> None:
    """Groups of four from the same seed."""
    ours, theirs = (
        sampled(family_folder, lengths, written_out=each, temperature=temperature, group=4) for each in (True, False)
    )
    assert_same(family_folder, lengths, ours, theirs, temperature)


def test_rows_that_finish_early_leave_the_batch(family_folder: Path) -> None:
    """Long completions of which some stop early and some never: the rows that stay keep their own keys and values."""
    ours, theirs = (
        sampled(family_folder, PROMPTS["padded"], written_out=each, temperature=1.5, group=8, new=60) for each in (True, False)
    )
    lengths = sorted(len(completion.ids) for completion in flat(ours))
    assert lengths[0] < 15
    assert lengths[-1] == 60
    assert len(set(lengths)) > 5
    assert_same(family_folder, PROMPTS["padded"], ours, theirs, 1.5)


def test_alone_and_together(family_folder: Path) -> None:
    """What lies beside a row in the batch does not change its tokens; a prompt's padding neither."""
    together, apart = (sampled(family_folder, PROMPTS["padded"], written_out=True, group=2, rows=rows) for rows in (512, 1))
    assert_same(family_folder, PROMPTS["padded"], together, apart)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_packed_weights_decode_the_same(family_folder: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights laid out for the batch, and left as they are: the same tokens, also when rows have left the batch."""
    taken = []
    product = PackedMatrix.product

    def counted(self: PackedMatrix, x_NK: torch.Tensor, bias_M: torch.Tensor | None = None) -> torch.Tensor:
        taken.append(len(x_NK))
        return product(self, x_NK, bias_M)

    monkeypatch.setattr(PackedMatrix, "product", counted)
    drawn = []
    for fewest in (1, 1000):
        monkeypatch.setattr(packed_matrix, "FEWEST_TOKENS", fewest)
        drawn.append(
            sampled(
                family_folder,
                PROMPTS["padded"],
                written_out=True,
                precision=precision,
                temperature=1.5,
                group=8,
                new=60,
            )
        )
        if fewest == 1 and not (precision == "bf16" and not products.emulates_bf16(torch.device("cpu"))):
            assert max(taken) == 40
            assert 20 < min(taken) < 40
        else:
            assert taken == []
        taken.clear()
    if precision == "fp32":
        assert_same(family_folder, PROMPTS["padded"], *drawn, 1.5)
        return
    # Another order of a sum may round to the neighbouring bf16 number, so only what follows the same first token is compared.
    seconds = [[completion.logprobs[1] for completion in flat(each) if len(completion.ids) > 1] for each in drawn]
    assert len(seconds[0]) > 20
    assert seconds[0] == pytest.approx(seconds[1], abs=0.05)


@pytest.mark.usefixtures("bf16_products")
def test_weights_that_moved_are_sampled_from(dense_folder: Path) -> None:
    """After `sync` the sampler, in fp32 and bf16, decodes with the new weights: as a policy that starts from them."""
    for precision in ("fp32", "bf16"):
        drawn = []
        for moved_before in (True, False):
            model = load_tiny(dense_folder)
            policy = None if moved_before else Policy(model, precision)
            if policy is not None:  # what was laid out for these is another batch's
                LocalSampler(policy.sampler_model, seed=1, autocast=policy.autocast).sample(requests([4, 7]), how(new=20))
            with torch.no_grad():
                for parameter in model.module.parameters():
                    parameter.mul_(1.5)
            policy = policy or Policy(model, precision)
            sampler = LocalSampler(policy.sampler_model, seed=1, autocast=policy.autocast, refresh=policy.refresh)
            sampler.sync(iter(()), 0)
            drawn.append(sampler.sample(requests([4, 7]), how(new=20)))
        assert drawn[0] == drawn[1]
        before = sampled(dense_folder, [4, 7], written_out=True, precision=precision, group=4, new=20)
        assert [c.ids for group in drawn[0] for c in group] != [c.ids for c in flat(before)]


# ---- the distribution


@pytest.fixture(scope="module")
def peaked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that give some forty ids a share that can be counted, and bf16 an error that can not (chi-square + 3)."""
    return tiny_dense(tmp_path_factory.mktemp("peaked"), hidden=64, tie=False, scale=0.25)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_are_drawn_from_the_models_distribution(peaked_folder: Path, precision: Precision, temperature: float) -> None:
    """8,000 first tokens, and the second tokens of those with the most frequent first, against the plain model's softmax.

    Chi-square with ids of an expectation below 8 pooled, p > 0.001. The first comes from the prefill, the second from a
    decoding step.
    """
    (request,) = requests([6])
    model = load_tiny(peaked_folder)
    policy = Policy(model, precision)
    sampler = LocalSampler(policy.sampler_model, seed=3, autocast=policy.autocast)
    (group,) = sampler.sample([request], how(8000, temperature=temperature, new=2, together=8192))
    first = np.array([completion.ids[0] for completion in group])
    frequent = int(np.bincount(first)[3:].argmax()) + 3  # no stop id: something follows it
    second = np.array([completion.ids[1] for completion in group if completion.ids[0] == frequent])
    assert len(second) > 800
    plain = load_tiny(peaked_folder)
    for drawn, prompt in ((first, [*request.ids]), (second, [*request.ids, frequent])):
        with torch.no_grad():
            logits_V = plain.module(input_ids=torch.tensor([prompt])).logits[0, -1].double()
        expected = (logits_V / temperature).softmax(dim=0).numpy() * len(drawn)
        counts = np.bincount(drawn, minlength=len(expected))
        rare = expected < 8
        observed = [*counts[~rare], counts[rare].sum()]
        p = chi_square(observed, [*expected[~rare], expected[rare].sum()])
        assert len(observed) > 10
        assert p > 0.001


def chi_square(observed: Sequence[float], expected: Sequence[float]) -> float:
    """Probability of counts that lie as far from the expected ones, or farther, by chance (Pearson's test)."""
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return float(torch.special.gammaincc(torch.tensor((len(observed) - 1) / 2.0), torch.tensor(statistic / 2)))
