"""One cause is one block: what was found, what to write, how many rows, and three of them."""

from __future__ import annotations

import gzip
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from llmclick.data.fields import missing, rename
from llmclick.data.problems import fold
from llmclick.errors import Problem
from tests.cases.command import ROWS, Project, Said, lines

COUNT = len(ROWS)
THREE = "rows.jsonl:1, "


def blocks(said: Said) -> int:
    return said.text.count(" why: ")


def both(project: Project) -> Said:
    """What check says, which run says too, before anything is written."""
    said = project.command("check")
    assert said.code == 2, said.text
    again = project.command("run")  # with the plan first, where only the rows are wrong
    assert (again.code, again.text.partition("error: ")[2]) == (2, said.text.partition("error: ")[2])
    return said


def conversation(answer: bool) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "2+2?"}, *([{"role": "assistant", "content": "4"}] if answer else [])]


def other(**keys: Any) -> list[dict[str, Any]]:
    return [
        {name: value.replace("2+2", f"{n}+2") if isinstance(value, str) else value for name, value in keys.items()}
        for n in range(12)
    ]


SHAPES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "solution instead of answer": (other(prompt="2+2?", solution="4"), "fields: {answer: solution}"),
    "question instead of prompt": (other(question="2+2?", answer="4"), "fields: {prompt: question}"),
    "a nested ground truth, as verl writes it": (
        other(prompt=conversation(False), reward_model={"style": "rule", "ground_truth": "4"}, data_source="x"),
        "fields: {answer: reward_model.ground_truth}",
    ),
    "ShareGPT": (
        other(conversations=[{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]),
        "fields: {prompt: conversations.0.value, answer: conversations.1.value}",
    ),
    "ShareGPT after a system turn": (
        other(
            conversations=[{"from": "system", "value": "s"}, {"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]
        ),
        "fields: {prompt: conversations.1.value, answer: conversations.2.value}",
    ),
    "messages with the answer in them": (
        other(messages=conversation(True)),
        "fields: {prompt: messages.0.content, answer: messages.1.content}",
    ),
    "messages that end with the question": (other(messages=conversation(False), answer="4"), "fields: {prompt: messages}"),
    "a prompt that holds its answer": (
        other(prompt=conversation(True)),
        "fields: {prompt: prompt.0.content, answer: prompt.1.content}",
    ),
    "instruction and output": (other(instruction="2+2?", answer="4"), "fields: {prompt: instruction}"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_another_shape_are_one_block_with_the_fields_to_write(tmp_path: Path, dense_folder: Path, shape: str) -> None:
    """Twelve rows of a shape that other tools write: one block with the keys that were found and the rows; and what it tells to
    write makes `check` pass."""
    rows, fields = SHAPES[shape]
    project = Project(tmp_path, dense_folder)
    # Prompts differ, or no row could be held out.
    text = (
        lines(*rows)
        if rows[0] != rows[1]
        else "".join(json.dumps(row).replace("2+2?", f"{n}+2?") + "\n" for n, row in enumerate(rows))
    )
    project.write_rows(text)
    said = both(project)
    assert blocks(said) == 1, said.text
    for part in (fields, f"12 rows: {project.rows}:1, {project.rows}:2, {project.rows}:3 and 9 more"):
        assert part in said.text, (part, said.text)
    inside = dict(pair.split(": ") for pair in fields.removeprefix("fields: {").removesuffix("}").split(", "))
    project.set("data.sources.0.fields", inside)
    said = project.command("check")
    assert said.code == 0, said.text


def test_a_nested_key_may_be_renamed_and_what_it_is_read_from_stays() -> None:
    """Dots read inside objects and lists; a key that has the dots itself comes first; an absent one is refused."""
    row = {"prompt": "q", "rm": {"truth": "4", "list": [{"x": 1}]}, "a.b": 2}
    assert rename(row, {"answer": "rm.truth"}, "r:1") == ({**row, "answer": "4"}, None)
    assert rename(row, {"answer": "rm.list.0.x"}, "r:1")[0]["answer"] == 1
    assert rename(row, {"answer": "a.b"}, "r:1") == ({"prompt": "q", "rm": row["rm"], "answer": 2}, None)
    for absent in ("rm.none", "rm.list.1", "rm.truth.deeper", "prompt.0"):
        assert rename(row, {"answer": absent}, "r:1")[1] is not None
    assert rename({"prompt": [{"content": "q"}]}, {"prompt": "prompt.0.content"}, "r:1") == ({"prompt": "q"}, None)
    assert rename({"prompt": "q", "raw": 1}, {"raw": None}, "r:1") == ({"prompt": "q"}, None)


def test_a_likely_key_is_named_and_an_unlikely_one_is_not_made_up() -> None:
    """The likeliest of the row's keys, the outer before the inner; without one the entry is left open."""
    assert "{answer: solution}" in missing({"prompt": "", "output": 1, "solution": 2}, "answer")
    assert "{answer: meta.gold}" in missing({"prompt": "", "meta": {"gold": 2}}, "answer")
    assert "{answer: ...}" in missing({"prompt": "", "zzz": 2}, "answer")
    assert "{labels: choices}" in missing({"prompt": "", "choices": ["a"]}, "labels")


def test_problems_fold_by_cause_and_not_across_causes() -> None:
    """Equal sentences fold; sentences that differ in a quoted value fold once there are more than three of them; the order is
    that of the first row; two keys that lack are two causes."""

    def of(row: int, why: str) -> Problem:
        return Problem(f"r:{row}", "exact_match", why, "w")

    two = [of(n, f"the row has no '{'a' if n % 2 else 'b'}'") for n in range(1, 7)]
    assert [problem.why for problem in fold(two)] == [
        "the row has no 'a' (3 rows: r:1, r:3, r:5)",
        "the row has no 'b' (3 rows: r:2, r:4, r:6)",
    ]
    many = [of(n, f"'answer' is '{n}x'") for n in range(1, 6)]
    assert [problem.why for problem in fold(many)] == ["'answer' is '1x' (5 rows: r:1, r:2, r:3 and 2 more)"]
    assert fold(many[:3]) == many[:3]
    assert fold([of(1, "a"), of(2, "b")]) == [of(1, "a"), of(2, "b")]


FORMATS: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "csv": (
        "rows.csv",
        b"prompt,answer\n" + b"".join(b"%d+2?,%d\n" % (n, n + 2) for n in range(12)),
        ("is CSV", "huggingface"),
    ),
    "csv under another name": ("rows.jsonl", b"prompt,answer\n1+1?,2\n2+2?,4\n", ("is CSV", "huggingface")),
    "parquet": ("rows.parquet", b"PAR1\x15\x04", ("is Parquet", "huggingface")),
    "a json list": ("rows.json", json.dumps(ROWS, indent=1).encode(), ("one JSON list", "huggingface")),
    "pretty-printed objects": (
        "rows.jsonl",
        "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(),
        ("several lines", "jq"),
    ),
    "an object with a list": ("rows.json", json.dumps({"data": ROWS}, indent=2).encode(), ("'data'", "one on each line")),
    "a zip": ("rows.zip", b"PK\x03\x04xxxx", ("ZIP", "JSON lines")),
    "a damaged gzip": ("rows.jsonl.gz", gzip.compress(b'{"prompt": "a"}\n' * 100)[:-9], ("damaged", "again")),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_another_format_is_one_block_that_names_it(tmp_path: Path, dense_folder: Path, name: str) -> None:
    """local_jsonl says what the file is and which source reads it; where one does, that source reads it."""
    file, raw, parts = FORMATS[name]
    project = Project(tmp_path, dense_folder)
    (tmp_path / file).write_bytes(raw)
    project.set("data.sources.0.path", str(tmp_path / file))
    said = both(project)
    assert blocks(said) == 1, said.text
    for part in (*parts, file):
        assert part in said.text, (part, said.text)
    if f"dataset: {tmp_path / file}" in said.text and name != "parquet":
        project.set("data.sources", [{"name": "huggingface", "dataset": str(tmp_path / file)}])
        assert project.command("check").code == 0


def test_a_gzipped_file_is_read(tmp_path: Path, dense_folder: Path) -> None:
    """rows.jsonl.gz is the same rows."""
    project = Project(tmp_path, dense_folder)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(project.rows.read_bytes()))
    project.set("data.sources.0.path", str(packed))
    assert project.command("check").code == 0


@pytest.mark.parametrize("saved", [json.dumps, repr], ids=["JSON", "Python"])
def test_messages_saved_as_text_are_not_asked_as_a_question(tmp_path: Path, dense_folder: Path, saved: Any) -> None:
    """A list of messages in quotes is refused, once for all rows; a question that only begins with a bracket is not."""
    project = Project(tmp_path, dense_folder)
    project.write_rows(lines(*({**row, "prompt": saved([{"role": "user", "content": row["prompt"]}])} for row in ROWS)))
    said = both(project)
    assert blocks(said) == 1
    assert "12 rows" in said.text
    assert "without quotes" in said.text
    project.write_rows(lines(*({**row, "prompt": f"[1, {n}] reversed? [{{}}]"} for n, row in enumerate(ROWS))))
    assert project.command("check").code == 0


OWN = count()


def own(project: Project, body: str, head: str = "def", more: str = "") -> None:
    name = f"one_cause_{next(OWN)}"  # a name is registered once in this process
    (project.folder / f"{name}.py").write_text(
        f"from llmclick import REWARDS\n\n@REWARDS.register({name!r})\n"
        f"{head} {name}(completion, row, params):\n    {body}\n{more}"
    )
    project.set("pipeline.imports", [str(project.folder / f"{name}.py")])
    project.set("method.reward", {"name": name})


def test_a_reward_that_does_not_fit_the_rows_is_one_block(tmp_path: Path, dense_folder: Path) -> None:
    """A KeyError on every row: the keys that there are, the entry that helps, and one traceback; values that differ by the row
    are one cause too."""
    project = Project(tmp_path, dense_folder)
    own(project, "return float(row['solution'] in completion)")
    project.write_rows(lines(*({"prompt": row["prompt"], "answer": {"solution": row["answer"]}} for row in ROWS)))
    said = both(project)
    assert blocks(said) == 1, said.text
    for part in ("'prompt', 'answer'", "fields: {solution: answer.solution}", "12 rows", "one_cause_"):
        assert part in said.text, (part, said.text)
    project = Project(tmp_path, dense_folder)
    own(project, "return float(row['answer'])")
    project.write_rows(lines(*({**row, "answer": f"{row['answer']} apples"} for row in ROWS)))
    said = both(project)
    assert blocks(said) == 1, said.text
    assert "12 rows" in said.text


def test_answers_that_a_shipped_reward_cannot_use_are_one_block(tmp_path: Path, dense_folder: Path) -> None:
    """last_number on words: twelve rows with twelve words are one cause."""
    project = Project(tmp_path, dense_folder)
    project.set("method.reward", {"name": "last_number"})
    project.write_rows(lines(*({**row, "answer": "abcdefghijkl"[n]} for n, row in enumerate(ROWS))))
    said = both(project)
    assert blocks(said) == 1, said.text
    assert "12 rows" in said.text


@pytest.mark.parametrize(
    ("head", "body", "says"),
    [("async def", "return 1.0", "async"), ("def", "yield 1.0", "yield"), ("async def", "yield 1.0", "async")],
)
def test_a_reward_that_gives_no_value_is_refused_at_its_line(
    tmp_path: Path, dense_folder: Path, head: str, body: str, says: str
) -> None:
    """async def and yield: one block at the config's line that names the function, before any row is tried."""
    project = Project(tmp_path, dense_folder)
    own(project, body, head)
    said = both(project)
    assert blocks(said) == 1, said.text
    for part in (says, "method.reward.name", ".py:3", "config.yaml:"):
        assert part in said.text, (part, said.text)


def test_a_coroutine_behind_a_wrapper_is_one_block(tmp_path: Path, dense_folder: Path) -> None:
    """What only shows when it is called is one cause for all rows, not one for each address."""
    project = Project(tmp_path, dense_folder)
    own(project, "return later()", more="\nasync def later():\n    return 1.0\n")
    said = both(project)
    assert blocks(said) == 1, said.text
    assert "async" in said.text
    own(project, "return object()")
    assert blocks(both(project)) == 1


def test_a_stop_that_is_not_one_token_is_refused_by_check_and_run(tmp_path: Path, dense_folder: Path) -> None:
    """The key, the pieces that it falls into; after a finished data stage too."""
    project = Project(tmp_path, dense_folder)
    assert project.command("run", "--stages", "data").code == 0
    project.set("method.stop", ["<|im_end|>", "zq"])
    for command in ("check", "run"):
        said = project.command(command)
        assert said.code == 2
        assert blocks(said) == 1
        for part in ("method.stop.1", '"z", "q"', "config.yaml:"):
            assert part in said.text, (part, said.text)
    for wrong, says in (("<|im_end|>", "a list of tokens"), ([True], "text or its id"), ([99999], "0 to 319")):
        project.set("method.stop", wrong)
        assert says in both(project).text


def test_a_dated_template_is_noticed_by_check_and_counts_in_the_identity(tmp_path: Path, dense_folder: Path) -> None:
    """`check` says what the template is told; another date is another data stage, and so is a variable; a name that is not a
    variable's is refused with its line."""
    import shutil

    model = tmp_path / "model"
    shutil.copytree(dense_folder, model)
    template = model / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}" + template.read_text())
    project = Project(tmp_path, model)
    said = project.command("check")
    assert said.code == 0
    assert "it is told 2026-01-01" in said.text

    from llmclick.config.load import load_config
    from llmclick.pipeline.preflight import make_plan

    def data(*overrides: str) -> str:
        return make_plan(load_config(project.yaml, overrides)).fingerprints["data"]

    dates = {data(), data("model.template={date: 2026-07-31}"), data("model.template={date_string: x}")}
    assert len(dates) == 3
    for template_, key in (
        ({"date": "yesterday"}, "2026-01-31"),
        ({"messages": []}, "messages"),
        ({"enable_thinking": True}, "model.thinking"),
    ):
        project.set("model.template", template_)
        said = both(project)
        assert "model.template" in said.text
        assert key in said.text
