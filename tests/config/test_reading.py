"""YAML 1.2, read so that a value is what stands in the file, and refused with its line where it could be something else."""

import pytest

from llmclick.config.reading import MAX_BYTES, read_file, read_yaml


def read(text):
    return read_yaml(text, lambda line: f"f:{line}")


def values(text):
    node, problems = read(text)
    assert problems == []
    return node.plain()


def refusals(text):
    return [(problem.where, problem.why) for problem in read(text)[1]]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2e-6", 2e-6),
        ("2.0e-6", 2e-6),
        ("1e6", 1e6),
        (".5", 0.5),
        ("1.", 1.0),
        ("+12", 12),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("2026-09-20", "2026-09-20"),
        ("12:30:00", "12:30:00"),
        ('"1_000"', "1_000"),
        ("'12'", "12"),
        ("-", "-"),
        ("1e", "1e"),
        ("0b11", "0b11"),
    ],
)
def test_a_plain_scalar_is_what_yaml_1_2_says(written, value):
    """Exponents are numbers, no and yes are text, dates stay text."""
    if written == "-":
        written = '"-"'
    found = values(f"a: {written}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_infinity_and_nan_are_floats():
    """.inf and .nan are read; whoever needs a finite number refuses them."""
    found = values("a: [.inf, -.Inf, .nan]")["a"]
    assert found[:2] == [float("inf"), float("-inf")]
    assert found[2] != found[2]


def test_grouped_digits_are_refused_with_the_number_to_write():
    """1_000 is refused where it stands, and the remedy names 1000."""
    problems = read("a: 1\nb: 1_000\n")[1]
    assert [(p.where, p.key, p.given) for p in problems] == [("f:2", "b", "1_000")]
    assert "1000" in problems[0].write


@pytest.mark.parametrize("tag", ["!!str 3", "!!python/object/apply:os.system [ls]", "!own {a: 1}", "! 3", "!!binary aGk="])
def test_every_tag_is_refused_with_its_line(tag):
    """No tag is read, standard or not."""
    assert [where for where, why in refusals(f"a: 1\nb: {tag}\n") if "tags" in why] == ["f:2"]


def test_a_duplicate_key_names_both_lines():
    """The second place is the problem's, the first stands in its sentence, at any depth."""
    assert [(p.where, p.key, "f:3" in p.why) for p in read("m:\n  x: 0\n  a: 1\n  b: 2\n  a: 3\n")[1]] == [("f:5", "m.a", True)]


def test_merge_keys_fill_in_and_explicit_keys_win():
    """<<: takes what the mapping itself does not set; of several sources the first wins."""
    text = "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\na: {<<: *b, x: 9}\nc: {<<: [*b, *m]}\n"
    found = values(text)
    assert found["a"] == {"x": 9, "y": 2}
    assert found["c"] == {"x": 1, "y": 2, "z": 4}


def test_a_billion_laughs_is_refused():
    """Nested aliases that would expand to 10^9 values are one problem."""
    lines = ['a0: &a0 ["x","x","x","x","x","x","x","x","x","x"]']
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert [why for _, why in refusals("\n".join(lines)) if "expand" in why]


def test_an_alias_inside_its_own_value_is_refused():
    """A value that contains itself would never end."""
    assert [(where, "never end" in why) for where, why in refusals("a: &x [1, *x]\n")] == [("f:1", True)]


def test_an_unknown_alias_is_refused_with_its_line():
    """An alias without its anchor names both."""
    assert refusals("a: 1\nb: *nope\n")[0][0] == "f:2"


def test_deep_nesting_is_refused():
    """Thousands of brackets are a problem, not a crash."""
    assert refusals("a: " + "[" * 5000)
    assert refusals("a: " + "{a: " * 500)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: [1, 2\n", "f:3"),
        ("a: 1\n b: 2\n", "f:2"),
        ("a: 1\n\tb: 2\n", "f:2"),
        ("a: 'x\n", "f:2"),
        ("a: 1\n---\nb: 2\n", "f:2"),
    ],
)
def test_broken_yaml_names_a_line(text, where):
    """Open brackets, wrong indentation, tabs, open quotes and second documents are problems at a line."""
    assert [place for place, _ in refusals(text)] == [where]


def test_a_control_character_is_refused_with_its_line():
    """YAML allows no control characters."""
    assert refusals("a: 1\nb: \x07\n")[0][0] == "f:2"


@pytest.mark.parametrize(
    "text", ['a: "\\ud800"\n', 'a: "\\U99999999"\n', "%YAML 9.x\n---\na: 1\n", "? [a]\n: 1\n", "? {a: 1}\n: 1\n"]
)
def test_oddities_are_problems_and_never_exceptions(text):
    """Lone surrogates, impossible escapes, strange directives and keys that are lists."""
    assert refusals(text)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"# only a comment\n", "empty"),
        (b"- a\n- b\n", "a list"),
        (b"just text\n", "one value"),
        (b"a: 1\nb: \xff\n", "not UTF-8"),
        ("a: 1\n".encode("utf-16"), "not UTF-8"),
        (b"a: " + b"x" * MAX_BYTES, "bytes"),
    ],
)
def test_a_file_that_is_no_mapping_of_sections_is_one_problem(data, why):
    """Empty, a list, text, another encoding, far too large."""
    _, problems = read_file("f", data)
    assert len(problems) == 1
    assert why in problems[0].why
    assert problems[0].where.startswith("f")


def test_a_byte_order_mark_and_crlf_change_nothing():
    """Files saved on Windows read the same."""
    assert read_file("f", b"\xef\xbb\xbfa: 1\r\nb: [x, y]\r\n")[0].plain() == {"a": 1, "b": ["x", "y"]}


def test_a_byte_that_is_not_utf8_is_reported_with_its_line():
    """The line is counted in the bytes before it."""
    assert read_file("f", b"a: 1\nb: 2\nc: \xe9\n")[1][0].where == "f:3"


def test_a_mapping_key_is_text_as_written():
    """Numbers and words before a colon stay text."""
    assert values("{1: a, true: b, null: c}") == {"1": "a", "true": "b", "null": "c"}
