"""Each formula against numbers worked by hand."""

import math

import numpy as np
import pytest
import torch

from llmclick.modeling.llm.methods.advantages import group_advantages, silent_groups
from llmclick.modeling.llm.methods.losses import (
    Denominators,
    cispo_objective,
    clipped_by_cispo,
    clipped_by_grpo,
    grpo_objective,
    importance_ratio,
    kl_estimate,
    kl_objective,
    sampler_weight,
    token_weights,
)


def logs(*ratios: float) -> torch.Tensor:
    """Log-probabilities whose ratio to 0 is as given, as one sequence [1, T]."""
    return torch.tensor([[math.log(r) for r in ratios]], dtype=torch.float64)


ONES = torch.ones(1, 1, dtype=torch.float64)


def test_group_advantages_by_hand() -> None:
    """Rewards 1 0 0 1 and 0 0 0 1: std 0.57735 and 0.5 (n - 1), each plus 1e-4."""
    rewards = np.array([[1.0, 0, 0, 1], [0, 0, 0, 1]])
    a, b = 0.5 / (math.sqrt(1 / 3) + 1e-4), 1 / (0.5 + 1e-4)
    expected = [[a, -a, -a, a], [-0.25 * b, -0.25 * b, -0.25 * b, 0.75 * b]]
    assert group_advantages(rewards, "group") == pytest.approx(np.array(expected), abs=1e-12)


def test_batch_advantages_divide_by_the_spread_of_all_rewards() -> None:
    """Rewards 1 0 0 1 0 0 0 1: sum of squares about 3/8 is 15/8, over 7."""
    rewards = np.array([[1.0, 0, 0, 1], [0, 0, 0, 1]])
    spread = math.sqrt(15 / 8 / 7) + 1e-4
    expected = np.array([[0.5, -0.5, -0.5, 0.5], [-0.25, -0.25, -0.25, 0.75]])
    assert group_advantages(rewards, "batch") == pytest.approx(expected / spread, abs=1e-12)
    assert group_advantages(rewards, "none") == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_silent_group_has_advantage_exactly_zero(scale: str) -> None:
    """Three rewards of 0.1 have a mean that is not 0.1 in floating point; the advantage is 0 all the same."""
    rewards = np.array([[0.1, 0.1, 0.1], [0.1, 0.2, 0.3]])
    advantages = group_advantages(rewards, scale)  # type: ignore[arg-type]
    assert silent_groups(rewards).tolist() == [True, False]
    assert (advantages[0] == 0).all()
    assert (advantages[1] != 0)[[0, 2]].all()


def test_grpo_clips_on_the_side_that_would_gain() -> None:
    """Ratios 1.5 and 0.5, clip 0.2: A = 1 gives 1.2 and 0.5; A = -1 gives -1.5 and -0.8."""
    ratio = torch.tensor([[1.5, 0.5]], dtype=torch.float64)
    assert grpo_objective(ratio, ONES, 0.2, 0.2).tolist() == [[1.2, 0.5]]
    assert grpo_objective(ratio, -ONES, 0.2, 0.2).tolist() == [[-1.5, -0.8]]


def test_grpo_gradient_by_hand() -> None:
    """d(r A)/d logprob = r A where the clip is inactive, 0 where it is active."""
    for advantage, expected in ((1.0, [0.0, 0.5, 1.1]), (-1.0, [-1.5, 0.0, -1.1])):
        leaf = logs(1.5, 0.5, 1.1).requires_grad_()
        ratio = importance_ratio(leaf, torch.zeros_like(leaf), torch.ones_like(leaf), "token")
        grpo_objective(ratio, advantage * ONES, 0.2, 0.2).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_the_clip_lies_exactly_at_its_bounds() -> None:
    """Half a thousandth inside 1 - 0.2 and 1 + 0.28 the gradient flows, half a thousandth outside it does not."""
    for ratio, advantage, flows in ((1.2795, 1, True), (1.2805, 1, False), (0.8005, -1, True), (0.7995, -1, False)):
        leaf = logs(ratio).requires_grad_()
        r = importance_ratio(leaf, torch.zeros_like(leaf), torch.ones_like(leaf), "token")
        grpo_objective(r, advantage * ONES, 0.2, 0.28).sum().backward()
        assert leaf.grad is not None
        assert (float(leaf.grad) != 0) is flows
        assert bool(clipped_by_grpo(r.detach(), advantage * ONES, 0.2, 0.28)) is not flows


