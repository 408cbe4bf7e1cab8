"""Rows of a CSV file. What stands in a cell is what the reward gets.

- A cell is text. A column is numbers only if every cell of it that is not empty, in all files of the source, is written as the
  number itself would be written: `7` and `1.5` are numbers, `007`, `1.50`, `1e5` and `+3` leave their whole column text.
- A whole number stays whole, beside decimals and beside empty cells. `NA`, `None`, `null`, `true` and dates are text.
- An empty cell is null.
- Cells are separated by commas (tabs in a .tsv), or by semicolons or tabs where the first line has no comma.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from llmclick.data.files import read_text
from llmclick.errors import Problem

Cells = list[tuple[dict[str, str | None], str]]
"""(cells by column, where the row stands)."""

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,1000}")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")


def read_csv(raw: bytes, shown: str, delimiter: str | None = None) -> tuple[Cells, list[Problem]]:
    """The rows of one file as text, None for an empty cell, each with the line on which it begins."""
    text, problem = read_text(raw, shown)
    if problem is not None:
        return [], [problem]
    with _any_length():
        records = _records(text, delimiter or _delimiter(text, shown))
        try:
            header, problems = _header(records, shown)
            return ([], problems) if problems else _rows(records, header, shown)
        except csv.Error as error:
            why = f"the file cannot be read as CSV: {error}"
            return [], [Problem(shown, "", why, "quotes in pairs, doubled inside a cell")]


def _records(text: str, delimiter: str) -> Iterator[tuple[list[str], int]]:
    """(cells, line on which they begin) of every line that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise csv.Error(f"the row that begins on line {line}: {error}") from None
        if cells:
            yield cells, line
        line = reader.line_num + 1


def _header(records: Iterator[tuple[list[str], int]], shown: str) -> tuple[list[str], list[Problem]]:
    first = next(records, None)
    if first is None:
        return [], []
    header = [name.strip() for name in first[0]]
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        why = f"the column {twice[0]!r} is there twice: which of the two counts is anybody's guess"
        return header, [Problem(f"{shown}:{first[1]}", "", why, "one name for each column", ", ".join(header)[:200])]
    return header, []


def _rows(records: Iterator[tuple[list[str], int]], header: list[str], shown: str) -> tuple[Cells, list[Problem]]:
    rows: Cells = []
    problems: list[Problem] = []
    for cells, line in records:
        where = f"{shown}:{line}"
        unnamed = [cell for at, cell in enumerate(cells) if cell and (at >= len(header) or not header[at])]
        if len(cells) < len(header) or (unnamed and header.count("") != 1) or len(cells) > len(header):
            problems.append(
                Problem(
                    where,
                    "",
                    given=", ".join(cells)[:80],
                    why=f"the row has {len(cells)} cells, and the first line names {len([n for n in header if n])} columns",
                    write="a cell for each column; one that holds the separator stands in quotes",
                )
            )
            continue
        named = {name: cell or None for name, cell in zip(header, cells, strict=True) if name or header.count("") == 1}
        rows.append((named, where))
    return rows, problems


def _delimiter(text: str, shown: str) -> str:
    first = text.lstrip("\r\n").partition("\n")[0]
    wanted = "\t" if ".tsv" in shown.lower() else ","
    return next((mark for mark in (wanted, ",", ";", "\t") if mark in first), wanted)


def with_numbers(files: Sequence[Cells]) -> list[list[tuple[dict[str, Any], str]]]:
    """The rows of a source's files with the columns that hold numbers as numbers."""
    text: set[str] = set()
    for rows in files:
        for cells, _ in rows:
            text |= {name for name, cell in cells.items() if name not in text and cell is not None and number(cell) is None}
    return [
        [
            (
                {name: cell if cell is None or name in text else number(cell) for name, cell in cells.items()},
                where,
            )
            for cells, where in rows
        ]
        for rows in files
    ]


def number(cell: str) -> int | float | None:
    """The number that is written exactly as the cell is, or None.

    >>> number("2"), number("1.5"), number("007"), number("1.50"), number("NA")
    (2, 1.5, None, None, None)
    """
    if _WHOLE.fullmatch(cell):
        return int(cell)
    if _DECIMAL.fullmatch(cell) and repr(value := float(cell)) == cell:
        return value
    return None


@contextlib.contextmanager
def _any_length() -> Iterator[None]:
    """Cells may be longer than the csv module's own 131072 characters."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)
