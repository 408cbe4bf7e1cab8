"""Seconds per optimizer step and peak memory, llmclick and TRL interleaved on one machine; only the ratios mean something.

    uv run python benchmarks/step.py [--workloads A,B,C] [--rounds 2] [--steps 4] [--precision bf16] [--model DIR]
        [--trl-python PYTHON] [--out FILE]

TRL runs in an environment of its own (`uv run --no-project --with trl==1.16.0`). The reward has seven values, so that a group
is silent (all completions equal, nothing to learn, and llmclick skips its gradient) only by chance: with groups of 4 in one of
340. Both sides say how often it happened, and medians are over steps without a silent group, the first step of each process
left out. Prints a table and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import finish
from sides import converted_folder, ours, theirs
from workloads import WORKLOADS

NAMES = {"ours": "llmclick", "trl": "TRL"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="A,B,C")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--trl-python", help="a Python that has trl, instead of uv's own environment")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: the first step of a process is not counted, so 2 at least")
    model = options.model or converted_folder()
    table: dict[str, Any] = {}
    print(f"{'':10}{'':10}  s a step   peak GB   tokens a step   mean length   silent groups", flush=True)
    for name in options.workloads.split(","):
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
        arguments = (model, name, options.steps, options.precision)
        for _ in range(options.rounds):
            found["ours"].append(ours("step_ours.py", *arguments))
            found["trl"].append(theirs("step_trl.py", options.trl_python, *arguments))
        table[name] = row = compared(found)
        for side, said in NAMES.items():
            print(
                f"{name:10}{said:10}{row['seconds'][side]:10.2f}{row['peak_gb'][side]:10.2f}{row['tokens_per_step'][side]:16}"
                f"{row['mean_length'][side]:14.1f}{row['silent_groups'][side]:10} of {row['groups'][side]}",
                flush=True,
            )
        print(f"{'':10}{row['speed_ratio']}x as fast, with {row['memory_share']:.0%} of the memory", flush=True)
    finish({"benchmark": "step", "precision": options.precision, "steps": options.steps, "workloads": table}, options.out)


def compared(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """One workload's row: medians over the counted steps of all rounds, the largest peak, what was sampled."""
    seconds = {side: pooled(results) for side, results in found.items()}
    memory = {side: max(result["peak_gb"] for result in results) for side, results in found.items()}
    workload = WORKLOADS[found["ours"][0]["workload"]]
    return {
        "seconds": seconds,
        "speed_ratio": round(seconds["trl"] / seconds["ours"], 2),
        "peak_gb": memory,
        "peak_gb_with_checkpoint": max(result["peak_gb_with_checkpoint"] for result in found["ours"]),
        "memory_share": round(memory["ours"] / memory["trl"], 2),
        "tokens_per_step": {side: averaged(results, "tokens_per_step", 0) for side, results in found.items()},
        "mean_length": {side: averaged(results, "mean_length", 2) for side, results in found.items()},
        "silent_groups": {side: sum(sum(result["silent_groups"]) for result in results) for side, results in found.items()},
        "groups": {
            side: sum(len(result["seconds"]) for result in results) * workload.prompts * workload.accumulation
            for side, results in found.items()
        },
        "phases": {
            phase: round(statistics.median(result["phases"][phase] for result in found["ours"]), 3)
            for phase in found["ours"][0]["phases"]
        },
        "rounds": found,
    }


def pooled(results: list[dict[str, Any]]) -> float:
    """The median over the steps that count: over all rounds those without a silent group, if there are any."""
    steps = [
        (result["seconds"][step], result["silent_groups"][step])
        for result in results
        for step in range(1, len(result["seconds"]))
    ]
    mixed = [seconds for seconds, silent in steps if not silent]
    return round(statistics.median(mixed or [seconds for seconds, _ in steps]), 3)


def averaged(results: list[dict[str, Any]], key: str, digits: int) -> float:
    return round(statistics.mean(result[key] for result in results), digits or None)


if __name__ == "__main__":
    main()