def test_at_the_first_step_the_gradient_is_the_advantage() -> None:
    """Ratio 1: minimum and clip both pass, and their gradients add up to A, not to half of it."""
    leaf = torch.zeros(1, 1, dtype=torch.float64).requires_grad_()
    grpo_objective(importance_ratio(leaf, leaf.detach(), ONES, "token"), 0.7 * ONES, 0.2, 0.2).sum().backward()
    assert leaf.grad is not None
    assert float(leaf.grad) == pytest.approx(0.7)


def test_cispo_caps_the_weight_at_one_plus_clip() -> None:
    """Ratio 3 with clip 0.2 weighs 1.2, ratio 0.5 stays 0.5; the gradient is weight * A, with nothing from the weight."""
    leaf = logs(3.0, 0.5).requires_grad_()
    ratio = importance_ratio(leaf, torch.zeros_like(leaf), torch.ones_like(leaf), "token")
    objective = cispo_objective(leaf, ratio, -2 * ONES, 0.2)
    assert objective[0].tolist() == pytest.approx([1.2 * -2 * math.log(3), 0.5 * -2 * math.log(0.5)])
    objective.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad[0].tolist() == pytest.approx([-2.4, -1.0], abs=1e-12)
    assert clipped_by_cispo(ratio.detach(), -2 * ONES, 0.2).tolist() == [[True, False]]
    assert clipped_by_cispo(ratio.detach(), 0 * ONES, 0.2).tolist() == [[False, False]]  # no gradient that could change


def test_the_cap_of_the_default_clip_is_five() -> None:
    """Ratio 6 weighs 5 and ratio 4.999 weighs itself."""
    leaf = logs(6.0, 4.999)
    ratio = importance_ratio(leaf, torch.zeros_like(leaf), torch.ones_like(leaf), "token")
    weights = cispo_objective(torch.ones_like(leaf), ratio, ONES, 4.0)
    assert weights[0].tolist() == pytest.approx([5.0, 4.999])


def test_sequence_ratio_is_the_geometric_mean_over_real_tokens() -> None:
    """Ratios 2 and 8 and padding: sqrt(16) = 4 everywhere; its gradient spreads evenly, 4 / 2 per token."""
    leaf = torch.cat([logs(2.0, 8.0), torch.full((1, 1), 5.0, dtype=torch.float64)], dim=1).requires_grad_()
    mask = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    ratio = importance_ratio(leaf, torch.zeros_like(leaf), mask, "sequence")
    assert ratio[0].tolist() == pytest.approx([4.0, 4.0, 4.0])
    ratio[0, 0].backward()
    assert leaf.grad is not None
    assert leaf.grad[0].tolist() == pytest.approx([2.0, 2.0, 0.0])


