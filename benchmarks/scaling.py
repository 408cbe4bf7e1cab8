"""How the cost of an optimizer step grows with prompt length, completion length, group size and prompts per step.

    uv run python benchmarks/scaling.py [--steps 4] [--only prompt,completion,group,prompts] [--plot docs/public/scaling.svg]
        [--out FILE]

The embedded model, full training; each quantity takes four values over a factor of 8 while the others stay fixed. The exponent
of seconds against the quantity is the slope of a least-squares line through the logarithms, and at most 1.1 is asked for (1 is
proportional, less is a fixed cost being shared). In the copy of the model that is measured no token ends a completion, so
lengths are exact. Each point is a process of its own, and its seconds are the median over the steps after the first, those with
a silent group left out if others are there. Prints a table and ends in one JSON line; --plot draws it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import finish
from plot import Panel, panels_svg
from sides import ROOT, converted_folder, ours
from workloads import comparable, rows, typical

ALLOWED = 1.1
CONFIG = """\
pipeline: {{recipe: llm_grpo, name: scaling, output_dir: {output}, imports: [{reward}]}}
model: {{name: {model}}}
data: {{sources: [{{name: local_jsonl, path: {rows}}}], validation: 4}}
method: {{group_size: {case.group}, max_new_tokens: {case.completion}, reward: {{name: spread}}}}
training: {{lr: 1.0e-6, batch_size: {case.prompts}, max_length: 4096, max_steps: {steps}, save_every: 1000}}
"""


@dataclass(frozen=True)
class Case:
    """`prompt` counts the filler sentences before the question; its tokens are measured."""

    prompt: int = 28
    completion: int = 16
    group: int = 4
    prompts: int = 4


BASE = Case()
VALUES: dict[str, tuple[int, ...]] = {
    "prompt": (4, 28, 70, 156),
    "completion": (8, 16, 32, 64),
    "group": (4, 8, 16, 32),
    "prompts": (2, 4, 8, 16),
}
LABELS = {
    "prompt": "prompt length (tokens)",
    "completion": "completion length (tokens)",
    "group": "group size",
    "prompts": "prompts per step",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", default=",".join(VALUES), help="some of prompt, completion, group, prompts")
    parser.add_argument("--values", type=int, default=4, help="how many of the values, for a quick look")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: the first step of a process is not counted, so 2 at least")
    measured: dict[Case, dict[str, Any]] = {}
    sweeps: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        measure = measurer(Path(name), options.steps)
        print(f"{'varied':28}   value   seconds a step   sample   train", flush=True)
        for quantity in options.only.split(","):
            points = []
            for value in VALUES[quantity][: options.values]:
                case = replace(BASE, **{quantity: value})
                found = measured[case] = measured.get(case) or measure(case)
                at = found["prompt_tokens"] if quantity == "prompt" else value
                points.append({"value": at, **found})
                print(
                    f"{LABELS[quantity]:28}{at:8g}{found['seconds']:17.2f}{found['phases']['sample']:9.2f}"
                    f"{found['phases']['train']:8.2f}",
                    flush=True,
                )
            exponent, factor = fitted([(point["value"], point["seconds"]) for point in points])
            sweeps[quantity] = {"exponent": round(exponent, 3), "factor": factor, "points": points}
            print(f"{'':28}exponent {exponent:.2f}{'' if exponent <= ALLOWED else f', MORE THAN {ALLOWED:g}'}", flush=True)
    if options.plot is not None:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(drawn(sweeps), "utf-8")
    finish(
        {
            "benchmark": "scaling",
            "fixed": {**vars(BASE), "prompt": measured[BASE]["prompt_tokens"] if BASE in measured else None},
            "allowed": ALLOWED,
            "exponents": {quantity: sweep["exponent"] for quantity, sweep in sweeps.items()},
            "sweeps": sweeps,
        },
        options.out,
    )


def measurer(folder: Path, steps: int) -> Callable[[Case], dict[str, Any]]:
    """Measures a case in a process of its own."""
    model = folder / "model"
    ours("models.py", "without-stop", model, converted_folder())

    def measure(case: Case) -> dict[str, Any]:
        place = folder / f"rows-{case.prompt}.jsonl"
        place.write_text("".join(json.dumps(row) + "\n" for row in rows(case.prompt)), "utf-8")
        text = CONFIG.format(
            output=folder / "out",
            reward=ROOT / "tests" / "spread_reward.py",
            model=model,
            rows=place,
            case=case,
            steps=steps,
        )
        (folder / "config.yaml").write_text(text, "utf-8")
        run = ours("one_run.py", folder / "config.yaml")
        for step in run["steps"]:
            assert step["length"] == case.completion, step
            assert step["grad_norm"] > 0, step
        silent = [case.prompts - step["groups"]["mixed"] for step in run["steps"]]
        counted = comparable(silent)
        seconds = {
            phase: typical([step["seconds"][phase] for step in run["steps"]], counted) for phase in ("sample", "train", "total")
        }
        return {
            "prompt_tokens": run["prompt_tokens"],
            "seconds": seconds["total"],
            "phases": {phase: seconds[phase] for phase in ("sample", "train")},
            "silent_groups": silent,
            "peak_gb": run["peak_gb"],
        }

    return measure


def fitted(points: list[tuple[float, float]]) -> tuple[float, float]:
    """(b, a) of seconds = a x value^b, by least squares through the logarithms.

    >>> [round(number, 6) for number in fitted([(1, 3), (2, 12), (4, 48)])]
    [2.0, 3.0]
    """
    slope, intercept = statistics.linear_regression([math.log(x) for x, _ in points], [math.log(y) for _, y in points])
    return slope, math.exp(intercept)


def drawn(sweeps: dict[str, Any]) -> str:
    return panels_svg(
        "Seconds per optimizer step, SmolLM2-135M on a CPU (both axes logarithmic; dashed: proportional)",
        [
            Panel(
                LABELS[quantity],
                [(point["value"], point["seconds"]) for point in sweep["points"]],
                sweep["exponent"],
                sweep["factor"],
            )
            for quantity, sweep in sweeps.items()
        ],
    )


if __name__ == "__main__":
    main()
