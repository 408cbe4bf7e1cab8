"""The gate on numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from llmclick.pipeline.gate import Verdict, judge, metric_names


@dataclass
class Bounds:
    min: dict[str, float] = field(default_factory=dict)
    max: dict[str, float] = field(default_factory=dict)
    gain: dict[str, float] = field(default_factory=dict)


def answers(*rewards: float | None, tokens: int = 4) -> list[dict[str, Any]]:
    """One answer per reward; None: the named reward does not apply."""
    return [
        {
            "reward": 0.0 if value is None else value,
            "rewards": {"own": value},
            "passed": value is not None and value >= 1,
            "tokens": tokens,
            "stop": "stop",
        }
        for value in rewards
    ]


def judged(
    base: list[dict[str, Any]], trained: list[dict[str, Any]], bounds: Bounds, prompts: Sequence[Hashable] | None = None
) -> Verdict:
    """The verdict, each row being a prompt of its own unless said otherwise."""
    return judge(base, trained, bounds, ["own"], 7, range(len(base)) if prompts is None else prompts)


def test_means_and_paired_differences_by_hand() -> None:
    """Base 0, 0, 1, 1 and trained 1, 0, 1, 1: 0.5, 0.75, +0.25; the length and the share that was cut are metrics too. Four
    prompts have no 95 % interval."""
    verdict = judged(answers(0, 0, 1, 1), answers(1, 0, 1, 1, tokens=6), Bounds())
    reward = verdict.metrics["reward"]
    assert (reward.base, reward.trained, reward.difference, reward.n) == (0.5, 0.75, 0.25, 4)
    assert (reward.prompts, reward.changed, reward.low, reward.high, reward.interval) == (4, 1, None, None, None)
    assert verdict.metrics["length"].difference == 2.0
    assert list(verdict.metrics) == metric_names(["own"])


@pytest.mark.parametrize(
    ("bounds", "passed"),
    [
        (Bounds(min={"reward": 0.75}), True),
        (Bounds(min={"reward": 0.76}), False),
        (Bounds(max={"length": 4.0}), True),
        (Bounds(max={"length": 3.9}), False),
        (Bounds(min={"reward": 0.0}), True),
        (Bounds(min={"reward": 0.75, "pass_rate": 0.8}), False),
    ],
)
def test_min_and_max_compare_the_trained_mean(bounds: Bounds, passed: bool) -> None:
    """A bound is met at equality; one missed bound fails all."""
    assert judged(answers(0, 0, 1, 1), answers(1, 0, 1, 1), bounds).passed is passed


def test_the_pass_rate_counts_what_the_scorer_passed() -> None:
    """A total of 2 that did not pass, and one of 0.9 that did, with weights of .5 and .4: the rate is 1/2."""
    trained = answers(2.0, 0.9)
    for answer, passed in zip(trained, (False, True), strict=True):
        answer["passed"] = passed
    assert judge(answers(0, 0), trained, Bounds(), ["own"], 7).metrics["pass_rate"].trained == 0.5


def test_a_negative_reward_can_fail_a_bound_of_zero() -> None:
    """`min: {reward: 0.0}` is no empty promise for a reward that punishes."""
    assert not judged(answers(0, 0), answers(-0.5, 0.0), Bounds(min={"reward": 0.0})).passed


def test_a_number_that_does_not_exist_fails_every_bound() -> None:
    """NaN is neither above nor below: a metric that is not finite, or that no row has, fails min, max and gain, and the verdict
    is JSON without NaN."""
    nan = judged(
        answers(0, 1),
        answers(math.nan, 1),
        Bounds(min={"reward": -9.0}, max={"reward": 9.0}, gain={"reward": -9.0}),
    )
    assert [bound.passed for bound in nan.bounds] == [False] * 3
    assert all("no finite value" in bound.why for bound in nan.bounds)
    assert nan.as_json()["metrics"]["reward"]["trained"] is None
    none = judged(answers(None, None), answers(None, None), Bounds(min={"reward/own": -9.0}))
    assert not none.passed
    unknown = judged(answers(0, 1), answers(0, 1), Bounds(min={"rewrd": 0.0}))
    assert not unknown.passed


def test_a_gain_needs_the_mean_and_the_interval() -> None:
    """+1 on all of 8 rows is a gain; +1 on one of 8 is +0.125 with an interval that touches 0: no gain of 0.1; one row shows
    nothing; equal models gain nothing, even with a bound of 0."""
    base = answers(*[0.0] * 8)
    gain = Bounds(gain={"reward": 0.1})
    assert judged(base, answers(*[1.0] * 8), gain).passed
    one = judged(base, answers(1.0, *[0.0] * 7), gain)
    assert not one.passed
    assert "interval" in one.bounds[0].why
    assert "too few" in one.bounds[0].why
    assert "hold out more" in judged(base[:1], answers(1.0), gain).bounds[0].why
    assert not judged(base, base, Bounds(gain={"reward": 0.0})).passed


def test_rows_to_which_a_reward_does_not_apply_are_left_out_of_its_mean() -> None:
    """Of three rows one has no value: n is 2 and the mean is over those two."""
    own = judged(answers(None, 0, 0), answers(1, 1, 0), Bounds()).metrics["reward/own"]
    assert (own.n, own.base, own.trained) == (2, 0.0, 0.5)
