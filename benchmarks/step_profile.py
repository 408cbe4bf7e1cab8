"""Where the time of one optimizer step goes, beside what the arithmetic and the memory traffic alone would take.

    uv run python benchmarks/step_profile.py [--workloads A,B,C] [--precision bf16] [--out FILE]

The third step of each workload of step.py, the embedded model, in the precision that `auto` takes here or the one named.
Kernels are timed by torch's profiler in a run of its own; profiling slows small operations down, so its shares are scaled to
the seconds of an unprofiled run. The floor takes the matrix products at the speed of a product of 2048 x 2048 matrices and the
traffic at the speed of a large copy, both measured first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import finish
from sides import converted_folder
from workloads import WORKLOADS

from llmclick.modeling.llm.compute import has_bf16

KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::addmm_", "mkldnn::_linear_pointwise", "mkl::_mkl_linear"),
    "attention": ("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_scaled_dot_product_flash_attention_for_cpu"),
    "optimizer": ("aten::_fused_adamw_",),
    "copies, gathers, casts": (
        "aten::copy_",
        "aten::index_select",
        "aten::index_copy_",
        "aten::cat",
        "aten::scatter_add_",
        "mkldnn::_reorder_linear_weight",
        "mkl::_mkl_reorder_linear_weight",
    ),
}


def profiled(workload: str, precision: str) -> dict[str, float]:
    """Seconds of the third step by kind of kernel, measured in this process."""
    from llmclick.modeling.llm.process import prepare_environment

    prepare_environment()
    from torch.profiler import ProfilerActivity, profile

    import llmclick.modeling.llm.training.rollout as rollout

    recorder = profile(activities=[ProfilerActivity.CPU])
    sample = rollout.sample_and_score
    calls = 0

    def from_the_third(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            recorder.start()
        if calls == 4:
            recorder.stop()
        return sample(*arguments)

    rollout.sample_and_score = from_the_third
    import step_ours

    sys.argv = ["step_ours.py", str(converted_folder()), workload, "4", precision]
    step_ours.main()
    spent = dict.fromkeys([*KINDS, "element by element"], 0.0)
    for event in recorder.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key in names), "element by element")
        spent[kind] += event.self_cpu_time_total / 1e6
    return spent


def unprofiled(workload: str, precision: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).parent / "step_ours.py"), str(converted_folder()), workload, "5", precision]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def speeds(precision: str) -> tuple[float, float]:
    """(multiplications and additions a second of large matrices, bytes a second of a large copy)."""
    import torch

    from llmclick.modeling.llm.models.products import product_dtype

    one = torch.randn(2048, 2048)
    one = one.to(product_dtype(torch.bfloat16)) if precision == "bf16" else one
    wide, other = torch.empty(2**27), torch.ones(2**27)

    def best(work: Any, times: int) -> float:
        seconds = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    return 2 * 2048**3 / best(lambda: one @ one, 20), 2 * 4 * 2**27 / best(lambda: wide.copy_(other), 5)


def floor(workload: str, precision: str, tokens: int, flops: float, bandwidth: float) -> dict[str, float]:
    """Seconds that one step cannot go below: products of the training pass, weights read per decoded token, the update."""
    import torch
    from transformers import AutoConfig

    from llmclick.modeling.llm.models.products import product_dtype

    config = AutoConfig.from_pretrained(converted_folder())
    chosen = WORKLOADS[workload]
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    width = config.hidden_size
    layer = width * (heads * width // config.num_attention_heads + width + 3 * config.intermediate_size)
    body, head = config.num_hidden_layers * layer, config.vocab_size * width
    groups = chosen.prompts * chosen.accumulation
    prompt_tokens = groups * (37 + 3 * chosen.filler)
    size = product_dtype(torch.bfloat16).itemsize if precision == "bf16" else 4
    copies = 4 + size if precision == "bf16" else 0
    return {
        "training products": (6 * body * (prompt_tokens + tokens) + 6 * head * tokens) / flops,
        "decoding, weights read": chosen.new * size * (body + head) / bandwidth,
        "update and copies": (28 + 4 + copies) * (body + head) / bandwidth,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="A,B,C")
    parser.add_argument("--precision", choices=("bf16", "fp32"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    precision = options.precision or ("bf16" if has_bf16("cpu") else "fp32")
    if options.one:
        print(json.dumps(profiled(options.one, precision)))
        return
    flops, bandwidth = speeds(precision)
    print(f"{precision} products {flops / 1e12:.2f} T/s, copies {bandwidth / 1e9:.0f} GB/s")
    table = {}
    for name in options.workloads.split(","):
        plain = unprofiled(name, precision)
        command = [sys.executable, str(Path(__file__)), "--one", name, "--precision", precision]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        shares = json.loads(done.stdout.strip().splitlines()[-1])
        scale = plain["median_after_first"] / sum(shares.values())
        table[name] = {
            "seconds": plain["median_after_first"],
            "phases": plain["phases"],
            "kernels": {kind: round(seconds * scale, 3) for kind, seconds in shares.items()},
            "floor": {k: round(v, 3) for k, v in floor(name, precision, plain["tokens_per_step"], flops, bandwidth).items()},
        }
        print(name, json.dumps(table[name]), flush=True)
    finish(
        {"benchmark": "step_profile", "precision": precision, "flops": flops, "copy_bytes": bandwidth, "workloads": table},
        options.out,
    )


if __name__ == "__main__":
    main()
