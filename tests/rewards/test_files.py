"""A user's files, names and params as a config gives them, and the source that a stage's identity depends on."""

import os
import shutil
import subprocess
import sys
from ast import literal_eval
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from llmclick import REWARDS
from llmclick.errors import InputError
from llmclick.rewards.imports import load_imports
from llmclick.rewards.scoring import Scorer, ToScore
from llmclick.rewards.source import reward_sources
from llmclick.rewards.validate import check_specs, completed, described
from tests.rewards.specs import Spec, write

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, cwd: Path) -> str:
    """What a fresh process prints: files run once in a process, and a hash must not depend on which."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def reward(name: str, body: str = "return 1.0", head: str = "") -> str:
    return f"from llmclick import REWARDS\n{head}\n@REWARDS.register({name!r})\ndef f(completion, row, params):\n    {body}\n"


def test_all_files_that_cannot_be_imported_are_reported_together(tmp_path):
    """A missing file, a syntax error with its line, an exception with the user's traceback: one error, each with its reason."""
    broken = write(tmp_path / "broken.py", "x = 1\ndef f(:\n")
    raising = write(tmp_path / "raising.py", "import json\njson.loads('{')\n")
    with pytest.raises(InputError) as caught:
        load_imports([tmp_path / "missing.py", broken, raising, tmp_path], "config.yaml:3")
    missing, syntax, exception, folder = caught.value.problems
    assert str(tmp_path / "missing.py") in missing.why
    assert missing.where == "config.yaml:3"
    assert syntax.where == f"{broken}:2"
    assert "SyntaxError" in syntax.why
    assert "json.loads('{')" in exception.why
    assert "imports.py" not in exception.why
    assert "folder" in folder.why


def test_a_file_imports_its_siblings_and_runs_once(tmp_path):
    """A helper beside the file can be imported, and naming the file twice, also by another path, runs it once."""
    write(tmp_path / "sibling_of_once.py", "value = 0.5\n")
    file = write(tmp_path / "once.py", reward("once", "return value", "from sibling_of_once import value\nprint('ran')"))
    load_imports([file])
    load_imports([file, tmp_path / "." / "once.py"])
    with Scorer([Spec("once")], [file]) as scorer:
        assert scorer.score([ToScore("", {}, "r:1", False)])[0].total == 0.5


def test_a_users_math_file_does_not_replace_the_librarys(tmp_path):
    """A file called math.py beside the user's reward leaves Python's own math alone, in the run and in the worker."""
    write(tmp_path / "statistics.py", "raise RuntimeError('not this one')\n")
    file = write(tmp_path / "math.py", reward("own_math", "import fractions, decimal; return 1.0"))
    with Scorer([Spec("own_math")], [file]) as scorer:
        assert scorer.score([ToScore("", {}, "r:1", False)])[0].total == 1.0


def test_two_rewards_of_one_name_are_refused_and_both_shown(tmp_path):
    """Two files that register one name: the error shows both places."""
    one, two = (write(tmp_path / f"{name}.py", reward("twice")) for name in ("one", "two"))
    with pytest.raises(InputError) as caught:
        load_imports([one, two])
    assert str(one) in str(caught.value)
    assert str(two) in str(caught.value)


def test_a_file_that_registers_nothing_is_a_notice(tmp_path):
    """No reward in a file is told, not refused."""
    assert any("registers no reward" in notice for notice in load_imports([write(tmp_path / "nothing.py", "x = 1\n")]))


def test_a_users_reward_replaces_a_shipped_one_with_a_notice(tmp_path):
    """A user's exact_match wins over the shipped one, in the worker too, and a notice says so."""
    file = write(tmp_path / "mine.py", reward("exact_match", "return 0.125"))
    code = f"""
from llmclick.rewards.scoring import Scorer, ToScore
from llmclick.rewards.imports import load_imports
from tests.rewards.specs import Spec
print(load_imports([{str(file)!r}]))
with Scorer([Spec("exact_match")], [{str(file)!r}]) as scorer:
    print(scorer.score([ToScore("11", {{"answer": "11"}}, "r:1", False)])[0].total)
"""
    printed = python(code, ROOT)
    assert "replaces the shipped reward" in printed
    assert printed.endswith("0.125")


