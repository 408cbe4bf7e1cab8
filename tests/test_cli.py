"""The command line: exit codes, one block per error, JSON as the last line, and nothing heavy before it is needed."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmclick import __version__, cli
from llmclick.errors import InputError, Interrupted, Problem, TrainingStopped

COMMANDS = ["run", "check", "sample", "reward", "rewards", "recipes", "explain", "report", "compare", "new"]
CONFIG = """\
pipeline: {recipe: llm_grpo, name: run}
model: {name: .}
data: {sources: [{name: local_jsonl, path: rows.jsonl}]}
method: {reward: {name: exact_match}}
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(cli, "_asked", {"debug": False, "json": False})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a config and its rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1?", "answer": "2"}\n')
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


def call(*args):
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def fake(monkeypatch, module, **functions):
    """Stands in for a module that a command loads."""
    made = types.ModuleType(module)
    for name, function in functions.items():
        setattr(made, name, function)
    monkeypatch.setitem(sys.modules, module, made)


class Result:
    """What run and check give."""

    def __init__(self, exit=0, **values):
        self.exit, self.values = exit, values

    def as_json(self):
        return {"exit": self.exit, **self.values}


# ---- help and start


def test_help_names_every_command():
    """And exits 0."""
    result = call("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output
        assert call(name, "--help").exit_code == 0


def test_version():
    """The package's."""
    assert call("--version").output.strip() == f"llmclick {__version__}"


def test_the_command_line_imports_nothing_heavy():
    """Neither torch nor pydantic nor rich nor the YAML reader is loaded for --help."""
    code = (
        "import sys, llmclick.cli as c\n"
        "try: c.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'peft', 'pydantic', 'rich', 'ruamel', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_importing_the_package_loads_its_names_on_demand():
    """`import llmclick` costs nothing; load_config and REWARDS are there when asked for, other names are not."""
    code = (
        "import sys, llmclick\n"
        "assert 'pydantic' not in sys.modules\n"
        "assert llmclick.load_config.__name__ == 'load_config'\n"
        "assert llmclick.REWARDS is __import__('llmclick.rewards').rewards.REWARDS\n"
        "assert not hasattr(llmclick, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_usage_error_exits_2():
    """An unknown command, an unknown option, a missing argument."""
    assert [
        call(*args).exit_code for args in (["rum"], ["run", "--nope", "c.yaml"], ["run"], ["check", "c.yaml", "--sample", "0"])
    ] == [2] * 4


# ---- run and check


def test_run_hands_over_config_and_stages_and_returns_its_exit_code(folder, monkeypatch):
    """--set and --stages reach the pipeline; exit and JSON come back from it."""
    seen = {}

    def run(config, stages, console):
        seen.update(lr=config.training.lr, stages=stages, json=console.json_mode)
        return Result(3, passed=False)

    fake(monkeypatch, "llmclick.pipeline.run", run=run)
    result = call(
        "run", "c.yaml", "--set", "training.lr=2e-6", "--set", "training.epochs=2", "--stages", "train,data", "--json"
    )
    assert result.exit_code == 3
    assert json.loads(result.stdout.splitlines()[-1]) == {"exit": 3, "passed": False}
    assert seen == {"lr": 2e-6, "stages": ("data", "train"), "json": True}
    assert call("run", "c.yaml").exit_code == 3
    assert seen["stages"] is None


def test_check_hands_over_its_sample_size(folder, monkeypatch):
    """None without --sample."""
    seen = []
    fake(
        monkeypatch,
        "llmclick.pipeline.check",
        check=lambda config, sample, console: seen.append(sample) or Result(0, can_learn=False),
    )
    assert call("check", "c.yaml").exit_code == 0
    result = call("check", "c.yaml", "--sample", "16", "--json")
    assert json.loads(result.stdout.splitlines()[-1]) == {"exit": 0, "can_learn": False}
    assert seen == [None, 16]


def test_an_unknown_stage_is_named(folder):
    """Before the config is read."""
    result = call("run", "c.yaml", "--stages", "data,trian")
    assert result.exit_code == 2
    assert "trian" in result.stderr


def test_all_config_errors_come_in_one_block_without_a_traceback(folder):
    """Each with its line, exit 2, nothing on stdout."""
    (folder / "c.yaml").write_text(CONFIG + "training: {lr: fast, batch_size: 0}\nlr: 3\n")
    result = call("run", "c.yaml")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: 3 problems\n")
    assert result.stderr.count("c.yaml:5") == 2
    assert "c.yaml:6" in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(folder):
    """The block is still there, last."""
    result = call("run", "c.yaml", "--set", "lr=3", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "error: " in result.stderr.rpartition("InputError")[2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError(Problem("w", "k", "why", "write")), 2),
        (TrainingStopped("nan"), 4),
        (Interrupted("later"), 130),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("oops"), 1),
        (RecursionError("deep"), 1),
        (MemoryError(), 1),
    ],
)
def test_every_way_to_end_has_its_exit_code(folder, monkeypatch, error, code):
    """And one block on stderr; under --json stdout ends with an object that holds the same code."""

    def run(config, stages, console):
        raise error

    fake(monkeypatch, "llmclick.pipeline.run", run=run)
    result = call("run", "c.yaml", "--json")
    assert result.exit_code == code
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["exit"] == code
    assert ("bug in llmclick" in result.stderr) == (code == 1)


def test_control_characters_in_an_error_are_escaped(folder, monkeypatch):
    """Text of a user's file cannot move the cursor."""

    def run(config, stages, console):
        raise InputError(Problem("w", "k", "a \x1b[2J b\u202e", "write"))

    fake(monkeypatch, "llmclick.pipeline.run", run=run)
    assert "\x1b" not in call("run", "c.yaml").stderr
    assert "\u202e" not in call("run", "c.yaml").stderr


# ---- the small commands


def test_recipes_are_listed_with_one_line_each():
    """Both of them."""
    result = call("recipes")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines() if not line.startswith(" ")] == ["llm_grpo", "llm_cispo"]


