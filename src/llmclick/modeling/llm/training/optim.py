"""The optimizer, the norm of its gradient, and its bound."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay falls on a parameter: on matrices, embeddings and adapters included, not on norms, biases and what
    else holds one number a channel (A_log, dt_bias). The names are transformers'; its Trainer draws the line there too."""
    return parameter.ndim >= 2 and not re.search(r"bias|norm", name.lower())


def adamw(parameters: Mapping[str, Tensor], lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with betas .9 / .999 and eps 1e-8 over named parameters, those that do not decay in a group of their own; fused
    where torch has a fused kernel for the device."""
    fused = all(p.device.type in ("cpu", "cuda", "mps") and p.is_floating_point() for p in parameters.values())
    groups = [
        {"params": [p for name, p in parameters.items() if decays(name, p) is decayed], "weight_decay": decay}
        for decayed, decay in ((True, weight_decay), (False, 0.0))
    ]
    held = [group for group in groups if group["params"]]
    return torch.optim.AdamW(held, lr=lr, betas=(0.9, 0.999), eps=1e-8, fused=fused)


@torch.no_grad()
def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The L2 norm of all gradients together, in float32 on their device; not finite when any gradient is not."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients and all(grad.device.type == "cpu" and grad.is_contiguous() for grad in gradients):
        # A dot product reads memory at twice the speed of torch's norm.
        squares = torch.stack([torch.dot(grad.view(-1), grad.view(-1)).double() for grad in gradients])
        return squares.sum().sqrt().float()
    norms = torch._foreach_norm(gradients)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]))
    return norm


def clip_gradient(optimizer: torch.optim.Optimizer, norm: Tensor, most: float) -> None:
    """Has the optimizer's next step take the gradients scaled so that their norm is at most `most`."""
    too_long = float(norm) > most
    if optimizer.defaults["fused"] and norm.device.type == "cpu":
        # The fused kernel divides while it reads: no pass of its own over the gradients.
        vars(optimizer)["grad_scale"] = (norm / most).float() if too_long else None
    elif too_long:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(gradients, float(most / norm))
