import json
from pathlib import Path

import pytest

from llmclick.errors import InputError
from llmclick.tracking.metrics import MEASURED, METRICS, VALIDATION_METRICS, MetricsFile, read_metrics, without_measured

# The keys of section 12 of the design.
LOGGED = [
    *("step", "reward", "pass_rate", "groups", "length", "truncated", "entropy", "ratio", "clip_fraction", "kl", "mismatch"),
    *("grad_norm", "lr", "seconds", "tokens_per_second", "peak_memory", "reward_failures"),
]


def test_a_line_is_compact_json_in_the_documented_order_whatever_order_it_was_given_in(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "deep" / "metrics.jsonl")
    file.append(
        {"seconds": {"total": 2.0, "sample": 1.5}, "reward/b": 0.5, "kl": None, "reward/a": 1, "reward": 0.25, "step": 1}
    )
    assert file.path.read_text() == (
        '{"step":1,"reward":0.25,"kl":null,"seconds":{"sample":1.5,"total":2.0},"reward/a":1,"reward/b":0.5}\n'
    )


def test_numbers_that_do_not_exist_are_null_also_deep_inside(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m.jsonl")
    file.append({"step": 1, "kl": float("nan"), "ratio": {"max": float("inf"), "mean": [float("-inf"), 1.0]}})
    assert read_metrics(file.path) == [{"step": 1, "kl": None, "ratio": {"mean": [None, 1.0], "max": None}}]


def test_cut_keeps_the_bytes_of_what_stays_and_a_continued_file_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    def record(step: int) -> dict[str, float]:
        return {"step": step, "reward": step / 3}

    whole, resumed = MetricsFile(tmp_path / "a.jsonl"), MetricsFile(tmp_path / "b.jsonl")
    for step in range(1, 9):
        whole.append(record(step))
        if step < 7:
            resumed.append(record(step))
    assert resumed.cut(4) == 4
    for step in range(5, 9):
        resumed.append(record(step))
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert whole.cut(100) == 8
    assert MetricsFile(tmp_path / "none.jsonl").cut(3) == 0


def test_a_torn_last_line_is_left_out_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2,"rew')
    assert read_metrics(path) == [{"step": 1}]
    MetricsFile(path).append({"step": 2})
    assert path.read_bytes() == b'{"step":1}\n{"step":2}\n'


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step":1}\n{"st\n{"step":3}\n')
    with pytest.raises(InputError, match=r"m\.jsonl:2"):
        read_metrics(path)


def test_every_logged_key_is_documented_with_meaning_unit_range_and_remedy() -> None:
    assert [metric.name for metric in METRICS if metric.name != "reward/NAME"] == LOGGED
    assert [metric.name for metric in VALIDATION_METRICS] == ["reward", "reward/NAME", "pass_rate", "length", "truncated"]
    for metric in (*METRICS, *VALIDATION_METRICS):
        assert all((metric.meaning, metric.unit, metric.healthy, metric.remedy))


def test_measured_keys_are_the_ones_that_equality_leaves_out() -> None:
    record = dict.fromkeys(LOGGED, 1)
    assert set(LOGGED) - set(without_measured(record)) == set(MEASURED)


def test_lines_are_ascii(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m.jsonl")
    file.append({"step": 1, "reward/\u202e": 1.0})
    assert file.path.read_bytes().isascii()
    assert json.loads(file.path.read_bytes())["reward/\u202e"] == 1.0
