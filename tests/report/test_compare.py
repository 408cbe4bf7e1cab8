import json
from pathlib import Path

import pytest

from llmclick.errors import InputError
from llmclick.pipeline.intervals import Interval, paired_interval
from llmclick.report.compare import SEED, compare


def experiment(folder: Path, rewards: dict[str, float], prompts: dict[str, str] | None = None) -> Path:
    (folder / "validate").mkdir(parents=True)
    lines = [
        json.dumps({"id": row, "prompt": (prompts or {}).get(row, row), "trained": {"reward": reward}})
        for row, reward in rewards.items()
    ]
    (folder / "validate" / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_rows_are_matched_by_id_and_the_difference_is_the_paired_mean(tmp_path: Path) -> None:
    """By hand: shared rows a to g; the second is 1 better on six and equal on c: mean 6/7; row x has no partner."""
    first = experiment(tmp_path / "one", {**dict.fromkeys("abcdefg", 0.0), "x": 1.0})
    second = experiment(tmp_path / "two", {**dict.fromkeys("gfedba", 1.0), "c": 0.0})
    found = compare([first, second])
    assert (found.n, found.prompts) == (7, 7)
    one, two = found.experiments
    assert (one.reward, one.difference) == (0.0, None)
    assert (two.reward, two.difference) == (pytest.approx(6 / 7), pytest.approx(6 / 7))
    assert two.low is not None
    assert two.high is not None
    assert two.interval is not None
    assert Interval(two.low, two.high, two.interval) == paired_interval([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], "abcdefg", SEED)
    assert found.notices == ("one: 1 of its held-out rows are not in every experiment and are left out",)
    assert json.loads(json.dumps(found.as_json()))["experiments"][1]["difference"] == pytest.approx(6 / 7)
    assert found.rows()[1][3] == "+0.500 .. +1.000 (sign-flip)"


def test_rows_with_one_prompt_are_one_observation(tmp_path: Path) -> None:
    """Seven prompts of three rows each have the interval of seven rows; two prompts have none, which is said."""
    rows = {f"{name}{copy}": float(name != "c") for name in "abcdefg" for copy in range(3)}
    prompts = {row: row[0] for row in rows}
    first = experiment(tmp_path / "one", dict.fromkeys(rows, 0.0), prompts)
    found = compare([first, experiment(tmp_path / "two", rows, prompts)])
    assert (found.n, found.prompts) == (21, 7)
    two = found.experiments[1]
    assert two.low == paired_interval([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], "abcdefg", SEED).low
    assert found.rows()[1][4] == "21 rows of 7 prompts"
    few = {row: "same" if row[0] < "d" else "other" for row in rows}
    alike = compare([experiment(tmp_path / "three", dict.fromkeys(rows, 0.0), few), experiment(tmp_path / "four", rows, few)])
    assert (alike.experiments[1].low, alike.rows()[1][3]) == (None, None)
    assert alike.notices == ("2 shared prompts are too few for an interval: it takes at least 6",)


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
    assert compare([first, second]).notices[:1] == ("two: method.reward differs from one; the rewards mean other things",)
