"""The same completions, rewards and old log-probabilities through TRL's GRPOTrainer and through llmclick: one gradient.

    uv run --no-project --with trl==1.16.0 --with-editable . python benchmarks/trl_gradient.py [--out FILE]

Prints, for each objective, the relative L2 distance of the two gradients before clipping over all parameters (fp32, a tiny
random Llama, ratios on both sides of the clip, a silent group), and ends in one JSON line. Exits 1 if one exceeds 1e-5.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent.parent))

from datasets import Dataset
from machine import finish, versions
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from llmclick.config.methods import CispoMethod, GrpoMethod, RewardSpec
from llmclick.interfaces import Request, Sampling
from llmclick.modeling.llm.methods.advantages import group_advantages, silent_groups
from llmclick.modeling.llm.methods.cispo import Cispo
from llmclick.modeling.llm.methods.grpo import Grpo
from llmclick.modeling.llm.models.base import load_language_model
from llmclick.modeling.llm.models.source import Source
from llmclick.modeling.llm.sampling.local import LocalSampler, pad_left
from llmclick.modeling.llm.training.batch import SampledBatch
from llmclick.modeling.llm.training.policy import Policy
from llmclick.modeling.llm.training.step import Objective, accumulate_gradient
from tests.modeling.training.reference import sequence_logprobs
from tests.tiny import tiny_dense

NEW, GROUP, TEMPERATURE, CLIP, BOUND = 12, 4, 0.9, 0.2, 1e-5
REWARD = (RewardSpec(name="exact_match"),)

# name: (TRL settings, our method, our settings)
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "token": ({"loss_type": "dapo"}, "grpo", {"average": "token"}),
    "sequence": ({"loss_type": "grpo"}, "grpo", {"average": "sequence"}),
    "constant": ({"loss_type": "dr_grpo"}, "grpo", {"average": "constant"}),
    "sequence ratio": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        "grpo",
        {"average": "sequence", "ratio": "sequence"},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1 + CLIP}, "cispo", {"average": "token"}),
    "token, beta": ({"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": True}, "grpo", {"beta": 0.3}),
}


def sampled(policy: Policy) -> SampledBatch:
    generator = np.random.default_rng(5)
    asked = [Request(f"row-{k}", generator.integers(3, 90, size=4 + 5 * k).tolist()) for k in range(3)]
    how = Sampling(GROUP, TEMPERATURE, NEW, "train/0", 512)
    drawn = [completion for group in LocalSampler(policy.model, seed=2).sample(asked, how) for completion in group]
    # Different lengths, or the three averages would be one.
    completions = [
        dataclasses.replace(completion, ids=completion.ids[: 1 + 5 * k % NEW], logprobs=completion.logprobs[: 1 + 5 * k % NEW])
        for k, completion in enumerate(drawn)
    ]
    rewards = np.array([[1.0, 0, 0, 0.5], [1, 1, 1, 1], [0, 0, 1, 0]])
    batch = SampledBatch(
        prompts=[list(request.ids) for request in asked],
        completions=completions,
        group_size=GROUP,
        advantages_B=group_advantages(rewards, "group").reshape(-1),
        silent_B=silent_groups(rewards).repeat(GROUP),
        masked_B=np.zeros(len(completions), dtype=bool),
    )
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for row, completion in enumerate(completions):
            now = sequence_logprobs(policy.model, list(batch.prompts[row // GROUP]), completion.ids, TEMPERATURE)
            batch.old[row] = now + 0.3 * torch.randn(now.shape, generator=noise)
            batch.reference[row] = now + 0.5 * torch.randn(now.shape, generator=noise)
    return batch


def our_gradient(policy: Policy, batch: SampledBatch, method: str, settings: dict[str, Any]) -> torch.Tensor:
    chosen = Grpo(GrpoMethod(reward=REWARD, clip=CLIP)) if method == "grpo" else Cispo(CispoMethod(reward=REWARD, clip=CLIP))
    policy.zero_gradients()
    objective = Objective(method=chosen, temperature=TEMPERATURE, max_new_tokens=NEW, **settings)
    accumulate_gradient(policy, batch, objective, batch.denominators(NEW), first=False)
    return torch.cat([policy.trainable[name].grad.reshape(-1) for name in sorted(policy.trainable)])


def their_gradient(folder: Path, batch: SampledBatch, settings: dict[str, Any], out: str) -> torch.Tensor:
    rows = len(batch.completions)
    config = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=rows,
        num_generations=GROUP,
        max_completion_length=NEW,
        temperature=TEMPERATURE,
        epsilon=CLIP,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **({"beta": 0.0} | settings),
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * rows),
    )
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.train()
    prompt_ids, prompt_mask = pad_left([batch.prompts[row // GROUP] for row in range(rows)], 0, "cpu")
    longest = max(map(batch.length, range(rows)))

    def padded(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([torch.cat([v, torch.zeros(longest - len(v), dtype=v.dtype)]) for v in values])

    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": padded([torch.tensor(completion.ids) for completion in batch.completions]),
        "completion_mask": padded([torch.ones(len(completion.ids), dtype=torch.long) for completion in batch.completions]),
        "advantages": torch.tensor(batch.advantages_B, dtype=torch.float32),
        "old_per_token_logps": padded([batch.old[row] for row in range(rows)]),
        "ref_per_token_logps": padded([batch.reference[row] for row in range(rows)]),
        "num_items_in_batch": torch.tensor(float(sum(map(batch.length, range(rows))))),
    }
    model.zero_grad()
    trainer._compute_loss(model, inputs).backward()
    named = dict(model.named_parameters())
    return torch.cat([named[name].grad.reshape(-1) for name in sorted(named)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        place = tiny_dense(Path(folder) / "model")
        policy = Policy(load_language_model(Source("folder", str(place), place)), "fp32")
        batch = sampled(policy)
        for name, (theirs, method, ours) in CASES.items():
            one, other = our_gradient(policy, batch, method, ours), their_gradient(place, batch, theirs, folder)
            found[name] = float((one - other).norm() / other.norm())
            print(f"{name:16} {found[name]:.1e}  (gradient norm {float(other.norm()):.3g})")
    finish({"benchmark": "trl_gradient", "relative_l2": found, "bound": BOUND, "trl": versions(("trl",))["trl"]}, options.out)
    sys.exit(any(distance > BOUND for distance in found.values()))


if __name__ == "__main__":
    main()
