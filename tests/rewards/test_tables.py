"""The rules of every shipped reward: the table in its docstring, and the cases under data/."""

import json
import re
from pathlib import Path

import pytest

from llmclick.registry import Entry
from llmclick.rewards import REWARDS

DATA = Path(__file__).parent / "data"
ROW = re.compile(r'\s*\| (".*") \| (\{.*\}) \| (\{.*\}) \| ([01]) \|')
SHIPPED = [entry for entry in REWARDS if entry.shipped]


def table(entry: Entry) -> list[tuple[str, dict, dict, float]]:
    lines = [line.strip() for line in (entry.value.__doc__ or "").splitlines() if line.strip().startswith("|")]
    assert lines[0] == "| completion | row | params | result |"
    rows = [ROW.fullmatch(line) for line in lines[2:]]
    assert all(rows), [line for line, row in zip(lines[2:], rows, strict=True) if row is None]
    return [tuple(json.loads(cell) for cell in row.groups()) for row in rows if row]


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.name)
def test_docstring_table_is_what_the_reward_does(entry):
    """Each row of a reward's documented table is the result of calling it; the documentation cannot go stale."""
    rows = table(entry)
    assert len(rows) >= 5
    wrong = [(row, got) for *row, want in rows if (got := entry.value(*row)) != want]
    assert wrong == []


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.name)
def test_hand_written_cases(entry):
    """A careful person's verdict on at least 20 hostile, odd and ordinary completions is the reward's."""
    lines = [json.loads(line) for line in (DATA / f"{entry.name}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) >= 20
    assert {line["expect"] for line in lines} == {0, 1}
    wrong = [
        (line, got) for line in lines if (got := entry.value(line["completion"], line["row"], line["params"])) != line["expect"]
    ]
    assert wrong == []


def test_every_shipped_reward_says_what_it_is_in_one_line():
    """`llmclick rewards` prints the docstring's first line: a sentence that ends."""
    assert {entry.name for entry in SHIPPED} == {
        "choice", "contains", "exact_match", "json_valid", "last_number", "math", "reasoning_gym", "regex",
    }  # fmt: skip
    for entry in SHIPPED:
        assert entry.summary.endswith("."), entry.name
        assert len(entry.summary) < 120


def test_a_mask_of_nan_or_infinity_is_no_answer():
    """An answer that is not finite accepts nothing."""
    for name in ("exact_match", "contains", "last_number"):
        for gold in (float("nan"), float("inf")):
            assert REWARDS.get(name).value(str(gold), {"answer": gold}, {}) == 0
