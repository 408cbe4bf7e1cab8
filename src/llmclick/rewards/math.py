"""The reward for LaTeX and expressions: math, scored by the math-verify package."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

from llmclick.rewards import REWARDS
from llmclick.rewards.answers import answer_part, gold_texts, refuse_gold
from llmclick.rewards.params import answer_key


@dataclass(frozen=True)
class MathParams:
    """Parameters of math."""

    answer: str = answer_key()


def _right(row: dict[str, Any], params: dict[str, Any]) -> str | None:
    return next((f"\\boxed{{{_bare(gold)}}}" for gold in gold_texts(row, params)), None)


def _bare(gold: str) -> str:
    """The answer inside a worked solution's last box or behind `####`, without math delimiters."""
    text = gold.rpartition("####")[2].strip()
    boxed = text.rfind("\\boxed{")
    if boxed >= 0:
        depth = 0
        for brace in re.finditer(r"[{}]", text[boxed:]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                text = text[boxed + 7 : boxed + brace.start()]
                break
    for start, end in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(start) and text.endswith(end) and len(text) >= len(start) + len(end):
            return text[len(start) : -len(end)].strip()
    return text


@REWARDS.register(
    "math",
    params=MathParams,
    right=_right,
    refuses=refuse_gold,
    package="math_verify",
    extra="math",
    libraries=("math-verify", "latex2sympy2-extended", "antlr4-python3-runtime", "sympy"),
)
def math(completion: str, row: dict[str, Any], params: dict[str, Any]) -> float:
    r"""1 if the completion's final expression equals the answer, by math-verify, otherwise 0.

    For LaTeX, fractions, roots, sets, intervals and equations. It needs the extra `math` and runs in a worker under the
    reward's timeout. Reasoning in a `<think>` block does not count; of a longer completion the last 20,000 characters do.

    | completion | row | params | result |
    |---|---|---|---|
    | "So it is $\\boxed{\\frac{1}{2}}$." | {"answer": "1/2"} | {} | 1 |
    | "So it is $\\boxed{0.5}$." | {"answer": "\\frac{1}{2}"} | {} | 1 |
    | "$x = 2\\sqrt{2}$" | {"answer": "\\sqrt{8}"} | {} | 1 |
    | "The solutions are $\\{1, 2\\}$" | {"answer": "\\{2, 1\\}"} | {} | 1 |
    | "$\\boxed{3}$" | {"answer": "4"} | {} | 0 |
    | "<think>$\\boxed{4}$" | {"answer": "4"} | {} | 0 |
    | "I do not know." | {"answer": "4"} | {} | 0 |
    | "$\\boxed{4}$" | {"answer": null} | {} | 0 |
    """
    golds = gold_texts(row, params)
    if not golds:
        return 0.0
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    text = answer_part(completion, inside=True)[-20_000:]
    try:
        # Its own timeouts use signals; the worker's hard timeout stands in for them.
        found = parse(text, parsing_timeout=None)
        for gold in golds:
            wanted = parse(f"${_bare(gold)}$", parsing_timeout=None)
            if wanted and found and verify(wanted, found, timeout_seconds=None):
                return 1.0
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException:  # the parser and the algebra underneath raise anything on odd input
        return 0.0
    return 0.0
