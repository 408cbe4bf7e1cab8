"""A small experiment on a tiny model, with train and validate replaced by bodies that only write what the real ones do."""

from __future__ import annotations

import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmclick.config.load import load_config
from llmclick.pipeline.stage import Job
from llmclick.tracking.console import Console

ROWS = [{"prompt": f"What is {n} plus 2? Reply with the number only.", "answer": str(n + 2)} for n in range(20)]

CONFIG = """\
pipeline:
  recipe: llm_grpo
  name: tiny
  output_dir: {output}
model:
  name: {model}
data:
  sources:
    - name: local_jsonl
      path: {rows}
  validation: 0.2
method:
  group_size: 4
  max_new_tokens: 8
  reward: {{name: exact_match}}
training: {{batch_size: 2, accumulation: 2, max_length: 128, lr: 1e-6}}
validation:
  gain: {{reward: 0.1}}
"""


class Lab:
    """A folder with rows and a config, and counters of what ran."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.output = folder, folder / "output"
        self.rows, self.yaml = folder / "rows.jsonl", folder / "config.yaml"
        self.write_rows(ROWS)
        self.yaml.write_text(CONFIG.format(output=self.output, model=model, rows=self.rows))
        self.calls: list[str] = []
        self.jobs: list[Job] = []
        self.said = io.StringIO()
        self.on_train: Callable[[Job], None] = lambda job: None
        self.passed: bool | None = True

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        self.rows.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def config(self, *overrides: str) -> Any:
        return load_config(self.yaml, overrides)

    def console(self) -> Console:
        return Console(stream=self.said, results=self.said, live=False, width=200)

    def run(self, *overrides: str, stages: tuple[str, ...] | None = None) -> Any:
        from llmclick.pipeline.run import run

        return run(self.config(*overrides), stages, self.console())

    def train(self, job: Job) -> dict[str, Any]:
        self.calls.append("train")
        self.jobs.append(job)
        self.on_train(job)
        checkpoint = job.experiment / "train" / "checkpoint"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "model.safetensors").write_bytes(b"weights")
        (job.experiment / "metrics.jsonl").write_text('{"step":1}\n{"step":2}\n')
        return {"steps": 2}

    def validate(self, job: Job) -> dict[str, Any]:
        self.calls.append("validate")
        self.jobs.append(job)
        link = job.experiment / "validate" / "checkpoint"
        link.unlink(missing_ok=True)
        if self.passed is not False:
            link.symlink_to(Path("..") / "train" / "checkpoint")
        reward = {"base": 0.0, "trained": 0.5, "difference": 0.5, "low": 0.2, "high": 0.8, "n": 4}
        why = "" if self.passed else "too little"
        bound = {"kind": "gain", "metric": "reward", "bound": 0.1, "value": 0.5, "passed": self.passed, "why": why}
        bounds = [] if self.passed is None else [bound]
        return {"metrics": {"reward": reward}, "passed": self.passed, "bounds": bounds, "notices": []}


@pytest.fixture
def lab(tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path, dense_folder)
    for name in ("train", "validate"):
        module = types.ModuleType(f"llmclick.pipeline.{name}")
        setattr(module, name, getattr(made, name))
        monkeypatch.setitem(sys.modules, f"llmclick.pipeline.{name}", module)
    return made
