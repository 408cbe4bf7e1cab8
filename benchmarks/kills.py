"""Kills whole runs at random moments and continues them: how many end as the undisturbed one, byte for byte.

    uv run python benchmarks/kills.py --kills 100 --out benchmarks/results/kills.json
    uv run python benchmarks/kills.py --kills 200 --signal TERM --out benchmarks/results/signals.json

A tiny model and a reward that gives every group a spread; each run is a process of its own that gets a signal at a moment drawn
evenly over the time that an undisturbed run takes, up to three times in a row, and is then continued by the same command.
Compared are metrics (all keys but the measured ones), completions, weights, held-out answers and the names of all files.

With SIGTERM, stdout and stderr are in turn a terminal, pipes that are read at once, slowly or never, and one whose reader has
left; every run has to end within a minute, with a snapshot of the last step that it recorded.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "benchmarks"))

from machine import finish  # noqa: E402

import tests.conftest  # noqa: E402, F401  # offline, as the tests
from tests.invariants.conftest import Lab, everything_left, experiment  # noqa: E402
from tests.invariants.processes import Processes  # noqa: E402
from tests.tiny import tiny_dense  # noqa: E402

KINDS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "grpo, lora, kl, 3 iterations": (
        "method.iterations=3",
        "training.adapter.r=4",
        "training.lr=1e-2",
        "method.beta=0.1",
    ),
    "cispo, 3 iterations": ("pipeline.recipe=llm_cispo", "method.iterations=3"),
}
AGAIN = 3
"""How often at most one run is killed before it may end."""
STREAMS = ("terminal", "pipe", "slow pipe", "full pipe", "closed pipe")
PATIENCE = 60.0
"""Seconds after SIGTERM from which a process counts as hanging."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--signal", choices=["KILL", "TERM"], default="KILL")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LLMCLICK_CACHE"] = str(folder / "cache")
        result = measure(folder, options.kills, random.Random(options.seed), signal.Signals[f"SIG{options.signal}"])
    finish(result, options.out)


def measure(folder: Path, kills: int, draw: random.Random, number: signal.Signals) -> dict[str, Any]:
    model = tiny_dense(folder / "model")
    processes = Processes(folder)
    labs, wholes, seconds = {}, {}, {}
    for kind, overrides in KINDS.items():
        lab = labs[kind] = Lab(folder / f"lab-{len(labs)}", model, processes)
        lab.overrides = (*lab.overrides, *(f"--set={override}" for override in overrides))
        for attempt in range(2):  # the first one also loads what later ones find loaded
            output = lab.tiny.folder / f"whole-{attempt}"
            began = time.perf_counter()
            assert (ended := lab.run(output)).code == 0, ended.err
            seconds[kind] = time.perf_counter() - began
            wholes[kind] = everything_left(output)
    phases: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    killed = equal = runs = hanging = unsaved = 0
    different = []
    while killed < kills:
        kind = list(KINDS)[runs % len(KINDS)]
        lab, output = labs[kind], labs[kind].tiny.folder / f"run-{runs}"
        runs += 1
        for _ in range(draw.randint(1, min(AGAIN, kills - killed))):
            streams = STREAMS[killed % len(STREAMS)] if number == signal.SIGTERM else "files"
            process = lab.processes.start(lab.command(output), streams=streams)
            time.sleep(draw.uniform(0.0, seconds[kind]))
            os.kill(process.pid, number)
            hung = number == signal.SIGTERM and not _ends(process.pid)
            code = process.wait().code
            hanging += hung
            if code == 0:
                break  # it had ended
            killed += 1
            codes[f"{streams}: {code}"] += 1
            phases[_phase(output)] += 1
            unsaved += number == signal.SIGTERM and code == 130 and not _saved(output)
        ended = lab.run(output)
        same = ended.code == 0 and everything_left(output) == wholes[kind]
        equal += same
        if not same:
            different.append({"kind": kind, "exit": ended.code, "said": ended.err[-500:]})
        print(f"{killed} kills, {equal} of {runs} runs equal", file=sys.stderr)
    processes.close()
    return {
        "benchmark": "kills",
        "kills": killed,
        "runs": runs,
        "equal": equal,
        "signal": number.name,
        **({"hanging": hanging, "without a snapshot": unsaved, "ended": dict(codes)} if number == signal.SIGTERM else {}),
        "different": different,
        "killed while": dict(phases.most_common()),
        "kinds": list(KINDS),
    }


def _ends(pid: int) -> bool:
    """Whether a process ends (its parent has yet to look) within PATIENCE; one that does not is killed."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


def _saved(output: Path) -> bool:
    """Whether there is a snapshot of the last recorded step, where training had begun and not ended."""
    metrics = list(output.glob("tiny-*/metrics.jsonl"))
    if not metrics or (metrics[0].parent / "train" / "manifest.json").exists():
        return True
    steps = len(metrics[0].read_bytes().splitlines())
    return (metrics[0].parent / "train" / "snapshots" / f"step-{steps:08d}").is_dir()


def _phase(output: Path) -> str:
    """What a killed run was at, as its files show."""
    found = list(output.glob("tiny-*"))
    if not found or not (found[0] / "run.log").exists():
        return "planning"
    folder = experiment(output)
    if not (folder / "data" / "manifest.json").exists():
        return "data"
    if (folder / "train" / "manifest.json").exists():
        return "validate" if not (folder / "validate" / "manifest.json").exists() else "the end"
    if any(folder.glob("train/snapshots/.partial-*")):
        return "snapshot"
    if any(folder.glob("train/.checkpoint-*")) or (folder / "train" / "checkpoint").exists():
        return "checkpoint"
    return "steps" if (folder / "metrics.jsonl").exists() else "loading, first step"


if __name__ == "__main__":
    main()
