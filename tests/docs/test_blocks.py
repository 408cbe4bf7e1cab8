"""Whatever README.md and the pages tell a reader to type works: each config loads, each command is known to its program."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from llmclick import cli
from llmclick.config.load import load_config
from llmclick.config.reading import read_file
from llmclick.errors import InputError
from tests.docs.blocks import ROOT, blocks, commands, pages

FOUND = blocks()
YAML = [block for block in FOUND if block.language == "yaml"]
COMMANDS = sorted({command: place for place, command in reversed(commands())}.items())
OWN_REWARD = next(block.text for block in FOUND if block.page == "README.md" and "@REWARDS.register" in block.text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with the files that the pages speak of."""
    made = tmp_path_factory.mktemp("reader")
    (made / "rewards.py").write_text(OWN_REWARD, encoding="utf-8")
    for name in ("rows", "heldout"):
        (made / f"{name}.jsonl").write_text('{"prompt": "1+1?", "answer": "2"}\n')
    (made / "my-checkpoint").mkdir()
    for name in ("samples", "configs"):
        shutil.copytree(ROOT / name, made / name)
    return made


@pytest.fixture(autouse=True)
def _in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(cli, "_asked", {"debug": False, "json": False})


def test_no_block_is_missed():
    """A second way of counting finds as many fences, in every folder; the README has as many as it was written with."""
    fences = sum(
        line.startswith("```") for path in pages() for line in path.read_text(encoding="utf-8").splitlines()
    )  # fmt: skip
    assert len(FOUND) == fences / 2
    assert Counter(block.language for block in FOUND if block.page == "README.md") == {
        "sh": 8, "yaml": 4, "python": 3, "json": 1, "text": 1,
    }  # fmt: skip
    assert Counter(block.language for block in FOUND if block.page == "docs/methods.md") == {"yaml": 6, "text": 5}
    assert len(YAML) >= 18
    assert len(COMMANDS) >= 25
    assert {block.language for block in FOUND} <= {"sh", "yaml", "python", "json", "text"}
    assert {str(path.relative_to(ROOT)) for path in pages()} >= {"docs/methods.md", "docs/grpo.md", "docs/troubleshooting.md"}


@pytest.mark.parametrize("block", YAML, ids=str)
def test_every_config_loads(block, folder):
    """A whole config as it stands; a part of one in the quickstart's place."""
    if block.page == "docs/errors.md":
        with pytest.raises(InputError) as raised:
            load_text(block.text, folder)
        assert len(raised.value.problems) == 4
        return
    config = load_text(block.text, folder)
    written = plain_yaml(block.text, folder)
    for section, keys in written.items():
        assert set(keys) <= set(config.as_dict()[section])


def load_text(text, folder):
    """A block as a config; what it leaves out comes from the quickstart's."""
    own = plain_yaml(text, folder)
    if not {"pipeline", "model", "data", "method"} <= set(own):
        base, _ = read_file("base", (ROOT / "configs/llm/quickstart.yaml").read_bytes())
        base = base.plain()
        own = {section: {**base.get(section, {}), **own.get(section, {})} for section in {**base, **own}}
        text = json.dumps(own)
    path = folder / "block.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def plain_yaml(text, folder):
    node, problems = read_file("block", text.encode())
    assert problems == []
    return node.plain()


