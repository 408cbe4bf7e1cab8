"""The reward for word problems: last_number."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from llmclick.rewards import REWARDS
from llmclick.rewards.answers import brief, gold_texts, refuse_gold
from llmclick.rewards.numerals import Number, final_number, same_number
from llmclick.rewards.params import answer_key, param


def _is_tolerance(value: object) -> str | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
    return None if good else "write a number of at least 0"


@dataclass(frozen=True)
class LastNumberParams:
    """Parameters of last_number."""

    tolerance: float = param(0, "largest difference from the answer that still counts", _is_tolerance)
    answer: str = answer_key()


def _golds(row: dict[str, Any], params: dict[str, Any]) -> list[Number]:
    value = row.get(params.get("answer", "answer")) if isinstance(params.get("answer", "answer"), str) else None
    if isinstance(value, bool):
        return []
    numbers = (final_number(text) for text in gold_texts(row, params))
    return [number for number in numbers if number is not None]


def _refuse(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    if _golds(row, params):
        return None
    key = params.get("answer", "answer")
    return refuse_gold(row, params) or f"{key!r} has no number in it: {brief(row[key])}"


def _right(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    return next((text for text in gold_texts(row, params) if final_number(text) is not None), None)


@REWARDS.register("last_number", in_process=True, params=LastNumberParams, right=_right, refuses=_refuse)
def last_number(completion: str, row: dict[str, Any], params: dict[str, Any]) -> float:
    r"""1 if the last number of the completion has the value of the answer, otherwise 0.

    A marked answer, `#### 42` or `\boxed{42}`, goes before the last number; the last mark counts. The answer is read the same
    way, so a whole worked solution may stand there. Values compare exactly, `tolerance` aside. A power of a unit (cm^2), a
    finished or unfinished `<think>` block and turn markers hold no number; numbers in words are not read.

    A sign written twice where one may stand counts once: `--5` is -5, and so is `-5` behind a long dash. Behind a word or a
    number `--` is a dash.

    Percent, per mille and magnitudes count, and a number without one is also compared with the figure alone: 2.5M is 2500000
    and 2.5. Magnitudes are the words from hundred to trillion, lakh and crore; k, K, M, B and T directly behind the figure;
    mn, bn and tn; after a currency sign k, m, b and t in either case. Any other letter is a unit: 5 m, 5m, 5 M.

    | completion | row | params | result |
    |---|---|---|---|
    | "Sixty minus the dozen leaves 48 stickers, all told." | {"answer": "48"} | {} | 1 |
    | "Altogether the order comes to $1,250." | {"answer": "1250"} | {} | 1 |
    | "1,50,000 rupees" | {"answer": 150000} | {} | 1 |
    | "1.234,56 \u20ac" | {"answer": "1234.56"} | {} | 1 |
    | "1\u202f234 or 1_234 or 1'234" | {"answer": 1234} | {} | 1 |
    | "the roots are 2,5" | {"answer": "25"} | {} | 0 |
    | "the roots are 2,5" | {"answer": "5"} | {} | 1 |
    | "18 3 1" | {"answer": "1"} | {} | 1 |
    | "it is -9 outside" | {"answer": "-9"} | {} | 1 |
    | "x = \u22127" | {"answer": "-7"} | {} | 1 |
    | "y = \u20135" | {"answer": "-5"} | {} | 1 |
    | "-$5" | {"answer": "-5"} | {} | 1 |
    | "x = --5" | {"answer": "-5"} | {} | 1 |
    | "x = --5" | {"answer": "5"} | {} | 0 |
    | "the answer--9" | {"answer": "9"} | {} | 1 |
    | "pages 3--5" | {"answer": "5"} | {} | 1 |
    | "Final answer - 18" | {"answer": "18"} | {} | 1 |
    | "2024-05-17" | {"answer": "17"} | {} | 1 |
    | "- 12 pieces of fruit" | {"answer": "12"} | {} | 1 |
    | "That leaves .75 of it" | {"answer": "0.75"} | {} | 1 |
    | "Rs.500" | {"answer": "500"} | {} | 1 |
    | "We end up with 12..." | {"answer": "12"} | {} | 1 |
    | "3.14" | {"answer": "3.14159"} | {} | 0 |
    | "3.14" | {"answer": "3.14159"} | {"tolerance": 0.01} | 1 |
    | "1e400" | {"answer": "1e309"} | {} | 0 |
    | "1.5e3" | {"answer": "1500"} | {} | 1 |
    | "1.5 \u00d7 10^3 metres" | {"answer": "1500"} | {} | 1 |
    | "2^5" | {"answer": "32"} | {} | 1 |
    | "The probability is 3/4." | {"answer": "0.75"} | {} | 1 |
    | "36/2=18" | {"answer": "18"} | {} | 1 |
    | "$\\frac{6}{2}$" | {"answer": "3"} | {} | 1 |
    | "1 1/2" | {"answer": "1.5"} | {} | 1 |
    | "25%" | {"answer": "25"} | {} | 1 |
    | "25%" | {"answer": "0.25"} | {} | 1 |
    | "0.25%" | {"answer": "25%"} | {} | 0 |
    | "5\u2030" | {"answer": "0.005"} | {} | 1 |
    | "2.5 million people" | {"answer": "2500000"} | {} | 1 |
    | "3.5M" | {"answer": "3500000"} | {} | 1 |
    | "3.5M" | {"answer": "3.5"} | {} | 1 |
    | "3.5M" | {"answer": "3.5 thousand"} | {} | 0 |
    | "$2bn" | {"answer": "2000000000"} | {} | 1 |
    | "$5m" | {"answer": "5000000"} | {} | 1 |
    | "5 m" | {"answer": "5000000"} | {} | 0 |
    | "45 cm\u00b2, or 45 cm^2" | {"answer": "45"} | {} | 1 |
    | "The board is 5x8" | {"answer": "8"} | {} | 1 |
    | "\\boxed{8{,}400}" | {"answer": "8400"} | {} | 1 |
    | "\\boxed{15} is wrong, \\boxed{12} is right" | {"answer": "12"} | {} | 1 |
    | "#### 42\nCheck: 42 / 7 is 6." | {"answer": "42"} | {} | 1 |
    | "42 (checked in 2 ways)" | {"answer": "42"} | {} | 0 |
    | "\u09ea\u09e8" | {"answer": "42"} | {} | 1 |
    | "She has twelve left." | {"answer": "12"} | {} | 0 |
    | "<think>408</think>" | {"answer": "408"} | {} | 0 |
    | "408<|reserved_special_token_12|>" | {"answer": "408"} | {} | 1 |
    | "35000" | {"answer": "90,000-55,000=<<90000-55000=35000>>35,000\n#### 35,000"} | {} | 1 |
    | "18" | {"answer": "18 dollars"} | {} | 1 |
    | "-0" | {"answer": 0} | {} | 1 |
    | "11" | {"answer": 11.0} | {} | 1 |
    | "18" | {"answer": [17, 18]} | {} | 1 |
    | "0" | {"answer": null} | {} | 0 |
    """
    golds = _golds(row, params)
    number = final_number(completion) if golds else None
    if number is None:
        return 0.0
    tolerance = params.get("tolerance", 0)
    exact = Fraction(str(tolerance)) if _is_tolerance(tolerance) is None else Fraction(0)
    return float(any(same_number(number, gold, exact) for gold in golds))
