"""The other side of step.py: the same workload through TRL's GRPOTrainer. Needs torch, transformers, trl, datasets.

python benchmarks/step_trl.py MODEL WORKLOAD STEPS PRECISION
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from workloads import WORKLOADS, rows, spread


def main() -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    folder, name, steps, precision = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    workload = WORKLOADS[name]
    seconds: list[float] = []
    lengths: list[int] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.start)

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths.extend(len(ids) for ids in completion_ids)
        return [spread(completion[0]["content"]) for completion in completions]

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
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(data),
            callbacks=[Clock()],
        )
        trainer.train()
    after = sorted(seconds[1:])
    completions = workload.prompts * workload.accumulation * workload.group
    print(
        json.dumps(
            {
                "side": "trl",
                "workload": name,
                "seconds": [round(value, 2) for value in seconds],
                "median_after_first": round(after[len(after) // 2], 3),
                "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
                "mean_length": round(sum(lengths) / len(lengths), 2),
                "tokens_per_step": round(sum(lengths) / len(lengths) * completions),
            }
        )
    )


if __name__ == "__main__":
    main()
