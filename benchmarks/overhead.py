"""What everything that a run leaves to read costs: `python benchmarks/overhead.py output/NAME-1a2b3c4d`.

The files of a finished run are written once more, one step after the other, as the run wrote them: metrics.jsonl and
completions/ with their fsyncs, the terminal's lines and live bars, the trackers that are installed, report.html at the end. The
seconds of that, against the seconds that the run's stages took. A run need not be repeated, so the numbers do not depend on
how evenly a machine computes; seconds are those of a clock on the wall, with the threads of bars and trackers in them.

Exit code 1 when it is more than 2 % of the run, trackers not counted in (their cost is shown beside it).
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmclick.report.experiment import Experiment, read_experiment
from llmclick.report.page import write_report
from llmclick.report.story import stage_seconds
from llmclick.tracking.completions import CompletionsFolder
from llmclick.tracking.console import Console
from llmclick.tracking.metrics import MetricsFile
from llmclick.tracking.trackers import TRACKERS, TrackedRun, Tracking

ALLOWED = 0.02
WATCHED = 3.0
"""Seconds for which idle bars are watched, to know what redrawing them costs per second."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, help="the folder of a finished run")
    parser.add_argument("--seconds", type=float, help="how long the run took, if not what its stages say")
    asked = parser.parse_args()
    run = read_experiment(asked.experiment)
    whole = asked.seconds or sum(seconds for _, seconds in stage_seconds(run))
    steps = {step: run.completions.read(step) for step in run.completions.steps()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        own = {
            "metrics.jsonl": timed(lambda: write_metrics(run, folder)),
            "completions/": timed(lambda: write_completions(steps, folder)),
            "terminal": timed(lambda: talk(run, live=True)) + redrawing() * whole,
            "report.html": timed(lambda: write_report(copied(run, folder))),
        }
        trackers = {
            f"tracker {name}": timed(lambda name=name: track(run, folder / name, name))  # type: ignore[misc]
            for name in TRACKERS.names()
            if importlib.util.find_spec(str(TRACKERS.get(name).options["package"])) and name != "wandb"
        }
    total = sum(own.values())
    console = Console(stream=sys.stderr)
    console.table(
        f"{run.folder.name}: {len(run.metrics)} steps, {sum(map(len, steps.values()))} completions, {whole:.0f} s",
        ("what", "seconds", "ms a step", "% of the run"),
        [
            (name, seconds, 1000 * seconds / max(1, len(run.metrics)), 100 * seconds / whole)
            for name, seconds in [*own.items(), ("all of these", total), *trackers.items()]
        ],
    )
    passed = total <= ALLOWED * whole
    console.result(f"{100 * total / whole:.2f} % of the run; {'within' if passed else 'MORE THAN'} the {ALLOWED:.0%} allowed")
    return 0 if passed else 1


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def write_metrics(run: Experiment, folder: Path) -> None:
    metrics, curve = MetricsFile(folder / "metrics.jsonl"), MetricsFile(folder / "eval.jsonl")
    for record in run.metrics:
        metrics.append(record)
    for record in run.evaluations:
        curve.append(record)


def write_completions(steps: dict[int, list[dict[str, Any]]], folder: Path) -> None:
    completions = CompletionsFolder(folder / "completions")
    for step, records in steps.items():
        completions.write(step, records)


def talk(run: Experiment, live: bool) -> None:
    """The lines and bars of training: a bar that moves with every token, one for the rewards, one for the gradient."""
    console = Console(stream=io.StringIO(), results=io.StringIO(), live=live, width=80)
    tokens = int(run.setting("method.max_new_tokens") or 256)
    console.steps(0, len(run.metrics))
    for number, record in enumerate(run.metrics, 1):
        with console.progress(f"sampling for step {number}", tokens, "tokens") as bar:
            for position in range(tokens):
                bar.reach(position + 1)
        for what in ("rewards", "gradient"):
            with console.progress(f"{what} of step {number}", None):
                pass
        console.step(record, number, len(run.metrics))
    console.close()


def redrawing() -> float:
    """CPU seconds per second while two bars are on the screen and nothing moves."""
    console = Console(stream=io.StringIO(), results=io.StringIO(), live=True, width=80)
    console.steps(0, 10)
    with console.progress("sampling for step 1", 100, "tokens"):
        began = time.process_time()
        time.sleep(WATCHED)
        used = time.process_time() - began
    console.close()
    return used / WATCHED


def track(run: Experiment, folder: Path, name: str) -> None:
    folder.mkdir()
    tracking = Tracking(name, TrackedRun(folder, run.config), lambda text: print(text, file=sys.stderr))
    for record in run.metrics:
        tracking.log(record)
    tracking.close()


def copied(run: Experiment, folder: Path) -> Path:
    """The run's folder without its weights, to write a page into."""
    place = folder / "copy"
    shutil.copytree(run.folder, place, ignore=shutil.ignore_patterns("*.safetensors", "data", "checkpoint", "adapter"))
    return place


if __name__ == "__main__":
    sys.exit(main())
