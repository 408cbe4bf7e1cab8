import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmclick.data.fields import rename
from llmclick.data.problems import shorten
from llmclick.data.rows import canonical, check_prompt, content_hash, identify, read_jsonl
from llmclick.errors import Problem

ROW = b'{"prompt": "a", "answer": 1}'


def read(tmp_path: Path, raw: bytes, limit: int | None = None) -> tuple[list[tuple[dict, str]], list[Problem]]:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(raw)
    return read_jsonl(path, "rows.jsonl", limit)


def only_problem(tmp_path: Path, raw: bytes) -> Problem:
    pairs, problems = read(tmp_path, raw)
    assert pairs == []
    assert len(problems) == 1
    return problems[0]


@pytest.mark.parametrize(
    "raw",
    [
        ROW + b"\n" + ROW + b"\n",
        ROW + b"\n" + ROW,
        b"\xef\xbb\xbf" + ROW + b"\n" + ROW + b"\n",
        ROW + b"\n\xef\xbb\xbf" + ROW + b"\n",
        ROW + b"\r\n" + ROW + b"\r\n",
        b"  " + ROW + b" \t\n" + ROW + b"\n",
    ],
    ids=["plain", "no last line feed", "BOM", "BOM of a second file", "CRLF", "spaces"],
)
def test_same_rows_however_they_were_saved(tmp_path: Path, raw: bytes) -> None:
    """A byte order mark, CRLF, spaces around a line and a missing last line feed change no row."""
    pairs, problems = read(tmp_path, raw)
    assert problems == []
    assert pairs == [({"prompt": "a", "answer": 1}, "rows.jsonl:1"), ({"prompt": "a", "answer": 1}, "rows.jsonl:2")]


def test_blank_lines_are_ignored_and_counted_as_lines(tmp_path: Path) -> None:
    """Blank lines give no row; the lines after them keep their true numbers."""
    pairs, problems = read(tmp_path, b"\n \n" + ROW + b"\n\r\n" + ROW + b"\n\n")
    assert problems == []
    assert [where for _, where in pairs] == ["rows.jsonl:3", "rows.jsonl:5"]


def test_other_line_separators_inside_strings_are_text(tmp_path: Path) -> None:
    """U+2028, U+2029 and U+0085 in a string are characters of the row, not ends of lines."""
    text = "one\u2028two\u2029three\u0085four"
    pairs, problems = read(tmp_path, f'{{"prompt": "{text}"}}\n'.encode())
    assert problems == []
    assert pairs == [({"prompt": text}, "rows.jsonl:1")]


def test_values_stay_what_they_are(tmp_path: Path) -> None:
    """Columns have no type, absent keys stay absent, key order and nesting survive."""
    raw = b'{"answer": 11, "prompt": "a"}\n{"prompt": "b", "answer": "twelve", "x": {"y": [1, null]}}\n{"prompt": "c"}\n'
    pairs, _ = read(tmp_path, raw)
    assert [data for data, _ in pairs] == [
        {"answer": 11, "prompt": "a"},
        {"prompt": "b", "answer": "twelve", "x": {"y": [1, None]}},
        {"prompt": "c"},
    ]
    assert list(pairs[0][0]) == ["answer", "prompt"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"prompt": "x",', "ends at column 16"),
        (b'{"prompt": "x"} {"prompt": "y"}', "column 17"),
        (b'{"prompt": "a"}\r{"prompt": "b"}', "lone carriage returns"),
        (b"{'prompt': 'x'}", "column 2"),
        (b'"text"', "a text"),
        (b"3", "a number"),
        (b"null", "null"),
        (b'{"prompt": "x", "answer": NaN}', "NaN"),
        (b'{"prompt": "x", "answer": -Infinity}', "-Infinity"),
        (b'{"prompt": "x", "answer": 1e999}', "1e999"),
        (b'{"prompt": "x", "prompt": "y"}', "'prompt' occurs twice"),
        (b'{"prompt": "x", "a": {"b": 1, "b": 2}}', "'b' occurs twice"),
        (b'{"prompt": "x\xe9"}', "UTF-8"),
        (b'{"prompt": "a\rb"}', "control character"),
        (b'{"prompt": "x", "answer": ' + b"1" * 5000 + b"}", "4300"),
        (b'{"prompt": "x", "answer": ' + b"[" * 500 + b"]" * 500 + b"}", "nested"),
        (b'{"prompt": "x", "answer": ' + b"[" * 200000 + b"]" * 200000 + b"}", "nested"),
    ],
)
def test_a_bad_line_is_named_with_its_own_number(tmp_path: Path, line: bytes, says: str) -> None:
    """Whatever is wrong with line 3, the message names line 3, and the rows around it are still read."""
    pairs, problems = read(tmp_path, ROW + b"\n\n" + line + b"\n" + ROW + b"\n")
    assert [where for _, where in pairs] == ["rows.jsonl:1", "rows.jsonl:4"]
    assert [problem.where for problem in problems] == ["rows.jsonl:3"]
    assert says in str(problems[0])


