"""What stands in a file is what a reward gets, in every format that the huggingface source reads."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmclick.config.sources import HuggingFace, LocalJsonl
from llmclick.data.csv_rows import number, read_csv, with_numbers
from llmclick.data.sources import Read, read_source


def read(path: Path, **keys: Any) -> Read:
    return read_source(HuggingFace(name="huggingface", dataset=str(path), **keys), "c.yaml:5")


def rows_of(text: str, folder: Path, name: str = "train.csv") -> list[dict[str, Any]]:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    found = read(folder / name)
    assert found.problems == []
    return [data for data, _ in found.pairs]


def test_words_of_a_csv_are_text_and_an_empty_cell_is_null(tmp_path: Path) -> None:
    """NA, None, NULL, nan and true stay the words that they are; only a cell with nothing in it is null."""
    answers = ["NA", "None", "NULL", "nan", "null", "true", "", "2026-01-02"]
    rows = rows_of("prompt,answer\n" + "".join(f"q{n},{a}\n" for n, a in enumerate(answers)), tmp_path)
    assert [row["answer"] for row in rows] == ["NA", "None", "NULL", "nan", "null", "true", None, "2026-01-02"]


def test_a_blank_cell_leaves_whole_numbers_whole(tmp_path: Path) -> None:
    """2 beside a blank cell is the integer 2, not 2.0; beside 1.5 too."""
    rows = rows_of("prompt,answer,mixed\na,2,2\nb,,1.5\nc,30,\n", tmp_path)
    assert [(row["answer"], row["mixed"]) for row in rows] == [(2, 2), (None, 1.5), (30, None)]
    assert [type(row["mixed"]) for row in rows] == [int, float, type(None)]


@pytest.mark.parametrize("odd", ["007", "1.50", "1e5", "+3", "-0", " 4", "1,000", ".5", "5.", "0x1F", "1_000", "inf", "٣"])
def test_a_number_that_would_not_be_written_so_leaves_its_column_text(tmp_path: Path, odd: str) -> None:
    """One cell that a number would lose makes every cell of the column the text that it is."""
    rows = rows_of(f'prompt,answer\na,2\nb,"{odd}"\n', tmp_path)
    assert [row["answer"] for row in rows] == ["2", odd]


@given(st.lists(st.one_of(st.text(), st.integers().map(str), st.floats().map(repr)), min_size=1))
def test_every_cell_comes_back_as_it_was_written(cells: list[str]) -> None:
    """Written by Python's csv and read again, each value's text is the cell's, whatever was in it."""
    cells = [cell for cell in cells if "\x00" not in cell and cell.encode("utf-8", "replace").decode("utf-8") == cell]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerows([["prompt", "answer"], *(["q", cell] for cell in cells)])
    rows, problems = read_csv(buffer.getvalue().encode("utf-8"), "f.csv")
    assert problems == []
    values = [data["answer"] for data, _ in with_numbers([rows])[0]]
    assert ["" if value is None else value if isinstance(value, str) else repr(value) for value in values] == cells


def test_numbers_are_those_that_print_as_the_cell() -> None:
    """12, -3 and 1.5 are; what repr writes otherwise is not."""
    assert [number(cell) for cell in ("12", "-3", "0", "1.5", "-0.25")] == [12, -3, 0, 1.5, -0.25]
    assert [number(cell) for cell in ("0.00001", "1.10", "12345678901234567890.5", "")] == [None] * 4


def test_a_column_is_typed_over_all_files_of_the_source(tmp_path: Path) -> None:
    """`2` in the first file is text when the second has `007`; otherwise one key would have two types. With a limit too."""
    (tmp_path / "train-0.csv").write_text("prompt,answer\na,2\n")
    (tmp_path / "train-1.csv").write_text("prompt,answer\nb,007\n")
    assert [data["answer"] for data, _ in read(tmp_path).pairs] == ["2", "007"]
    assert [data["answer"] for data, _ in read(tmp_path, limit=1).pairs] == ["2"]


def test_the_line_of_a_csv_row_is_where_it_begins(tmp_path: Path) -> None:
    """A cell of two lines moves the rows after it by one; the row that is refused is named by its own line."""
    (tmp_path / "r.csv").write_text('prompt,answer\n"one\ntwo",1\nb,2,3\nc,4\n')
    found = read(tmp_path / "r.csv")
    assert [where.rpartition(":")[2] for _, where in found.pairs] == ["2", "5"]
    assert [problem.where for problem in found.problems] == [f"{tmp_path}/r.csv:4"]
    assert "3 cells" in found.problems[0].why


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "prompt\tanswer\nx, y\t1,5\n"),
        ("a.csv", "prompt;answer\nx, y;1,5\n"),
        ("b.csv", "prompt\tanswer\nx, y\t1,5\n"),
    ],
)
def test_other_separators(tmp_path: Path, name: str, text: str) -> None:
    """A .tsv has tabs; a .csv whose first line has no comma has semicolons or tabs, as spreadsheets write it."""
    assert rows_of(text, tmp_path, name) == [{"prompt": "x, y", "answer": "1,5"}]


def test_csv_that_cannot_be_read_says_where(tmp_path: Path) -> None:
    """An open quote, two columns of one name, and Latin-1 are refused with their line."""
    for text, says, line in (
        (b'prompt,answer\na,1\n"b,2\n', "line 3", ""),
        (b"prompt,answer,answer\na,1,2\n", "'answer' is there twice", ":1"),
        (b"prompt,answer\na,1\nb,caf\xe9\n", "not valid UTF-8", ":3"),
    ):
        (tmp_path / "r.csv").write_bytes(text)
        problem = read(tmp_path / "r.csv").problems[0]
        assert says in problem.why
        assert problem.where == f"{tmp_path}/r.csv{line}"


