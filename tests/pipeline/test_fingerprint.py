"""What an experiment's identity is made of: declared numbers and versions, never llmclick's own text."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmclick import semantics
from llmclick.pipeline.fingerprint import differences, explain_folder, fingerprint
from llmclick.pipeline.preflight import make_plan
from llmclick.pipeline.stage import Job
from llmclick.pipeline.validate import base_inputs

SOURCE = Path(semantics.__file__).parents[1]
BY_CODE = {
    "data": ["llmclick's data code", "llmclick's scoring code"],
    "train": ["llmclick's method code"],
    "validate": ["llmclick's validation code"],
}
"""Inputs of version 0.1.0, each the hash of a part of llmclick's syntax tree."""


def test_fingerprint_is_canonical() -> None:
    """SHA-256 of the canonical JSON: the order of keys does not count."""
    assert fingerprint({"b": 1, "a": [None]}) == hashlib.sha256(b'{"a":[null],"b":1}').hexdigest()


def test_a_new_key_without_a_value_is_the_same_experiment() -> None:
    """An input that is None counts as one that does not exist, so a key added later changes no experiment without it."""
    assert fingerprint({"lr": 1.0, "new": None}) == fingerprint({"lr": 1.0})
    assert fingerprint({"lr": 1.0, "new": False}) != fingerprint({"lr": 1.0})


@pytest.mark.parametrize(
    ("stage", "changed"),
    [("data", {"data", "train", "validate"}), ("train", {"train", "validate"}), ("validate", {"validate"})],
)
def test_a_raised_number_is_another_experiment(
    lab: Any, monkeypatch: pytest.MonkeyPatch, stage: str, changed: set[str]
) -> None:
    """The number of a stage counts for it and for the stages after it, and the plan names it."""
    before = make_plan(lab.config())
    monkeypatch.setitem(semantics.SEMANTICS, stage, semantics.SEMANTICS[stage] + 1)
    after = make_plan(lab.config())
    assert {name for name in before.fingerprints if before.fingerprints[name] != after.fingerprints[name]} == changed
    word = {"data": "data", "train": "training", "validate": "validation"}[stage]
    number = semantics.SEMANTICS[stage]
    assert f"llmclick's {word} version {number - 1} -> {number}" in differences(before.inputs[stage], after.inputs[stage])


@pytest.mark.parametrize(
    ("package", "reward", "changed"),
    [
        ("transformers", "exact_match", {"data", "train", "validate"}),
        ("tokenizers", "exact_match", {"data", "train", "validate"}),
        ("torch", "exact_match", {"train", "validate"}),
        ("math-verify", "math", {"data", "train", "validate"}),
        ("latex2sympy2-extended", "math", {"data", "train", "validate"}),
        ("sympy", "math", {"data", "train", "validate"}),
        ("reasoning-gym", "reasoning_gym", {"data", "train", "validate"}),
        ("math-verify", "exact_match", set()),
        ("reasoning-gym", "exact_match", set()),
    ],
)
def test_another_version_of_a_library_that_counts(
    lab: Any, monkeypatch: pytest.MonkeyPatch, package: str, reward: str, changed: set[str]
) -> None:
    """A library changes the stages whose numbers it makes, the base model's held-out answers with them, and no others."""
    config = lab.config(f"method.reward={{name: {reward}}}")
    before, answers_before = make_plan(config), held_out_inputs(make_plan(config))
    real = semantics.installed_version
    for module in ("llmclick.pipeline.fingerprint", "llmclick.rewards.source"):
        monkeypatch.setattr(sys.modules[module], "installed_version", lambda name: "0.0" if name == package else real(name))
    after = make_plan(config)
    assert {name for name in before.fingerprints if before.fingerprints[name] != after.fingerprints[name]} == changed
    assert (held_out_inputs(after) != answers_before) == bool(changed)


def held_out_inputs(plan: Any) -> dict[str, Any]:
    """What the base model's held-out answers of a plan are kept under, for no rows."""
    job = Job(
        plan.config,
        plan.experiment,
        plan.source,
        plan.dataset_folder,
        "",
        plan.compute,
        None,
        plan.shared,
        should_stop=lambda: False,
    )
    return base_inputs(job, [])


OWN = """
@REWARDS.register("typed_in")
def typed_in(completion: str, row: dict, params: dict) -> float:
    return len(completion) / 100
"""

PLAN = """
import json, sys
from llmclick.config.load import load_config
from llmclick.pipeline.preflight import make_plan
print(json.dumps(make_plan(load_config(sys.argv[1], sys.argv[2:])).fingerprints))
"""


