import gzip
from pathlib import Path
from typing import Any

import pytest

from llmclick.tracking.completions import CompletionsFolder

HOSTILE = "</script>\x1b[2J\u202e half \ud83d\u2028" + "x" * 10_000


def records(step: int, count: int = 4, text: str = "an answer ") -> list[dict[str, Any]]:
    return [
        {
            "row": f"abc-{step}",
            "where": "rows.jsonl:3",
            "sample": sample,
            "prompt": "Say it.",
            "text": text * (sample + 1),
            "tokens": 7,
            "stop": "stop",
            "rewards": {"exact_match": 1.0, "other": None},
            "reward": 1.0,
            "advantage": 0.5,
        }
        for sample in range(count)
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_what_is_written_is_read_back_lone_surrogates_and_all(tmp_path: Path) -> None:
    folder = CompletionsFolder(tmp_path)
    folder.write(3, records(3, text=HOSTILE))
    assert folder.read(3) == records(3, text=HOSTILE)
    assert (tmp_path / "3.jsonl").read_bytes().isascii()


def test_a_file_is_named_by_its_step_and_steps_come_in_their_order(tmp_path: Path) -> None:
    """`12.jsonl`, not padded; 10 comes after 2; a padded name or another alphabet's digits are somebody else's file."""
    folder = CompletionsFolder(tmp_path)
    for step in (1, 2, 10, 100):
        folder.write(step, records(step))
    assert {path.name for path in tmp_path.iterdir()} == {"1.jsonl", "2.jsonl", "10.jsonl", "100.jsonl"}
    for other in ("003.jsonl", "٣.jsonl"):
        (tmp_path / other).write_text("mine")
    assert folder.steps() == [1, 2, 10, 100]


def test_the_newest_steps_stay_plain_up_to_keep_bytes(tmp_path: Path) -> None:
    size = CompletionsFolder(tmp_path / "one")
    size.write(1, records(1))
    each = size.size(1)
    folder = CompletionsFolder(tmp_path / "many", keep=3 * each)
    for step in range(1, 7):
        folder.write(step, records(step))
    assert list(contents(tmp_path / "many")) == [
        *(f"{step}.jsonl.gz" for step in (1, 2, 3)),
        *(f"{step}.jsonl" for step in (4, 5, 6)),
    ]
    assert [folder.read(step) for step in range(1, 7)] == [records(step) for step in range(1, 7)]


def test_a_step_larger_than_keep_is_plain_while_it_is_the_newest(tmp_path: Path) -> None:
    folder = CompletionsFolder(tmp_path, keep=0)
    folder.write(1, records(1))
    assert list(contents(tmp_path)) == ["1.jsonl"]
    folder.write(2, records(2))
    assert list(contents(tmp_path)) == ["1.jsonl.gz", "2.jsonl"]


@pytest.mark.parametrize("killed", [2, 5, 9, 11])
@pytest.mark.parametrize("back", [0, 1, 4])
def test_a_resumed_folder_has_the_bytes_of_an_uninterrupted_one(tmp_path: Path, killed: int, back: int) -> None:
    """Steps of different sizes, killed anywhere, cut back anywhere, by another process: same names, same bytes."""
    whole = CompletionsFolder(tmp_path / "whole", keep=4000)
    for step in range(1, 13):
        whole.write(step, records(step, count=1 + step % 5))
    first = CompletionsFolder(tmp_path / "resumed", keep=4000)
    for step in range(1, killed + 1):
        first.write(step, records(step, count=1 + step % 5))
    again = CompletionsFolder(tmp_path / "resumed", keep=4000)
    again.cut(max(0, killed - back))
    assert again.steps() == list(range(1, max(0, killed - back) + 1))
    for step in range(max(0, killed - back) + 1, 13):
        again.write(step, records(step, count=1 + step % 5))
    assert contents(tmp_path / "resumed") == contents(tmp_path / "whole")
    assert any(name.endswith(".gz") for name in contents(tmp_path / "whole"))


def test_compressed_files_carry_no_time_and_no_name(tmp_path: Path) -> None:
    folder = CompletionsFolder(tmp_path, keep=0)
    folder.write(1, records(1))
    plain = (tmp_path / "1.jsonl").read_bytes()
    folder.write(2, records(2))
    packed = (tmp_path / "1.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == plain
    assert packed[3:8] == b"\0\0\0\0\0"  # no flags (so no name), no time


def test_a_kill_between_compressing_and_removing_loses_nothing(tmp_path: Path) -> None:
    folder = CompletionsFolder(tmp_path, keep=0)
    folder.write(1, records(1))
    (tmp_path / "1.jsonl.gz").write_bytes(b"half a file")
    folder.write(2, records(2))
    assert folder.read(1) == records(1)
    assert list(contents(tmp_path)) == ["1.jsonl.gz", "2.jsonl"]


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    folder = CompletionsFolder(tmp_path)
    folder.write(1, records(1))
    folder.cut(0)
    assert list(contents(tmp_path)) == ["notes.txt"]
    with pytest.raises(FileNotFoundError):
        folder.read(1)