def test_explain_answers_for_keys_sections_and_all():
    """And refuses an unknown key with exit 2."""
    assert "learning rate" in call("explain", "training.lr").stdout
    assert "method.beta" in call("explain").stdout
    result = call("explain", "method.bta")
    assert result.exit_code == 2
    assert "method.beta" in result.stderr


def test_explain_takes_an_experiments_folder(folder, monkeypatch):
    """A folder of that name is an experiment, unless it only shares its name with a section."""
    fake(monkeypatch, "llmclick.pipeline.fingerprint", explain_folder=lambda path: f"stages of {path}")
    (folder / "output" / "run-1").mkdir(parents=True)
    (folder / "report").mkdir()
    assert call("explain", "output/run-1").stdout == "stages of output/run-1\n"
    assert "report.keep" in call("explain", "report").stdout
    (folder / "report" / "manifest.json").write_text("{}")
    assert call("explain", "report").stdout == "stages of report\n"


def test_sample_wants_an_existing_checkpoint(folder):
    """The path tried is shown."""
    result = call("sample", "c.yaml", "--checkpoint", "nowhere")
    assert result.exit_code == 2
    assert str(folder / "nowhere") in result.stderr


def test_compare_wants_two(folder):
    """One experiment has nothing to be compared with."""
    assert call("compare", folder).exit_code == 2


# ---- reward


def test_rewards_lists_the_shipped_ones():
    """With one line each."""
    result = call("rewards")
    assert result.exit_code == 0
    for name in ("exact_match", "contains", "last_number", "json_valid"):
        assert f"\n{name} " in "\n" + result.stdout


def test_a_reward_is_tried_on_one_completion():
    """Right, wrong, and with params."""
    row = '{"answer": "11"}'
    assert call("reward", "exact_match", "--completion", "11", "--row", row).stdout == "reward: 1\n"
    assert call("reward", "exact_match", "--completion", "12", "--row", row).stdout == "reward: 0\n"
    params = '{"keys": ["city"]}'
    tried = [
        call("reward", "json_valid", "--params", params, "--completion", text).stdout for text in ('{"city": 1}', '{"town": 1}')
    ]
    assert tried == ["reward: 1\n", "reward: 0\n"]


def test_a_reward_is_tried_on_a_file_in_order(folder):
    """Each line comes back with its reward, an unusable row with 0 and the reason, other keys untouched."""
    lines = [
        {"completion": "11", "row": {"answer": "11"}, "id": "a"},
        {"completion": "12", "row": {"answer": "11"}},
        {"completion": "x", "row": {"answer": ""}},
        {"completion": "7", "row": {"answer": 7}},
    ]
    (folder / "f.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = call("reward", "exact_match", "--file", "f.jsonl")
    assert result.exit_code == 0, result.stderr
    answered = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["reward"] for line in answered] == [1, 0, 0, 1]
    assert [("refused" in line) for line in answered] == [False, False, True, False]
    assert [{key: line[key] for key in line if key not in ("reward", "refused")} for line in answered] == lines


