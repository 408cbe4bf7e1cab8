"""Seconds until the quickstart's model answers its held-out rows, llmclick and TRL with equal settings, interleaved.

    uv run python benchmarks/quickstart.py [--rounds 1] [--reward 0.9] [--most-steps 20] [--no-gate]
        [--precision auto] [--trl-python PYTHON] [--out FILE]

The clock runs from the start of the process to the end of the first optimizer step after which the held-out rows, answered
greedily, have at least that mean reward. Both sides answer them after every step, and the time that this takes is taken off on
both. Rows, their order, prompts, reward, batch, group, budget and learning rate are those of configs/llm/quickstart.yaml; so
is the precision unless --precision names another for both sides; round k adds k to the seed on both sides. max_steps is raised,
which changes no step because the learning rate is constant. The model is converted before. Also measured: `llmclick run
configs/llm/quickstart.yaml` in a fresh output folder, from the command to the passed gate. Ends in one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import finish
from sides import ROOT, converted_folder, ours, ready, theirs

CONFIG = ROOT / "configs" / "llm" / "quickstart.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--reward", type=float, default=0.9)
    parser.add_argument("--most-steps", type=int, default=20, help="a side that needs more has not reached it")
    parser.add_argument("--no-gate", action="store_true", help="leave the whole run to the passed gate out")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="auto")
    parser.add_argument("--trl-python", help="a Python that has trl, instead of uv's own environment")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = converted_folder()
    ready(options.trl_python)
    found: dict[str, list[dict[str, Any]]] = {"llmclick": [], "trl": []}
    gate = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(options.rounds):
            task = folder / f"task-{number}.json"
            same = (number, options.precision)
            ours("quickstart_ours.py", "task", task, *same, options.most_steps, folder / f"rows-{number}")
            limits = (options.reward, options.most_steps)
            began = time.time()
            found["llmclick"].append(ours("quickstart_ours.py", "train", began, *same, *limits, folder / f"train-{number}"))
            say("llmclick", found["llmclick"][-1])
            began = time.time()
            found["trl"].append(theirs("quickstart_trl.py", options.trl_python, began, model, task, *limits, folder / "trl"))
            say("TRL", found["trl"][-1])
            if not options.no_gate:
                gate.append(whole_run(folder / f"gate-{number}"))
                print(f"llmclick run to the gate: {gate[-1]['seconds']:.1f} s, passed: {gate[-1]['passed']}", flush=True)
    reached = all(result["reached"] for results in found.values() for result in results)
    seconds = {side: statistics.median(result["seconds"] for result in results) for side, results in found.items()}
    ratio = round(seconds["trl"] / seconds["llmclick"], 2)
    print(f"\n{'':10}seconds to {options.reward:g}   steps   seconds a step   tokens sampled")
    for side, results in found.items():
        steps = statistics.median(len(result["steps"]) for result in results)
        each = statistics.median(step["seconds"] for result in results for step in result["steps"])
        tokens = statistics.median(sum(step["tokens"] for step in result["steps"]) for result in results)
        print(f"{side:10}{seconds[side]:12.1f}{steps:11g}{each:17.2f}{tokens:17g}")
    print(
        f"{ratio}x as fast" + ("" if reached else f"; NOT REACHED within {options.most_steps} steps, the ratio means nothing")
    )
    finish(
        {
            "benchmark": "quickstart",
            "held_out_reward": options.reward,
            "precision": options.precision,
            "reached": reached,
            "seconds": seconds,
            "speed_ratio": ratio,
            "gate": gate,
            "rounds": found,
        },
        options.out,
    )


def say(side: str, result: dict[str, Any]) -> None:
    curve = ", ".join(f"{step['held_out']:.2f}" for step in result["steps"])
    print(
        f"{side}: {result['seconds']:.1f} s without {result['evaluation']:.1f} s of answering held-out rows; reward after each "
        f"step: {curve}",
        flush=True,
    )


def whole_run(output: Path) -> dict[str, Any]:
    """`llmclick run` on the shipped file: seconds on the wall, and what the gate said."""
    command = [sys.executable, "-m", "llmclick.cli", "run", str(CONFIG), "--json", "--set", f"pipeline.output_dir={output}"]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return {"seconds": round(seconds, 2), "passed": said["passed"], "metrics": said["metrics"], "stages": said["stages"]}


if __name__ == "__main__":
    main()