@pytest.mark.parametrize(("command", "place"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_every_command_is_one(command, place, folder):
    """llmclick's own are parsed by llmclick and their config loads; what is quick is run."""
    words = shlex.split(command)
    while "=" in words[0]:  # a variable of the environment
        words = words[1:]
    if words[:2] == ["uv", "run"]:
        words = words[2:]
        while words[0].startswith("--"):
            words = words[2:] if words[0] in ("--with", "--group", "--extra", "--python") else words[1:]
    if words[0] == "llmclick":
        own_command(words[1:], folder)
    elif words[0] == "npm":
        assert words[1] == "run"
        assert words[2] in json.loads((ROOT / "package.json").read_text())["scripts"]
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    elif words[0] == "pytest":
        assert set(words[1:]) <= {"-m", "slow"}
    elif words[0] in ("cd", "source"):
        assert words[1:] in (["../my-task"], [".venv/bin/activate"])
    elif words[0] == "scripts/check":
        assert os.access(ROOT / "scripts" / "check", os.X_OK)
    else:
        assert words[0] == "uv", place
        options_of_uv(words[1:])


def own_command(words, folder):
    group = typer.main.get_command(cli.app)
    name, *rest = words
    example = {
        "CONFIG": "configs/llm/quickstart.yaml",
        "config.yaml": "configs/llm/quickstart.yaml",
        "KEY": "training.lr",
        "NAME": "my-task",
    }
    rest = [example.get(word, word) for word in rest]
    if name in ("explain", "rewards", "recipes", "new") and not any("<" in word for word in rest):
        assert CliRunner().invoke(cli.app, [name, *rest]).exit_code == 0
        if name == "new":
            shutil.rmtree(rest[0])
        return
    if name == "reward" and rest:
        # In a process of its own, as a reader does: what a file registers stays out of this one.
        done = subprocess.run([sys.executable, "-m", "llmclick.cli", name, *rest], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("reward: ")
        return
    if not rest:
        assert name in group.commands or name == "--help"
        return
    context = group.commands[name].make_context(name, rest)
    if "config" in context.params:
        load_config(context.params["config"], context.params["set_"])


def options_of_uv(words):
    """uv knows the command and its options. That torch's index gives a CPU build is not tried: tests have no network."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the path")
    names = [word for word in words if not word.startswith("-")][: 2 if words[0] == "pip" else 1]
    said = subprocess.run([uv, *names, "--help"], capture_output=True, text=True)
    assert said.returncode == 0
    for word in words:
        if word.startswith("--"):
            assert word in said.stdout


@pytest.mark.parametrize("block", [block for block in FOUND if block.language == "python"], ids=str)
def test_every_program_compiles(block):
    """Python blocks are Python."""
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", [block for block in FOUND if block.language == "json"], ids=str)
def test_every_example_row_is_one(block):
    """Each line is a row that the data stage takes."""
    from llmclick.data.rows import check_prompt

    for line in block.text.splitlines():
        row = json.loads(line)
        assert check_prompt(row, "the page") is None


def test_the_readme_s_own_reward_scores_as_its_docstring_says(folder):
    """1, a half, and nothing."""
    script = "import rewards; f = rewards.short_right; row = {'answer': '11'}; print(f('it is 11', row, {'words': 2}), "
    script += "f('11', row, {}), f('no', row, {}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "."})
    assert done.stdout.split() == ["0.5", "1.0", "0.0"], done.stderr


def test_each_method_s_block_has_the_settings_of_the_table(folder):
    """docs/methods.md says everything twice, once to read and once to copy."""
    lines = (ROOT / "docs/methods.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| [")]
    assert [row[0].partition("]")[0][1:] for row in rows] == ["GRPO", "Dr. GRPO", "DAPO", "GSPO", "CISPO"]
    for name, recipe, scale, average, ratio, bound in rows:
        heading = lines.index("## " + name.partition("]")[0][1:])
        block = next(block for block in YAML if block.page == "docs/methods.md" and block.line > heading)
        config = load_text(block.text, folder)
        method = config.method
        assert (config.pipeline.recipe, method.scale, method.average, method.ratio) == (recipe, scale, average, ratio)
        assert method.iterations > 1
        assert config.notices == ()
        for part in bound.split(", ") if ":" in bound else []:
            key, _, value = part.strip("`").partition(": ")
            assert getattr(method, key) == float(value)


@pytest.mark.slow
def test_the_checkpoint_s_program_runs(tmp_path):
    """The README's program that loads a checkpoint, on the quickstart's model before training."""
    from llmclick.modeling.llm.models.source import resolve_source

    config = load_config(ROOT / "configs/llm/quickstart.yaml")
    made = resolve_source(config.model, "test").folder
    program = next(block.text for block in FOUND if block.page == "README.md" and "AutoModelForCausalLM" in block.text)
    line = next(line for line in program.splitlines() if line.startswith("folder = "))
    done = subprocess.run(
        [sys.executable, "-c", program.replace(line, f"folder = {str(made)!r}")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "{" in done.stdout


@pytest.mark.slow
def test_the_quickstart_s_check_runs():
    """`check --sample` of the README, with fewer prompts."""
    command = [sys.executable, "-m", "llmclick.cli", "check", "configs/llm/quickstart.yaml", "--sample", "2"]
    done = subprocess.run(command, cwd=Path(ROOT), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "of groups will carry a signal" in done.stdout
