"""Snapshots: all that a resumed run needs to go on bit for bit. safetensors and JSON, no pickle; whole or not there at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from llmclick.errors import InputError, Problem
from llmclick.tracking.files import sync
from llmclick.tracking.tensors import entry_of, write_tensors

KEPT = 2
"""How many snapshots stay: the newest, and the one before in case the newest turns out damaged."""


@dataclass(frozen=True)
class Snapshot:
    """State after `step` optimizer steps: named tensors, and JSON values beside them."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Writes `folder/step-<n>`: to a temporary name, fsynced, renamed. Older ones than the last two go."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{snapshot.step:08d}"
    partial = folder / f".partial-{target.name}"
    for left in folder.glob(".partial-*"):  # of a run that was killed here: it would only take up room
        shutil.rmtree(left)
    try:
        partial.mkdir()
        write_tensors(partial / "tensors.safetensors", starmap(entry_of, snapshot.tensors.items()))
        manifest = {"step": snapshot.step, "state": snapshot.state, "sha256": _digest(partial / "tensors.safetensors")}
        (partial / "snapshot.json").write_text(json.dumps(manifest | {"self": _digest_json(manifest)}))
        for path in (partial / "tensors.safetensors", partial / "snapshot.json", partial):
            sync(path)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync(folder)
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old)


def read_snapshot(folder: Path, notify: Any) -> Snapshot | None:
    """The newest whole snapshot, None if there is none.

    A damaged one is named through `notify` and removed, and the one before is used; raises InputError when all that are there
    are damaged.
    """
    found = _all(folder)
    reasons: dict[Path, str] = {}
    for path in reversed(found):
        try:
            snapshot = _read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reasons[path] = f"{path.name}: {error}"
            continue
        for damaged, reason in reasons.items():
            notify(f"a snapshot is damaged ({reason}); going on from step {snapshot.step} instead")
            shutil.rmtree(damaged)  # newer by its name, it would push out the good ones
        return snapshot
    if reasons:
        raise InputError(
            Problem(
                where=str(folder),
                key="snapshots",
                given="; ".join(reasons.values()),
                why="every snapshot of this run is damaged, so it cannot be continued",
                write=f"delete the folder {folder} to train again from the start",
            )
        )
    return None


def snapshot_steps(folder: Path) -> list[int]:
    """The steps after which snapshots were written, oldest first, by their names alone."""
    return [int(path.name.removeprefix("step-")) for path in _all(folder)]


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir()) if folder.is_dir() else []


def _read(path: Path) -> Snapshot:
    manifest: Mapping[str, Any] = json.loads((path / "snapshot.json").read_text())
    body = {key: value for key, value in manifest.items() if key != "self"}
    if manifest["self"] != _digest_json(body) or manifest["sha256"] != _digest(path / "tensors.safetensors"):
        raise ValueError("its checksum does not match")
    return Snapshot(manifest["step"], load_file(path / "tensors.safetensors"), manifest["state"])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
