"""How the tokens of a forward pass lie: what each may attend to, where it stands, and which came before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from llmclick.modeling.llm.models.attention import Blocks
    from llmclick.modeling.llm.models.delta_net import Sequences


@dataclass(frozen=True)
class Span:
    """Tokens `start` to `start + length` of the packed ones."""

    start: int
    length: int


@dataclass(frozen=True)
class Group:
    """One prompt, and the rows that continue it (those without tokens left out)."""

    prompt: Span
    rows: Sequence[Span]


@dataclass(frozen=True)
class Rotation:
    """Rotary positions (arXiv 2104.09864) of N tokens: the halves (a, b) of a head become (a cos - b sin, b cos + a sin).

    Of a head only the first r values are turned; the others stay (all are, in most families).
    """

    cos_N1r: Tensor
    sin_N1r: Tensor
    """With the sign of what it is multiplied with: minus in the first half."""

    @classmethod
    def of(cls, cos_Nr: Tensor, sin_Nr: Tensor) -> Rotation:
        """From cosines and sines of the angles, both halves of a head given (they share them)."""
        cos_N1r, sin_N1r = cos_Nr.float()[:, None], sin_Nr.float()[:, None].clone()
        sin_N1r[..., : sin_N1r.shape[-1] // 2].neg_()
        return cls(cos_N1r, sin_N1r)

    def turn(self, x_NHd: Tensor, *, back: bool = False) -> Tensor:
        """Queries or keys in float32, turned; `back` is the inverse, which is also the gradient's way."""
        size = self.cos_N1r.shape[-1]
        part = x_NHd[..., :size]
        turned = (part * self.cos_N1r).addcmul_(part.roll(size // 2, -1), self.sin_N1r, value=-1 if back else 1)
        return turned if size == x_NHd.shape[-1] else torch.cat([turned, x_NHd[..., size:]], dim=-1)


@dataclass(frozen=True)
class Layout:
    """The packed tokens of a forward pass, whose prompts are shared by the rows that continue them."""

    blocks: Blocks
    rotation: Rotation
    sequences: Sequences | None
    """For layers with a state; None in a decoder that has none."""


def positions_in(groups: Sequence[Group]) -> Tensor:
    """The position of each packed token [N] in its own sequence: a row goes on where its prompt ends."""
    spans = [
        (span, 0 if span is group.prompt else group.prompt.length) for group in groups for span in (group.prompt, *group.rows)
    ]
    positions_N = torch.empty(sum(span.length for span, _ in spans), dtype=torch.int64)
    for span, first in spans:
        positions_N[span.start : span.start + span.length] = torch.arange(first, first + span.length)
    return positions_N
