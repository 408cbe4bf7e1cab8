"""metrics.jsonl: one line per optimizer step, and what every number in it means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmclick.tracking.files import json_line, parse_lines, write_atomic

MEASURED = ("seconds", "tokens_per_second", "peak_memory")
"""Keys that measure the machine and not the run: left out of every comparison of two runs."""


@dataclass(frozen=True)
class Metric:
    """One documented number: `healthy` is the range in which nothing needs doing, `remedy` what to do outside it."""

    name: str
    unit: str
    meaning: str
    healthy: str
    remedy: str


METRICS: tuple[Metric, ...] = (
    Metric("step", "count", "Optimizer step, from 1.", "1 to the number of steps in the plan", "Nothing to do."),
    Metric(
        "reward",
        "reward",
        "Mean over the step's completions of the total that is optimised: the weighted sum of the rewards.",
        "rising over tens of steps; single steps jump, because every step has other prompts",
        "Flat from the start: look at groups; few mixed ones teach nothing. Falling: lower training.lr.",
    ),
    Metric(
        "reward/NAME",
        "reward",
        "Mean of one named reward, as the function returned it, over the completions it applies to.",
        "the ones you care about rise, not only the easiest",
        "One rises while another falls: change their weight, or make the cheap one harder to please.",
    ),
    Metric(
        "pass_rate",
        "share",
        "Share of completions that pass: every reward with a positive weight that applies reaches its pass_at, which is 1 if "
        "omitted.",
        "0.1 to 0.9 at the start",
        "Near 0: easier rows, a larger group_size or a reward with steps in between. Near 1: harder rows.",
    ),
    Metric(
        "groups",
        "count",
        "Groups of the step by what they teach: all_right (every completion passes), mixed (rewards differ: the only ones "
        "with a signal), all_wrong (rewards are equal and not all "
        "pass).",
        "at least a third mixed",
        "Mostly all_wrong: easier rows or a larger group_size. Mostly all_right: harder rows, or stop. "
        "`llmclick check CONFIG --sample 16` forecasts the share before a run.",
    ),
    Metric(
        "length",
        "tokens",
        "Mean number of sampled tokens per completion, the stop token included.",
        "steady, or moving with the reward",
        "Growing towards max_new_tokens while the reward stands still: the model rambles; method.truncated: zero, or "
        "method.average: constant.",
    ),
    Metric(
        "truncated",
        "share",
        "Share of completions that max_new_tokens cut off.",
        "below 0.1",
        "Raise method.max_new_tokens, ask for a shorter answer in the prompt, or set method.truncated.",
    ),
    Metric(
        "entropy",
        "nats per token",
        "Mean entropy of the model's next-token distribution over the sampled tokens, at the sampling temperature.",
        "falls slowly, stays above about 0.05",
        "Collapses within a few steps: lower training.lr, set method.clip_high above clip, or use beta with an adapter.",
    ),
    Metric(
        "ratio",
        "ratio",
        "Mean and largest probability ratio of trained tokens between the model now and the one that sampled.",
        "exactly 1 at iterations: 1; mean 0.9 to 1.1, max below about 10 beyond",
        "Lower method.iterations or training.lr.",
    ),
    Metric(
        "clip_fraction",
        "share",
        "Share of trained tokens whose gradient the clip changes.",
        "0 at iterations: 1; below 0.2 beyond",
        "Higher: steps are too large for reused groups; lower method.iterations or training.lr.",
    ),
    Metric(
        "kl",
        "nats per token",
        "Distance from the base model on the sampled tokens (mean of exp(-x) - 1 + x). Null without beta.",
        "below about 0.1 per token",
        "Grows without reward: raise method.beta or lower training.lr.",
    ),
    Metric(
        "mismatch",
        "nats per token",
        "Mean absolute difference between the sampler's log-probability of a token and the trainer's.",
        "below 1e-4 in fp32, below 0.05 in bf16",
        "Higher: set method.correction: on; a foreign sampler may run other weights or another template.",
    ),
    Metric(
        "grad_norm",
        "norm",
        "Gradient norm of the step before clipping.",
        "above 0, mostly below training.max_grad_norm times ten",
        "0: no group had a signal. Jumping by orders of magnitude: lower training.lr.",
    ),
    Metric("lr", "per step", "Learning rate of the step.", "what training.schedule says", "Nothing to do."),
    Metric(
        "seconds",
        "seconds",
        "Wall time of the step by phase: sample, score, train, sync, total. A measurement.",
        "sample is the largest",
        "score large: the reward is slow. train large: raise training.micro_tokens or train an adapter.",
    ),
    Metric(
        "tokens_per_second",
        "tokens/s",
        "Sampled tokens per second of sampling. A measurement.",
        "steady",
        "Falling over a run: completions got longer, or another process uses the machine.",
    ),
    Metric(
        "peak_memory",
        "GB",
        "Largest memory of the process so far (of the device, with a GPU). A measurement.",
        "below what the machine has",
        "Lower training.batch_size (and raise accumulation), training.micro_tokens or method.sample_rows.",
    ),
    Metric(
        "reward_failures",
        "count by kind",
        "Calls of a reward that did not give a number and were scored 0: timeout, died, raised (on_error: zero).",
        "empty",
        "The line printed beside it names row and completion; try it with `llmclick reward`.",
    ),
)

VALIDATION_METRICS: tuple[Metric, ...] = (
    Metric(
        "reward",
        "reward",
        "Mean total reward of the greedy completion on the held-out rows.",
        "trained above base, the interval of the difference above 0",
        "Interval spans 0: more held-out rows or a longer run.",
    ),
    Metric(
        "reward/NAME",
        "reward",
        "The same of one named reward.",
        "rises with reward",
        "One falls: its weight is too small to count.",
    ),
    Metric(
        "pass_rate",
        "share",
        "Share of held-out rows whose greedy completion passes, as in training.",
        "trained above base",
        "As for reward.",
    ),
    Metric(
        "length",
        "tokens",
        "Mean length of the greedy completion.",
        "close to the base model's, or explained by the task",
        "Much longer: look at the completions in report.html.",
    ),
    Metric(
        "truncated",
        "share",
        "Share of greedy completions cut by max_new_tokens.",
        "below 0.1",
        "Raise method.max_new_tokens.",
    ),
)

_ORDER = (
    *("step", "reward", "pass_rate", "groups", "all_right", "mixed", "all_wrong", "length", "truncated", "entropy"),
    *("ratio", "mean", "max", "clip_fraction", "kl", "mismatch", "grad_norm", "lr"),
    *("seconds", "sample", "score", "train", "sync", "total", "tokens_per_second", "peak_memory", "reward_failures"),
)


class MetricsFile:
    """metrics.jsonl (or eval.jsonl): append a line per step, cut back to a step on resume."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._whole = False

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record as a line, on disk when this returns. Numbers that do not exist (None, NaN, infinity) become null."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._mend()
        with open(self.path, "ab") as file:
            file.write(json_line(record, _ORDER))
            file.flush()
            os.fsync(file.fileno())

    def cut(self, step: int) -> int:
        """Keep the records whose step is at most `step`, byte for byte, and return how many; the file is replaced whole."""
        if not self.path.exists():
            return 0
        kept = [line for line, record in parse_lines(self.path.read_bytes(), self.path) if record.get("step", 0) <= step]
        write_atomic(self.path, b"".join(kept))
        self._whole = True
        return len(kept)

    def read(self) -> list[dict[str, Any]]:
        """All records; see `read_metrics`."""
        return read_metrics(self.path)

    def _mend(self) -> None:
        """Before the first append: a line that a kill tore must not swallow the next one."""
        if not self._whole and self.path.exists():
            data = self.path.read_bytes()
            whole = b"".join(line for line, _ in parse_lines(data, self.path))
            if whole != data:
                write_atomic(self.path, whole)
        self._whole = True


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a metrics.jsonl or eval.jsonl; none if there is no file. A torn last line is left out."""
    path = Path(path)
    if not path.exists():
        return []
    return [record for _, record in parse_lines(path.read_bytes(), path)]


def without_measured(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without the keys that differ between two runs of the same thing."""
    return {key: value for key, value in record.items() if key not in MEASURED}
