"""What can change a stage, as a flat mapping, and its hash. Nothing here imports torch.

A fingerprint is the SHA-256 of the canonical JSON of a stage's inputs; one of the inputs is the fingerprint of the stage
before. The inputs are kept in the manifests, so that a difference can be named.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import llmclick
from llmclick.data.rows import Row, canonical
from llmclick.data.sources import Rows
from llmclick.errors import InputError, Problem

PACKAGES = ("torch", "transformers", "peft")
_ROOT = Path(llmclick.__file__).parent
_DATA_CODE = ("data/prompts.py", "data/order.py", "pipeline/data.py")
_METHOD_CODE = "modeling/llm"
_SCORING_CODE = tuple(f"rewards/{name}.py" for name in ("scoring", "calls", "pool", "worker", "params"))
_ANSWER_CODE = ("pipeline/validate.py", "pipeline/train.py")
_VALIDATE_CODE = ("pipeline/validate.py", "pipeline/gate.py", "pipeline/intervals.py")
_NOT_IDENTITY = ("save_every",)
_HOW_TO_REWARD = ("timeout", "on_error")


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """64 hex digits that are the same for equal inputs."""
    return hashlib.sha256(canonical(dict(inputs)).encode("ascii")).hexdigest()


def library_versions() -> dict[str, str]:
    """The versions of the libraries that compute; `none` for one that is not installed."""
    return {package: _version(package) for package in PACKAGES}


def method_code_hash() -> str:
    """The hash of llmclick's own code under modeling/llm."""
    return code_hash(_METHOD_CODE)


def answer_code_hash() -> str:
    """The hash of the code that turns a model and held-out rows into scored answers, the sampler's included."""
    return code_hash(_METHOD_CODE, *_ANSWER_CODE, *_SCORING_CODE)


def reward_inputs(config: Any) -> dict[str, Any]:
    """The rewards as the config has them, less how they are run, and the hashes of their source files."""
    from llmclick.rewards.source import source_hash

    source = source_hash(config.method.reward, config.pipeline.imports)
    return {
        "method.reward": [
            {key: value for key, value in reward.items() if key not in _HOW_TO_REWARD}
            for reward in config.as_dict()["method"]["reward"]
        ],
        "reward source": dict(source),
        "llmclick's scoring code": code_hash(*_SCORING_CODE),
    }


