"""The gradient's norm and its clipping, which the fused kernel does while it steps; what decays; how the rate warms up."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from llmclick.config.schema import AdapterSpec
from llmclick.modeling.llm.models.adapters import attach
from llmclick.modeling.llm.training.optim import adamw, clip_gradient, decays, gradient_norm
from llmclick.modeling.llm.training.policy import Policy
from llmclick.modeling.llm.training.schedule import learning_rate
from tests.tiny import load_tiny, tiny_family

SHAPES = [(7, 5), (11,), (3, 2, 4)]


def parameters(seed: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    """Random tensors with random gradients."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]
    for parameter in made:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    return made


def named(tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameters under names that say nothing."""
    return {f"w{number}": tensor for number, tensor in enumerate(tensors)}


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
    optimizer = adamw(named(ours), 0.1, 0.01)
    groups = [{"params": theirs[::2]}, {"params": theirs[1:2], "weight_decay": 0.0}]  # one has a single axis
    reference = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=False)
    assert optimizer.defaults["fused"]
    if not fused:
        groups = [{"params": ours[::2]}, {"params": ours[1:2], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=False)
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
        optimizer = adamw(named([parameter]), 0.1, 0.01)
        if clip:
            clip_gradient(optimizer, gradient_norm([parameter]), most)
        optimizer.step()
        made.append(parameter)
    assert torch.equal(*made)


@pytest.mark.parametrize(
    "family",
    [
        {"style": "llama", "config": {"attention_bias": True, "mlp_bias": True}},
        {"style": "qwen2"},
        {"style": "qwen3"},
        {"style": "gemma2"},
        {"hybrid": True},
    ],
    ids=str,
)
def test_weight_decay_falls_on_matrices_alone(tmp_path: Path, family: dict[str, object]) -> None:
    """With no gradient a step of lr 0.1 and decay 0.5 leaves 0.95 of each linear layer, embedding, head and convolution, and
    moves nothing that belongs to a norm or is called bias, dt_bias or A_log."""
    policy = Policy(load_tiny(tiny_family(tmp_path, **family)), "fp32")  # type: ignore[arg-type]
    module = policy.model.module
    norms = {name for name, part in module.named_modules() if "Norm" in type(part).__name__}
    kept = {
        n for n in policy.trainable if n.rpartition(".")[0] in norms or n.rpartition(".")[2] in ("bias", "dt_bias", "A_log")
    }
    before = {name: parameter.detach().clone() for name, parameter in policy.trainable.items()}
    for parameter in policy.trainable.values():
        parameter.grad = torch.zeros_like(parameter)
    adamw(policy.trainable, 0.1, 0.5).step()
    for name, parameter in policy.trainable.items():
        expected = before[name] if name in kept else before[name] * 0.95
        assert torch.allclose(parameter, expected, rtol=1e-6, atol=0), name
    assert {name.rpartition(".")[2] for name in kept} >= {"weight"} | ({"A_log", "dt_bias"} if "hybrid" in family else set())
    assert any("embed_tokens" in name for name in policy.trainable.keys() - kept)


def test_an_adapter_decays_whole(dense_folder: Path) -> None:
    """Both of LoRA's matrices, and nothing else trains: one group of parameters, none of them empty."""
    model = load_tiny(dense_folder)
    policy = Policy(model, "fp32", attach(model, AdapterSpec(r=4, alpha=8.0), 3))
    assert all(decays(name, parameter) for name, parameter in policy.trainable.items())
    [group] = adamw(policy.trainable, 0.1, 0.5).param_groups
    assert (group["weight_decay"], len(group["params"])) == (0.5, len(policy.trainable))


@pytest.mark.parametrize(
    ("warmup", "steps", "warm"), [(0.07, 100, 7), (0.14, 50, 7), (0.1, 30, 3), (0.28, 25, 7), (0.07, 101, 8)]
)
def test_warmup_is_the_share_of_the_steps_as_written(warmup: float, steps: int, warm: int) -> None:
    """0.07 of 100 steps is 7, although the floats' product is 7.000000000000001: the 7th step has the whole rate, the one
    before 6/7 of it; 7.07 steps are 8."""
    assert learning_rate(warm - 1, steps, 1.0, "constant", warmup) == 1.0
    assert learning_rate(warm - 2, steps, 1.0, "constant", warmup) == (warm - 1) / warm
