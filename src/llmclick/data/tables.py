"""Rows of data files in every format that the huggingface source takes: Parquet, CSV, TSV, JSON and JSON lines.

No reader guesses a type: JSON's and Parquet's values stay what the file says, an absent key of a JSON object stays absent, and
`csv_rows` says what a CSV's cells are. What has no JSON form is refused with the row and the column.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmclick.data.csv_rows import Cells, read_csv, with_numbers
from llmclick.data.files import ending, read_bytes, read_text
from llmclick.data.rows import canonical, parse_object, read_jsonl
from llmclick.errors import Problem

Pairs = list[tuple[dict[str, Any], str]]
"""What a source gives: (row as a JSON object, where it stands)."""


@dataclass
class Read:
    """What a source found: the rows that are whole, everything that is wrong with the others, and what is worth saying."""

    pairs: Pairs = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def read_files(
    files: Sequence[tuple[Path, str]],
    *,
    without: Collection[str] = (),
    limit: int | None = None,
    delimiter: str | None = None,
) -> Read:
    """The rows of files, one after the other. `files` are (path, shown name); the columns `without` are not looked at.

    A row's place is `name:N`, the line on which it begins, or in Parquet and a JSON list its number. Reading ends after `limit`
    rows, whether they could be read or not. Raises OSError for a file that cannot be read.
    """
    out = Read()
    tables: list[tuple[str, Pairs]] = []
    cells: dict[int, Cells] = {}
    wanted = sum(ending(path.name) in (".csv", ".tsv") for path, _ in files)
    for path, shown in files:
        seen = sum(len(pairs) for _, pairs in tables) + len(out.problems)
        # The columns of a CSV are numbers or text by all of its cells, so all of its files are read.
        if limit is not None and seen >= limit and not wanted:
            break
        pairs: Pairs = []
        if ending(path.name) in (".csv", ".tsv"):
            raw, problem = read_bytes(path, shown)
            rows, problems = ([], [problem]) if problem is not None else read_csv(raw, shown, delimiter)
            cells[len(tables)] = rows
            wanted -= 1
        else:
            pairs, problems = _read_one(path, shown, without, None if limit is None else max(0, limit - seen))
        out.problems += problems
        tables.append((shown, pairs))
    for at, typed in zip(cells, with_numbers(list(cells.values())), strict=True):
        dropped = set(without)
        kept = [({name: value for name, value in data.items() if name not in dropped}, where) for data, where in typed]
        tables[at] = (tables[at][0], kept)
    out.pairs = [pair for _, pairs in tables for pair in pairs]
    if len(tables) > 1:
        out.notices.append("rows per file: " + ", ".join(f"{shown} {len(pairs)}" for shown, pairs in tables))
    return out


def _read_one(path: Path, shown: str, without: Collection[str], limit: int | None) -> tuple[Pairs, list[Problem]]:
    if ending(path.name) == ".parquet":
        return _read_parquet(path, shown, without, limit)
    pairs, problems = read_json(path, shown, limit) if ending(path.name) == ".json" else read_jsonl(path, shown, limit)
    if without:
        pairs = [({key: value for key, value in data.items() if key not in without}, where) for data, where in pairs]
    return pairs, problems


def read_json(path: Path, shown: str, limit: int | None = None) -> tuple[Pairs, list[Problem]]:
    """The objects of one JSON list, or of JSON lines under a name that ends in .json."""
    raw, problem = read_bytes(path, shown)
    if problem is None and not raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return read_jsonl(path, shown, limit)
    text, problem = read_text(raw, shown) if problem is None else ("", problem)
    if problem is not None:
        return [], [problem]
    write = 'a list of objects: [{"prompt": "...", "answer": "..."}, ...]'
    try:
        items = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
        starts = _starts(text, len(items))
    except json.JSONDecodeError as error:
        why = f"not valid JSON at column {error.colno}: {error.msg[:1].lower() + error.msg[1:]}"
        return [], [Problem(f"{shown}:{error.lineno}", "", why, write)]
    except RecursionError:
        return [], [Problem(shown, "", "the list is nested too deep", "flatter rows")]
    pairs: Pairs = []
    problems: list[Problem] = []
    for number, (start, end) in enumerate(starts[:limit], start=1):
        # Each item by itself, so that what is wrong with one is said with its number, as for a line.
        data, problem = parse_object(text[start:end], f"{shown}:{number}")
        if data is not None:
            pairs.append((data, f"{shown}:{number}"))
        elif problem is not None:
            problems.append(problem)
    return pairs, problems


def _starts(text: str, count: int) -> list[tuple[int, int]]:
    """Where each item of a JSON list begins and ends."""
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
    at = text.index("[") + 1
    places = []
    for _ in range(count):
        while text[at] in " \t\r\n,":
            at += 1
        _, end = decoder.raw_decode(text, at)
        places.append((at, end))
        at = end
    return places


def _read_parquet(path: Path, shown: str, without: Collection[str], limit: int | None) -> tuple[Pairs, list[Problem]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pairs: Pairs = []
    problems: list[Problem] = []
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = [name for name in names if name not in without]
            if len(set(columns)) < len(columns):
                why = "a column is there twice: which of the two counts is anybody's guess"
                return [], [Problem(shown, "", why, "one name for each column", ", ".join(columns)[:200])]
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    if limit is not None and number > limit:
                        return pairs, problems
                    found = _row_of(record, f"{shown}:{number}")
                    if isinstance(found, Problem):
                        problems.append(found)
                    else:
                        pairs.append((found, f"{shown}:{number}"))
    except (pa.ArrowException, ValueError) as error:
        first = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        problems.append(Problem(shown, "", f"the file cannot be read as Parquet: {first}", "the whole file, as it was written"))
    return pairs, problems


class _NoJsonError(ValueError):
    """A value without a JSON form, and the column that holds it."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r} {why}")
        self.column = column


def _row_of(record: Mapping[str, Any], where: str) -> dict[str, Any] | Problem:
    try:
        data = {str(column): json_value(value, str(column)) for column, value in record.items()}
        canonical(data)
    except _NoJsonError as error:
        column = error.column.partition(".")[0]
        return Problem(where, "", str(error), f"fields: {{{column}: null}} in the source, which leaves the column out")
    except ValueError as error:
        return Problem(where, "", str(error), "a row of text and numbers")
    return data


def json_value(value: Any, column: str) -> Any:
    """A value as Python's JSON values; ValueError names the column of one that has no such form."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise _NoJsonError(column, "holds an infinite number, which is not a JSON value")
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(key): json_value(child, f"{column}.{key}") for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(child, column) for child in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            sample = base64.b64encode(bytes(value)[:6]).decode()
            raise _NoJsonError(column, f"holds bytes that are not UTF-8 text (base64 {sample}...)") from None
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return json_value(value.tolist(), column)
    raise _NoJsonError(column, f"holds a {type(value).__name__}, which is not a JSON value")
