"""What can change a stage, as a flat mapping, and its hash. Nothing here imports torch.

A fingerprint is the SHA-256 of the canonical JSON of a stage's inputs; one of the inputs is the fingerprint of the stage
before. The inputs are kept in the manifests, so that a difference can be named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmclick.data.rows import Row, canonical
from llmclick.data.sources import Rows
from llmclick.errors import InputError, Problem
from llmclick.semantics import SEMANTICS, installed_version

PACKAGES = ("torch", "transformers", "peft")
"""Libraries that decide a model's numbers."""

TEXT_PACKAGES = ("transformers", "tokenizers")
"""Libraries that decide which token ids a prompt is, and which text an answer."""

_NOT_IDENTITY = ("save_every",)
_HOW_TO_REWARD = ("timeout", "on_error")
_BY_CODE = ("llmclick's data code", "llmclick's method code", "llmclick's scoring code", "llmclick's validation code")
"""Inputs of earlier versions, which hashed llmclick's own code."""

EARLIER = "made by an earlier version of llmclick"


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """64 hex digits that are the same for equal inputs. An input without a value (None) is as good as none: a key that a later
    version adds leaves the experiments alone that do not use it."""
    counted = {key: value for key, value in inputs.items() if value is not None}
    return hashlib.sha256(canonical(counted).encode("ascii")).hexdigest()


def library_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The installed versions of libraries, by default of those that compute; `none` for one that is not installed."""
    return {package: installed_version(package) for package in packages}


def reward_inputs(config: Any) -> dict[str, Any]:
    """The rewards as the config has them, less how they are run, and what their scores depend on beside it."""
    from llmclick.rewards.source import reward_sources

    return {
        "method.reward": [
            {key: value for key, value in reward.items() if key not in _HOW_TO_REWARD}
            for reward in config.as_dict()["method"]["reward"]
        ],
        "reward source": reward_sources(config.method.reward, config.pipeline.imports),
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
        "model.template": settings["model"]["template"],
        "method.max_new_tokens": settings["method"]["max_new_tokens"],
        "method.answer_after": settings["method"]["answer_after"],
        "method.stop": settings["method"]["stop"],
        "training.max_length": settings["training"]["max_length"],
        "training.overflow": settings["training"]["overflow"],
        **rewards,
        "tokenizer": source.tokenizer_hash(),
        **{f"version of {package}": number for package, number in library_versions(TEXT_PACKAGES).items()},
        "llmclick's data version": SEMANTICS["data"],
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
        "llmclick's training version": SEMANTICS["train"],
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
        "llmclick's validation version": SEMANTICS["validate"],
    }


def rows_input(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows' contents as one hash. Their order in the file decides nothing, so it does not count."""
    joined = "\n".join(sorted(row.id for row in rows))
    return {"count": len(rows), "sha256": hashlib.sha256(joined.encode("ascii")).hexdigest()}


def by_code(inputs: Mapping[str, Any]) -> bool:
    """Whether a stage's inputs were recorded by an earlier version, whose own code was part of the identity."""
    return any(key in inputs for key in _BY_CODE)


def about_earlier(folder: Path) -> str:
    """What a user can do with an experiment whose identity holds the hash of an earlier version's code."""
    if (folder / "train" / "checkpoint").is_dir():
        ready = f"its train/checkpoint stays valid; to train on from it, set model.name: {folder}/train/checkpoint"
    else:
        ready = "to finish it, use the version that began it"
    return (
        f"{folder} was {EARLIER}, for which llmclick's own code was part of an experiment's identity: it stays as it is, and "
        + ready
    )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Which inputs differ, each as a short text: `training.lr 1e-06 -> 2e-06`, `tokenizer changed`.

    Of inputs that hold the hash of an earlier version's code, that is said first, and only what both versions know is compared.
    """
    found = []
    if by_code(before):
        found.append(EARLIER)
        before, now = _known_to_both(before, now)
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


def _known_to_both(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    before = {key: value for key, value in before.items() if key not in _BY_CODE}
    now = {key: value for key, value in now.items() if key in before}
    theirs, ours = (inputs.get("reward source") or {} for inputs in (before, now))
    own = [name for name in ours if name in theirs and _is_hash(ours[name]) and _is_hash(theirs[name])]
    for inputs, sources in ((before, theirs), (now, ours)):
        if "reward source" in inputs:  # a shipped reward counted by its code
            inputs["reward source"] = {name: sources[name] for name in own}
    return before, now


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
    name = manifest.get("name")
    if moved and by_code(before.get("train", {})):
        again = f"to train again, run its config, which makes a new experiment, {name}-{prints['train'][:8]}"
        lines.append(f"{about_earlier(folder)}; {again}.")
    elif moved:
        lines.append(f"Run now it would be another experiment, {name}-{prints['train'][:8]}; this folder stays as it is.")
    return "\n".join(lines)
