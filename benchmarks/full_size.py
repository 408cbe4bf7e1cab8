"""configs/llm/grpo.yaml on a random checkpoint of Qwen3.5-0.8B's exact shape: seconds by phase, peak memory, TRL beside it.

    uv run python benchmarks/full_size.py [--model DIR] [--adapter] [--no-trl] [--validate] [--trl-steps 2]
        [--trl-python PYTHON] [--out FILE]

The page's settings are unchanged but for `model.name` and the reward: random weights never answer right, so the reward is one
with seven values, through `pipeline.imports`. Every group has to have trained in every step. The checkpoint (1.7 GB) is made
in a temporary folder, or in --model, where it is found again the next time. --adapter runs the config once more with
`training.adapter`; --validate goes on to the gate. TRL trains the same checkpoint with the same settings for a few steps; the
first step does not count on either side. Peak memory is given for the steps, which is what TRL's says too, and for the whole
process, in which the checkpoint is also written. Prints a table and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import finish
from sides import ROOT, ours, ready, theirs
from workloads import comparable, typical

CONFIG = ROOT / "configs" / "llm" / "grpo.yaml"
REWARD = ROOT / "tests" / "spread_reward.py"
PARAMETERS = 752_393_024
"""Of the 0.8B's text model."""
PHASES = ("sample", "score", "train", "sync", "total")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint folder to reuse; made there if it does not exist")
    parser.add_argument("--adapter", action="store_true", help="also with training.adapter")
    parser.add_argument("--no-full", action="store_true", help="leave full training out")
    parser.add_argument("--no-trl", action="store_true")
    parser.add_argument("--trl-steps", type=int, default=2)
    parser.add_argument("--validate", action="store_true", help="all stages, to the gate")
    parser.add_argument("--trl-python", help="a Python that has trl, instead of uv's own environment")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.trl_steps < 2:
        parser.error("--trl-steps: the first step does not count, so 2 at least")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or folder / "model"
        if not (model / "config.json").exists():
            print(f"making a random checkpoint of the 0.8B's shape in {model}", flush=True)
            made = ours("models.py", "qwen3.5-0.8b", model)["parameters"]
            assert made == PARAMETERS, f"{made:,} text parameters instead of {PARAMETERS:,}"
        result: dict[str, Any] = {"benchmark": "full_size"}
        print(f"{'seconds a step':22}{''.join(f'{phase:>9}' for phase in PHASES)}   peak GB   with checkpoint", flush=True)
        variants = ([] if options.no_full else ["full"]) + (["adapter"] if options.adapter else [])
        for variant in variants:
            result[variant] = run = summary(llmclick(model, folder / variant, variant, options.validate))
            line(f"llmclick, {variant}", run["phases"], run["peak_gb"], run["peak_gb_whole"])
        if not options.no_trl:
            ready(options.trl_python)
            task = json.dumps(settings(model) | {"steps": options.trl_steps})
            result["trl"] = run = theirs("full_size_trl.py", options.trl_python, model, task)
            line("TRL, full", {"total": run["median"]}, run["peak_gb"])
            if "full" in result:
                result["speed_ratio"] = round(run["median"] / result["full"]["phases"]["total"], 2)
                second = [result["full"]["steps"][1]["seconds"]["total"], run["seconds"][1]]
                result["speed_ratio_second_step"] = round(second[1] / second[0], 2)
                result["memory_share"] = round(result["full"]["peak_gb"] / run["peak_gb"], 2)
                print(
                    f"{result['speed_ratio']}x as fast (in step 2 alone {result['speed_ratio_second_step']}x), with "
                    f"{result['memory_share']:.0%} of the memory",
                    flush=True,
                )
    finish(result, options.out)


def overrides(model: Path) -> dict[str, Any]:
    """All that differs from the page's file."""
    return {
        "model.name": model.absolute(),
        "model.revision": "null",
        "method.reward.name": "spread",
        "pipeline.imports": f"[{REWARD}]",
    }


def llmclick(model: Path, output: Path, variant: str, validate: bool) -> dict[str, Any]:
    changes = overrides(model) | {"pipeline.output_dir": output}
    if variant == "adapter":
        changes["training.adapter"] = "{name: lora}"
    stages = "data,train,validate" if validate else "data,train"
    return ours("one_run.py", CONFIG, "--stages", stages, *(f"--set={key}={value}" for key, value in changes.items()))


def summary(run: dict[str, Any]) -> dict[str, Any]:
    """Seconds by phase and peak memory of one run. Fails where a group did not train."""
    for step in run["steps"]:
        silent = step["groups"]["all_right"] + step["groups"]["all_wrong"]
        if silent:
            print(f"{silent} groups of step {step['step']} were silent by chance (an even draw: one in 340)", flush=True)
        assert step["grad_norm"] > 0, step
    counted = comparable([0] * len(run["steps"]))
    phases = {phase: typical([step["seconds"][phase] for step in run["steps"]], counted) for phase in PHASES}
    return {**run, "phases": phases, "peak_gb": round(run["steps"][-1]["peak_memory"], 2), "peak_gb_whole": run["peak_gb"]}


def settings(model: Path) -> dict[str, Any]:
    """What TRL is told, from the page's file."""
    from llmclick.config.load import load_config
    from llmclick.modeling.llm.compute import resolve_compute

    config = load_config(CONFIG, [f"{key}={value}" for key, value in overrides(model).items()])
    (source,) = config.data.sources
    return {
        "rows": str(ROOT / source.path),
        "group": config.method.group_size,
        "new": config.method.max_new_tokens,
        "temperature": config.method.temperature,
        "batch": config.training.batch_size,
        "accumulation": config.training.accumulation,
        "lr": config.training.lr,
        "bf16": resolve_compute(config).precision == "bf16",
    }


def line(name: str, phases: dict[str, float], peak: float, whole: float | None = None) -> None:
    columns = "".join(f"{phases.get(phase, '-'):>9}" for phase in PHASES)
    print(f"{name:22}{columns}{peak:10.2f}{'' if whole is None else f'{whole:18.2f}'}", flush=True)


if __name__ == "__main__":
    main()
