"""The intervals of a mean difference: by hand, against the tests that they turn around, and how often they err."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from llmclick.pipeline.gate import judge
from llmclick.pipeline.intervals import bootstrap_interval, paired_interval, per_prompt, signflip_interval

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """benchmarks/gate.py as a module."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("benchmark_gate", ROOT / "benchmarks" / "gate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def p_value(values: list[float], prompts: list[int], mean: float) -> float:
    """The two-sided sign-flip test of a mean as it is defined: all sign patterns of the prompts' deviations, written out."""
    sums, rows = per_prompt(values, prompts)
    deviations = sums - mean * rows
    patterns = np.array(list(itertools.product((-1, 1), repeat=len(sums))))
    extreme = np.abs(patterns @ deviations) >= abs(deviations.sum()) - 1e-12
    return float(extreme.mean())


def test_the_sign_flip_interval_by_hand() -> None:
    """Six prompts have 64 subsets, of which 1 (the empty one) is cut off on either side: the interval ends at the smallest and
    the largest value. Seven have 128, of which 3 are: of the means 0, 0.5, 1, ... and 9, 7, 6.5, ... the third is left. Five
    have no interval."""
    assert signflip_interval([1, 2, 3, 4, 5, 6], 7) == (1, 6)
    assert signflip_interval([0, 1, 2, 3, 4, 5, 9], 7) == (1, 6.5)
    assert signflip_interval([1, 1, 1, 1, 1], 7) == (-math.inf, math.inf)


@pytest.mark.parametrize("prompts", [6, 8, 11])
def test_the_sign_flip_interval_holds_what_the_test_does_not_reject(prompts: int) -> None:
    """Rows of unequal numbers a prompt: just inside either end the test's p is above 5 %, just outside it is not."""
    draw = np.random.default_rng(prompts)
    for _ in range(5):
        values = [float(value) for value in draw.normal(0.3, 1, 2 * prompts)]
        names = [*range(prompts), *(int(name) for name in draw.integers(0, prompts, prompts))]
        low, high = signflip_interval(values, 7, names)
        assert p_value(values, names, low + 1e-7) > 0.05 >= p_value(values, names, low - 1e-7)
        assert p_value(values, names, high - 1e-7) > 0.05 >= p_value(values, names, high + 1e-7)


