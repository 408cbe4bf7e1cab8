"""Problems of many rows: those of one cause become one, which counts its rows and names the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from llmclick.errors import Problem

SHOWN = 20
"""How many problems of one kind are shown before `and N more`."""

EXAMPLES = 3

_INDEX = re.compile(r"\[\d+\]")
_OF_THE_ROW = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|\bcolumn \d+")


def fold(problems: Sequence[Problem]) -> list[Problem]:
    """Problems that differ in nothing but the row become one, at the place of the first, whose `given` is shown.

    So do more than EXAMPLES problems that differ in what the rows themselves have put into the sentence: quoted values, a
    column, an item's number.
    """
    same = _grouped([[problem] for problem in problems], lambda text: text)
    alike: dict[tuple[str, str, str], int] = {}
    for group in same:
        cause = _cause(group[0], _without_values)
        alike[cause] = alike.get(cause, 0) + 1
    many = {cause for cause, variants in alike.items() if variants > EXAMPLES}
    few = [group for group in same if _cause(group[0], _without_values) not in many]
    folded = _grouped([group for group in same if _cause(group[0], _without_values) in many], _without_values)
    first = {id(problem): at for at, problem in enumerate(problems)}
    return [_folded(group) for group in sorted([*few, *folded], key=lambda group: first[id(group[0])])]


def _without_values(text: str) -> str:
    return _OF_THE_ROW.sub("''", text)


def _cause(problem: Problem, form: Callable[[str], str]) -> tuple[str, str, str]:
    return _INDEX.sub("[]", problem.key), form(problem.why), form(problem.write)


def _grouped(groups: Sequence[Sequence[Problem]], form: Callable[[str], str]) -> list[list[Problem]]:
    found: dict[tuple[str, str, str], list[Problem]] = {}
    for group in groups:
        found.setdefault(_cause(group[0], form), []).extend(group)
    return list(found.values())


def _folded(group: Sequence[Problem]) -> Problem:
    first = group[0]
    places = list(dict.fromkeys(problem.where for problem in group))
    if len(places) == 1:
        return first
    first_line, newline, rest = first.why.partition("\n")
    return replace(first, why=f"{first_line} ({len(places)} rows: {named(places)}){newline}{rest}")


def named(places: Sequence[str], shown: int = EXAMPLES) -> str:
    """The first places, and how many more there are.

    >>> named(["r.jsonl:1", "r.jsonl:2", "r.jsonl:5", "r.jsonl:9"])
    'r.jsonl:1, r.jsonl:2, r.jsonl:5 and 1 more'
    """
    more = f" and {len(places) - shown} more" if len(places) > shown else ""
    return ", ".join(places[:shown]) + more


def shorten(problems: Sequence[Problem], what: str, shown: int = SHOWN) -> list[Problem]:
    """The first `shown` problems and one that counts the others."""
    if len(problems) <= shown:
        return list(problems)
    rest = len(problems) - shown
    more = Problem(
        where=problems[shown].where,
        key="",
        why=f"and {rest} more {what} like these",
        write="fix the ones above first; the others are then shown",
    )
    return [*problems[:shown], more]
