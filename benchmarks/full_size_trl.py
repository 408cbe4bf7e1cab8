"""TRL's side of full_size.py: the page's settings through GRPOTrainer. Needs torch, transformers, trl, datasets.

python benchmarks/full_size_trl.py MODEL SETTINGS
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import versions
from sides import peak_gb
from workloads import comparable, silent_groups, spread, typical


def main() -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, Qwen3_5ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    folder, task = sys.argv[1], json.loads(sys.argv[2])
    seconds: list[float] = []
    lengths: list[int] = []
    rewards: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.start)

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths.extend(len(ids) for ids in completion_ids)
        rewards.extend(given := [spread(completion[0]["content"]) for completion in completions])
        return given

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
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(data),
            callbacks=[Clock()],
        )
        trainer.train()
    size = task["batch"] * task["accumulation"] * task["group"]
    silent = [silent_groups(rewards[step * size : (step + 1) * size], task["group"]) for step in range(len(seconds))]
    counted = comparable(silent) or [0]
    print(
        json.dumps(
            {
                "seconds": [round(value, 2) for value in seconds],
                "median": typical(seconds, counted),
                "silent_groups": silent,
                "mean_length": round(sum(lengths) / len(lengths), 2),
                "peak_gb": peak_gb(),
                "versions": versions(("trl", "torch", "transformers")),
            }
        )
    )


if __name__ == "__main__":
    main()