def test_log_ratio_is_clamped() -> None:
    """A log-ratio of 100 counts as 20, one of -100 as -20."""
    ratio = importance_ratio(torch.tensor([[100.0, -100.0]]), torch.zeros(1, 2), torch.ones(1, 2), "token")
    assert ratio[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_sampler_weight_is_capped_at_two_and_has_no_gradient() -> None:
    """exp(0.5) passes, exp(1) becomes 2."""
    old = torch.tensor([[0.5, 1.0, -1.0]], requires_grad=True)
    weight = sampler_weight(old, torch.zeros(1, 3))
    assert weight[0].tolist() == pytest.approx([math.exp(0.5), 2.0, math.exp(-1)])
    assert not weight.requires_grad


@pytest.mark.parametrize("x", [-100.0, -1.0, 0.0, 0.5, 100.0])
def test_kl_gradient_is_ratio_times_x(x: float) -> None:
    """At any distance from the reference, -100 and +100 included, value and gradient are finite and the gradient is r x."""
    leaf = torch.tensor([[math.log(1.5)]], dtype=torch.float64, requires_grad=True)
    term = kl_objective(leaf, torch.zeros(1, 1, dtype=torch.float64), leaf.detach() - x)
    term.sum().backward()
    assert leaf.grad is not None
    assert float(leaf.grad) == pytest.approx(1.5 * x, abs=1e-12)
    assert torch.isfinite(term).all()
    assert torch.isfinite(kl_estimate(leaf, leaf.detach() - x)).all()


@pytest.mark.parametrize("sampling_policy_differs", [False, True])
def test_kl_gradient_is_the_exact_gradient_of_the_kl(sampling_policy_differs: bool) -> None:
    """Summed over a vocabulary of five at three prefixes, the expected gradient under the sampling policy is that of the KL."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    reference = torch.randn(3, 5, dtype=torch.float64, generator=generator).log_softmax(dim=1)
    other = torch.randn(3, 5, dtype=torch.float64, generator=generator) if sampling_policy_differs else logits
    old = other.log_softmax(dim=1)

    exact = logits.clone().requires_grad_()
    logprobs = exact.log_softmax(dim=1)
    (logprobs.exp() * (logprobs - reference)).sum().backward()
    ours = logits.clone().requires_grad_()
    (old.exp() * kl_objective(ours.log_softmax(dim=1), old, reference)).sum().backward()
    assert exact.grad is not None
    assert ours.grad is not None
    assert torch.allclose(ours.grad, exact.grad, rtol=0, atol=1e-6)


def test_kl_estimate_by_hand() -> None:
    """x = log 2: exp(-x) - 1 + x = 0.5 - 1 + 0.6931; the exponent stops at 20."""
    found = kl_estimate(torch.tensor([[math.log(2.0), -100.0]]), torch.zeros(1, 2))
    assert found[0].tolist() == pytest.approx([math.log(2) - 0.5, math.exp(20) - 101])


def test_token_weights_by_hand() -> None:
    """Lengths 1 and 3 of a step of 8 tokens in 4 sequences, at most 10 new tokens."""
    mask = torch.tensor([[1.0, 0, 0], [1, 1, 1]])
    step = Denominators(tokens=8, sequences=4, longest=10)
    assert token_weights(mask, "token", step) == pytest.approx(mask / 8)
    assert token_weights(mask, "sequence", step) == pytest.approx(torch.tensor([[1 / 4, 0, 0], [1 / 12, 1 / 12, 1 / 12]]))
    assert token_weights(mask, "constant", step) == pytest.approx(mask / 40)


def test_grpo_loss_and_gradient_of_two_groups_on_paper() -> None:
    """Two groups of two, lengths 1 2 and 2 1, rewards 1 0 and 0 1, second step with known ratios.

    A = +-0.5 / (sqrt(0.5) + 1e-4) = +-a. Six tokens with ratios 1.5 | 1.1 0.5 | 1.5 0.9 | 1: min(r A, clip(r) A) is
    1.2 a | -1.1 a, -0.8 a | -1.5 a, -0.9 a | a. The loss is minus their sum over 6; where the clip binds the slope is 0.
    """
    advantages = group_advantages(np.array([[1.0, 0.0], [0.0, 1.0]]), "group").reshape(-1, 1)
    a = 0.5 / (math.sqrt(0.5) + 1e-4)
    ratios = [[1.5, 1.0], [1.1, 0.5], [1.5, 0.9], [1.0, 1.0]]
    mask = torch.tensor([[1.0, 0], [1, 1], [1, 1], [1, 0]], dtype=torch.float64)
    leaf = torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()
    weights = token_weights(mask, "token", Denominators(6, 4, 8))
    ratio = importance_ratio(leaf, torch.zeros_like(leaf), mask, "token")
    loss = -(weights * grpo_objective(ratio, torch.tensor(advantages), 0.2, 0.2)).sum()
    assert float(loss.detach()) == pytest.approx(-(1.2 - 1.1 - 0.8 - 1.5 - 0.9 + 1.0) * a / 6)
    loss.backward()
    expected = torch.tensor([[0, 0], [1.1, 0], [1.5, 0.9], [-1, 0]], dtype=torch.float64) * a / 6
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad, expected, rtol=0, atol=1e-12)
