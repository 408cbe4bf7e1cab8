"""A stage's folder and its manifest. A stage is done when its manifest, written last, carries its fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llmclick
from llmclick.errors import InputError, Problem
from llmclick.tracking.files import write_atomic

if TYPE_CHECKING:
    from llmclick.modeling.llm.models.source import Source

STAGES = ("data", "train", "validate")
MANIFEST = "manifest.json"
SNAPSHOTS = "snapshots"
"""The folder below `train` that an interrupted training continues from."""


@dataclass(frozen=True)
class Job:
    """What a stage's body gets.

    `source` is the model on this machine, `experiment` the experiment's folder, `dataset_folder` where the data stage wrote,
    `fingerprint` that of the stage, `shared` the folder of what several experiments share, `should_stop` says whether a signal
    came, `tracking` is the open tracker of the config, if it has one, `reward_files` the SHA-256 of the files that define the
    rewards, as they were when the run was planned.
    """

    config: Any
    experiment: Path
    source: Any
    dataset_folder: Path
    fingerprint: str
    compute: Any
    console: Any
    shared: Path
    should_stop: Callable[[], bool]
    tracking: Any = None
    reward_files: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Manifest:
    """What a finished stage says about itself. `result` is what its body returned, `files` name: size or SHA-256."""

    stage: str
    fingerprint: str
    inputs: dict[str, Any]
    files: dict[str, Any]
    result: dict[str, Any]
    seconds: float
    version: str


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole: temporary name, fsync, rename, fsync of the folder."""
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=True).encode("ascii") + b"\n")
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files; where a system cannot open folders, nothing is to be done."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, None if there is no such file or it is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_manifest(
    folder: Path,
    stage: str,
    fingerprint: str,
    inputs: Mapping[str, Any],
    *,
    files: Mapping[str, Any],
    result: Mapping[str, Any],
    seconds: float,
) -> None:
    """The last file of a stage. Everything else of the stage has to be on disk before."""
    write_json(
        folder / MANIFEST,
        {
            "stage": stage,
            "version": llmclick.__version__,
            "fingerprint": fingerprint,
            "inputs": dict(inputs),
            "files": dict(files),
            "result": dict(result),
            "seconds": round(seconds, 3),
            "finished": datetime.now().astimezone().isoformat(timespec="seconds"),
        },
    )


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a stage's folder, None if the stage never finished there.

    Raises InputError if another major version of llmclick wrote it.
    """
    found = read_json(folder / MANIFEST)
    if found is None:
        return None
    check_version(folder, found)
    try:
        return Manifest(
            stage=str(found["stage"]),
            fingerprint=str(found["fingerprint"]),
            inputs=dict(found["inputs"]),
            files=dict(found["files"]),
            result=dict(found["result"]),
            seconds=float(found["seconds"]),
            version=str(found["version"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def check_version(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a folder that another major version wrote: what its files mean may have changed."""
    theirs, ours = str(manifest.get("version", "")), llmclick.__version__
    if theirs.partition(".")[0] != ours.partition(".")[0]:
        raise InputError(
            Problem(
                where=str(folder / MANIFEST),
                key="version",
                given=theirs or "(nothing)",
                why=f"the folder was written by another major version of llmclick; this is {ours}",
                write=f"another pipeline.output_dir, or llmclick {theirs or 'of that version'} for this folder",
            )
        )


def file_sizes(folder: Path, *names: str) -> dict[str, int]:
    """Sizes of all files below `folder`/`names`, by their path in `folder`."""
    found = {}
    for name in names:
        for path in sorted((folder / name).rglob("*")):
            if path.is_file():
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
    return found


def missing_file(folder: Path, manifest: Manifest) -> str | None:
    """The first file that a manifest names and that is gone or has another size."""
    for name, size in manifest.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is gone"
        if isinstance(size, int) and path.stat().st_size != size:
            return f"{name} has another size"
    return None


def checkpoint_source(experiment: Path) -> Source:
    """`train/checkpoint` as a model source."""
    from llmclick.modeling.llm.models.source import Source

    folder = (experiment / "train" / "checkpoint").absolute()
    return Source("folder", str(folder), folder)


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_data_files(folder: Path, manifest: Manifest) -> None:
    """Refuse data files that no longer are what the data stage wrote; a change in silence would change the experiment."""
    changed = []
    for name, digest in manifest.files.items():
        path = folder / name
        if not path.is_file():
            changed.append(f"{name} is gone")
        elif file_digest(path) != digest:
            changed.append(f"{name} was changed")
    if changed:
        raise InputError(
            Problem(
                where=str(folder),
                key="data/",
                given=", ".join(changed),
                why="the files of the data stage no longer match their manifest, so results would not belong to these rows",
                write=f"delete the folder {folder} to have it made again; changed rows belong into the source file",
            )
        )


def link_folder(link: Path, target: Path) -> None:
    """Make `link` a relative link to the folder `target`, or a copy where links are impossible. Does nothing if it is there."""
    relative = os.path.relpath(target, link.parent)
    if link.is_symlink():
        if os.readlink(link) == relative:
            return
        link.unlink()
    elif link.exists():
        return
    try:
        temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        os.symlink(relative, temporary, target_is_directory=True)
        os.replace(temporary, link)
    except OSError:
        shutil.copytree(target, link, dirs_exist_ok=True)


def remove_link(path: Path) -> None:
    """Remove a link to a folder, or the copy that stands for one where links are impossible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
