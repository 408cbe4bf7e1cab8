"""What llmclick opens cannot run code, and what it writes stays in its folder."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

import llmclick
from tests.cases.command import Project

SOURCES = sorted(Path(llmclick.__file__).parent.rglob("*.py"))


def test_nothing_is_unpickled_and_no_remote_code_is_trusted() -> None:
    """In no file of the package: pickle and its kin, torch.load, trust_remote_code or allow_pickle other than False."""
    assert len(SOURCES) > 60
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not names & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "eval", "exec", "yaml.load", "os.system"), (path, called)
                for keyword in node.keywords:
                    if keyword.arg in ("trust_remote_code", "allow_pickle", "shell"):
                        assert ast.unparse(keyword.value) == "False", (path, called)


@pytest.mark.parametrize("place", ["config.json", "tokenizer_config.json"])
def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, dense_folder: Path, place: str) -> None:
    """A checkpoint that names Python files of its own (`auto_map`) is loaded by the library's class or refused; they never run,
    and nobody is asked."""
    model, marker = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(dense_folder, model)
    (model / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = json.loads((model / place).read_text())
    config["auto_map"] = {
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", "evil.Evil"],
        "AutoConfig": "evil.Evil",
    }
    (model / place).write_text(json.dumps(config))
    project = Project(tmp_path, model)
    said = project.command("run", "--stages", "data,train")
    assert said.code in (0, 2), said.text
    assert not marker.exists()
    assert "Traceback" not in said.text


def test_a_run_writes_below_its_output_folder_alone(tmp_path: Path, dense_folder: Path) -> None:
    """Rows, config and model are as before; everything new is under output_dir."""
    project = Project(tmp_path, dense_folder)
    before = {path: path.read_bytes() for path in (project.rows, *sorted(dense_folder.iterdir()))}
    said = project.command()
    assert said.code in (0, 3), said.text
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "config.yaml", "output"}


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "..", "a b", "x\n", ""])
def test_a_name_cannot_leave_the_output_folder(tmp_path: Path, dense_folder: Path, name: str) -> None:
    """Refused, or a folder directly below output_dir."""
    project = Project(tmp_path, dense_folder)
    project.set("pipeline.name", name)
    said = project.command("run", "--stages", "data")
    assert {path.name for path in tmp_path.iterdir()} <= {"rows.jsonl", "config.yaml", "output"}
    if said.code == 0:
        assert all(path.parent == project.output for path in project.output.glob("*"))
    else:
        assert said.code == 2
        assert "pipeline.name" in said.text