def test_unreadable_lines_of_a_file_are_reported_together(folder):
    """With their lines, before anything is scored."""
    (folder / "f.jsonl").write_text(
        '{"completion": "1", "row": {}}\n{"completion": 3, "row": {}}\n{\n\n{"completion": "x"}\n[1]\n'
    )
    result = call("reward", "exact_match", "--file", "f.jsonl")
    assert result.exit_code == 2
    assert result.stdout == ""
    for number in (2, 3, 5, 6):
        assert f"f.jsonl:{number}" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["exact_mach", "--completion", "1"],
        ["exact_match"],
        ["exact_match", "--completion", "1", "--file", "f.jsonl"],
        ["exact_match", "--completion", "1", "--row", "{"],
        ["exact_match", "--completion", "1", "--row", "[1]"],
        ["exact_match", "--completion", "1", "--row", '{"answer": NaN}'],
        ["exact_match", "--completion", "1", "--params", '{"nope": 1}'],
        ["exact_match", "--file", "missing.jsonl"],
        ["exact_match", "--completion", "1", "--imports", "missing.py"],
    ],
)
def test_a_reward_that_cannot_be_tried_exits_2(folder, args):
    """Unknown names and params, no completion, JSON that is none, missing files."""
    result = call("reward", *args)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")


def test_an_own_reward_is_tried_from_its_file(folder):
    """--imports loads it as pipeline.imports would."""
    (folder / "mine.py").write_text(
        "from llmclick import REWARDS\n\n"
        "@REWARDS.register('cli_length')\n"
        "def cli_length(completion: str, row: dict, params: dict) -> float:\n"
        '    """Its length."""\n'
        "    return len(completion) / 10\n"
    )
    result = call("reward", "cli_length", "--imports", "mine.py", "--completion", "hello")
    assert result.stdout == "reward: 0.5\n", result.stderr


def test_a_reward_without_its_row_says_what_is_missing(folder):
    """A reward that reads nothing of a row needs none; for others the sentence names --row."""
    assert call("reward", "json_valid", "--completion", "{}").stdout == "reward: 1\n"
    needs = "refused: exact_match needs the row too, such as --row '{\"answer\": \"11\"}'; without: the row has no 'answer'"
    assert call("reward", "exact_match", "--completion", "11").stdout == f"reward: 0\n{needs}\n"


# ---- new


def test_new_makes_a_project_that_loads(folder, monkeypatch):
    """A config without a problem, rows, and a reward that gives more to the better answer."""
    assert call("new", "demo").exit_code == 0
    monkeypatch.chdir("demo")
    from llmclick.config.load import load_config

    config = load_config("config.yaml")
    assert config.pipeline.name == "demo"
    assert config.notices == ()
    assert len(Path("rows.jsonl").read_text().splitlines()) == 64
    scored = [
        call("reward", "short_list", "--imports", "rewards.py", "--params", '{"items": 3}', "--completion", text).stdout
        for text in ("apple, pear, plum", "apple, pear", "I like apples.", "a\nb")
    ]
    assert scored == ["reward: 1\n", "reward: 0.666667\n", "reward: 0\n", "reward: 0\n"]


def test_new_overwrites_nothing(folder):
    """A folder with something in it, or a file, is refused; an empty folder is fine; a number becomes a name."""
    assert call("new", ".").exit_code == 2
    assert call("new", "c.yaml").exit_code == 2
    assert call("new", "rows.jsonl/x").exit_code == 2
    (folder / "empty").mkdir()
    assert call("new", "empty").exit_code == 0
    assert call("new", "2026").exit_code == 0
    assert "name: run-2026" in (folder / "2026" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("demo", "cd demo"),
        ("my demo", "cd 'my demo'"),
        ("it's", """cd 'it'"'"'s'"""),
        ("-odd", "cd ./-odd"),
    ],
)
def test_new_prints_what_to_type(folder, monkeypatch, name, printed):
    """A shell that gets the printed lines is in the folder and calls the command as it is called there."""
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    said = call("new", "--", name).stdout
    lines = [line.strip() for line in said.splitlines()[2:]]
    assert lines == [printed, "llmclick check config.yaml", "llmclick run config.yaml"]
    done = subprocess.run(["sh", "-c", f"{lines[0]} && pwd"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str((folder / name).resolve())


def test_new_in_this_folder_needs_no_cd_and_a_name_too_long_is_refused(folder, monkeypatch):
    """`new .` prints only the commands; 300 letters are no folder name, said without a traceback."""
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    assert "cd " not in call("new", ".").stdout
    result = call("new", "x" * 300)
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
    assert "ame too long" in result.stderr


def test_new_under_uv_prints_uv(folder, monkeypatch):
    """A command that uv started is typed with uv; outside of the project uv has to be told which one."""
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    monkeypatch.setattr(sys, "prefix", str(folder / "project" / ".venv"))
    (folder / "project").mkdir()
    (folder / "project" / "pyproject.toml").touch()
    assert "\n  uv run llmclick run config.yaml\n" in call("new", "project/demo").stdout
    outside = call("new", "demo").stdout
    assert f"\n  uv run --project {folder.resolve() / 'project'} llmclick run config.yaml\n" in outside
