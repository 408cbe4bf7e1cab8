"""Drawing tokens: the inverse distribution function, its edges, and its distribution."""

import math

import numpy as np
import pytest
import torch

from llmclick.modeling.llm.sampling import draw as draw_module
from llmclick.modeling.llm.sampling.draw import BLOCK, draw, greedy
from llmclick.modeling.llm.sampling.random import completion_key, uniforms

ALMOST_ONE = float(np.nextafter(1.0, 0.0))


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_interval_decides_the_token() -> None:
    """Probabilities .5 .25 .25: a number below .5 draws 0, up to .75 draws 1, above draws 2."""
    logits = torch.tensor([0.5, 0.25, 0.25]).log().repeat(4, 1)
    drawn = draw(logits, numbers(0.0, 0.499, 0.5, 0.76), 1.0)
    assert drawn.ids_B.tolist() == [0, 0, 1, 2]
    assert drawn.logprobs_B.tolist() == pytest.approx([math.log(p) for p in (0.5, 0.5, 0.25, 0.25)])
    assert drawn.entropies_B.tolist() == pytest.approx([1.5 * math.log(2)] * 4)


@pytest.mark.parametrize("size", [1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 1000])
@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5, ALMOST_ONE])
def test_never_a_token_of_probability_zero_nor_past_the_vocabulary(size: int, u: float) -> None:
    """With one possible token at either end or in the middle, that token is drawn whatever the number."""
    for only in {0, size // 2, size - 1}:
        logits = torch.full((1, size), -torch.inf)
        logits[0, only] = 3.0
        assert draw(logits, numbers(u), 1.0).ids_B.tolist() == [only]


@pytest.mark.parametrize("rows", [64, 7, 1])
@pytest.mark.parametrize("size", [7, BLOCK + 5, 1500])
def test_draws_are_the_inverse_distribution_function(size: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain float64 cumulative sum: the drawn token's interval holds the number, many rows at once or few."""
    monkeypatch.setattr(draw_module, "AT_ONCE", rows * size + size // 2)
    generator = torch.Generator().manual_seed(size)
    logits = 3 * torch.randn(64, size, generator=generator)
    u = torch.rand(64, dtype=torch.float64, generator=generator)
    drawn = draw(logits.clone(), u, 0.7)
    cumulative = (logits.double() / 0.7).softmax(dim=1).cumsum(dim=1)
    for row, token in enumerate(drawn.ids_B.tolist()):
        low = float(cumulative[row, token - 1]) if token else 0.0
        assert low - 1e-6 <= float(u[row]) <= float(cumulative[row, token]) + 1e-6
    reference = (logits / 0.7).log_softmax(dim=1)
    assert torch.allclose(drawn.logprobs_B, reference.gather(1, drawn.ids_B[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(drawn.entropies_B, -(reference.exp() * reference).sum(dim=1), atol=1e-5)


def test_suppressed_ids_are_outside_the_distribution() -> None:
    """Probabilities .5 .25 .25 with the first suppressed are .5 .5 of the others, in log-probability and entropy too."""
    logits = torch.tensor([0.5, 0.25, 0.25]).log().repeat(2, 1)
    drawn = draw(logits, numbers(0.0, 0.6), 1.0, torch.tensor([0]))
    assert drawn.ids_B.tolist() == [1, 2]
    assert drawn.logprobs_B.tolist() == pytest.approx([math.log(0.5)] * 2)
    assert drawn.entropies_B.tolist() == pytest.approx([math.log(2)] * 2)
    assert greedy(torch.tensor([[9.0, 1.0, 2.0]]), torch.tensor([0])).ids_B.tolist() == [2]


def test_frequencies_follow_the_probabilities() -> None:
    """20,000 addressed numbers on six tokens: chi-square below the 99.9 % point of 5 degrees of freedom (20.5)."""
    probabilities = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    keys = np.array([completion_key(7, "test", f"row-{row}", 0) for row in range(2000)])
    counts = np.zeros(6)
    for position in range(10):
        drawn = draw(probabilities.log().repeat(2000, 1), torch.from_numpy(uniforms(keys, position)), 1.0)
        counts += np.bincount(drawn.ids_B.numpy(), minlength=6)
    expected = 20_000 * probabilities.numpy()
    assert float((((counts - expected) ** 2) / expected).sum()) < 20.5


def test_numbers_have_one_address() -> None:
    """Any change of seed, stream, row, sample or position gives another number; the same address the same one."""
    addresses = [(1, "a", "r", 0), (2, "a", "r", 0), (1, "b", "r", 0), (1, "a", "s", 0), (1, "a", "r", 1)]
    keys = np.array([completion_key(*address) for address in addresses])
    first, second = uniforms(keys, 0), uniforms(keys, 1)
    assert len({*first, *second}) == 10
    assert uniforms(keys[2:3], 1)[0] == second[2]
    assert ((first >= 0) & (first < 1)).all()
