"""What every shipped reward agrees on: which part of a completion is the answer, which texts a row accepts, how text compares.

Everything here is linear in the length of the text and takes any string, lone surrogates included.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

#: Markers that a tokenizer puts around turns. They are not part of what the model said.
SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,64}\|>|<｜[^｜<>\s]{1,64}｜>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn|eot_id)>|\[/?INST\]"
)
_SPECIAL_AT_END = re.compile(rf"(?:{SPECIAL.pattern})\Z")
_THINKING = re.compile(r"<(/?)think(?:ing)?>")

#: Zero-width and direction characters: invisible, never meant. The joiners U+200C and U+200D change words and stay.
INVISIBLE = "\u200b\u2060\ufeff\u00ad\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_SAME_SIGN = {ord(char): None for char in INVISIBLE}
_SAME_SIGN |= {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}  # type: ignore[misc]  # full-width ASCII
_SAME_SIGN |= {ord(k): v for k, v in {"−": "-", "‘": "'", "’": "'", "“": '"', "”": '"'}.items()}  # type: ignore[misc]

# Normalising sorts a run of combining marks by insertion, which is quadratic: longer runs than this stay as they are.
_LONG_RUN_OF_MARKS = re.compile(r"([^\w\s\x00-\x7f]{31,})")


def after_thinking(text: str) -> str:
    """What follows the last closed `<think>` block; nothing of a block that is still open."""
    start, end = 0, len(text)
    for tag in _THINKING.finditer(text):
        if tag[1]:
            start, end = tag.end(), len(text)
        elif end == len(text):
            end = tag.start()
    return text[start:end] if start <= end else ""


def strip_ends(text: str, blanks: str | None = None) -> str:
    """`text` without white space (all of Unicode's, or only `blanks`) and turn markers at its two ends."""
    start, end = 0, len(text)

    def is_blank(char: str) -> bool:
        return char.isspace() if blanks is None else char in blanks

    while True:
        while end > start and is_blank(text[end - 1]):
            end -= 1
        marker = _SPECIAL_AT_END.search(text[max(start, end - 70) : end])
        if marker is None:
            break
        end -= len(marker[0])
    while True:
        while start < end and is_blank(text[start]):
            start += 1
        marker = SPECIAL.match(text, start, end)
        if marker is None:
            break
        start = marker.end()
    return text[start:end]


def answer_part(completion: str, golds: Iterable[str] = (), *, inside: bool = False) -> str:
    """The part of a completion that answers: past the reasoning block, without turn markers at the ends (`inside`:
    anywhere). A gold that has such a marker itself is compared with the completion as it stands."""
    if any(SPECIAL.search(gold) or _THINKING.search(gold) for gold in golds):
        return completion
    text = strip_ends(after_thinking(completion))
    return SPECIAL.sub(" ", text) if inside else text


def same_form(text: str) -> str:
    """One form for texts that people call equal: composed accents, plain ASCII for its full-width twins, straight quotes, the
    hyphen for U+2212, nothing invisible, single spaces, none at the ends or just inside brackets."""
    if not text.isascii():
        pieces = _LONG_RUN_OF_MARKS.split(text)
        text = "".join(piece if odd % 2 else unicodedata.normalize("NFC", piece) for odd, piece in enumerate(pieces))
        text = text.translate(_SAME_SIGN)
    text = " ".join(text.split())
    for bracket in "([{":
        text = text.replace(bracket + " ", bracket)
    for bracket in ")]}":
        text = text.replace(" " + bracket, bracket)
    return text


def digits_of(number: int) -> str:
    """The decimal digits of an integer of any size (`str` refuses more than 4300)."""
    return str(Decimal(number))


def texts_of(value: object) -> list[str]:
    """The ways in which a JSON value is written as a text that is not blank, none if it is no text, number, true or false."""
    if isinstance(value, bool):
        return ["true", "True"] if value else ["false", "False"]
    if isinstance(value, int):
        return [digits_of(value)]
    if isinstance(value, float):
        if not math.isfinite(value):
            return []
        return [str(int(value)), repr(value)] if value.is_integer() else [repr(value)]
    if isinstance(value, str) and same_form(value):
        return [value]
    return []


def gold_texts(row: dict[str, Any], params: dict[str, Any]) -> list[str]:
    """The texts that the row's answer accepts, none if it cannot be used.

    A list accepts any of its items. 11.0 is written "11" or "11.0", true "true" or "True". Missing, null, blank, not finite
    and nested values accept nothing.
    """
    key = params.get("answer", "answer")
    value = row.get(key) if isinstance(key, str) else None
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in texts_of(item)]
    return texts_of(value)


def brief(value: object) -> str:
    """A value for a message, at most 60 characters of it."""
    try:
        return repr(value if isinstance(value, str) else str(value))[:60]
    except ValueError:  # an integer of more than 4300 digits
        return "(too large to show)"


def refuse_gold(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    """Why the row's answer cannot be used, or None."""
    if gold_texts(row, params):
        return None
    key = params.get("answer", "answer")
    if key not in row:
        return f"the row has no {key!r}"
    value = row[key]
    if value is None:
        return f"{key!r} is null, so no completion could be right"
    if isinstance(value, str):
        return f"{key!r} is blank, so every completion or none would be right"
    return f"{key!r} is {type(value).__name__} {brief(value)}, not a text, a number, true or false, or a list of these"