def test_above_fifteen_prompts_drawn_subsets_agree_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 prompts: 10,000 subsets against all 65,536; and the same interval from the same seed."""
    values = [float(value) for value in np.random.default_rng(2).normal(0.4, 1, 16)]
    drawn = signflip_interval(values, 7)
    assert signflip_interval(values, 7) == drawn
    assert signflip_interval(values, 8) != drawn
    monkeypatch.setattr("llmclick.pipeline.intervals.EXACT", 16)
    assert signflip_interval(values, 7) == pytest.approx(drawn, abs=0.02)


def test_copies_of_rows_change_no_interval() -> None:
    """Each of 9 prompts four times has the intervals of each of them once; taken for 36 independent rows it would have half."""
    once = [1.0, 0.0, -1.0, 1.0, 1.0, 0.5, 0.0, 1.0, 1.0]
    names = [place // 4 for place in range(36)]
    copied = [value for value in once for _ in range(4)]
    assert paired_interval(copied, names, 7) == paired_interval(once, range(9), 7)
    narrow = bootstrap_interval(copied, 7)
    low, high = bootstrap_interval(copied, 7, names)
    assert narrow[1] - narrow[0] == pytest.approx((high - low) / 2, rel=0.15)


def test_a_prompt_with_many_rows_is_drawn_whole() -> None:
    """Two prompts, one of 3 rows at +1 and one of 1 row at -1: a resample has both (mean 0.5), or twice either (1, -1)."""
    assert bootstrap_interval([1.0, 1.0, 1.0, -1.0], 7, ["a", "a", "a", "b"]) == (-1.0, 1.0)
    sums, rows = per_prompt([1.0, 1.0, -1.0, 1.0], ["a", "a", "b", "a"])
    assert (sums.tolist(), rows.tolist()) == ([3.0, -1.0], [3.0, 1.0])


def test_the_interval_shown_is_the_wider_one_on_either_side() -> None:
    """Of seven values of which one is large the sign-flip interval is wider on both sides."""
    values = [0.1, 0.2, 0.1, 0.3, 0.2, 0.1, 2.0]
    interval, flipped, drawn = (
        paired_interval(values, range(7), 7),
        signflip_interval(values, 7),
        bootstrap_interval(values, 7),
    )
    assert (interval.low, interval.high) == (min(flipped[0], drawn[0]), max(flipped[1], drawn[1]))
    assert interval.method == "sign-flip"


def test_the_gate_passes_at_most_one_in_forty_of_the_sign_patterns() -> None:
    """By enumeration: n prompts better or worse by 1 at random, every pattern judged. A two-sided 5 % is 2.5 % here: none of
    2^n patterns below 6 prompts, then the one in which all got better, and 1 + 8 of 256 is too many."""
    expected = {2: 0, 3: 0, 4: 0, 5: 0, 6: 1, 7: 1, 8: 1}
    for n, passing in expected.items():
        found = 0
        for better in itertools.product((0, 1), repeat=n):
            sides = [
                [
                    {"reward": value, "rewards": {"own": value}, "passed": value >= 1, "tokens": 1, "stop": "stop"}
                    for value in values
                ]
                for values in ([1 - value for value in better], better)
            ]
            found += judge(*sides, Gain({"reward": 0.0}), ["own"], 7, range(n)).passed is True
        assert found == passing, n


class Gain:
    """Bounds on the gain alone."""

    def __init__(self, gain: dict[str, float]) -> None:
        self.min: dict[str, float] = {}
        self.max: dict[str, float] = {}
        self.gain = gain


@pytest.mark.parametrize("n", [4, 7, 12, 24])
def test_the_false_pass_rates_of_the_documentation(benchmark: ModuleType, n: int) -> None:
    """Cells of the table in docs/gate.md, enumerated again from the intervals themselves: the worst probability to pass if
    better and worse are equally likely, over the share of prompts that change."""
    result = json.loads((ROOT / "benchmarks" / "results" / "gate.json").read_text())
    passing = []
    for up, down in benchmark.counts(n):
        values = [1.0] * up + [-1.0] * down + [0.0] * (n - up - down)
        # Where more than 8 change, one in four is looked at by the product's own code, the others by the benchmark's.
        quick = benchmark.gate_above(np.array([values]), np.ones(n), 1e-9)[0]
        if up + down <= 8 or (up + down) % 4 == 0:
            assert (paired_interval(values, range(n), benchmark.SEED).low > 1e-9) == quick, (up, down)
        passing += [(up, down)] * bool(quick)
    rate = max(sum(benchmark.chance(n, up, down, share) for up, down in passing) for share in np.linspace(0.02, 1, 50))
    (cell,) = [cell for cell in result["binary"] if cell["prompts"] == n]
    assert rate == pytest.approx(cell["gate"], abs=1e-12)
    assert rate <= 0.025


def test_the_tables_of_the_documentation_are_those_of_the_results(benchmark: ModuleType) -> None:
    """docs/gate.md prints benchmarks/results/gate.json, and nowhere does a change that is as likely up as down pass in more
    than 3.5 %."""
    result = json.loads((ROOT / "benchmarks" / "results" / "gate.json").read_text())
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    assert benchmark.with_tables(page, result) == page
    assert benchmark.worst(result) <= 0.035
    assert {cell["prompts"] for cell in result["binary"]} == set(range(2, 65))


def test_the_bootstrap_is_the_plain_one() -> None:
    """Against numpy's own generator, and against the normal approximation for a mean of 400 values."""
    values = np.random.default_rng(3).normal(0.2, 1.0, 400)
    low, high = bootstrap_interval(values, 7)
    plain = np.quantile(np.random.default_rng(5).choice(values, (10_000, 400)).mean(axis=1), [0.025, 0.975])
    reach = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx(tuple(plain), abs=0.006)
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.01)


def test_the_intervals_are_addressed_by_the_seed_alone_however_they_are_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.0, 1.0, 0.5, 0.0, 1.0, -1.0, 0.25] * 3
    whole = paired_interval(values, range(21), 20260920)
    assert paired_interval(values, range(21), 20260920) == whole
    monkeypatch.setattr("llmclick.pipeline.intervals._CHUNK", 100)
    assert paired_interval(values, range(21), 20260920) == whole


def test_degenerate_intervals() -> None:
    assert bootstrap_interval([0.5], 1) == (0.5, 0.5)
    assert bootstrap_interval([1.0] * 9, 1) == (1.0, 1.0)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_interval([], 1)
    with pytest.raises(ValueError, match="2 values of 1 prompts"):
        paired_interval([1.0, 2.0], ["a"], 1)
