"""The reward for a pick among labels: choice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from typing import Any

from llmclick.rewards import REWARDS
from llmclick.rewards.answers import answer_part, gold_texts, refuse_gold, same_form, texts_of
from llmclick.rewards.params import answer_key, is_bool, param


def _is_labels(value: object) -> str | None:
    if isinstance(value, str) and value.strip():
        return None
    if not isinstance(value, (list, tuple)) or len(value) < 2:
        return "write a list of at least two labels such as [A, B, C, D], or the key of the row that holds the list"
    if not all(texts_of(label) for label in value):
        return "write labels that are texts or numbers and not blank"
    forms = [same_form(texts_of(label)[0]).casefold() for label in value]
    return None if len(set(forms)) == len(forms) else "write each label once"


@dataclass(frozen=True)
class ChoiceParams:
    """Parameters of choice."""

    labels: Any = param(MISSING, "the labels to pick from, or the key of the row that lists them", _is_labels)  # noqa: RUF009  # a field
    ignore_case: bool = param(True, "whether upper and lower case are the same", is_bool)
    answer: str = answer_key()


def _labels(row: dict[str, Any], params: dict[str, Any]) -> list[str]:
    labels = params.get("labels")
    if isinstance(labels, str):
        labels = row.get(labels)
        labels = list(labels) if isinstance(labels, dict) else labels
    if not isinstance(labels, (list, tuple)) or _is_labels(labels) is not None:
        return []
    return [same_form(texts_of(label)[0]) for label in labels]


def _wanted(row: dict[str, Any], params: dict[str, Any]) -> set[int]:
    fold = str if params.get("ignore_case") is False else str.casefold
    golds = {fold(same_form(gold)) for gold in gold_texts(row, params)}
    return {number for number, label in enumerate(_labels(row, params)) if fold(label) in golds}


def _refuse(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    reason = refuse_gold(row, params)
    if reason:
        return reason
    if not _labels(row, params):
        return f"the row has no usable list of labels in {params.get('labels')!r}"
    if not _wanted(row, params):
        return f"its answer {gold_texts(row, params)[0][:60]!r} is none of the labels {', '.join(_labels(row, params))[:200]}"
    return None


def _right(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    labels = _labels(row, params)
    return next((labels[number] for number in sorted(_wanted(row, params))), None)


@dataclass(frozen=True)
class _Mention:
    label: int
    start: int
    end: int


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What may stand between a cue and the label it announces.
_FILLER = _words(
    """is are was be being would must should will therefore thus then so clearly definitely probably most likely the a
    an option options choice answer label letter as to of it with for on by that's it's final correct best right my
    only just still"""
)
_CUES = _words(
    """answer answer's choice correct pick picked picking choose chose choosing select selected selecting leaving
    leaves conclude conclusion verdict prediction label therefore thus hence → =>"""
)
_CUE_PAIRS = frozenset(
    {("go", "with"), ("going", "with"), ("went", "with"), ("settle", "on"), ("settled", "on"), ("must", "be")}
)
_DENIALS = _words(
    """not never isn't isnt wasn't aren't can't cannot couldn't wouldn't don't doesn't didn't won't neither nor than
    unlike except without eliminate eliminated eliminates eliminating exclude excluded excludes excluding reject
    rejected rejects rejecting discard discarded rule ruled rules ruling out"""
)
_DENIAL_PAIRS = frozenset(
    {("rather", "than"), ("instead", "of"), ("rule", "out"), ("ruled", "out"), ("rules", "out"), ("ruling", "out")}
)
_AFFIRMED = re.compile(
    r"[)\]}*_\"'`]{0,4}\s{1,3}(?:is|was|are|must be|seems|looks)\s{1,3}"
    r"(?:(?:clearly|definitely|therefore|the|my|most|only|obviously)\s{1,3}){0,3}"
    r"(?:correct|right|best|true|answer|final answer|one|choice|winner|it)(?!\w)",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[)\]}*_\"'`]{0,4}\s{1,3}(?:is|are|was|were|can|could|cannot|may|might|would|does|do|did|looks?|seems?|appears?|sounds?|fails?|has|had"
    r"|can't|isn't|doesn't|won't|contradicts?|misses)(?!\w)"
)
_DENIAL_WORD = re.compile(
    r"(?<!\w)(?:not|cannot|\w+n't|wrong|incorrect|fails?|failed|ruled out|eliminated|excluded|impossible|rejected|untrue"
    r"|invalid|contradicts?|misses|unlikely|off the table|out)(?!\w)",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"[.;,:!?\n]")
_VERB_AFTER_LETTER = _words(
    """is was are were fits because since as and or but can could cannot may might would will does do did has had seems
    looks appears sounds fails follows matches works holds describes for in with must should being it"""
)
_AFTER_NO = _words(
    "and or but because since as that this it they the there he she we you i is was not wait if when in at yes no"
)
_JOINED = re.compile(
    r"[\s,/&|]{0,4}(?:(?:and|or|and/or|or maybe|plus)\s{1,3})?(?:(?:option|also|both)\s{1,3})?[\s(\"'*_`]{0,4}\Z", re.IGNORECASE
)
_ECHO = re.compile(r"[)\].:]{1,2}\s{0,3}\S")
_BOX = re.compile(r"\\f?box(?:ed)?\s{0,3}\{\s{0,3}(?:\\text(?:bf|rm)?\s{0,3}\{)?[\s(]{0,4}\Z|(?<!#)####(?!#)[\s(*]{0,4}\Z")


@REWARDS.register("choice", in_process=True, params=ChoiceParams, right=_right, refuses=_refuse)
def choice(completion: str, row: dict[str, Any], params: dict[str, Any]) -> float:
    r"""1 if the label that the completion finally picks is the answer, otherwise 0.

    The pick is the last label that is announced ("the answer is B", "I pick B", a box, a line of its own), otherwise the
    last one that opens a sentence ("B. Paris", "Yes, ..."), otherwise the last one mentioned. Denied labels ("not B", "B
    fails") do not count. Labels in one breath ("yes and no", "A, B, C") pick nothing. A letter counts as a word of its own:
    the article "a" and the pronoun "I" are no labels, a small letter only in brackets or where an answer stands. "no doubt"
    is no "no".

    | completion | row | params | result |
    |---|---|---|---|
    | "B" | {"answer": "B"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "(b)" | {"answer": "B"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "Answer: **D**" | {"answer": "A"} | {"labels": ["A", "B", "C", "D"]} | 0 |
    | "Answer: **D**" | {"answer": "D"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "Option B fits, since a plant needs light." | {"answer": "B"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "A plant needs light, so B." | {"answer": "B"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "None of the above" | {"answer": "A"} | {"labels": ["A", "B", "C", "D"]} | 0 |
    | "B can be ruled out, leaving D" | {"answer": "D"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "I pick B. Option A looks tempting but fails." | {"answer": "B"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "The answer is A. Wait, no: the answer is C." | {"answer": "C"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "It is not A but C" | {"answer": "C"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "It is C, not A" | {"answer": "C"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "A, B, C, D" | {"answer": "D"} | {"labels": ["A", "B", "C", "D"]} | 0 |
    | "A) red\nB) blue\nC) green\nThe answer is B" | {"answer": "B"} | {"labels": ["A", "B", "C"]} | 1 |
    | "\\boxed{C}" | {"answer": "C"} | {"labels": ["A", "B", "C", "D"]} | 1 |
    | "I know this one: yes." | {"answer": "no"} | {"labels": ["yes", "no"]} | 0 |
    | "Yes." | {"answer": "yes"} | {"labels": ["yes", "no"]} | 1 |
    | "Yes." | {"answer": "yes"} | {"labels": ["yes", "no"], "ignore_case": false} | 0 |
    | "Yes, there is no doubt" | {"answer": "yes"} | {"labels": ["yes", "no"]} | 1 |
    | "Yes and no." | {"answer": "yes"} | {"labels": ["yes", "no"]} | 0 |
    | "<think>yes</think> no" | {"answer": "no"} | {"labels": ["yes", "no"]} | 1 |
    | "not entailed" | {"answer": "entailed"} | {"labels": ["entailed", "not entailed"]} | 0 |
    | "wolf" | {"answer": "wolf", "options": ["fox", "wolf"]} | {"labels": "options"} | 1 |
    | "E" | {"answer": "E"} | {"labels": ["A", "B", "C", "D"]} | 0 |
    """
    labels, wanted = _labels(row, params), _wanted(row, params)
    if not wanted:
        return 0.0
    text = answer_part(completion, labels, inside=True)
    picked = _pick(_lines(text), labels, params.get("ignore_case") is not False)
    return float(picked in wanted)


def _lines(text: str) -> str:
    """The text in its compared form, line by line (a line of its own means something here)."""
    return "\n".join(same_form(line) for line in text.splitlines()).strip()


def _pick(text: str, labels: list[str], ignore_case: bool) -> int | None:
    """The number of the label that `text` picks."""
    mentions = list(_mentions(text, labels, ignore_case))
    weak = opening = None
    openings: list[_Mention] = []
    for at in range(len(mentions) - 1, -1, -1):
        mention = mentions[at]
        before = mentions[at - 1] if at else None
        after = mentions[at + 1] if at + 1 < len(mentions) else None
        if _denied(text, mention, before, after):
            continue
        joined = _joined(text, mention, before) or _joined(text, after, mention)
        if _announced(text, mention, before):
            return None if joined else mention.label
        if _opens(text, mention):
            openings.append(mention)
        if weak is None:
            weak = (mention, joined)
    if openings:
        # A repeated list of options ("A) red\nB) blue") opens lines with every label and picks none.
        echoed = {mention.label for mention in openings if _ECHO.match(text, mention.end) and _starts_line(text, mention)}
        if len(echoed) > 1:
            openings = [mention for mention in openings if not (_ECHO.match(text, mention.end) and _starts_line(text, mention))]
            if weak is not None and weak[0].label in echoed and not openings and _starts_line(text, weak[0]):
                return None
        opening = openings[0] if openings else None
    if opening is not None:
        at = mentions.index(opening)
        after = mentions[at + 1] if at + 1 < len(mentions) else None
        return (
            None if _joined(text, opening, mentions[at - 1] if at else None) or _joined(text, after, opening) else opening.label
        )
    return None if weak is None or weak[1] else weak[0].label


def _mentions(text: str, labels: list[str], ignore_case: bool) -> Iterator[_Mention]:
    """Where labels stand as words of their own, the longest first where one begins with another."""
    order = sorted(range(len(labels)), key=lambda number: -len(labels[number]))
    body = "|".join(f"(?P<l{number}>{_whole(labels[number])})" for number in order)
    for match in re.finditer(body, text, re.IGNORECASE if ignore_case else re.NOFLAG):
        number = int((match.lastgroup or "l0")[1:])
        mention = _Mention(number, match.start(), match.end())
        label = labels[number]
        if len(label) == 1 and label.isalpha() and not _is_letter_label(text, mention, label):
            continue
        if label.casefold() == "no" and _is_determiner(text, mention):
            continue
        yield mention


def _whole(label: str) -> str:
    before = r"(?<![\w'])" if label[0].isalnum() else ""
    after = r"(?![\w'])" if label[-1].isalnum() else ""
    if label[0].isdecimal():
        before += r"(?<!\d[.,])(?<![-.])"
    if label[-1].isdecimal():
        after += r"(?![.,]\d)"
    return before + re.escape(label) + after


def _is_letter_label(text: str, mention: _Mention, label: str) -> bool:
    """Whether a lone letter is a label rather than an article, a pronoun or a variable."""
    shown = text[mention.start : mention.end]
    word = re.match(r"[ \t]{1,3}([^\W\d_]+)", text[mention.end : mention.end + 40])
    following = word[1] if word else ""
    if shown == label and label.isupper():
        if not following or not following[0].islower():
            return True
        if label == "I":
            return following in ("is", "fits")
        if label == "A" and _starts_sentence(text, mention.start):
            return following in _VERB_AFTER_LETTER
        return True
    if shown == label and not label.isupper() and label not in ("a", "i"):
        return True
    left, right = text[mention.start - 1 : mention.start], text[mention.end : mention.end + 1]
    if (left in ("(", "[") and right in (")", "]")) or left == "{" or (left in ("*", "`", '"') and right == left):
        return True
    if right == ")" and (not left or left.isspace()):
        return True
    if following:
        return False
    alone = _own_line(text, mention) or (_starts_line(text, mention) and right in (".", ":"))
    return alone or _cue_before(text, mention.start) or _word_before(text, mention.start) in ("option", "choice", "answer")


def _is_determiner(text: str, mention: _Mention) -> bool:
    """Whether "no" belongs to the next word ("no doubt") and answers nothing."""
    word = re.match(r"[ \t]{1,3}([^\W\d_]{1,20})", text[mention.end : mention.end + 24])
    return word is not None and word[1].casefold() not in _AFTER_NO


def _word_before(text: str, start: int) -> str:
    words = text[max(0, start - 20) : start].split()
    return words[-1].strip("*_:\"'`(").lower() if words else ""


def _starts_line(text: str, mention: _Mention) -> bool:
    return not text[text.rfind("\n", max(0, mention.start - 8), mention.start) + 1 : mention.start].strip(" \t(*_[\"'`>-") and (
        mention.start <= 8 or "\n" in text[mention.start - 8 : mention.start]
    )


def _starts_sentence(text: str, start: int) -> bool:
    left = text[max(0, start - 8) : start].rstrip(" \t(*_[\"'`")
    return not left or left[-1] in ".!?:;\n" or start == 0


def _own_line(text: str, mention: _Mention) -> bool:
    """Whether the line holds the label and marks only."""
    start = text.rfind("\n", 0, mention.start) + 1 if "\n" in text[max(0, mention.start - 8) : mention.start] else 0
    if mention.start - start > 8:
        return False
    right = text[mention.end : mention.end + 9]
    right, _, _ = right.partition("\n")
    return len(right) < 9 and not re.search(r"\w", text[start : mention.start]) and not re.search(r"\w", right)


def _clause_before(text: str, start: int) -> list[str]:
    """The last words of the sentence before `start`, lower case, last first."""
    left = text[max(0, start - 80) : start]
    pieces = re.split(r"[.;!?]\s|\n\s*\n", left)
    return [word for word in (w.strip("*_:,\"'`()[]{}$\\").lower() for w in reversed(pieces[-1].split())) if word][:8]


def _cue_before(text: str, start: int) -> bool:
    words = _clause_before(text, start)
    for at, word in enumerate(words):
        if word in _CUES or (at + 1 < len(words) and (words[at + 1], word) in _CUE_PAIRS):
            return True
        if word not in _FILLER:
            return False
    return False


def _announced(text: str, mention: _Mention, before: _Mention | None) -> bool:
    start = max(mention.start - 80, before.end if before else 0)
    return (
        _own_line(text, mention)
        or bool(_BOX.search(text[max(0, mention.start - 30) : mention.start]))
        or bool(_AFFIRMED.match(text, mention.end))
        or _cue_before(text[start : mention.start], mention.start - start)
    )


def _opens(text: str, mention: _Mention) -> bool:
    """Whether the label opens a sentence and a mark or the end follows: "B. Paris", "Yes, ..."."""
    right = text[mention.end : mention.end + 4].lstrip(")]}*_\"'`")
    ends = not right or right[0] in ".,:;!\n—–" or right.startswith(" -") or text[mention.end : mention.end + 1] == ")"
    return ends and _starts_sentence(text, mention.start)


def _denied(text: str, mention: _Mention, before: _Mention | None, after: _Mention | None) -> bool:
    if _AFFIRMED.match(text, mention.end):
        return False
    left = max(mention.start - 80, before.end if before else 0)
    words = _clause_before(text[left : mention.start], mention.start - left)
    for at, word in enumerate(words):
        if word in _DENIALS or (at + 1 < len(words) and (words[at + 1], word) in _DENIAL_PAIRS):
            return not text[left : mention.start].rstrip().endswith((",", ":", "—"))
        if word not in _FILLER:
            break
    if _DENIED_AFTER.match(text, mention.end) is None:
        return False
    right = text[mention.end : min(mention.end + 80, after.start if after else len(text))]
    clause = _CLAUSE_END.search(right)
    return bool(_DENIAL_WORD.search(right[: clause.start() if clause else len(right)]))


def _joined(text: str, mention: _Mention | None, before: _Mention | None) -> bool:
    """Whether two different labels stand in one breath: "A or B", "yes, no"."""
    if mention is None or before is None or mention.label == before.label or mention.start - before.end > 24:
        return False
    return bool(_JOINED.match(text[before.end : mention.start].lstrip(")]}*_\"'`")))
