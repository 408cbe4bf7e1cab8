"""llmclick's side of quickstart.py, and the rows that both sides train on.

python benchmarks/quickstart_ours.py task FILE ROUND PRECISION STEPS FOLDER
python benchmarks/quickstart_ours.py train STARTED ROUND PRECISION REWARD STEPS FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import LIBRARIES, versions
from sides import ROOT, peak_gb


class Reached(Exception):
    """The held-out rows are answered well enough: the clock has stopped."""


def main() -> None:
    from llmclick.modeling.llm.process import prepare_environment

    prepare_environment()
    what, arguments = sys.argv[1], sys.argv[2:]
    print(json.dumps(task(*arguments) if what == "task" else train(*arguments)))


def read(number: str, precision: str, steps: str, folder: str) -> Any:
    """The shipped config with the few keys that the measurement needs."""
    from llmclick.config.load import load_config

    path = str(ROOT / "configs" / "llm" / "quickstart.yaml")
    seed = load_config(path).pipeline.seed + int(number)
    changes = {
        "pipeline.seed": seed,
        "pipeline.output_dir": folder,
        "training.max_steps": steps,
        "training.precision": precision,
        "training.eval_every": 1,
        "training.eval_rows": 1000,  # all that are held out
    }
    return load_config(path, [f"{key}={value}" for key, value in changes.items()])


def task(file: str, number: str, precision: str, steps: str, folder: str) -> dict[str, Any]:
    """Writes what TRL needs to do the same: rows in the order of our steps, held-out rows, settings."""
    from llmclick.data.order import Stream
    from llmclick.modeling.llm.compute import resolve_compute
    from llmclick.pipeline.data import read_dataset
    from llmclick.pipeline.run import run
    from llmclick.tracking.console import Console

    config = read(number, precision, steps, folder)
    dataset = read_dataset(run(config, ["data"], Console(json_mode=True)).experiment / "data")
    per_step = config.training.batch_size * config.training.accumulation
    stream = Stream(
        [prompt.row.id for prompt in dataset.train],
        epochs=config.training.epochs,
        per_batch=per_step,
        seed=config.pipeline.seed,
    )
    train = [dataset.train[draw.index] for index in range(int(steps)) for draw in stream.batch(index)]
    reward = config.method.reward[0]
    content = {
        "train": [record(prompt) for prompt in train],
        "held_out": [record(prompt) for prompt in dataset.validation],
        "reward": {"name": reward.name, "params": dict(reward.params)},
        "group": config.method.group_size,
        "new": config.method.max_new_tokens,
        "temperature": config.method.temperature,
        "clip": config.method.clip,
        "batch": config.training.batch_size,
        "accumulation": config.training.accumulation,
        "lr": config.training.lr,
        "weight_decay": config.training.weight_decay,
        "max_grad_norm": config.training.max_grad_norm,
        "bf16": resolve_compute(config).precision == "bf16",
        "seed": int(number) + 1,
    }
    assert (config.method.average, config.method.scale, config.method.beta, config.method.iterations) == (
        "token",
        "group",
        0,
        1,
    )
    assert (config.training.schedule, config.training.warmup, config.method.truncated) == ("constant", 0, "score")
    Path(file).write_text(json.dumps(content), "utf-8")
    return {"train": len(train), "held_out": len(dataset.validation)}


def record(prompt: Any) -> dict[str, Any]:
    return {"row": prompt.row.data, "ids": list(prompt.ids)}


def train(started: str, number: str, precision: str, reward: str, steps: str, folder: str) -> dict[str, Any]:
    """Trains until the held-out rows have that reward. `started` is when this process was asked for (seconds since 1970)."""
    import llmclick.pipeline.train as stage
    from llmclick.pipeline.run import run
    from llmclick.tracking.console import Console
    from llmclick.tracking.metrics import read_metrics

    config = read(number, precision, steps, folder)
    answer = stage.evaluate_policy
    clock = {"evaluation": 0.0, "seconds": 0.0}
    curve: list[float] = []

    def watched(*arguments: Any) -> dict[str, Any]:
        began = time.time()
        found = answer(*arguments)
        clock["seconds"] = began - float(started) - clock["evaluation"]
        clock["evaluation"] += time.time() - began
        curve.append(found["reward"])
        if found["reward"] >= float(reward):
            raise Reached
        return found

    stage.evaluate_policy = watched
    reached = False
    try:
        run(config, ["data", "train"], Console(json_mode=True))
    except Reached:
        reached = True
    (experiment,) = Path(folder).glob(f"{config.pipeline.name}-*")
    completions = config.training.batch_size * config.training.accumulation * config.method.group_size
    return {
        "reached": reached,
        "seconds": round(clock["seconds"], 2),
        "evaluation": round(clock["evaluation"], 2),
        "before_training": curve[0],
        "steps": [
            {
                "seconds": round(metrics["seconds"]["total"], 3),
                "reward": metrics["reward"],
                "held_out": held_out,
                "tokens": round(metrics["length"] * completions),
                "mixed": metrics["groups"]["mixed"],
            }
            for metrics, held_out in zip(read_metrics(experiment / "metrics.jsonl"), curve[1:], strict=True)
        ],
        "peak_gb": peak_gb(),
        "versions": versions(LIBRARIES),
    }


if __name__ == "__main__":
    main()
