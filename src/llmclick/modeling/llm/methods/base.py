"""What a method is: a name for its objective. Everything else (sampling, rewards, averaging, the loop) is shared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Method(Protocol):
    """A policy-gradient method on groups of completions. Tensors are [B, T], advantages [B, 1]."""

    def objective(self, logprobs_BT: Tensor, ratio_BT: Tensor, advantage_B1: Tensor, weight_BT: Tensor | None) -> Tensor:
        """The policy objective per token [B, T], to be maximised. `weight_BT` is the sampler correction, None if off."""
        ...

    def clipped(self, ratio_BT: Tensor, advantage_B1: Tensor) -> Tensor:
        """Which tokens' gradients the clip changes [B, T]."""
        ...

    def announce(self) -> list[str]:
        """What the start of a run says about this method's settings, in words."""
        ...
