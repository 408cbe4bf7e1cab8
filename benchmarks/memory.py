"""Peak memory of training against vocabulary size, completion length and group size, each on a random dense model.

    uv run python benchmarks/memory.py [--steps 2] [--only vocabulary,completion,group] [--out FILE]

The models have 8 layers of width 256, tied, and no token ends a completion, so every one has the asked length. Each case is a
process of its own that takes two optimizer steps (in the second one the optimizer's state is there) on 2 prompts with their
groups. Shown is the largest memory of that process from start to end, with libraries, loading and sampling. The largest
vocabulary with 16 completions of 256 tokens must stay under 3 GB. Prints a table and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import finish
from sides import ROOT, ours
from workloads import rows

PROMPTS = 2
ALLOWED_GB = 3.0
CONFIG = """\
pipeline: {{recipe: llm_grpo, name: memory, output_dir: {output}, imports: [{reward}]}}
model: {{name: {model}}}
data: {{sources: [{{name: local_jsonl, path: {rows}}}], validation: 4}}
method: {{group_size: {group}, max_new_tokens: {completion}, reward: {{name: spread}}}}
training: {{lr: 1.0e-5, batch_size: {prompts}, max_length: 8192, max_steps: {steps}, save_every: 1000}}
"""


@dataclass(frozen=True)
class Case:
    vocabulary: int = 32_768
    completion: int = 256
    group: int = 8

    @property
    def logits_gb(self) -> float:
        """Of one step's logits in fp32, were they ever all there at once."""
        return PROMPTS * self.group * self.completion * self.vocabulary * 4 / 1e9


BASE = Case()
LIMITED = Case(vocabulary=248_320)
SWEEPS: dict[str, list[Case]] = {
    "vocabulary": [replace(BASE, vocabulary=size) for size in (32_768, 65_536, 131_072, LIMITED.vocabulary)],
    "completion": [replace(BASE, completion=length) for length in (64, 128, 256, 512)],
    "group": [replace(BASE, completion=64, group=size) for size in (4, 8, 16, 32)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--only", default=",".join(SWEEPS), help="some of vocabulary, completion, group")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    asked = {name: SWEEPS[name] for name in options.only.split(",")}
    measured: dict[Case, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        measure = measurer(Path(name), options.steps)
        print("vocabulary   completions   tokens each   peak GB   logits of a step would be GB   seconds a step", flush=True)
        for cases in asked.values():
            for case in cases:
                if case not in measured:
                    measured[case] = found = measure(case)
                    print(
                        f"{case.vocabulary:10}{PROMPTS * case.group:14}{case.completion:14}{found['peak_gb']:10.2f}"
                        f"{case.logits_gb:33.2f}{found['seconds'][-1]:17.2f}",
                        flush=True,
                    )
    result: dict[str, Any] = {
        "benchmark": "memory",
        "sweeps": {
            name: [{**vars(case), "completions": PROMPTS * case.group, **measured[case]} for case in cases]
            for name, cases in asked.items()
        },
    }
    if LIMITED in measured:
        result["limit"] = {"allowed_gb": ALLOWED_GB, "peak_gb": measured[LIMITED]["peak_gb"]}
        kept = measured[LIMITED]["peak_gb"] < ALLOWED_GB
        print(f"{LIMITED.vocabulary} ids, 16 x 256 tokens: {'under' if kept else 'NOT UNDER'} the {ALLOWED_GB:g} GB allowed")
    finish(result, options.out)


def measurer(folder: Path, steps: int) -> Callable[[Case], dict[str, Any]]:
    """Measures a case in a process of its own; models are made once, also in processes of their own."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(0)), "utf-8")

    def measure(case: Case) -> dict[str, Any]:
        model = folder / f"model-{case.vocabulary}"
        if not model.exists():
            ours("models.py", "dense", model, case.vocabulary)
        text = CONFIG.format(
            output=folder / "out",
            reward=ROOT / "tests" / "spread_reward.py",
            model=model,
            rows=folder / "rows.jsonl",
            group=case.group,
            completion=case.completion,
            prompts=PROMPTS,
            steps=steps,
        )
        (folder / "config.yaml").write_text(text, "utf-8")
        return checked(case, ours("one_run.py", folder / "config.yaml"))

    return measure


def checked(case: Case, run: dict[str, Any]) -> dict[str, Any]:
    """The case's numbers. Fails if the steps did not do all the work that their memory is measured for."""
    steps: Sequence[dict[str, Any]] = run["steps"]
    for step in steps:
        assert step["length"] == case.completion, step
        assert step["groups"]["mixed"], "every group was silent"
        assert step["grad_norm"] > 0, step
    return {
        "peak_gb": run["peak_gb"],
        "precision": run["precision"],
        "seconds": [round(step["seconds"]["total"], 3) for step in steps],
        "silent_groups": [PROMPTS - step["groups"]["mixed"] for step in steps],
    }


if __name__ == "__main__":
    main()
