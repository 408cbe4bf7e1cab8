"""What a step leaves to read: one line of metrics.jsonl, and what the first batch shows at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from llmclick.interfaces import Completion
from llmclick.modeling.llm.methods.advantages import silent_groups
from llmclick.modeling.llm.training.batch import SampledBatch

if TYPE_CHECKING:
    from llmclick.modeling.llm.training.state import Training
    from llmclick.modeling.llm.training.step import Taken
    from llmclick.rewards.scoring import Score


def about_first_batch(metrics: dict[str, Any]) -> list[str]:
    """What the first sampled batch shows that a user would want to know at once."""
    said = []
    if metrics["truncated"] > 0.5:
        said.append(
            f"{metrics['truncated']:.0%} of the first completions were cut by method.max_new_tokens before they ended; "
            "raise it, or ask for a shorter answer in the prompt"
        )
    if not metrics["groups"]["mixed"]:
        said.append(
            f"no group of the first batch has a signal: every completion of a group got the same reward (mean "
            f"{metrics['reward']:.3g}). `llmclick sample CONFIG` shows what the model answers"
        )
    return said


def batch_metrics(batch: SampledBatch, scores: Sequence[Score], rewards_PG: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What the log says about a sampled batch; every mean is over all its completions."""
    completions = batch.completions
    passed_PG = np.array([score.passed for score in scores]).reshape(rewards_PG.shape)
    silent_P = silent_groups(rewards_PG)
    right_P = silent_P & passed_PG.all(axis=1)
    failures: dict[str, int] = {}
    for score in scores:
        for kind, count in score.failures.items():
            failures[kind] = failures.get(kind, 0) + count
    named: dict[str, Any] = {}
    for name in scores[0].by_name:
        values = [value for score in scores if (value := score.by_name[name]) is not None]
        named[f"reward/{name}"] = float(np.mean(values)) if values else None
    lengths = [len(completion.ids) for completion in completions]
    return {
        "reward": float(rewards_PG.mean()),
        **named,
        "pass_rate": float(passed_PG.mean()),
        "groups": {
            "all_right": int(right_P.sum()),
            "mixed": int((~silent_P).sum()),
            "all_wrong": int((silent_P & ~right_P).sum()),
        },
        "length": float(np.mean(lengths)),
        "truncated": float(np.mean([completion.truncated for completion in completions])),
        "entropy": _entropy(completions, lengths),
        "reward_failures": failures,
    }


def step_metrics(training: Training, taken: Taken) -> dict[str, Any]:
    """One line of metrics.jsonl. What does not exist in this step is None."""
    assert training.scored is not None
    statistics = taken.statistics
    tokens = statistics.tokens
    sampled = sum(len(completion.ids) for completion in training.scored.batch.completions)
    spent = training.watch.seconds()
    seconds = {
        "sample": spent["sample"],
        "score": spent["score"],
        "train": spent["gradient"] + spent["update"],
        "sync": spent["sync"],
        "total": spent["total"],
    }
    return training.scored.metrics | {
        "step": training.step,
        "ratio": {"mean": statistics.ratio_sum / tokens, "max": statistics.ratio_max} if tokens else None,
        "clip_fraction": statistics.clipped / tokens if tokens else None,
        "kl": statistics.kl_sum / tokens if tokens and training.objective.beta > 0 else None,
        "mismatch": statistics.mismatch_sum / tokens if tokens else None,
        "grad_norm": taken.norm,
        "lr": taken.lr,
        "seconds": seconds,
        "tokens_per_second": sampled / seconds["sample"] if seconds["sample"] else None,
        "peak_memory": peak_memory(),
    }


def peak_memory() -> float:
    """Largest memory of this process so far in GB, of the GPU where one is used."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 1e9
    if sys.platform == "linux":
        # getrusage's peak begins with that of the process that started this one.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e9
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def _entropy(completions: Sequence[Completion], lengths: Sequence[int]) -> float | None:
    """Over all tokens; None where the sampler does not know it."""
    known = [completion.entropy for completion in completions if completion.entropy is not None]
    return float(np.average(known, weights=lengths)) if len(known) == len(completions) else None
