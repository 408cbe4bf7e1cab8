"""TRL's side of full_size.py: the page's settings through GRPOTrainer. Needs torch, transformers, trl, datasets.

python benchmarks/full_size_trl.py MODEL SETTINGS
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from machine import versions
from sides import peak_gb
from trl_side import Record
from workloads import comparable, typical


def main() -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, Qwen3_5ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    folder, task = sys.argv[1], json.loads(sys.argv[2])
    record = Record()
    with open(task["rows"], encoding="utf-8") as file:
        prompts = [json.loads(row)["prompt"] for row in file if row.strip()]
    data = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in prompts]
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=task["batch"] * task["group"],
            gradient_accumulation_steps=task["accumulation"],
            num_generations=task["group"],
            max_completion_length=task["new"],
            max_steps=task["steps"],
            learning_rate=task["lr"],
            lr_scheduler_type="constant",
            temperature=task["temperature"],
            beta=0.0,
            bf16=task["bf16"],
            use_cpu=True,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=1,
        )
        trainer = GRPOTrainer(
            model=Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=record.reward(),
            args=config,
            train_dataset=Dataset.from_list(data),
            callbacks=[record.clock()],
        )
        trainer.train()
    size = task["batch"] * task["accumulation"] * task["group"]
    silent = record.silent(size, task["group"])
    counted = comparable(silent) or [0]
    print(
        json.dumps(
            {
                "seconds": [round(value, 2) for value in record.seconds],
                "median": typical(record.seconds, counted),
                "silent_groups": silent,
                "mean_length": round(sum(record.lengths) / len(record.lengths), 2),
                "peak_gb": peak_gb(),
                "versions": versions(("trl", "torch", "transformers")),
            }
        )
    )


if __name__ == "__main__":
    main()
