"""What lies in an experiment's folder, as far as the run has got. Nothing here is required to exist."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmclick.errors import InputError, Problem
from llmclick.tracking.completions import CompletionsFolder
from llmclick.tracking.files import parse_lines
from llmclick.tracking.metrics import read_metrics

STAGES = ("data", "train", "validate")


@dataclass(frozen=True)
class Experiment:
    """The files of one experiment; a file that is not there yet is an empty value."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    verdict: dict[str, Any] = field(default_factory=dict)
    held_out: list[dict[str, Any]] = field(default_factory=list)

    @property
    def completions(self) -> CompletionsFolder:
        """The completions, for reading."""
        return CompletionsFolder(self.folder / "completions")

    @property
    def name(self) -> str:
        """The config's pipeline.name, or the folder's."""
        return str(self.setting("pipeline.name") or self.folder.name)

    def setting(self, key: str) -> Any:
        """The config's value at a dotted key, None if it is not there."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


def read_experiment(folder: str | Path) -> Experiment:
    """Read an experiment's folder. Raises InputError if the folder does not exist or holds nothing of a run."""
    folder = Path(folder)
    known = ("config.yaml", "manifest.json", "metrics.jsonl", "completions", "validate", "train")
    if not folder.is_dir() or not any((folder / name).exists() for name in known):
        why = "there is no such folder" if not folder.is_dir() else "nothing in this folder comes from a run"
        raise InputError(Problem(str(folder.absolute()), "", why, "name an experiment's folder, such as output/NAME-1a2b3c4d"))
    return Experiment(
        folder=folder,
        config=_yaml(folder / "config.yaml"),
        manifest=_json(folder / "manifest.json"),
        stages={stage: _json(folder / stage / "manifest.json") for stage in STAGES},
        metrics=read_metrics(folder / "metrics.jsonl"),
        evaluations=read_metrics(folder / "eval.jsonl"),
        verdict=_json(folder / "validate" / "verdict.json"),
        held_out=_lines(folder / "validate" / "rows.jsonl"),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [record for _, record in parse_lines(path.read_bytes(), path)] if path.exists() else []


def _yaml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        value = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}
