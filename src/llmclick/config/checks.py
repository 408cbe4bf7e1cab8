"""Field types of the config whose rule is more than a bound. Each refusal carries a sentence and a remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

STAGES = ("data", "train", "validate")


def refuse(why: str, write: str) -> NoReturn:
    """Refuses a value inside a validator: `why` it cannot work and what to `write` instead."""
    raise PydanticCustomError("llmclick", "{why}", {"why": why, "write": write})


def _text(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        refuse("it is empty", "write some text, or leave the key out")
    if isinstance(value, str) and "\x00" in value:
        refuse("it contains a NUL character", "remove it")
    return value


Text = Annotated[str, BeforeValidator(_text)]
"""Text that is not blank."""


def _path(value: Any) -> Any:
    if isinstance(value, str):
        _text(value)
        if any(len(part.encode("utf-8", "surrogatepass")) > 255 for part in value.split("/")):
            refuse("a name in it is longer than the 255 bytes that file systems take", "write a shorter path")
        try:
            return Path(value).expanduser()
        except RuntimeError:
            refuse("there is no such user's home folder", "write the path out")
    if isinstance(value, Path):
        return value
    return refuse("a path is expected", "write a path as text, relative to the working directory or absolute")


UserPath = Annotated[Path, BeforeValidator(_path)]
"""A path, `~` expanded; a relative one is relative to the working directory."""


def _paths(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_path(item) for item in value)
    return refuse("a list of files is expected", f"write [{value}]" if isinstance(value, str) else "write [rewards.py]")


Paths = Annotated[tuple[UserPath, ...], BeforeValidator(_paths)]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def _name(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) > 100:
            refuse("it becomes a folder name and has more than 100 characters", "write a shorter name")
        if not _NAME.fullmatch(value):
            suggestion = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-.") or "my-run"
            refuse(
                "it becomes a folder name: letters, digits, '.', '_' and '-' are allowed, and it starts with a letter, a digit "
                "or '_'",
                f"write {suggestion}",
            )
    return value


Name = Annotated[str, BeforeValidator(_name)]
"""A name that is safe as a folder's."""


def _stages(value: Any) -> Any:
    if value == "all":
        return STAGES
    if isinstance(value, (list, tuple)):
        given = list(value)
        unknown = [stage for stage in given if stage not in STAGES]
        if unknown:
            refuse(f"there is no stage {unknown[0]!r}", f"write all, or a list of {', '.join(STAGES)}")
        if not given:
            refuse("no stage is left", f"write all, or a list of {', '.join(STAGES)}")
        return tuple(stage for stage in STAGES if stage in given)
    return refuse("stages are a list, or the word all", f"write all, or a list of {', '.join(STAGES)}")


Stages = Annotated[tuple[str, ...], BeforeValidator(_stages)]


def _rows(value: Any) -> Any:
    return None if value == "all" else value


Rows = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_rows)]
"""A count of rows, or `all` (None)."""


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?B)")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def _size(value: Any) -> Any:
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if not match:
            refuse("a size is a number with its unit", "write for example 200 MB or 2 GB")
        return int(float(match[1]) * _UNITS[match[2].upper()])
    return value


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, written as `200 MB`, or as a whole number of bytes."""


def _targets(value: Any) -> Any:
    if value == "auto":
        return value
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(item, str) and item for item in value):
            refuse("targets are names of the model's linear layers", "write auto, or a list such as [q_proj, v_proj]")
        return tuple(value)
    return refuse("targets are the word auto or a list", "write auto, or a list such as [q_proj, v_proj]")


Targets = Annotated[Any, BeforeValidator(_targets)]
"""`auto`, or a tuple of names."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


def commit_problem(revision: str, repository: str, kind: str) -> tuple[str, str] | None:
    """Why a Hub revision does not pin a commit and what to write, or None if it does."""
    if _COMMIT.fullmatch(revision):
        return None
    if re.fullmatch(r"[0-9a-fA-F]{7,64}", revision):
        why = "a commit is pinned by all 40 characters of its hash, in lower case"
    else:
        why = "a branch or tag can move while the config stays the same, so it does not say which weights or rows were used"
    return why, find_commit(repository, kind)


def find_commit(repository: str, kind: str) -> str:
    """How to find the commit to write."""
    folder = "datasets/" if kind == "dataset" else ""
    return (
        f"write the 40-character commit: `git ls-remote https://huggingface.co/{folder}{repository} main` prints it, "
        'and the page\'s "Files and versions" shows it'
    )


def looks_like_path(name: str) -> bool:
    """Whether a model or dataset name means a folder or file: it starts with `.`, `/` or `~`, or it exists."""
    if name.startswith((".", "/", "~")) or re.match(r"[A-Za-z]:[\\/]", name):
        return True
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False