def test_unknown_names_and_params_name_the_nearest(tmp_path):
    """Every wrong name, param and value of the list is reported with the key, the closest name and what to write."""
    specs = [
        Spec("exact_mach"),
        Spec("exact_match", {"ignore_cas": True}),
        Spec("json_valid", {"keys": "city"}),
        Spec("json_valid", {"keys": ["a", "a"]}),
        Spec("json_valid", {"keys": {"a": "text"}}),
        Spec("regex", {"pattern": "("}),
        Spec("regex", {}),
        Spec("choice", {}),
        Spec("choice", {"labels": []}),
        Spec("choice", {"labels": ["A", "a"]}),
        Spec("last_number", {"tolerance": -1}),
        Spec("contains", {"whole_word": "yes"}),
        Spec("regex", {"pattern": "a", "match": "begin"}),
    ]
    problems = check_specs(specs, lambda key: f"c.yaml at {key}")
    assert [problem.where.split()[-1].split(".")[2] for problem in problems] == [str(n) for n in range(len(specs))]
    assert problems[0].why.index("exact_match") < problems[0].why.index("json_valid")
    assert problems[1].write.startswith("ignore_case")
    assert problems[1].key == "method.reward.1.ignore_cas"
    assert all(problem.write for problem in problems)


def test_good_specs_have_no_problem():
    """Every shipped reward with its documented params is accepted."""
    specs = [
        Spec("exact_match", {"ignore_case": True, "answer": "gold"}),
        Spec("contains", {"whole_word": False}),
        Spec("last_number", {"tolerance": 0.01}),
        Spec("json_valid", {"keys": ["city"], "strict": False}),
        Spec("regex", {"pattern": "a", "match": "full", "dotall": False}),
        Spec("choice", {"labels": "options"}),
        Spec("math"),
        Spec("reasoning_gym", {"task": "chain_sum"}),
    ]
    assert check_specs(specs, lambda key: "") == []
    assert all(meaning for entry in REWARDS if entry.shipped for _, _, meaning in described(entry))


def test_a_package_that_is_not_installed_is_named_with_its_remedy(monkeypatch):
    """Without math-verify the config is refused before anything runs, with the command that installs it."""
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "math_verify" else find(name, *rest))
    (problem,) = check_specs([Spec("math")], lambda key: "c.yaml:9")
    assert "math-verify" in problem.why
    assert "uv sync --extra math" in problem.write


def test_a_users_params_are_free_or_declared(tmp_path):
    """Without `params=` anything goes; with a dataclass or a pydantic model unknown, missing and mistyped ones are refused and
    defaults are filled in."""

    @dataclass
    class Limits:
        low: int
        high: float = 2.5

    from pydantic import BaseModel, ConfigDict

    class Model(BaseModel):
        model_config = ConfigDict(extra="forbid")
        size: int = 3

    REWARDS.register("declared", params=Limits)(lambda completion, row, params: 1.0)
    REWARDS.register("modelled", params=Model)(lambda completion, row, params: 1.0)
    load_imports([write(tmp_path / "free.py", reward("free"))])
    assert check_specs([Spec("free", {"anything": [1]})], str) == []
    assert len(check_specs([Spec("declared", {"hihg": 1})], str)) == 2
    assert len(check_specs([Spec("declared", {"low": "x"})], str)) == 1
    assert check_specs([Spec("declared", {"low": 1})], str) == []
    assert completed(REWARDS.get("declared"), {"low": 1}) == {"low": 1, "high": 2.5}
    assert len(check_specs([Spec("modelled", {"size": "many", "sise": 1})], str)) == 2
    assert completed(REWARDS.get("modelled"), {}) == {"size": 3}


HASH = """
from llmclick.rewards.source import reward_sources
from tests.rewards.specs import Spec
import sys
sys.path.insert(0, {root!r})
print(reward_sources([Spec({name!r})], [{file!r}])[{name!r}])
"""


def hash_of(name: str, file: Path) -> str:
    return python(HASH.format(root=str(ROOT), name=name, file=str(file)), ROOT)


