"""Whatever stands in config and rows: a documented exit code and a message that names the key or the row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases.command import ROWS, Project, lines

TEXT = st.text(max_size=12) | st.sampled_from(
    ["11", " ", "\ud800", "\x1b[31m", "\u202e", "A", "yes", "{}", "-7", "1,000", "null"]
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant", "tool", ""]), "content": VALUE})
PROMPT = st.sampled_from([row["prompt"] for row in ROWS]) | TEXT | st.lists(MESSAGE | VALUE, max_size=3) | VALUE
ROW = st.fixed_dictionaries({}, optional={"prompt": PROMPT, "answer": st.sampled_from(["11", 11, "B"]) | VALUE, "x": VALUE})
KEYS = {
    "pipeline.seed": st.integers(-3, 2**70),
    "pipeline.name": TEXT,
    "pipeline.stages": st.lists(st.sampled_from(["data", "train", "validate", "all", "test"]), max_size=3),
    "data.validation": st.sampled_from([1, 2, 0, -1, 0.3, 0.0, 1.0, 50, "all", None]),
    "data.system": TEXT,
    "data.sources.0.limit": st.sampled_from([0, 1, 3, -1, "2"]),
    "data.sources.0.fields": st.dictionaries(st.sampled_from(["prompt", "answer", "x"]), TEXT, max_size=2),
    "method.group_size": st.integers(-1, 6) | VALUE,
    "method.max_new_tokens": st.sampled_from([0, 1, 6, 127, 128, 4000]),
    "method.temperature": st.sampled_from([0, 0.5, 1, -1, "hot", 1e300]),
    "method.reward": st.sampled_from(
        ["exact_match", "contains", "last_number", "json_valid", "choice", "exact_mach", None, [], [{"name": "contains"}] * 2]
    )
    | st.fixed_dictionaries(
        {"name": st.sampled_from(["choice", "json_valid", "contains"])},
        optional={"labels": VALUE, "keys": VALUE, "weight": VALUE, "timeout": VALUE, "on_error": VALUE},
    ),
    "method.scale": st.sampled_from(["group", "batch", "none", "std"]),
    "method.ratio": st.sampled_from(["token", "sequence"]),
    "method.beta": st.sampled_from([0, 0.1, -1]),
    "training.max_length": st.sampled_from([8, 40, 128, 100_000]),
    "training.overflow": st.sampled_from(["error", "skip", "cut"]),
    "training.batch_size": st.sampled_from([1, 3, 0, 10**9]),
    "training.lr": st.sampled_from([1e-6, 0, -1, float("inf"), "1e-6", "fast"]),
    "training.adapter": st.sampled_from([None, {"name": "lora", "r": 2}, {"r": 0}, {"name": "dora"}, {"dropout": 0.1}]),
    "training.eval_every": st.sampled_from([None, 1, 0]),
    "validation.gain": st.dictionaries(st.sampled_from(["reward", "rewrd", "length"]), VALUE, max_size=2),
    "report.keep": VALUE,
    "nothing": VALUE,
}
CHANGES = st.lists(st.sampled_from(sorted(KEYS)).flatmap(lambda key: st.tuples(st.just(key), KEYS[key])), max_size=3)
MANGLED = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, dense_folder: Path) -> Project:
    return Project(tmp_path_factory.mktemp("any"), dense_folder)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=CHANGES, rows=st.lists(st.sampled_from(ROWS) | ROW, max_size=6), mangled=MANGLED)
def test_check_answers_with_a_documented_exit_code(
    project: Project, changes: list[tuple[str, Any]], rows: list[Any], mangled: list[tuple[int, int]]
) -> None:
    """0 or 2; a refusal has a place (a file, a line, a key or an option), a reason and a remedy; there is no traceback, and
    nothing is written."""
    fresh = Project(project.folder, Path(project.config["model"]["name"]))
    data = bytearray(lines(*ROWS[:4], *rows).encode("ascii"))
    for at, byte in mangled:
        data[at % len(data)] = byte
    fresh.write_rows(bytes(data))
    for key, value in changes:
        fresh.set(key, value)
    said = fresh.command("check")
    assert said.code in (0, 2), said.text
    assert "Traceback" not in said.text
    if said.code == 2:
        places = re.findall(r"(?:config\.yaml|rows\.jsonl|config\.yaml:\d+|rows\.jsonl:\d+)", said.text)
        assert places, said.text
        assert said.text.count("why:") == said.text.count("write:") > 0, said.text
    assert not fresh.output.exists()
