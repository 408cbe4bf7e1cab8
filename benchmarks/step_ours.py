"""One side of step.py: seconds per optimizer step, tokens and peak memory of llmclick, as JSON.

python benchmarks/step_ours.py MODEL WORKLOAD STEPS PRECISION
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from machine import LIBRARIES, versions
from sides import peak_gb
from workloads import WORKLOADS, comparable, rows, typical

CONFIG = """\
pipeline: {{recipe: llm_grpo, name: bench, output_dir: {folder}/out, imports: [{folder}/reward.py], stages: [data, train]}}
model: {{name: {model}}}
data: {{sources: [{{name: local_jsonl, path: {folder}/rows.jsonl}}], validation: 4}}
method: {{group_size: {w.group}, max_new_tokens: {w.new}, reward: {{name: spread}}}}
training:
  {{lr: 2e-6, batch_size: {w.prompts}, accumulation: {w.accumulation}, max_length: 1024, max_steps: {steps},
   precision: {precision}, save_every: 1000}}
"""

REWARD = """\
import zlib
from llmclick.modeling.llm.methods.grpo import REWARDS

@REWARDS.register("spread")
def spread(completion, row, params):
    return zlib.crc32(completion.encode("utf-8", "surrogatepass")) % 7 / 6
"""


def main() -> None:
    from llmclick.modeling.llm.process import prepare_environment

    prepare_environment()
    from llmclick.config.load import load_config
    from llmclick.pipeline.run import run
    from llmclick.tracking.console import Console
    from llmclick.tracking.metrics import read_metrics

    model, name, steps, precision = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(workload.filler)))
        (folder / "reward.py").write_text(REWARD)
        yaml = CONFIG.format(folder=folder, model=model, w=workload, steps=steps, precision=precision)
        (folder / "config.yaml").write_text(yaml)
        result = run(load_config(folder / "config.yaml"), None, Console(json_mode=True))
        records = read_metrics(result.experiment / "metrics.jsonl")
    silent = [sum(record["groups"][kind] for kind in ("all_right", "all_wrong")) for record in records]
    seconds = [record["seconds"]["total"] for record in records]
    counted = comparable(silent)
    mean_length = sum(record["length"] for record in records) / len(records)
    print(
        json.dumps(
            {
                "side": "llmclick",
                "workload": name,
                "seconds": [round(value, 3) for value in seconds],
                "silent_groups": silent,
                "median_after_first": typical(seconds, counted),
                "phases": {
                    phase: typical([record["seconds"][phase] for record in records], counted)
                    for phase in ("sample", "score", "train", "sync")
                },
                "peak_gb": round(records[-1]["peak_memory"], 2),  # TRL writes no checkpoint either
                "peak_gb_with_checkpoint": round(peak_gb(), 2),
                "mean_length": round(mean_length, 2),
                "tokens_per_step": round(mean_length * workload.completions),
                "versions": versions(LIBRARIES),
            }
        )
    )


if __name__ == "__main__":
    main()