def test_the_source_of_a_reward_is_its_file_and_what_it_loads_from_its_folder(tmp_path):
    """A changed byte in the file, a helper, a helper's helper, one imported inside a function or by name changes the hash; a
    file that is not imported and a copy of the folder elsewhere do not."""
    folder = tmp_path / "here"
    head = "import importlib\nfrom graded_helper import x\nimportlib.import_module('graded_' + 'named')"
    file = write(folder / "graded.py", reward("graded", "from graded_late import z; return x + z", head))
    write(folder / "graded_helper.py", "from graded_deep import x\n")
    write(folder / "graded_deep.py", "x = 1.0\n")
    write(folder / "graded_late.py", "z = 0.0\n")
    write(folder / "graded_named.py", "w = 0.0\n")
    before = hash_of("graded", file)
    write(folder / "unrelated.py", "y = 1\n")
    assert hash_of("graded", file) == before
    copied = shutil.copytree(folder, tmp_path / "there")
    assert hash_of("graded", copied / "graded.py") == before
    seen = {before}
    for name in ("graded.py", "graded_helper.py", "graded_deep.py", "graded_late.py", "graded_named.py"):
        with open(folder / name, "a") as text:
            text.write("# changed\n")
        seen.add(hash_of("graded", file))
    assert len(seen) == 6


def test_a_shipped_reward_counts_by_its_number_and_its_library():
    """The declared number, 1 where a registration says none, and the versions of the libraries that score for it."""
    sources = reward_sources([Spec("exact_match"), Spec("math"), Spec("reasoning_gym")], [])
    assert sources["exact_match"] == {"version": 1}
    assert sources["math"]["math-verify"] == version("math-verify")
    assert sources["math"]["latex2sympy2-extended"] == version("latex2sympy2-extended")
    assert sources["reasoning_gym"]["reasoning-gym"] == version("reasoning-gym")
    for entry in REWARDS:
        if entry.shipped and "package" in entry.options:
            assert entry.options["libraries"], f"{entry.name} does not say which libraries score for it"


def test_a_users_reward_counts_the_library_that_it_scores_by(tmp_path):
    """The version of a package that the user's file imports is part of its source; Python's own modules are not."""
    source = hash_of("by_library", write(tmp_path / "by_library.py", reward("by_library", head="import json, numpy.linalg")))
    assert literal_eval(source).keys() == {"source", "numpy"}
    assert literal_eval(source)["numpy"] == version("numpy")


@pytest.mark.parametrize("name", ["haiku", "short_answer"])
def test_the_sample_rewards_work(name):
    """The files under samples/rewards/ load, pass the trial of a row and give a share."""
    file = ROOT / "samples" / "rewards" / f"{name}.py"
    from llmclick.data.rows import Row

    with Scorer([Spec(name)], [file]) as scorer:
        assert scorer.try_rows([Row({"answer": "11"}, "r:1", "1")]) == []
        haiku = "An old silent pond\nA frog jumps into the pond\nSplash! Silence again"
        (score,) = scorer.score([ToScore(haiku, {"answer": "11"}, "r:1", False)])
        assert 0 < score.total <= 1


def test_rewards_import_neither_torch_nor_pydantic():
    """Importing the rewards costs no heavy library."""
    heavy = ("torch", "pydantic", "sympy", "numpy")
    code = f"import sys, llmclick.rewards.scoring, llmclick.rewards.worker; print([m for m in {heavy} if m in sys.modules])"
    assert python(code, ROOT) == "[]"


def test_the_text_of_a_file_runs_and_not_an_older_cached_one(tmp_path, monkeypatch):
    """An edit of one digit within the second that the file was last read: the new digit scores, as the hash says."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    file = write(tmp_path / "digit.py", reward("digit", "return 0.1"))
    code = f"""
from llmclick.rewards.scoring import Scorer, ToScore
from tests.rewards.specs import Spec
with Scorer([Spec("digit")], [{str(file)!r}]) as scorer:
    print(scorer.score([ToScore("", {{}}, "r:1", False)])[0].total)
"""
    assert python(code, ROOT) == "0.1"
    before = file.stat()
    write(file, reward("digit", "return 0.2"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert python(code, ROOT) == "0.2"
