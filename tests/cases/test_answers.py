"""What users of such trainers met when answers are compared: each mistake with its smallest text and its right score."""

from __future__ import annotations

import time
from typing import Any

import pytest

from llmclick.rewards import REWARDS

CASES: list[tuple[str, str, Any, dict[str, Any], float]] = [
    # numbers: where one begins and ends
    ("last_number", "Mia has 48 stickers, all told.", "48", {}, 1),
    ("last_number", "The roots are 2,5", "25", {}, 0),
    ("last_number", "1,250 in all", "1250", {}, 1),
    ("last_number", "-7", "-7", {}, 1),
    ("last_number", "7", "-7", {}, 0),
    ("last_number", "The chance is 3/4.", "3/4", {}, 1),
    ("last_number", "\\frac{6}{2}", "62", {}, 0),
    ("last_number", "1 2 3 6 9 18", "18", {}, 1),
    ("last_number", "#### 42\n" + "and so on " * 50, "42", {}, 1),
    ("last_number", "9 things: 4 pens and 5 clips.", "9", {}, 0),
    ("last_number", "24", "so <<4*6=24>>24 apples.\n#### 24", {}, 1),
    ("last_number", "3", 3, {}, 1),
    ("last_number", "3.0", 3, {}, 1),
    ("last_number", "٤٢", "42", {}, 1),
    ("last_number", "৪২", "42", {}, 1),
    ("last_number", "４２", "42", {}, 1),
    ("last_number", "45 cm²", "45", {}, 1),
    # texts
    ("contains", "The reply lists 14 entries.", "4", {}, 0),
    ("contains", "It costs $20205.", "2020", {}, 0),
    ("exact_match", "cafe\u0301", "caf\u00e9", {}, 1),
    ("exact_match", "$3.20", "$4.20", {}, 0),
    ("exact_match", "3", 3, {}, 1),
    ("contains", "It is 3.", 3, {}, 1),
    ("choice", "Option B fits, since a plant needs light.", "B", {"labels": ["A", "B", "C", "D"]}, 1),
    ("choice", "Answer: C", "C", {"labels": ["A", "B", "C", "D"]}, 1),
    # JSON
    ("json_valid", '{"rate": NaN}', None, {}, 0),
    ("json_valid", '{"rate": Infinity}', None, {}, 0),
    ("json_valid", '{"rate": 1}', None, {}, 1),
]


@pytest.mark.parametrize(("reward", "completion", "answer", "params", "right"), CASES)
def test_the_right_score(reward: str, completion: str, answer: Any, params: dict[str, Any], right: float) -> None:
    """The score that a person would give."""
    assert REWARDS.get(reward).value(completion, {"answer": answer}, params) == right


@pytest.mark.parametrize("answer", ["", "  ", None, [], {}])
def test_an_empty_answer_is_refused(answer: Any) -> None:
    """It would be found in everything, or in nothing."""
    for name in ("contains", "exact_match", "last_number"):
        assert REWARDS.get(name).options["refuses"]({"prompt": "a", "answer": answer}, {}) is not None


@pytest.mark.parametrize("completion", ["1" * 5000, "1," * 3000, "1٤x²" * 2000, "1" * 100_000])
def test_a_pathological_completion_costs_nothing(completion: str) -> None:
    """0 in well under a second; Python itself refuses to read more than 4300 digits."""
    began = time.process_time()
    assert REWARDS.get("last_number").value(completion, {"answer": "11"}, {}) == 0
    assert time.process_time() - began < 0.5
