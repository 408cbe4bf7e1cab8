"""Positions of packed tokens, and rotary positions by hand."""

from __future__ import annotations

import math

import pytest
import torch

from llmclick.modeling.llm.models.layout import Group, Rotation, Span, positions_in


@pytest.mark.parametrize(
    ("groups", "positions"),
    [
        ([Group(Span(0, 3), [Span(3, 2), Span(5, 1)])], [0, 1, 2, 3, 4, 3]),
        # Prompts first, rows behind all of them, and in another order.
        ([Group(Span(0, 2), [Span(6, 2)]), Group(Span(2, 1), [Span(3, 3)])], [0, 1, 0, 1, 2, 3, 2, 3]),
        # Prompts alone.
        ([Group(Span(0, 1), []), Group(Span(1, 1), [])], [0, 0]),
    ],
)
def test_a_row_goes_on_where_its_prompt_ends(groups: list[Group], positions: list[int]) -> None:
    """By hand."""
    assert positions_in(groups).tolist() == positions


def test_a_quarter_turn_and_back() -> None:
    """(a, b) by 90 degrees is (-b, a); of a head of six only the first four are turned; back gives what was there."""
    angles = torch.tensor([[math.pi / 2, 0.0, math.pi / 2, 0.0]])
    rotation = Rotation.of(angles.cos(), angles.sin())
    x_NHd = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]])
    turned = rotation.turn(x_NHd)
    assert turned.flatten().tolist() == pytest.approx([-3.0, 2.0, 1.0, 4.0, 5.0, 6.0], abs=1e-6)
    assert rotation.turn(turned, back=True).flatten().tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], abs=1e-6)
