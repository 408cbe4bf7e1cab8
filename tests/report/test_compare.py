import json
from pathlib import Path

import numpy as np
import pytest

from llmclick.errors import InputError
from llmclick.pipeline.bootstrap import paired_interval
from llmclick.report.compare import SEED, compare


def experiment(folder: Path, rewards: dict[str, float]) -> Path:
    (folder / "validate").mkdir(parents=True)
    lines = [json.dumps({"id": row, "trained": {"reward": reward}}) for row, reward in rewards.items()]
    (folder / "validate" / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_rows_are_matched_by_id_and_the_difference_is_the_paired_mean(tmp_path: Path) -> None:
    """By hand: shared rows a, b, c; the second is 0, 1, 1 better: mean 2/3; row d has no partner."""
    first = experiment(tmp_path / "one", {"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0})
    second = experiment(tmp_path / "two", {"c": 1.0, "b": 1.0, "a": 0.0})
    found = compare([first, second])
    assert found.n == 3
    assert [one.reward for one in found.experiments] == [0.0, pytest.approx(2 / 3)]
    assert found.experiments[0].difference is None
    assert found.experiments[1].difference == pytest.approx(2 / 3)
    assert (found.experiments[1].low, found.experiments[1].high) == paired_interval([0.0, 1.0, 1.0], SEED)
    assert found.notices == ("one: 1 of its held-out rows are not in every experiment and are left out",)
    assert json.loads(json.dumps(found.as_json()))["experiments"][1]["difference"] == pytest.approx(2 / 3)
    assert found.rows()[1][3] == "0.000 to 1.000"


def test_experiments_without_a_row_in_common_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no held-out row is in all of them"):
        compare([experiment(tmp_path / "one", {"a": 1.0}), experiment(tmp_path / "two", {"b": 1.0})])


def test_every_folder_that_was_not_judged_is_named_at_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("")
    with pytest.raises(InputError) as raised:
        compare([tmp_path / "one", tmp_path / "two"])
    assert len(raised.value.problems) == 2


def test_one_folder_or_no_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two or more"):
        compare([tmp_path])
    with pytest.raises(InputError, match="nothing in this folder"):
        compare([tmp_path, tmp_path])
    with pytest.raises(InputError, match="no such folder"):
        compare([tmp_path / "x", tmp_path / "y"])


def test_a_different_reward_is_said(tmp_path: Path) -> None:
    first, second = experiment(tmp_path / "one", {"a": 0.0}), experiment(tmp_path / "two", {"a": 0.0})
    (first / "config.yaml").write_text("method: {reward: exact_match, max_new_tokens: 8}")
    (second / "config.yaml").write_text("method: {reward: contains, max_new_tokens: 8}")
    assert compare([first, second]).notices == ("two: method.reward differs from one; the rewards mean other things",)


def test_the_interval_is_the_one_of_a_plain_bootstrap() -> None:
    """Against numpy's own generator, and against the normal approximation for a mean of 400 values."""
    values = np.random.default_rng(3).normal(0.2, 1.0, 400)
    low, high = paired_interval(values, 7)
    plain = np.quantile(np.random.default_rng(5).choice(values, (10_000, 400)).mean(axis=1), [0.025, 0.975])
    reach = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx(tuple(plain), abs=0.006)
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.01)


def test_the_interval_is_addressed_by_the_seed_alone_however_it_is_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.0, 1.0, 0.5, 0.0, 1.0, -1.0, 0.25]
    whole = paired_interval(values, 20260920)
    assert paired_interval(values, 20260920) == whole
    monkeypatch.setattr("llmclick.pipeline.bootstrap._CHUNK", 100)
    assert paired_interval(values, 20260920) == whole


def test_degenerate_intervals() -> None:
    assert paired_interval([0.5], 1) == (0.5, 0.5)
    assert paired_interval([1.0] * 9, 1) == (1.0, 1.0)
    with pytest.raises(ValueError, match="at least one"):
        paired_interval([], 1)
