"""Tokens per second of decoding 64 completions x 128 tokens, llmclick's sampler against transformers' generate, interleaved.

    uv run python benchmarks/sample.py [--rounds 3] [--new 128] [--prompts 8] [--group 8] [--autocast] [--model DIR]
        [--out FILE]

Both draw at temperature 1 from the whole vocabulary, compute in bf16, and are told of no stop token, so that every completion
has the same length. llmclick is set up as a run sets it up; transformers has its weights in bf16, with --autocast also fp32
weights under autocast, as trainers use it. Each side is a process of its own. Prints a table and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import finish
from sides import converted_folder, ours, peak_gb
from workloads import rows

WARM_UP = 4
"""Tokens decoded before the clock starts: threads, kernels and memory pools are there afterwards."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--autocast", action="store_true", help="also transformers with fp32 weights under autocast")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options)))
        return
    model = options.model or converted_folder()
    sides = [side for side in SIDES if side != "autocast" or options.autocast]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    shape = ("--prompts", options.prompts, "--group", options.group, "--new", options.new)
    for number in range(options.rounds):
        for side in sides:
            found[side].append(ours("sample.py", "--side", side, "--model", model, *shape))
            print(f"round {number + 1}, {NAMES[side]}: {found[side][-1]['tokens_per_second']:.0f} tokens/s", flush=True)
    speed = {side: statistics.median(result["tokens_per_second"] for result in results) for side, results in found.items()}
    print(f"\n{'':38}tokens/s   peak GB   times transformers")
    for side, results in found.items():
        peak = max(result["peak_gb"] for result in results)
        print(f"{NAMES[side]:38}{speed[side]:8.0f}{peak:10.1f}{speed[side] / speed['generate']:12.2f}x")
    finish(
        {
            "benchmark": "sample",
            "completions": options.prompts * options.group,
            "new_tokens": options.new,
            "tokens_per_second": speed,
            "ratio": round(speed["llmclick"] / speed["generate"], 2),
            "rounds": found,
        },
        options.out,
    )


def texts(tokenizer: Any, count: int) -> list[str]:
    """The rendered prompts."""
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": row["prompt"]}], tokenize=False, add_generation_prompt=True)
        for row in rows(0, count)
    ]


def llmclick_side(options: argparse.Namespace) -> dict[str, Any]:
    from llmclick.modeling.llm.process import prepare_environment, prepare_process

    prepare_environment()
    from types import SimpleNamespace

    from llmclick.interfaces import Request, Sampling
    from llmclick.modeling.llm.models.base import load_language_model, load_tokenizer, resolve_source
    from llmclick.modeling.llm.sampling.local import LocalSampler
    from llmclick.modeling.llm.training.policy import Policy

    prepare_process()
    source = resolve_source(SimpleNamespace(name=str(options.model), revision=None), lambda key: key)
    tokenizer = load_tokenizer(source)
    model = load_language_model(source, tokenizer=tokenizer)
    model.stop_ids = ()
    policy = Policy(model, "bf16")
    prompts = tokenizer(texts(tokenizer, options.prompts), add_special_tokens=False)["input_ids"]
    requests = [Request(f"row-{number}", ids) for number, ids in enumerate(prompts)]

    def sample(new: int) -> list[int]:
        sampler = LocalSampler(policy.sampler_model, seed=1, autocast=policy.autocast)
        groups = sampler.sample(requests, Sampling(options.group, 1.0, new, "benchmark", 512))
        return [len(completion.ids) for group in groups for completion in group]

    return measured(options, sample)


def generate_side(options: argparse.Namespace, weights: str = "bfloat16") -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, weights)).eval()
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id
    )  # no stop token, no top_k of the model's own
    inputs = tokenizer(texts(tokenizer, options.prompts), add_special_tokens=False, padding=True, return_tensors="pt")
    asked = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_return_sequences": options.group}

    def sample(new: int) -> list[int]:
        torch.manual_seed(1)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=weights == "float32"):
            out = model.generate(**inputs, max_new_tokens=new, **asked)
        return [out.shape[1] - inputs["input_ids"].shape[1]] * out.shape[0]

    return measured(options, sample)


def measured(options: argparse.Namespace, sample: Any) -> dict[str, Any]:
    sample(WARM_UP)
    began = time.perf_counter()
    lengths = sample(options.new)
    seconds = time.perf_counter() - began
    assert lengths == [options.new] * (options.prompts * options.group), lengths
    return {
        "seconds": round(seconds, 3),
        "tokens_per_second": round(sum(lengths) / seconds, 1),
        "peak_gb": peak_gb(),
    }


SIDES: dict[str, Any] = {
    "llmclick": llmclick_side,
    "generate": generate_side,
    "autocast": lambda options: generate_side(options, "float32"),
}
NAMES = {
    "llmclick": "llmclick",
    "generate": "transformers, bf16 weights",
    "autocast": "transformers, fp32 weights, autocast",
}


if __name__ == "__main__":
    main()