def fingerprints(package: Path, yaml: Path, *overrides: str) -> dict[str, str]:
    """The fingerprints as the llmclick in the folder `package` makes them."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(package)!r})\n{PLAN}", str(yaml), *overrides],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def copied(folder: Path) -> Path:
    """llmclick's source in a folder of its own."""
    shutil.copytree(SOURCE / "llmclick", folder / "llmclick", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text, f"{file} no longer holds {old!r}"
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_reward_typed_into_the_method_changes_only_what_uses_it(lab: Any, tmp_path: Path) -> None:
    """Typed into methods/grpo.py, a reward leaves experiments with another reward as they are; an edit of it is another
    experiment for those that use it, and for no others."""
    package = copied(tmp_path / "package")
    grpo = package / "llmclick" / "modeling" / "llm" / "methods" / "grpo.py"
    shipped = fingerprints(package, lab.yaml)
    with grpo.open("a") as file:
        file.write(OWN)
    used = fingerprints(package, lab.yaml, "method.reward={name: typed_in}")
    assert fingerprints(package, lab.yaml) == shipped
    edit(grpo, "len(completion) / 100", "len(completion) / 101")
    assert fingerprints(package, lab.yaml) == shipped
    assert fingerprints(package, lab.yaml, "method.reward={name: typed_in}")["data"] != used["data"]


def test_no_refactor_changes_a_hash(lab: Any, tmp_path: Path) -> None:
    """Everything reformatted, a private function renamed, a module moved, a printed sentence, an error and a docstring
    reworded, a dead line added to the loop and a shipped reward rewritten: the same fingerprints."""
    package = copied(tmp_path / "package")
    before = fingerprints(package, lab.yaml), fingerprints(package, lab.yaml, "pipeline.recipe=llm_cispo")
    root = package / "llmclick"
    edit(root / "modeling/llm/methods/grpo.py", "policy ratio clipped to", "the ratio is clipped to")
    edit(root / "modeling/llm/methods/grpo.py", "Group Relative Policy Optimization", "GRPO")
    edit(root / "pipeline/data.py", "_left_out", "_said_of_those_left_out")
    edit(root / "data/order.py", "wanted", "how_many")
    edit(root / "modeling/llm/training/patience.py", "nothing is left to learn", "there is no more to learn")
    edit(root / "modeling/llm/training/loop.py", "    heap = HeapWatch()\n", "    heap = HeapWatch()\n    unused = 1\n")
    with (root / "rewards" / "text.py").open("a") as file:
        file.write("\n\n_NOTHING = None\n")
    (root / "pipeline" / "intervals.py").rename(root / "pipeline" / "resampling.py")
    for path in root.rglob("*.py"):
        path.write_text(path.read_text("utf-8").replace("llmclick.pipeline.intervals", "llmclick.pipeline.resampling"), "utf-8")
    formatted = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "88", str(root)]
    assert "files reformatted" in subprocess.run(formatted, capture_output=True, text=True, check=True).stdout
    assert (fingerprints(package, lab.yaml), fingerprints(package, lab.yaml, "pipeline.recipe=llm_cispo")) == before


def make_earlier(experiment: Path) -> Path:
    """Turns a finished experiment's manifests into those of a version whose identity was its code."""
    for path in (experiment / "manifest.json", *experiment.glob("*/manifest.json")):
        content = json.loads(path.read_text())
        by_stage = content["inputs"] if path.parent == experiment else {content["stage"]: content["inputs"]}
        for stage, inputs in by_stage.items():
            for key in [key for key in inputs if key.startswith("llmclick's")]:
                del inputs[key]
            inputs.update(dict.fromkeys(BY_CODE[stage], "c" * 64))
            if stage == "data":  # shipped rewards by their files, no versions of what makes the token ids
                inputs["reward source"] = {"exact_match": "d" * 64}
                for package in ("transformers", "tokenizers"):
                    del inputs[f"version of {package}"]
        content["fingerprint"] = fingerprint({"made by": "its code"})
        path.write_text(json.dumps(content))
    folder = experiment.with_name("tiny-0123abcd")
    experiment.rename(folder)
    return folder


def test_an_experiment_of_an_earlier_version_is_told_and_left_alone(lab: Any) -> None:
    """The plan and `explain` say in one sentence whose folder it is, that its checkpoint stays valid and how to go on; nothing
    in it changes, and the run beside it is complete."""
    folder = make_earlier(lab.run().experiment)
    shutil.rmtree(lab.output / ".shared")
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = (
        f"{folder} was made by an earlier version of llmclick, for which llmclick's own code was part of an experiment's "
        f"identity: it stays as it is, and its train/checkpoint stays valid; to train on from it, set model.name: "
        f"{folder}/train/checkpoint"
    )
    plan = make_plan(lab.config())
    assert list(plan.notices) == [f"{said}; this run is a new experiment beside it"]
    assert make_plan(lab.config("training.lr=3e-6")).notices[-1].endswith("Also different: training.lr 1e-06 -> 3e-06")
    explained = explain_folder(folder).splitlines()
    assert explained[1:] == [
        "  data      would run again: made by an earlier version of llmclick",
        "  train     would run again: made by an earlier version of llmclick",
        "  validate  would run again: made by an earlier version of llmclick",
        f"{said}; to train again, run its config, which makes a new experiment, {plan.experiment.name}.",
    ]
    assert lab.run().experiment == plan.experiment
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_an_unfinished_experiment_of_an_earlier_version_names_the_way_to_finish_it(lab: Any) -> None:
    """Without a checkpoint the sentence sends to the version that began it."""
    folder = make_earlier(lab.run().experiment)
    shutil.rmtree(folder / "train")
    assert "to finish it, use the version that began it" in make_plan(lab.config()).notices[-1]
    assert "to finish it, use the version that began it" in explain_folder(folder)


def test_differences_are_named() -> None:
    """Values are shown, hashes are only said to have changed, rows are counted."""
    rows = {"count": 20, "sha256": "a" * 64}
    before = {"rows": rows, "tokenizer": "a" * 64, "lr": 1e-6, "gain": {"reward": 0.1}, "gone": 1}
    after = {"rows": {"count": 21, "sha256": "b" * 64}, "tokenizer": "b" * 64, "lr": 2e-6, "gain": {"reward": 0.2}, "new": None}
    assert differences(before, after) == [
        "rows 20 -> 21",
        "tokenizer changed",
        "lr 1e-06 -> 2e-06",
        "gain: reward 0.1 -> 0.2",
        "gone 1 -> none",
    ]
    assert differences(before, before) == []
    assert differences({"rows": rows}, {"rows": {"count": 20, "sha256": "c" * 64}}) == ["contents of the 20 rows"]