def test_the_caret_stands_under_the_column(tmp_path: Path) -> None:
    """The second line of `given` points at the character that cannot be read."""
    text = '{"prompt": "x", "answer": oops}'
    problem = only_problem(tmp_path, text.encode())
    excerpt, caret = str(problem).splitlines()[1:3]
    assert excerpt[caret.index("^") :].startswith("oops")


def test_a_json_list_is_one_problem(tmp_path: Path) -> None:
    """A pretty-printed JSON list gives one sentence, not one per line."""
    problem = only_problem(tmp_path, b'\n[\n {"prompt": "a"},\n {"prompt": "b"}\n]\n')
    assert "one JSON list" in problem.why


def test_utf16_is_named(tmp_path: Path) -> None:
    """A UTF-16 file is called that, not a thousand bad lines."""
    assert "UTF-16" in only_problem(tmp_path, '{"prompt": "a"}\n'.encode("utf-16")).why


def test_limit_is_the_first_rows(tmp_path: Path) -> None:
    """`limit` stops reading: a bad line behind it is nobody's business."""
    pairs, problems = read(tmp_path, ROW + b"\n\n" + ROW + b"\nbroken\n", limit=2)
    assert problems == []
    assert len(pairs) == 2


def test_equal_rows_differ_by_their_ordinal() -> None:
    """The id is content and ordinal: key order and place do not count, a different value does."""
    a, b, c, d = (
        row.id
        for row in identify([({"p": 1, "q": 2}, "f:1"), ({"q": 2, "p": 1}, "f:2"), ({"p": 1}, "f:3"), ({"p": 1.0}, "g:1")])
    )
    assert a.endswith("-0")
    assert b == a[:-1] + "1"
    assert c != d
    assert {c[-2:], d[-2:]} == {"-0"}


def test_the_hash_is_the_documented_one() -> None:
    """SHA-256 of sorted, compact, ASCII JSON, its first 16 digits; half surrogates have a hash too."""
    import hashlib

    expected = hashlib.sha256(b'{"a":"\\u00e9","b":[1,null]}').hexdigest()[:16]
    assert content_hash({"b": [1, None], "a": "é"}) == expected
    assert canonical("\ud800") == '"\\ud800"'


def test_fields_moves_values_all_at_once() -> None:
    """{target: source} renames; two targets of one source and a swap work."""
    assert rename({"question": "q", "answer": "a"}, {"prompt": "question"}, "f:1") == ({"answer": "a", "prompt": "q"}, None)
    assert rename({"a": 1, "b": 2}, {"a": "b", "b": "a"}, "f:1") == ({"a": 2, "b": 1}, None)
    assert rename({"q": 1}, {"prompt": "q", "answer": "q"}, "f:1") == ({"prompt": 1, "answer": 1}, None)


