"""Any text a model can write: no exception, 0 or 1, and time that grows as the text does."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmclick.rewards import REWARDS

LINEAR = ("exact_match", "contains", "last_number", "json_valid", "choice")
PARAMS = {
    "json_valid": [{}, {"keys": ["a"]}, {"strict": False}],
    "choice": [{"labels": ["A", "B", "C"]}, {"labels": ["yes", "no"]}, {"labels": "options"}, {}],
    "regex": [{"pattern": "a+b"}, {"pattern_key": "answer"}, {}],
    "last_number": [{}, {"tolerance": 0.5}],
    "exact_match": [{}, {"ignore_case": True}],
    "contains": [{}, {"whole_word": False}],
}
_PIECES = (
    "0 1 7 , . - + – − / % $ € ^ { } ( ) [ ] \\boxed{ \\frac{ \\frac12 #### e E x × ½ ² ٣ 4２ A B I a yes no and or not"
    " the answer is , { } : \" ' ` ``` ```json\n true null <think> </think> <| |> <|im_end|> </s> \n \t \u200b \u00a0 \u202f"
    " \ud800 \udfff \u0301 \u0327 é 答 \x00 million minus 1,000 1e9"
)
PIECES = st.sampled_from(_PIECES.split(" "))
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=40).map("".join), st.lists(PIECES, max_size=20).map(" ".join))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.integers().map(lambda n: n * 10**5000))
GOLDS = st.one_of(LEAVES, st.lists(LEAVES, max_size=3), st.dictionaries(st.text(max_size=3), LEAVES, max_size=2))


@pytest.mark.parametrize("name", [*LINEAR, "regex"])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(completion=TEXTS, gold=GOLDS, data=st.data())
def test_never_raises_and_scores_0_or_1(name, completion, gold, data):
    """A shipped reward called with any completion, any JSON answer and any of its params gives 0 or 1."""
    params = data.draw(st.sampled_from(PARAMS[name]))
    row = data.draw(st.sampled_from([{"answer": gold}, {}, {"answer": gold, "options": ["A", gold, "yes"]}]))
    assert REWARDS.get(name).value(completion, row, params) in (0.0, 1.0)


@pytest.mark.parametrize("name", ["exact_match", "contains", "last_number", "choice"])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(gold=GOLDS, data=st.data())
def test_a_row_is_refused_or_its_own_answer_is_right(name, gold, data):
    """Whatever an answer is, either the reward says why it cannot be used or the answer itself scores 1."""
    entry = REWARDS.get(name)
    params = data.draw(st.sampled_from(PARAMS[name]))
    row = {"answer": gold, "options": ["A", "B", gold if isinstance(gold, str) else "C"]}
    if entry.options["refuses"](row, params) is None:
        right = entry.options["right"](row, params)
        assert isinstance(right, str)
        if name != "choice":  # a label may be a text that announces, denies or lists labels; the row trial refuses those
            assert entry.value(right, row, params) == 1.0, right
    else:
        assert entry.value("A", row, params) == 0.0


HOSTILE = {
    "one digit": lambda n: "7" * n,
    "digits and commas": lambda n: "1," * (n // 2),
    "groups of three that never end well": lambda n: "111," * (n // 4) + "11",
    "digits and spaces": lambda n: "1 " * (n // 2),
    "digits and slashes": lambda n: "1/" * (n // 2),
    "points": lambda n: "." * n,
    "dashes": lambda n: "-" * n,
    "opening brackets": lambda n: "[" * n,
    "nested brackets": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "objects": lambda n: '{"a":' * (n // 5),
    "a string that never ends": lambda n: '"' + "a" * n,
    "escapes": lambda n: '"' + "\\u0041" * (n // 6),
    "white space": lambda n: " " * n + "x",
    "white space inside": lambda n: "a" + " " * n + "a",
    "line breaks": lambda n: "\n" * n,
    "boxes": lambda n: "\\boxed{" * (n // 7),
    "fractions": lambda n: "\\frac{1}{" * (n // 9),
    "marks": lambda n: "####" * (n // 4),
    "marked numbers": lambda n: "#### 1. a\n" * (n // 10),
    "think tags": lambda n: "<think>" * (n // 7),
    "turn markers": lambda n: "<|im_end|>" * (n // 10),
    "half turn markers": lambda n: "<|" * (n // 2),
    "combining marks": lambda n: "a" + "\u0301\u0327" * (n // 2),
    "lone surrogates": lambda n: "\ud800" * n,
    "labels": lambda n: "A " * (n // 2),
    "labels and denials": lambda n: "not A " * (n // 6),
    "two labels": lambda n: "A or B. " * (n // 8),
    "yes and no": lambda n: "yes no " * (n // 7),
    "letters": lambda n: "ab" * (n // 2),
    "ordinary words": lambda n: "The answer is 12 apples and B. " * (n // 31),
}  # fmt: skip


@pytest.mark.parametrize("shape", HOSTILE)
def test_time_grows_as_the_text_does(shape):
    """Sixteen times the text takes at most about sixteen times the time (a quadratic step would take 256 times)."""
    rows = {
        "exact_match": [({"answer": "aa"}, {})],
        "contains": [({"answer": "a"}, {}), ({"answer": "1"}, {}), ({"answer": "\u0301"}, {"whole_word": False})],
        "last_number": [({"answer": "7"}, {}), ({"answer": "7"}, {"tolerance": 1})],
        "json_valid": [({}, {}), ({}, {"strict": False, "keys": ["a"]})],
        "choice": [({"answer": "A"}, {"labels": ["A", "B"]}), ({"answer": "no"}, {"labels": ["yes", "no"]})],
    }
    make = HOSTILE[shape]
    for name in LINEAR:
        for row, params in rows[name]:
            small, large = (_seconds(name, make(size), row, params) for size in (4_000, 64_000))
            assert large <= 60 * small + 0.01, (name, params, small, large)


def _seconds(name: str, text: str, row: dict, params: dict) -> float:
    reward = REWARDS.get(name).value
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        reward(text, row, params)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("shape", HOSTILE)
def test_a_million_characters(shape):
    """A completion of 10^6 characters is scored in seconds, never in minutes."""
    text = HOSTILE[shape](10**6)
    for name in LINEAR:
        params = PARAMS[name][0]
        start = time.process_time()
        REWARDS.get(name).value(text, {"answer": "A" if name == "choice" else "7"}, params)
        assert time.process_time() - start < 20, name
