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
    assert judged(answers(0, 0), trained, Bounds()).metrics["pass_rate"].trained == 0.5


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


def test_rows_with_one_prompt_are_one_observation() -> None:
    """Five prompts that all got better prove nothing, on 5 rows or on 40 copies of them; six do. The mean stays that of the
    rows, the interval is that of the prompts."""
    gain = Bounds(gain={"reward": 0.1})
    for prompts, passes in ((5, False), (6, True)):
        names = [place % prompts for place in range(8 * prompts)]
        verdict = judged(answers(*[0.0] * len(names)), answers(*[1.0] * len(names)), gain, names)
        assert verdict.passed is passes
        assert (verdict.rows, verdict.prompts) == (8 * prompts, prompts)
        assert (verdict.metrics["reward"].n, verdict.metrics["reward"].prompts) == (8 * prompts, prompts)
    copied = [1.0, 1.0, 0.0, -1.0, 1.0, 1.0, 1.0, 0.0]
    once = judged(answers(*[0.0] * 8), answers(*copied), gain).metrics["reward"]
    four = judged(
        answers(*[0.0] * 32), answers(*[value for value in copied for _ in range(4)]), gain, [k // 4 for k in range(32)]
    ).metrics["reward"]
    assert (four.low, four.high, four.difference, four.changed) == (once.low, once.high, once.difference, 6)
    uneven = judged(answers(0, 0, 0, 0), answers(1, 1, 1, 0), Bounds(), ["a", "a", "a", "b"]).metrics["reward"]
    assert (uneven.difference, uneven.prompts) == (0.75, 2)


def test_too_few_prompts_are_said_where_they_fail_a_gain() -> None:
    """Two rows that went from 0 to 1 are no proof (without any change one in four such pairs does); where five of ten prompts
    changed, the verdict counts the five."""
    gain = Bounds(gain={"reward": 0.1})
    two = judged(answers(0, 0), answers(1, 1), gain)
    assert two.passed is False
    assert two.bounds[0].why == "2 held-out prompts cannot show a gain, it takes at least 6: hold out more"
    five = judged(answers(*[0.0] * 10), answers(*[1.0] * 5, *[0.0] * 5), gain)
    assert "only 5 of 10 prompts changed, a gain shows in 6 or more" in five.bounds[0].why
    assert judged(answers(*[0.0] * 10), answers(*[1.0] * 6, *[0.0] * 4), gain).passed


@pytest.mark.parametrize(
    ("value", "rows", "bounds"),
    [
        (0.7, 3, Bounds(min={"reward": 0.7})),
        (0.7, 3, Bounds(max={"reward": 0.7})),
        (0.1, 10, Bounds(min={"reward": 0.1}, max={"reward": 0.1})),
        (0.7 - 5e-10, 3, Bounds(min={"reward": 0.7})),
        (0.7 + 5e-10, 3, Bounds(max={"reward": 0.7})),
        (0.8 - 0.5, 9, Bounds(gain={"reward": 0.3})),
    ],
)
def test_a_bound_that_is_met_to_1e_9_is_met(value: float, rows: int, bounds: Bounds) -> None:
    """Three rows of 0.7 have the mean 0.7, though 0.7 + 0.7 + 0.7 is 2.0999999999999996; 0.8 - 0.5 is 0.30000000000000004."""
    assert judged(answers(*[0.0] * rows), answers(*[value] * rows), bounds).passed


def test_a_bound_that_is_missed_by_more_is_missed_and_the_digits_show_it() -> None:
    """2e-9 is too far; 0.69996 is not said to be "0.7, below 0.7"."""
    assert judged(answers(0, 0), answers(0.7, 0.7 - 4e-9), Bounds(min={"reward": 0.7})).passed is False
    (bound,) = judged(answers(0, 0), answers(0.69996, 0.69996), Bounds(min={"reward": 0.7})).bounds
    assert bound.why == "reward is 0.69996, below 0.7"


def test_a_difference_that_is_rounding_is_no_gain() -> None:
    """0.1 + 0.2 is 0.30000000000000004 on every row: the interval lies above 0 by 5.6e-17, which is no gain."""
    base, trained = answers(*[0.3] * 20), answers(*[0.1 + 0.2] * 20)
    verdict = judged(base, trained, Bounds(gain={"reward": 0.0}))
    assert verdict.metrics["reward"].changed == 0
    assert verdict.passed is False


def test_a_negative_gain_rules_a_loss_out() -> None:
    """Non-inferiority by 0.1: passes while the interval stays above -0.1, without any gain; not where it reaches below, even if
    the mean does not; five prompts rule nothing out. At the interval's own end it is met."""
    base = answers(*[1.0] * 40)
    bound = Bounds(gain={"reward": -0.1})
    assert judged(base, base, bound).passed
    one_worse = answers(0.9, *[1.0] * 39)
    assert judged(base, one_worse, bound).passed
    half_worse = answers(*[0.0] * 3, *[1.0] * 37)
    verdict = judged(base, half_worse, bound)
    assert verdict.metrics["reward"].difference == pytest.approx(-0.075)
    assert verdict.passed is False
    assert "reaches down to" in verdict.bounds[0].why
    assert "below -0.1" in verdict.bounds[0].why
    low = verdict.metrics["reward"].low
    assert low is not None
    assert judged(base, half_worse, Bounds(gain={"reward": low})).passed
    assert "rule out a loss" in judged(base[:5], base[:5], bound).bounds[0].why


def test_a_loss_that_is_ruled_out_on_few_prompts_says_what_it_cannot_see() -> None:
    """16 prompts of which none got worse: with 0.025 ** (1 / 16) = 0.794 as many as 21 % of all prompts could. 200 are enough
    for a bound of 0.05: 0.025 ** (1 / 200) = 0.9817."""
    few = judged(answers(*[1.0] * 16), answers(*[1.0] * 16), Bounds(gain={"pass_rate": -0.05}))
    assert few.passed
    assert "up to 21% of all prompts" in few.notices[0]
    assert judged(answers(*[1.0] * 200), answers(*[1.0] * 200), Bounds(gain={"pass_rate": -0.05})).notices == []


def test_without_bounds_nothing_is_judged() -> None:
    """Neither passed nor failed: None, null in verdict.json."""
    verdict = judged(answers(0, 0, 1, 1), answers(1, 0, 1, 1), Bounds())
    assert verdict.passed is None
    assert verdict.as_json()["passed"] is None
    assert "no bounds" in verdict.notices[0]
