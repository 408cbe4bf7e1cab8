"""Whole runs on tiny models whose reward gives every group a spread, and what they leave on disk."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from llmclick.config.load import load_config
from llmclick.pipeline.run import RunResult
from llmclick.pipeline.run import run as run_pipeline
from llmclick.tracking.console import Console
from llmclick.tracking.metrics import read_metrics, without_measured

SPREAD = Path(__file__).with_name("spread_reward.py")

CONFIG = """\
pipeline:
  recipe: {recipe}
  name: tiny
  seed: 7
  output_dir: {folder}/output
  imports: [{reward}]
model: {{name: {model}}}
data:
  sources: [{{name: local_jsonl, path: {folder}/rows.jsonl}}]
  validation: 6
method:
  group_size: 4
  max_new_tokens: 6
  reward: {{name: spread}}
training: {{batch_size: 2, accumulation: 1, max_length: 128, lr: 1e-3, max_steps: 6, save_every: 2}}
validation:
  min: {{reward: -1.0}}
"""


class Tiny:
    """A folder with rows, a reward and a config for one run on a tiny model."""

    def __init__(self, folder: Path, model: Path, recipe: str = "llm_grpo") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.yaml = folder / "config.yaml"
        rows = [{"prompt": f"What is {n} plus {n * n}?", "answer": str(n + n * n)} for n in range(24)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.yaml.write_text(CONFIG.format(folder=folder, model=model, recipe=recipe, reward=SPREAD))
        self.said = io.StringIO()

    def run(self, *overrides: str) -> RunResult:
        console = Console(stream=self.said, results=self.said, live=False, width=200)
        return run_pipeline(load_config(self.yaml, overrides), None, console)

    def put_aside(self) -> dict[str, Any]:
        """What the run left, its output moved away so that the next run begins at the beginning."""
        left = self.left()
        (self.folder / "output").rename(self.folder / "output before")
        return left

    @property
    def experiment(self) -> Path:
        [found] = (self.folder / "output").glob("tiny-*")
        return found

    def left(self) -> dict[str, Any]:
        """What must be equal between an interrupted run and an uninterrupted one."""
        return left_in(self.experiment)

    def assert_it_trained(self, steps: int) -> None:
        """Every step had mixed groups and a gradient: silent groups would prove nothing."""
        records = read_metrics(self.experiment / "metrics.jsonl")
        assert [record["step"] for record in records] == list(range(1, steps + 1))
        assert all(record["groups"]["mixed"] > 0 and record["grad_norm"] > 0 for record in records)


def left_in(experiment: Path) -> dict[str, Any]:
    """Of an experiment: metrics but the measured keys, completions, weights and held-out answers, as bytes."""
    return {
        "metrics": [without_measured(record) for record in read_metrics(experiment / "metrics.jsonl")],
        "eval": read_metrics(experiment / "eval.jsonl"),
        "completions": {path.name: path.read_bytes() for path in (experiment / "completions").iterdir()},
        "weights": {
            str(path.relative_to(experiment)): path.read_bytes()
            for place in ("checkpoint", "adapter")
            for path in sorted((experiment / "train" / place).glob("*"))
        },
        "held out": (experiment / "validate" / "rows.jsonl").read_bytes(),
    }
