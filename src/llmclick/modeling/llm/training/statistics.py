"""What an optimizer step sees of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class StepStatistics:
    """Sums over the trained tokens of one optimizer step."""

    tokens: int = 0
    ratio_sum: float = 0.0
    ratio_max: float = float("-inf")
    clipped: int = 0
    kl_sum: float = 0.0
    mismatch_sum: float = 0.0
    row_mismatch: dict[int, float] = field(default_factory=dict)

    def add(self, ratio_N: Tensor, clipped_N: Tensor, mismatch_N: Tensor, kl_N: Tensor | None) -> None:
        """Enters a micro-batch's trained tokens."""
        # On the CPU: a sum in float64 is not possible on every device.
        ratio_N, mismatch_N = ratio_N.cpu(), mismatch_N.cpu()
        self.tokens += ratio_N.numel()
        self.ratio_sum += float(ratio_N.double().sum())
        self.ratio_max = max(self.ratio_max, float(ratio_N.max()))
        self.clipped += int(clipped_N.sum())
        self.mismatch_sum += float(mismatch_N.double().sum())
        if kl_N is not None:
            self.kl_sum += float(kl_N.cpu().double().sum())
