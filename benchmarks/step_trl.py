"""The other side of step.py: the same workload through TRL's GRPOTrainer. Needs torch, transformers, trl, datasets.

python benchmarks/step_trl.py MODEL WORKLOAD STEPS PRECISION
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
from workloads import WORKLOADS, comparable, rows, typical


def main() -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder, name, steps, precision = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    workload = WORKLOADS[name]
    record = Record()
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=workload.prompts * workload.group,
            gradient_accumulation_steps=workload.accumulation,
            num_generations=workload.group,
            max_completion_length=workload.new,
            max_steps=steps,
            learning_rate=2e-6,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=precision == "bf16",
            temperature=1.0,
            beta=0.0,
            gradient_checkpointing=False,
            seed=1,
        )
        data = [
            {"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in rows(workload.filler)
        ]
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=record.reward(),
            args=config,
            train_dataset=Dataset.from_list(data),
            callbacks=[record.clock()],
        )
        trainer.train()
    size = workload.completions
    silent = record.silent(size, workload.group)
    mean_length = sum(record.lengths) / len(record.lengths)
    print(
        json.dumps(
            {
                "side": "trl",
                "workload": name,
                "seconds": [round(value, 3) for value in record.seconds],
                "silent_groups": silent,
                "median_after_first": typical(record.seconds, comparable(silent)),
                "peak_gb": round(peak_gb(), 2),
                "mean_length": round(mean_length, 2),
                "tokens_per_step": round(mean_length * size),
                "versions": versions(("trl", "torch", "transformers")),
            }
        )
    )


if __name__ == "__main__":
    main()