def test_fields_loses_nothing() -> None:
    """A source that is not there names line and keys; a target that exists is not overwritten."""
    _, problem = rename({"text": "q"}, {"prompt": "question"}, "f:7")
    assert problem is not None
    assert problem.where == "f:7"
    assert "'question'" in problem.why
    assert "'text'" in problem.given
    _, problem = rename({"prompt": "old", "question": "q"}, {"prompt": "question"}, "f:8")
    assert problem is not None
    assert "overwrite" in problem.why


@pytest.mark.parametrize(
    "prompt",
    [
        "What is 9 plus 2?",
        [{"role": "user", "content": "2+2?"}],
        [{"role": "system", "content": ""}, {"role": "user", "content": "2+2?"}],
        [{"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]}],
        [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "2+2?"}],
    ],
)
def test_prompts_that_are_read(prompt: object) -> None:
    """Text, messages, few-shot turns and text parts are prompts."""
    assert check_prompt({"prompt": prompt}, "f:1") is None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"question": "x"}, "'question'"),
        ({"prompt": ""}, "empty"),
        ({"prompt": " \n"}, "empty"),
        ({"prompt": None}, "null"),
        ({"prompt": 3}, "a number"),
        ({"prompt": {"role": "user", "content": "x"}}, "an object"),
        ({"prompt": "half \ud800"}, "\\ud800"),
        ({"prompt": []}, "no messages"),
        ({"prompt": ["x"]}, "a text"),
        ({"prompt": [{"content": "x"}]}, "no role"),
        ({"prompt": [{"from": "human", "value": "x"}]}, "from/value"),
        ({"prompt": [{"role": "human", "content": "x"}]}, "'human'"),
        ({"prompt": [{"role": ["user"], "content": "x"}]}, "['user']"),
        ({"prompt": [{"role": "user"}]}, "content"),
        ({"prompt": [{"role": "user", "content": None}]}, "null"),
        ({"prompt": [{"role": "user", "content": ""}]}, "empty"),
        ({"prompt": [{"role": "user", "content": []}]}, "empty"),
        ({"prompt": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}, "'image'"),
        ({"prompt": [{"role": "user", "content": "x\udfff"}]}, "\\udfff"),
        ({"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "last message"),
    ],
)
def test_prompts_that_are_refused(data: dict, says: str) -> None:
    """Each malformed prompt names the row, the message in it, and what it found."""
    problem = check_prompt(data, "f:9")
    assert problem is not None
    assert problem.where == "f:9"
    assert problem.key.startswith("prompt")
    assert says in str(problem)


def test_many_problems_are_counted() -> None:
    """Twenty are shown, the others counted."""
    problems = [Problem(f"f:{n}", "", "why", "write") for n in range(25)]
    shown = shorten(problems, "rows")
    assert shown[:20] == problems[:20]
    assert [problem.why for problem in shown[20:]] == ["and 5 more rows like these"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries({}, optional={"role": JSON | st.just("user"), "content": JSON})


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,\\ue+-0189.anul\r\n\ufeff ', max_size=60).map(str.encode))
@settings(deadline=None, max_examples=300)
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    """Whatever lies in the file: rows and problems with line numbers, never an exception."""
    with tempfile.TemporaryDirectory() as folder:
        pairs, problems = read(Path(folder), raw)
    lines = raw.count(b"\n") + 1
    for where in [where for _, where in pairs] + [problem.where for problem in problems if ":" in problem.where]:
        assert 1 <= int(where.rpartition(":")[2]) <= lines
    assert all(isinstance(data, dict) and len(content_hash(data)) == 16 for data, _ in pairs)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), JSON | st.lists(MESSAGE, max_size=3))
@settings(deadline=None, max_examples=300)
def test_no_value_breaks_the_prompt_check(data: dict, prompt: object) -> None:
    """Any JSON value as prompt is accepted or refused with the row's place; what is written is read back equal."""
    row = {**data, "prompt": prompt}
    problem = check_prompt(row, "f:1")
    assert problem is None or problem.where == "f:1"
    with tempfile.TemporaryDirectory() as folder:
        pairs, problems = read(Path(folder), json.dumps(row).encode())
    assert problems == []
    assert pairs == [(row, "rows.jsonl:1")]