def data_inputs(config: Any, rows: Rows, source: Any, rewards: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that decides which prompts are trained on, which are held out, and whether the rewards (`reward_inputs`)
    accept them."""
    settings = config.as_dict()
    own = rows.held_out is not None
    return {
        "rows": rows_input(rows.rows),
        "held_out_rows": rows_input(rows.held_out or ()) if own else None,
        "data.validation": None if own else settings["data"]["validation"],
        "data.system": settings["data"]["system"],
        "pipeline.seed": settings["pipeline"]["seed"],
        "model.thinking": settings["model"]["thinking"],
        "method.max_new_tokens": settings["method"]["max_new_tokens"],
        "method.answer_after": settings["method"]["answer_after"],
        "training.max_length": settings["training"]["max_length"],
        "training.overflow": settings["training"]["overflow"],
        **rewards,
        "tokenizer": source.tokenizer_hash(),
        "llmclick's data code": code_hash(*_DATA_CODE),
    }


def train_inputs(config: Any, data: str, source: Any, compute: Any) -> dict[str, Any]:
    """Everything that decides the weights, `data` being the data stage's fingerprint."""
    settings = config.as_dict()
    hub = source.kind == "hub"
    inputs: dict[str, Any] = {
        "data stage": data,
        "pipeline.recipe": settings["pipeline"]["recipe"],
        "model": f"{source.name} at {source.revision}" if hub else source.weights_hash(),
        "model.architecture": settings["model"]["architecture"],
        "device": str(compute.device).partition(":")[0],
        "precision": str(compute.precision),
        "llmclick's method code": code_hash(_METHOD_CODE, "pipeline/train.py"),
    }
    inputs.update({f"version of {package}": number for package, number in library_versions().items()})
    inputs.update({f"method.{key}": value for key, value in settings["method"].items() if key != "reward"})
    inputs.update({f"training.{key}": value for key, value in settings["training"].items() if key not in _NOT_IDENTITY})
    inputs.pop("training.precision")  # what it was resolved to counts
    if settings["sampler"]["name"] != "local":
        inputs["sampler"] = settings["sampler"]
    return inputs


def validate_inputs(config: Any, train: str) -> dict[str, Any]:
    """Everything that decides the verdict, `train` being the train stage's fingerprint."""
    bounds = config.as_dict()["validation"]
    return {
        "train stage": train,
        **{f"validation.{key}": value for key, value in bounds.items()},
        "llmclick's validation code": code_hash(*_VALIDATE_CODE),
    }


def rows_input(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows' contents as one hash. Their order in the file decides nothing, so it does not count."""
    joined = "\n".join(sorted(row.id for row in rows))
    return {"count": len(rows), "sha256": hashlib.sha256(joined.encode("ascii")).hexdigest()}


@functools.cache
def code_hash(*names: str) -> str:
    """SHA-256 over the syntax trees of files and folders of the package: comments, docstrings and layout do not count."""
    paths: list[Path] = []
    for name in names:
        path = _ROOT / name
        paths += sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0")
        digest.update(tree_text(path.read_text(encoding="utf-8")).encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def tree_text(source: str) -> str:
    """A Python file's syntax tree as text, without docstrings; the same on every Python that parses it to the same tree."""
    return _node(ast.parse(source))


def _node(node: object) -> str:
    if isinstance(node, ast.AST):
        parts = []
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                value = value[1:] if ast.get_docstring(node, clean=False) is not None else value
            if value is not None and value != []:  # newer Pythons add fields that are mostly empty
                parts.append(f"{name}={_node(value)}")
        return f"{type(node).__name__}({','.join(parts)})"
    if isinstance(node, list):
        return "[" + ",".join(map(_node, node)) + "]"
    return repr(node)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Which inputs differ, each as a short text: `training.lr 1e-06 -> 2e-06`, `tokenizer changed`."""
    found = []
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        if canonical(old) == canonical(new):
            continue
        if isinstance(old, dict) and isinstance(new, dict) and "sha256" not in new:
            found += [f"{key}: {text}" for text in differences(old, new)]
        elif key in ("rows", "held_out_rows"):
            found.append(_rows_difference(key.replace("_", "-").replace("-rows", " rows"), old, new))
        elif _is_hash(old) or _is_hash(new):
            found.append(f"{key} changed" if old is not None and new is not None else f"{key} {'added' if new else 'removed'}")
        else:
            found.append(f"{key} {_short(old)} -> {_short(new)}")
    return found


def _rows_difference(name: str, old: Any, new: Any) -> str:
    before, now = (old or {}).get("count", 0), (new or {}).get("count", 0)
    return f"{name} {before} -> {now}" if before != now else f"contents of the {now} {name}"


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdef" for c in value)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    text = "none" if text == "null" else text.strip('"')
    return text if len(text) <= 60 else text[:57] + "..."


def explain_folder(folder: str | Path) -> str:
    """For each stage of an experiment: done or not, and which inputs differ from last time if its config were run now.

    Reads the folder's own config.yaml; relative paths in it start at the working directory. Raises InputError if the folder
    is no experiment or its inputs cannot be read any more.
    """
    from llmclick.config.load import load_config
    from llmclick.pipeline.preflight import current_inputs, stage_state
    from llmclick.pipeline.stage import MANIFEST, STAGES, check_version, read_json

    folder = Path(folder)
    manifest = read_json(folder / MANIFEST)
    if manifest is None or not (folder / "config.yaml").is_file():
        why = "there is no such folder" if not folder.is_dir() else "the folder has no config.yaml and manifest.json of a run"
        problem = Problem(str(folder.absolute()), "", why, "an experiment's folder, such as output/NAME-1a2b3c4d")
        raise InputError(problem)
    check_version(folder, manifest)
    now = current_inputs(load_config(folder / "config.yaml"))
    before = manifest.get("inputs", {})
    prints = {stage: fingerprint(inputs) for stage, inputs in now.items()}
    lines = [f"{folder}"]
    moved = prints["train"] != manifest.get("fingerprint")
    for stage in STAGES:
        differing = [text for text in differences(before.get(stage, {}), now[stage]) if " stage " not in f" {text}"]
        place = folder / stage
        if differing:
            lines.append(f"  {stage:<9} would run again: {', '.join(differing)}")
        elif prints[stage] != manifest.get("fingerprints", {}).get(stage):
            earlier = STAGES[STAGES.index(stage) - 1]
            lines.append(f"  {stage:<9} would run again, because {earlier} does")
        else:
            done, why = stage_state(stage, place, prints[stage], now[stage], folder)
            lines.append(f"  {stage:<9} {'cached' if done else 'would run'}: {why}")
    if moved:
        name = manifest.get("name")
        lines.append(f"Run now it would be another experiment, {name}-{prints['train'][:8]}; this folder stays as it is.")
    return "\n".join(lines)
