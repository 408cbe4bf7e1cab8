"""The local sampler: greedy as transformers, log-probabilities of a plain forward, random numbers by address."""

from pathlib import Path

import numpy as np
import pytest
import torch

from llmclick.interfaces import Request, SamplingInterrupted
from llmclick.modeling.llm.models.base import LanguageModel, load_language_model
from llmclick.modeling.llm.models.source import Source
from llmclick.modeling.llm.sampling.local import LocalSampler
from tests.modeling.sampling.routes import BOUND, assert_same, plain_logits
from tests.sampling import how


@pytest.fixture
def model(any_folder: Path) -> LanguageModel:
    return load_language_model(Source("folder", str(any_folder), any_folder))


def sampler(model: LanguageModel) -> LocalSampler:
    return LocalSampler(model, seed=11)


def requests(count: int = 5) -> list[Request]:
    generator = np.random.default_rng(5)
    return [Request(f"row-{k}", generator.integers(3, 90, size=3 + 4 * k).tolist()) for k in range(count)]


def test_greedy_equals_transformers_generate(model: LanguageModel) -> None:
    """Token for token, on left-padded prompts of different lengths; where two part, both tokens are the likeliest to 1e-4."""
    asked = requests()
    ours = sampler(model).sample(asked, how(1, "greedy", temperature=None))
    longest = max(len(request.ids) for request in asked)
    ids = torch.tensor([[model.pad_id] * (longest - len(r.ids)) + list(r.ids) for r in asked])
    mask = torch.tensor([[0] * (longest - len(r.ids)) + [1] * len(r.ids) for r in asked])
    options = {"suppress_tokens": list(model.suppressed_ids)} if model.suppressed_ids else {}
    theirs = model.module.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=24, eos_token_id=list(model.stop_ids), **options
    )
    for request, [completion], row in zip(asked, ours, theirs.tolist(), strict=True):
        assert completion.stop == ("stop" if completion.ids[-1] in model.stop_ids else "length")
        pairs = zip(completion.ids, row[longest:], strict=False)
        at = next((k for k, (one, other) in enumerate(pairs) if one != other), None)
        if at is None:
            assert row[longest : longest + len(completion.ids)] == completion.ids
            continue
        logits_V = plain_logits(model, request, completion)[at]
        assert float(logits_V.max() - logits_V[[completion.ids[at], row[longest + at]]].min()) < BOUND


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropy_equal_a_plain_forward(model: LanguageModel, temperature: float) -> None:
    """To 1e-4, at the sampling temperature, without the suppressed ids."""
    asked = requests()
    for request, group in zip(asked, sampler(model).sample(asked, how(3, temperature=temperature)), strict=True):
        for completion in group:
            logprobs = (plain_logits(model, request, completion) / temperature).log_softmax(dim=1)
            chosen = logprobs.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
            assert torch.allclose(torch.tensor(completion.logprobs), chosen, atol=1e-4)
            p = logprobs.exp()
            entropy = -torch.where(p > 0, p * logprobs, 0.0).sum(dim=1).mean()
            assert completion.entropy == pytest.approx(float(entropy), abs=1e-4)


def test_alone_and_together_use_the_same_numbers(model: LanguageModel) -> None:
    """64 completions drawn alone and in one batch; where two part, the number lies at the border of the two tokens."""
    asked = requests(8)
    together = sampler(model).sample(asked, how(8, "train/3"))
    apart = sampler(model).sample(asked, how(8, "train/3", together=1))
    assert_same(model, asked, together, apart, seed=11, stream="train/3", temperature=1.0)


def test_the_same_layout_gives_the_same_bits(model: LanguageModel) -> None:
    """Ids and log-probabilities are equal, not close; another stream gives other completions."""
    first, again = (sampler(model).sample(requests(), how()) for _ in range(2))
    assert first == again
    assert first != sampler(model).sample(requests(), how(4, "train/1"))


def test_equal_prompts_draw_different_completions(model: LanguageModel) -> None:
    """Two rows with one prompt are two groups with numbers of their own, and so are the samples of a group."""
    ids = requests()[2].ids
    first, second = sampler(model).sample([Request("a", ids), Request("b", ids)], how())
    assert len({tuple(completion.ids) for completion in first + second}) == 8


def test_every_stop_id_ends_a_completion_and_is_its_last_token(model: LanguageModel) -> None:
    """Each stop id occurs once, at the end; a completion cut by the budget has none and has exactly the budget's tokens."""
    completions = [c for group in sampler(model).sample(requests(), how(16, temperature=1.5, new=60)) for c in group]
    assert {c.stop for c in completions} == {"stop", "length"}
    for completion in completions:
        ends = [k for k, token in enumerate(completion.ids) if token in model.stop_ids]
        assert ends == ([len(completion.ids) - 1] if completion.stop == "stop" else [])
        assert completion.stop == "stop" or len(completion.ids) == 60
        assert not set(completion.ids) & set(model.suppressed_ids)


def test_generation_config_shapes_nothing(model: LanguageModel) -> None:
    """A checkpoint that asks for top_k 1 and a penalty draws what it draws without them."""
    before = sampler(model).sample(requests(), how())
    model.module.generation_config.top_k = 1
    model.module.generation_config.repetition_penalty = 5.0
    assert sampler(model).sample(requests(), how()) == before


def test_should_stop_drops_the_batch(model: LanguageModel) -> None:
    """Asked between two tokens, sampling ends with an event and no completions."""
    positions: list[int] = []
    with pytest.raises(SamplingInterrupted):
        sampler(model).sample(requests(), how(2, "x"), on_tokens=positions.append, should_stop=lambda: len(positions) >= 3)
    assert positions == [1, 2, 3]
