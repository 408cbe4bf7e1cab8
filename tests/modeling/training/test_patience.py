"""Patience on batches worked by hand: the whole silent run decides, not its last batch."""

from __future__ import annotations

from typing import Any

import pytest

from llmclick.errors import TrainingStopped
from llmclick.modeling.llm.training.patience import Silence


def batch(right: int = 0, wrong: int = 0, mixed: int = 0, reward: float = 0.0, truncated: float = 0.0) -> dict[str, Any]:
    """Metrics of a sampled batch with so many groups of each kind."""
    return {
        "groups": {"all_right": right, "mixed": mixed, "all_wrong": wrong},
        "pass_rate": right / (right + wrong + mixed),
        "reward": reward,
        "truncated": truncated,
    }


def after(*batches: dict[str, Any]) -> Silence:
    silence = Silence()
    for metrics in batches:
        silence = silence.then(metrics)
    return silence


WRONG, RIGHT, MIXED = batch(wrong=4), batch(right=4, reward=1.0), batch(mixed=1, right=3, reward=0.8)


def test_all_right_over_the_whole_run_ends_early() -> None:
    """Ten right batches end with a sentence, nine do not end; a batch with a signal begins anew."""
    assert after(*[RIGHT] * 9).judged(10) is None
    sentence = after(WRONG, MIXED, *[RIGHT] * 10).judged(10)
    assert sentence is not None
    assert sentence.startswith("10 sampled batches in a row were all right")
    assert after(*[RIGHT] * 9, MIXED, RIGHT).judged(10) is None
    assert after(*[WRONG] * 99).judged(0) is None


@pytest.mark.parametrize(
    ("batches", "what", "mean", "some"),
    [
        ([WRONG] * 10, "wrong", "0", ""),
        ([WRONG] * 9 + [RIGHT], "equal", "0.1", ", 4 of 40 groups all right"),
        ([RIGHT] * 9 + [WRONG], "equal", "0.9", ", 36 of 40 groups all right"),
        ([batch(right=1, wrong=3, reward=0.25)] * 10, "equal", "0.25", ", 10 of 40 groups all right"),
        ([batch(wrong=4, reward=0.5)] + [WRONG] * 9, "equal", "0.05", ""),
    ],
)
def test_anything_else_stops_and_says_what_the_run_was(batches: list[dict[str, Any]], what: str, mean: str, some: str) -> None:
    """Nine all-wrong batches and one all-right are not "all right", nine all-right and one all-wrong not "all wrong"."""
    with pytest.raises(TrainingStopped) as caught:
        after(*batches).judged(10)
    assert f"all completions were {what} (mean reward {mean}{some}), so" in str(caught.value)


def test_the_budget_is_named_first_where_most_of_the_run_was_cut() -> None:
    """Nine batches cut whole and one not at all are 90 %; the other way round the budget is not what helps."""
    whole, none = batch(wrong=4, truncated=1.0), WRONG
    with pytest.raises(TrainingStopped, match=r"90% were cut by method\.max_new_tokens: raise it first"):
        after(*[whole] * 9, none).judged(10)
    with pytest.raises(TrainingStopped) as caught:
        after(*[none] * 9, whole).judged(10)
    assert "max_new_tokens" not in str(caught.value)