VALUES = [
    {"prompt": "a", "answer": 1, "when": "2026-01-02 03:04:05"},
    {"prompt": "b", "answer": 2.5, "extra": {"k": [1, None]}},
    {"prompt": "c", "answer": "3"},
]


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.jsonl.gz", "train.json.bz2", "train.ndjson.xz"])
def test_json_values_keep_their_types_and_absent_keys_stay_absent(tmp_path: Path, name: str) -> None:
    """1 beside 2.5 stays whole, a text that looks like a time stays that text, and no row gains a null for a key of another."""
    lines = json.dumps(VALUES, indent=1) if ".json" in name and "jsonl" not in name else "\n".join(map(json.dumps, VALUES))
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(lines.encode()))
    for found in (read(tmp_path), read(tmp_path / name)):
        assert found.problems == []
        assert [data for data, _ in found.pairs] == VALUES
        assert type(found.pairs[0][0]["answer"]) is int


def test_a_bad_item_of_a_json_list_is_one_row(tmp_path: Path) -> None:
    """The second of three items is refused with its number, and the others are read; a column dropped is dropped."""
    (tmp_path / "r.json").write_text('[{"prompt": "a", "x": 1}, {"prompt": "b", "x": NaN},\n {"prompt": "c"}]')
    found = read(tmp_path / "r.json", fields={"x": None})
    assert [data for data, _ in found.pairs] == [{"prompt": "a"}, {"prompt": "c"}]
    assert [problem.where for problem in found.problems] == [f"{tmp_path}/r.json:2"]


def test_parquets_own_types_stay(tmp_path: Path) -> None:
    """A nullable whole number stays whole beside null, and digits that are text stay text."""
    table = pa.table({"prompt": ["a", "b"], "answer": pa.array([2, None], pa.int64()), "code": ["007", "NA"]})
    pq.write_table(table, tmp_path / "train.parquet")
    assert [data for data, _ in read(tmp_path).pairs] == [
        {"prompt": "a", "answer": 2, "code": "007"},
        {"prompt": "b", "answer": None, "code": "NA"},
    ]


def test_a_column_that_nothing_reads_can_be_left_out(tmp_path: Path) -> None:
    """Bytes are refused with the entry that leaves their column out, in one block for all rows; with it the rows are read."""
    pq.write_table(pa.table({"prompt": list("abcde"), "raw": [b"\xff\xfe"] * 5}), tmp_path / "train.parquet")
    problems = read(tmp_path).problems
    assert len(problems) == 1
    assert "5 rows" in problems[0].why
    assert "fields: {raw: null}" in problems[0].write
    found = read(tmp_path, fields={"raw": None})
    assert found.problems == []
    assert [data for data, _ in found.pairs] == [{"prompt": letter} for letter in "abcde"]
    (tmp_path / "r.jsonl").write_text('{"prompt": "a", "raw": 1}\n')
    local = LocalJsonl(name="local_jsonl", path=tmp_path / "r.jsonl", fields={"raw": None})
    assert read_source(local, "c:1").pairs[0][0] == {"prompt": "a"}


def test_a_file_of_the_folder_that_no_split_has_is_refused(tmp_path: Path) -> None:
    """train.jsonl and more.csv: the second would be left out, so it is named; a test split is a split, and read as one."""
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "test.jsonl").write_text('{"prompt": "t"}\n')
    assert len(read(tmp_path).pairs) == 1
    (tmp_path / "more.csv").write_text("prompt\nb\n")
    found = read(tmp_path)
    assert found.pairs == []
    assert [(problem.where, problem.key, problem.given) for problem in found.problems] == [("c.yaml:5", "dataset", "more.csv")]
    assert f"dataset: {tmp_path}/more.csv" in found.problems[0].write
    assert read(tmp_path / "more.csv").pairs[0][0] == {"prompt": "b"}


def test_rows_per_file_are_said(tmp_path: Path) -> None:
    """Two files of a split: the rows of both, and one sentence with their counts."""
    (tmp_path / "train-0.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "train-1.jsonl").write_text('{"prompt": "c"}\n')
    found = read(tmp_path)
    assert [data["prompt"] for data, _ in found.pairs] == ["a", "b", "c"]
    assert found.notices == [f"rows per file: {tmp_path}/train-0.jsonl 2, {tmp_path}/train-1.jsonl 1"]
    assert [data["prompt"] for data, _ in read(tmp_path, limit=1).pairs] == ["a"]


def test_a_cards_way_of_reading_is_followed_or_refused(tmp_path: Path) -> None:
    """A separator that the data set's card names is used; any other setting of its reader is refused by name."""
    card = "---\nconfigs:\n- config_name: default\n  {0}\n  data_files: rows.csv\n---\n"
    (tmp_path / "rows.csv").write_text("prompt|answer\na,b|2\n")
    (tmp_path / "README.md").write_text(card.format('sep: "|"'))
    assert [data for data, _ in read(tmp_path).pairs] == [{"prompt": "a,b", "answer": 2}]
    (tmp_path / "README.md").write_text(card.format("skiprows: 1"))
    assert "'skiprows'" in read(tmp_path).problems[0].why
