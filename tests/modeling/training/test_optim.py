"""The gradient's norm and its clipping, which the fused kernel does while it steps."""

from __future__ import annotations

import math

import pytest
import torch

from llmclick.modeling.llm.training.optim import adamw, clip_gradient, gradient_norm

SHAPES = [(7, 5), (11,), (3, 2, 4)]


def parameters(seed: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    """Random tensors with random gradients."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]
    for parameter in made:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    return made


def test_norm_by_hand() -> None:
    """3, 4 and 12 in tensors of their own: 13. One without a gradient counts for nothing."""
    made = [torch.zeros(2), torch.zeros(1, 3), torch.zeros(1), torch.zeros(5)]
    for parameter, values in zip(made, ([3.0, 0.0], [[0.0, 4.0, 0.0]], [12.0]), strict=False):
        parameter.grad = torch.tensor(values)
    assert float(gradient_norm(made)) == 13.0
    assert gradient_norm(made).dtype == torch.float32


def test_norm_does_not_depend_on_the_layout() -> None:
    """Transposed gradients, which take another way, have the norm of the same ones laid out in rows; to 1e-6 of float64's."""
    made = parameters()
    exact = math.sqrt(sum(float(p.grad.double().square().sum()) for p in made))  # type: ignore[union-attr]
    assert float(gradient_norm(made)) == pytest.approx(exact, rel=1e-6)
    turned = [torch.zeros(p.T.shape if p.ndim == 2 else p.shape) for p in made]
    for one, other in zip(turned, made, strict=True):
        assert other.grad is not None
        one.grad = other.grad.T if other.ndim == 2 else other.grad
    assert not turned[0].grad.is_contiguous()  # type: ignore[union-attr]
    assert float(gradient_norm(turned)) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_norm_of_what_is_not_finite_is_not_finite(value: float) -> None:
    """One number of one gradient is enough."""
    made = parameters()
    made[1].grad[3] = value  # type: ignore[index]
    assert not math.isfinite(float(gradient_norm(made)))


@pytest.mark.parametrize("fused", [True, False])
def test_clipping_is_scaling_first(fused: bool) -> None:
    """Three steps, the first and last clipped to 0.5, against an optimizer whose gradients were scaled by hand: 1e-6."""
    ours, theirs = parameters(), parameters()
    optimizer = adamw(ours, 0.1, 0.01)
    reference = torch.optim.AdamW(theirs, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=False)
    assert optimizer.defaults["fused"]
    if not fused:
        optimizer = torch.optim.AdamW(ours, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=False)
    clipped = []
    for step, scale in enumerate((3.0, 0.01, 40.0)):
        for mine, yours, fresh in zip(ours, theirs, parameters(step, scale), strict=True):
            assert fresh.grad is not None
            mine.grad, yours.grad = fresh.grad.clone(), fresh.grad.clone()
        exact = math.sqrt(sum(float(p.grad.double().square().sum()) for p in theirs))  # type: ignore[union-attr]
        clipped.append(exact > 0.5)
        for yours in theirs:
            yours.grad.mul_(min(1.0, 0.5 / exact))  # type: ignore[union-attr]
        clip_gradient(optimizer, gradient_norm(ours), 0.5)
        optimizer.step()
        reference.step()
        for mine, yours in zip(ours, theirs, strict=True):
            assert torch.allclose(mine, yours, rtol=0, atol=1e-6)
    assert clipped == [True, False, True]


@pytest.mark.parametrize("most", [13.0, 13.5, math.inf])
def test_nothing_is_clipped_below_the_bound(most: float) -> None:
    """A norm of 13 and a bound of 13 or more: the step of the same gradients without clipping, bit for bit."""
    made = []
    for clip in (True, False):
        parameter = torch.tensor([1.0, 2.0, -3.0]).requires_grad_()
        parameter.grad = torch.tensor([3.0, 4.0, 12.0])
        optimizer = adamw([parameter], 0.1, 0.01)
        if clip:
            clip_gradient(optimizer, gradient_norm([parameter]), most)
        optimizer.step()
        made.append(parameter)
    assert torch.equal(*made)
