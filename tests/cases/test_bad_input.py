"""Each kind of bad input, through the command line: exit 2, file, line or row, key and remedy, and nothing was written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.command import ROWS, Project, lines

RAISES = """
from llmclick import REWARDS

@REWARDS.register("reads_question")
def reads_question(completion, row, params):
    return float(row["question"] in completion)
"""


def rows_are(*rows: object) -> Callable[[Project], None]:
    return lambda project: project.write_rows(lines(*rows))


def key_is(key: str, value: object) -> Callable[[Project], None]:
    return lambda project: project.set(key, value)


def raising(project: Project) -> None:
    (project.folder / "own.py").write_text(RAISES)
    project.set("pipeline.imports", [str(project.folder / "own.py")])
    project.set("method.reward", {"name": "reads_question"})


def below_a_file(project: Project) -> None:
    (project.folder / "file").write_text("")
    project.set("pipeline.output_dir", str(project.folder / "file" / "output"))


def model_with(name: str, change: Callable[[str], str]) -> Callable[[Project], None]:
    """A copy of the model whose file `name` is changed."""

    def changed(project: Project) -> None:
        model = project.folder / "model"
        shutil.copytree(project.config["model"]["name"], model)
        (model / name).write_text(change((model / name).read_text() if (model / name).exists() else ""))
        project.set("model.name", str(model))

    return changed


CASES: dict[str, tuple[Callable[[Project], None], tuple[str, ...]]] = {
    "misspelt key": (key_is("method.group_sise", 8), ("config.yaml:", "method.group_sise", "group_size")),
    "key in the wrong section": (key_is("lr", 1e-6), ("config.yaml:", "lr", "training.lr")),
    "key with a dash": (key_is("training.batch-size", 2), ("training.batch-size", "batch_size")),
    "wrong type": (key_is("method.group_size", "eight"), ("config.yaml:", "method.group_size", "eight", "write:")),
    "group of one": (key_is("method.group_size", 1), ("method.group_size", "at least 2")),
    "missing file": (key_is("data.sources", [{"name": "local_jsonl", "path": "no.jsonl"}]), ("no.jsonl", "data.sources")),
    "empty file": (rows_are(), ("rows.jsonl", "write:")),
    "only blank lines": (rows_are("", "  ", ""), ("rows.jsonl", "write:")),
    "malformed line": (rows_are(ROWS[0], '{"prompt": "x",', ROWS[2]), ("rows.jsonl:2", "write:")),
    "row without a prompt": (rows_are(ROWS[0], {"answer": "1"}), ("rows.jsonl:2", "prompt", "write:")),
    "empty prompt": (rows_are(ROWS[0], {"prompt": "", "answer": "1"}), ("rows.jsonl:2", "prompt", "write:")),
    "prompt without messages": (rows_are(ROWS[0], {"prompt": [], "answer": "1"}), ("rows.jsonl:2", "prompt")),
    "message without content": (
        rows_are(ROWS[0], {"prompt": [{"role": "user", "content": None}], "answer": "1"}),
        ("rows.jsonl:2", "content"),
    ),
    "empty answer": (rows_are(ROWS[0], {"prompt": "a", "answer": ""}), ("rows.jsonl:2", "exact_match", "write:")),
    "missing answer": (rows_are(ROWS[0], ROWS[1], {"prompt": "a"}), ("rows.jsonl:3", "exact_match", "answer")),
    "prompt that does not fit": (
        rows_are(*ROWS, {"prompt": "9 " * 200, "answer": "1"}),
        ("rows.jsonl:13", "max_new_tokens", "max_length", "tokens"),
    ),
    "unknown reward": (key_is("method.reward", {"name": "exact_mach"}), ("method.reward", "exact_mach", "exact_match")),
    "a reward that raises": (raising, ("rows.jsonl:1", "reads_question", "KeyError: 'question'", "own.py")),
    "a revision that is a branch": (
        key_is("model", {"name": "owner/model", "revision": "main"}),
        ("model.revision", "main", "commit"),
    ),
    "output below a file": (below_a_file, ("pipeline.output_dir", "is not a folder", "write:")),
    "one row only": (rows_are(ROWS[0]), ("data.validation", "write:")),
    "beta without an adapter": (key_is("method.beta", 0.1), ("method.beta", "training.adapter")),
    "a bound on no metric": (key_is("validation.min", {"rewrd": 0.5}), ("validation.min", "rewrd", "reward, ")),
    "dropout": (key_is("training.adapter", {"name": "lora", "r": 4, "dropout": 0.1}), ("training.adapter.dropout",)),
    "no stage": (key_is("pipeline.stages", ["trian"]), ("pipeline.stages", "trian")),
    "a name that leaves the folder": (key_is("pipeline.name", "../x"), ("pipeline.name", "../x")),
    "a path too long": (key_is("pipeline.output_dir", "x" * 300), ("pipeline.output_dir", "255 bytes")),
    "a broken generation config": (model_with("generation_config.json", lambda text: "{"), ("generation_config.json", "model")),
    "a broken tokenizer": (
        model_with("tokenizer.json", lambda text: text.replace('"type":', '"typo":')),
        ("tokenizer", "model"),
    ),
    "a model of pickles": (key_is("model.name", "PICKLES"), ("pickle", "safetensors")),
}


@pytest.mark.parametrize("case", CASES)
def test_one_mistake(tmp_path: Path, dense_folder: Path, case: str) -> None:
    """Exit 2, the place, the key and a remedy in one block without a traceback; nothing is written."""
    change, parts = CASES[case]
    project = Project(tmp_path, dense_folder)
    change(project)
    if project.config["model"]["name"] == "PICKLES":
        pickles = tmp_path / "pickles"
        pickles.mkdir()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (pickles / name).write_bytes((dense_folder / name).read_bytes())
        (pickles / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /nowhere'\ntR.")
        project.set("model.name", str(pickles))
    before = project.names()
    said = project.command()
    assert said.code == 2, said.text
    for part in (*parts, "error:", "why:", "write:"):
        assert part in said.text, (part, said.text)
    assert 'Traceback (most recent call last): File "/' not in said.text or case == "a reward that raises"
    assert project.names() == before
    assert not project.output.exists()


def test_several_mistakes_are_one_report(tmp_path: Path, dense_folder: Path) -> None:
    """Everything wrong in the config is reported together; then everything wrong in rows, reward and output together."""
    project = Project(tmp_path, dense_folder)
    project.set("method.group_sise", 8)
    project.set("training.lr", "fast")
    project.set("method.beta", 0.1)
    said = project.command()
    assert said.code == 2
    assert all(part in said.text for part in ("3 problems", "group_sise", "training.lr", "method.beta")), said.text

    project = Project(tmp_path, dense_folder)
    below_a_file(project)
    project.write_rows(
        lines(ROWS[0], '{"prompt": "x",', {"answer": "1"}, {"prompt": "a"}, {"prompt": "9 " * 200, "answer": "1"})
    )
    said = project.command()
    assert said.code == 2
    for part in ("rows.jsonl:2", "rows.jsonl:3", "rows.jsonl:4", "rows.jsonl:5", "is not a folder"):
        assert part in said.text, part
    assert not project.output.exists()


def test_check_refuses_what_run_refuses(tmp_path: Path, dense_folder: Path) -> None:
    """The same rows, the same report."""
    project = Project(tmp_path, dense_folder)
    project.write_rows(lines(ROWS[0], '{"prompt": "x",', {"answer": "1"}))
    assert project.command("check") == project.command("run")
