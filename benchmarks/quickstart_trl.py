"""TRL's side of quickstart.py. Needs torch, transformers, trl, datasets; the reward is llmclick's own function.

python benchmarks/quickstart_trl.py STARTED MODEL TASK REWARD STEPS FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "src"))

from machine import versions
from sides import peak_gb
from workloads import silent_groups


def main() -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from llmclick.rewards import REWARDS

    started, model, file, wanted, steps, folder = sys.argv[1:]
    task = json.loads(Path(file).read_text("utf-8"))
    reward = REWARDS.get(task["reward"]["name"]).value
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    held_out = task["held_out"]
    prompts = [messages(record) for record in held_out]
    rendered = [tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in prompts]
    inputs = tokenizer(rendered, add_special_tokens=False, padding=True, return_tensors="pt")
    for record, ids, mask in zip(held_out, inputs["input_ids"], inputs["attention_mask"], strict=True):
        assert ids[mask.bool()].tolist() == record["ids"], "both sides answer the same prompt"

    def score(texts: list[str], rows: list[dict[str, Any]]) -> list[float]:
        return [float(reward(text, row, task["reward"]["params"])) for text, row in zip(texts, rows, strict=True)]

    sampled: list[tuple[list[float], int]] = []
    done: list[dict[str, Any]] = []
    clock = {"evaluation": 0.0, "seconds": 0.0, "step": 0.0}

    def scored(completions: list[Any], completion_ids: list[list[int]], row: list[str], **_: Any) -> list[float]:
        rewards = score([completion[0]["content"] for completion in completions], [json.loads(text) for text in row])
        sampled.append((rewards, sum(map(len, completion_ids))))
        return rewards

    def answered() -> float:
        """The mean reward of the greedy answers, in the precision that trains."""
        module = trainer.model
        was_training = module.training
        module.eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=task["bf16"]):
            out = module.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=task["new"],
                eos_token_id=trainer.eos_token_ids,
                pad_token_id=tokenizer.pad_token_id,
            )
        module.train(was_training)
        texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        rewards = score(texts, [record["row"] for record in held_out])
        return sum(rewards) / len(rewards)

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock["step"] = time.time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            began = time.time()
            clock["seconds"] = began - float(started) - clock["evaluation"]
            found = answered()
            clock["evaluation"] += time.time() - began
            rewards, tokens = sampled[-1]
            done.append(
                {
                    "seconds": round(began - clock["step"], 3),
                    "reward": sum(rewards) / len(rewards),
                    "held_out": found,
                    "tokens": tokens,
                    "mixed": len(rewards) // task["group"] - silent_groups(rewards, task["group"]),
                }
            )
            control.should_training_stop = found >= float(wanted)
            return control

    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=task["batch"] * task["group"],
        gradient_accumulation_steps=task["accumulation"],
        num_generations=task["group"],
        max_completion_length=task["new"],
        max_steps=int(steps),
        temperature=task["temperature"],
        loss_type="dapo",  # one denominator for all tokens of the step, as average: token
        scale_rewards="group",
        epsilon=task["clip"],
        beta=0.0,
        num_iterations=1,
        mask_truncated_completions=False,
        learning_rate=task["lr"],
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=task["weight_decay"],
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        max_grad_norm=task["max_grad_norm"],
        shuffle_dataset=False,  # the rows are in the order of llmclick's steps
        bf16=task["bf16"],
        use_cpu=True,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=task["seed"],
    )
    rows = [{"prompt": messages(record), "row": json.dumps(record["row"])} for record in task["train"]]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=scored,
        args=config,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Clock()],
    )
    trainer.train()
    print(
        json.dumps(
            {
                "reached": done[-1]["held_out"] >= float(wanted),
                "seconds": round(clock["seconds"], 2),
                "evaluation": round(clock["evaluation"], 2),
                "steps": done,
                "peak_gb": peak_gb(),
                "versions": versions(("trl", "torch", "transformers")),
            }
        )
    )


def messages(record: dict[str, Any]) -> list[dict[str, str]]:
    """The prompt as a conversation."""
    prompt = record["row"]["prompt"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


if __name__ == "__main__":
    main()
