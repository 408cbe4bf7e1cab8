"""One training run in a process of its own: metrics of every step, prompt length and peak memory, as JSON.

python benchmarks/one_run.py CONFIG [--stages data,train] [--set KEY=VALUE]...
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sides import peak_gb

KEPT = ("step", "reward", "groups", "length", "truncated", "mismatch", "grad_norm", "seconds", "peak_memory")


def main() -> None:
    from llmclick.modeling.llm.process import prepare_environment

    prepare_environment()
    from llmclick.config.load import load_config
    from llmclick.modeling.llm.compute import resolve_compute
    from llmclick.pipeline.data import read_dataset
    from llmclick.pipeline.run import run
    from llmclick.tracking.console import Console
    from llmclick.tracking.metrics import read_metrics

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--stages", default="data,train")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    config = load_config(options.config, options.set)
    result = run(config, options.stages.split(","), Console(json_mode=True))
    records = read_metrics(result.experiment / "metrics.jsonl")
    prompts = read_dataset(result.experiment / "data").train
    print(
        json.dumps(
            {
                "precision": resolve_compute(config).precision,
                "steps": [{key: record[key] for key in KEPT} for record in records],
                "prompt_tokens": round(statistics.mean(len(prompt.ids) for prompt in prompts), 1),
                "completions": config.training.batch_size * config.training.accumulation * config.method.group_size,
                "peak_gb": peak_gb(),
                "stages": result.stages,
                "metrics": result.metrics,
            }
        )
    )


if __name__ == "__main__":
    main()
