"""Rewards that compare text: exact_match and contains."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from llmclick.rewards import REWARDS
from llmclick.rewards.answers import answer_part, gold_texts, refuse_gold, same_form
from llmclick.rewards.params import answer_key, is_bool, param


def right_text(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    """A completion that is right for the row: its own answer."""
    return next(iter(gold_texts(row, params)), None)


@dataclass(frozen=True)
class ExactMatchParams:
    """Parameters of exact_match."""

    ignore_case: bool = param(False, "whether upper and lower case are the same", is_bool)
    answer: str = answer_key()


@REWARDS.register("exact_match", in_process=True, params=ExactMatchParams, right=right_text, refuses=refuse_gold)
def exact_match(completion: str, row: dict[str, Any], params: dict[str, Any]) -> float:
    r"""1 if the completion is the answer and nothing else, otherwise 0.

    White space, accents in either form, full-width letters, straight or curly quotes, invisible characters, turn markers, a
    finished `<think>` block and one full stop at the end make no difference. Case does, unless `ignore_case: true`. Nothing is
    searched and no number is read: that is what contains and last_number do.

    | completion | row | params | result |
    |---|---|---|---|
    | " 11\n" | {"answer": "11"} | {} | 1 |
    | "11<|im_end|>" | {"answer": "11"} | {} | 1 |
    | "<think>\n\n</think>\n\n11" | {"answer": "11"} | {} | 1 |
    | "<think>11" | {"answer": "11"} | {} | 0 |
    | "The answer is 11." | {"answer": "11"} | {} | 0 |
    | "11.0" | {"answer": "11"} | {} | 0 |
    | "11" | {"answer": 11} | {} | 1 |
    | "11" | {"answer": 11.0} | {} | 1 |
    | "true" | {"answer": true} | {} | 1 |
    | "y" | {"answer": ["yes", "y"]} | {} | 1 |
    | "['yes', 'y']" | {"answer": ["yes", "y"]} | {} | 0 |
    | "Paris." | {"answer": "Paris"} | {} | 1 |
    | "**Paris**" | {"answer": "Paris"} | {} | 0 |
    | "New  York" | {"answer": "New York"} | {} | 1 |
    | "( C )" | {"answer": "(C)"} | {} | 1 |
    | "cafe\u0301" | {"answer": "caf\u00e9"} | {} | 1 |
    | "cafe" | {"answer": "caf\u00e9"} | {} | 0 |
    | "\uff11\uff11" | {"answer": "11"} | {} | 1 |
    | "11\u200b" | {"answer": "11"} | {} | 1 |
    | "x\u00b2" | {"answer": "x2"} | {} | 0 |
    | "\u22127" | {"answer": "-7"} | {} | 1 |
    | "Positive" | {"answer": "positive"} | {} | 0 |
    | "Positive" | {"answer": "positive"} | {"ignore_case": true} | 1 |
    | "" | {"answer": ""} | {} | 0 |
    | "None" | {"answer": null} | {} | 0 |
    """
    golds = gold_texts(row, params)
    text = same_form(answer_part(completion, golds))
    fold = str.casefold if params.get("ignore_case") is True else str
    wanted = {fold(same_form(gold)) for gold in golds}
    text = fold(text)
    if text in wanted:
        return 1.0
    return float(text.endswith((".", "。")) and not text.endswith("..") and text[:-1].rstrip() in wanted)


@dataclass(frozen=True)
class ContainsParams:
    """Parameters of contains."""

    ignore_case: bool = param(True, "whether upper and lower case are the same", is_bool)
    whole_word: bool = param(True, "whether the answer must stand as whole words and whole numbers", is_bool)
    answer: str = answer_key()


# Scripts that write words without spaces between them (and Korean, whose particles are glued on): no word borders to check.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_MARKS = "\u0300-\u036f"
_STARTS = rf"(?:(?<![\w{_MARKS}])|(?<=[{_UNSPACED}]))"
_ENDS = rf"(?:(?![\w{_MARKS}])|(?=[{_UNSPACED}]))(?!(?:\+\+?|#)(?!\w))"
_ENDS_NUMBER = rf"(?!\d|[.][0-9]|[eE][-+]?\d|(?:st|nd|rd|th)(?!\w)|_\w|[{_MARKS}])"
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})++(?!,?\d)")
_THREE_MORE = re.compile(r",\d{3}(?!\d)")


@REWARDS.register("contains", in_process=True, params=ContainsParams, right=right_text, refuses=refuse_gold)
def contains(completion: str, row: dict[str, Any], params: dict[str, Any]) -> float:
    r"""1 if the completion mentions the answer as whole words and whole numbers, otherwise 0.

    Text compares as in exact_match, case aside (`ignore_case: false` minds it). With `whole_word: false` any place counts, also
    inside a word. It cannot see that an answer is denied, or that every option is listed: choice is the reward for that.

    | completion | row | params | result |
    |---|---|---|---|
    | "It is **Paris**." | {"answer": "Paris"} | {} | 1 |
    | "paris is the capital" | {"answer": "Paris"} | {} | 1 |
    | "paris is the capital" | {"answer": "Paris"} | {"ignore_case": false} | 0 |
    | "We concatenate the two strings." | {"answer": "cat"} | {} | 0 |
    | "We concatenate the two strings." | {"answer": "cat"} | {"whole_word": false} | 1 |
    | "The reply lists 14 entries." | {"answer": "4"} | {} | 0 |
    | "It is 4.5" | {"answer": "4"} | {} | 0 |
    | "It weighs 4kg" | {"answer": "4"} | {} | 1 |
    | "It is -4 outside" | {"answer": "4"} | {} | 0 |
    | "pages 1-4" | {"answer": "4"} | {} | 1 |
    | "Part 19984, invoice $1998.75" | {"answer": "1998"} | {} | 0 |
    | "About 1,000 people came" | {"answer": "1000"} | {} | 1 |
    | "About 1,000 people came" | {"answer": "000"} | {} | 0 |
    | "The total is 36." | {"answer": 36} | {} | 1 |
    | "I would write it in C++ today." | {"answer": "C++"} | {} | 1 |
    | "I would write it in C++ today." | {"answer": "C"} | {} | 0 |
    | "It costs $5 each" | {"answer": "$5"} | {} | 1 |
    | "It costs $50 each" | {"answer": "$5"} | {} | 0 |
    | "\u7b54\u6848\u662f\u5df4\u9ece\u3002" | {"answer": "\u5df4\u9ece"} | {} | 1 |
    | "Or y, if you like" | {"answer": ["yes", "y"]} | {} | 1 |
    | "<think>Paris?</think> London" | {"answer": "Paris"} | {} | 0 |
    | "Mercury is the smallest, not Mars." | {"answer": "Mars"} | {} | 1 |
    | "red orange yellow green blue" | {"answer": "blue"} | {} | 1 |
    | "Anything at all" | {"answer": ""} | {} | 0 |
    | "None of these fit." | {"answer": null} | {} | 0 |
    """
    golds = gold_texts(row, params)
    text = same_form(answer_part(completion, golds, inside=True))
    fold = str if params.get("ignore_case") is False else str.casefold
    text = fold(text)
    wanted = [fold(same_form(gold)) for gold in golds]
    if params.get("whole_word") is False:
        return float(any(gold in text for gold in wanted))
    if any(_stands_in(text, gold) for gold in wanted):
        return 1.0
    # The same number with and without grouping commas.
    plain = _GROUPED.sub(_without_commas, text)
    return float(any(_stands_in(plain, _GROUPED.sub(_without_commas, gold)) for gold in wanted if any(map(str.isdigit, gold))))


def _without_commas(match: re.Match[str]) -> str:
    return match[0].replace(",", "")


def _stands_in(text: str, gold: str) -> bool:
    first, last = gold[0], gold[-1]
    signed = first in "-+" and gold[1:2].isdecimal()
    number_first = first.isdecimal() or signed or (first == "." and gold[1:2].isdecimal())
    before = _STARTS if first.isalnum() or signed else ""
    after = _ENDS_NUMBER if last.isdecimal() else _ENDS if last.isalnum() else ""
    for match in re.finditer(before + re.escape(gold) + after, text):
        if number_first and _inside_number_left(text, match.start()):
            continue
        if last.isdecimal() and _THREE_MORE.match(text, match.end()) and _digits_before(text, match.end()) <= 3:
            continue
        return True
    return False


def _digits_before(text: str, end: int) -> int:
    """How many digits end at `end`, up to 4."""
    count = 0
    while count < 4 and end > count and text[end - count - 1].isdecimal():
        count += 1
    return count


def _inside_number_left(text: str, start: int) -> bool:
    """Whether the number at `start` goes on to the left: a sign, a decimal point, a group of three before it."""
    left = text[start - 1] if start else ""
    further = text[start - 2] if start > 1 else ""
    if not left:
        return False
    if left in "-–":
        return not (further.isalnum() or further in (")", "]", "}", "%", "-", "–")) or not further
    if left == ".":
        return not further.isalpha()
    if left == "," and further.isdecimal():
        group = re.compile(r"\d{3}(?!\d)")
        return bool(group.match(text, start))
    if text[start] in "-+" and text[start + 1 : start + 2].isdecimal():
        return left.isalnum() or left in ")]}%"
    return left.isdecimal()
