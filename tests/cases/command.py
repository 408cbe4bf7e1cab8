"""The command line in this process, and a small project for it to read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from llmclick.cli import app

ROWS: list[dict[str, Any]] = [{"prompt": f"What is {n} plus 2?", "answer": str(n + 2)} for n in range(12)]


@dataclass(frozen=True)
class Said:
    """Exit code, and what was said on stderr and stdout, on one line."""

    code: int
    text: str


def llmclick(*args: object) -> Said:
    """Runs `llmclick ARGS`. What the command line does not expect is its exit code 1."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return Said(result.exit_code, " ".join(f"{result.stderr} {result.stdout}".split()))


class Project:
    """A folder with rows and a config on a tiny model."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.output = folder, folder / "output"
        self.rows, self.yaml = folder / "rows.jsonl", folder / "config.yaml"
        self.write_rows("".join(json.dumps(row) + "\n" for row in ROWS))
        self.config: dict[str, Any] = {
            "pipeline": {"recipe": "llm_grpo", "name": "tiny", "output_dir": str(self.output)},
            "model": {"name": str(model)},
            "data": {"sources": [{"name": "local_jsonl", "path": str(self.rows)}], "validation": 3},
            "method": {"group_size": 4, "max_new_tokens": 6, "reward": {"name": "exact_match"}},
            "training": {"batch_size": 2, "max_length": 128, "max_steps": 2},
            "validation": {"min": {"reward": 0.5}},
        }

    def write_rows(self, text: str | bytes) -> None:
        self.rows.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))

    def set(self, key: str, value: Any) -> None:
        """Sets a dotted key of the config."""
        *sections, last = key.split(".")
        place: Any = self.config
        for section in sections:
            place = place[int(section)] if section.isdigit() else place.setdefault(section, {})
        place[last] = value

    def command(self, name: str = "run", *more: object) -> Said:
        """`llmclick NAME config.yaml`, the config written as JSON, which is YAML."""
        self.yaml.write_text(json.dumps(self.config, indent=1), encoding="utf-8")
        return llmclick(name, self.yaml, *more)

    def names(self) -> list[str]:
        return sorted(str(path) for path in self.folder.rglob("*") if path != self.yaml)


def lines(*rows: object) -> str:
    """JSON lines; a text is a line as it stands."""
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
