"""The training loop: from rows to a gradient, top to bottom."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from llmclick.errors import Interrupted, RewardError, TrainingStopped
from llmclick.modeling.llm.methods.advantages import group_advantages, silent_groups
from llmclick.modeling.llm.process import HeapWatch, trim_memory
from llmclick.modeling.llm.sampling.base import Completion, Request, Sampler, SamplingInterrupted
from llmclick.modeling.llm.training.batch import SampledBatch
from llmclick.modeling.llm.training.optim import clip_gradient, gradient_norm, learning_rate
from llmclick.modeling.llm.training.parity import check_parity
from llmclick.modeling.llm.training.patience import Silence
from llmclick.modeling.llm.training.step import Objective, StepStatistics, accumulate_gradient

if TYPE_CHECKING:
    from llmclick.config.schema import Config
    from llmclick.data.prompts import Prompt
    from llmclick.modeling.llm.training.journal import Journal
    from llmclick.modeling.llm.training.policy import Policy
    from llmclick.rewards.scoring import Score


@dataclass
class Scored:
    """A sampled batch with its scores [rows], and what the steps that use it report of it."""

    batch: SampledBatch
    prompts: list[Prompt]
    scores: list[Score]
    metrics: dict[str, Any]
    seconds: dict[str, float]


@dataclass
class Training:
    """Everything that one training run works with. `steps` counts optimizer steps; `step` those that are done."""

    config: Config
    policy: Policy
    optimizer: torch.optim.Optimizer
    sampler: Sampler
    objective: Objective
    score: Callable[[Sequence[Prompt], Sequence[Sequence[Completion]]], list[Score]]
    rows_of: Callable[[int], list[Prompt]]
    steps: int
    journal: Journal
    evaluate: Callable[[int], dict[str, Any]] | None
    should_stop: Callable[[], bool]
    step: int = 0
    silence: Silence = field(default_factory=Silence)
    moved: bool = False
    scored: Scored | None = field(default=None, repr=False)

    def release(self) -> None:
        """Gives back what only further steps would need: gradients, the optimizer's state, copies of the weights."""
        self.optimizer.state.clear()
        self.policy.release()


def run_training(training: Training) -> str | None:
    """Takes every optimizer step that is left. Returns a sentence when training ended early because nothing is left to learn.

    Raises Interrupted (resumable), RewardError, or TrainingStopped with what to do.
    """
    config, policy, journal = training.config, training.policy, training.journal
    heap = HeapWatch()
    started = training.step
    while True:
        evaluate_if_due(training)
        if (reason := training.silence.judged(config.training.patience)) is not None or training.step == training.steps:
            return reason
        if training.step != started:
            save_if_due(training)
        began = time.perf_counter()
        first = training.step % config.method.iterations == 0
        if first:
            training.scored = sample_and_score(training)
            training.silence = training.silence.then(training.scored.metrics)
            if training.step == 0:
                for sentence in about_first_batch(training.scored.metrics):
                    journal.console.notice(sentence)
        assert training.scored is not None
        batch = training.scored.batch

        train_began = time.perf_counter()
        lr = learning_rate(training.step, training.steps, config.training.lr, config.training.schedule, config.training.warmup)
        for group in training.optimizer.param_groups:
            group["lr"] = lr
        policy.zero_gradients()
        denominators = batch.denominators(config.method.max_new_tokens)
        with journal.working(training, "gradient"):
            statistics = accumulate_gradient(policy, batch, training.objective, denominators, first)
        if training.step == 0:
            check_parity(policy, batch, statistics)
        if not statistics.tokens and training.scored.metrics["groups"]["mixed"]:
            journal.console.notice(
                f"step {training.step + 1}: all completions with a signal are masked (truncated), no gradient"
            )
        norm = gradient_norm(policy.trainable.values())
        if not bool(norm.isfinite()):
            raise TrainingStopped(_not_finite(training))
        clip_gradient(training.optimizer, norm, config.training.max_grad_norm)
        update(training, float(norm), lr)
        sync_began = time.perf_counter()
        policy.refresh()
        ended = time.perf_counter()

        training.step += 1
        seconds = (training.scored.seconds if first else {"sample": 0.0, "score": 0.0}) | {
            "train": sync_began - train_began,
            "sync": ended - sync_began,
            "total": ended - began,
        }
        journal.stepped(training, step_metrics(training, statistics, float(norm), lr, seconds), first)
        heap.after_step(training.step)


def evaluate_if_due(training: Training) -> None:
    """The held-out reward after `training.step` steps, unless it is recorded already: a resumed run may begin there."""
    every = training.config.training.eval_every
    if training.evaluate is None or not every or training.step % every or training.journal.evaluated_step == training.step:
        return
    try:
        record = training.evaluate(training.step)
    except SamplingInterrupted:
        record = None
    except RewardError:
        training.journal.save(training)
        raise
    if record is None:
        training.journal.save(training)
        raise Interrupted(f"stopped evaluating after step {training.step} of {training.steps}; the same command continues")
    training.journal.evaluated(record)


def save_if_due(training: Training) -> None:
    """A snapshot between two steps: every `save_every`, and before a signal ends the run. Raises Interrupted."""
    if training.should_stop():
        training.journal.save(training)
        raise Interrupted(f"stopped after step {training.step} of {training.steps}; the same command continues")
    if training.step % training.config.training.save_every == 0:
        training.journal.save(training)


def sample_and_score(training: Training) -> Scored:
    """The next sampling batch: prompts to completions to rewards to advantages."""
    config = training.config
    index = training.step // config.method.iterations
    prompts = training.rows_of(index)
    began = time.perf_counter()
    requests = [Request(prompt.row.id, prompt.ids) for prompt in prompts]
    groups = None
    try:
        with training.journal.sampling(training) as on_tokens:
            groups = training.sampler.sample(
                requests,
                config.method.group_size,
                f"train/{index}",
                on_tokens=on_tokens,
                should_stop=training.should_stop,
            )
    except SamplingInterrupted:
        pass  # its traceback holds what decoding remembers, which need not lie in memory while a snapshot is written
    except TrainingStopped as error:
        raise TrainingStopped(f"while sampling for step {training.step + 1} ({_rows(prompts)}): {error}") from None
    if groups is None:
        training.journal.save(training)
        raise Interrupted(
            f"stopped while sampling for step {training.step + 1} of {training.steps}; the same command continues"
        )
    sampled = time.perf_counter()
    try:
        with training.journal.working(training, "rewards"):
            scores = training.score(prompts, groups)
    except RewardError:
        training.journal.save(training)
        raise
    ended = time.perf_counter()

    completions = [completion for group in groups for completion in group]
    rewards_PG = np.array([score.total for score in scores], dtype=np.float64).reshape(len(prompts), -1)
    batch = SampledBatch(
        prompts=[prompt.ids for prompt in prompts],
        completions=completions,
        group_size=config.method.group_size,
        advantages_B=group_advantages(rewards_PG, config.method.scale).reshape(-1),
        silent_B=silent_groups(rewards_PG).repeat(config.method.group_size),
        masked_B=np.array([config.method.truncated == "mask" and completion.truncated for completion in completions]),
    )
    seconds = {"sample": sampled - began, "score": ended - sampled}
    return Scored(batch, prompts, scores, batch_metrics(batch, scores, rewards_PG), seconds)


def update(training: Training, norm: float, lr: float) -> None:
    """The optimizer's step; after the first one with a signal, weights must have moved. Raises TrainingStopped if not."""
    if not training.optimizer.state:
        trim_memory()
    before = None if training.moved or not norm or not lr else training.policy.weight_sums()
    training.optimizer.step()
    if before is None:
        return
    training.moved = not torch.equal(before, training.policy.weight_sums())
    if not training.moved:
        raise TrainingStopped(
            f"step {training.step + 1} had a gradient (norm {norm:.3g}) and changed no weight: training.lr {lr:g} is below "
            "what float32 weights can move by; raise it"
        )


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
        "entropy": float(np.average([completion.entropy for completion in completions], weights=lengths)),
        "reward_failures": failures,
    }


def step_metrics(
    training: Training, statistics: StepStatistics, norm: float, lr: float, seconds: dict[str, float]
) -> dict[str, Any]:
    """One line of metrics.jsonl. What does not exist in this step is None."""
    assert training.scored is not None
    tokens = statistics.tokens
    sampled = sum(len(completion.ids) for completion in training.scored.batch.completions)
    return training.scored.metrics | {
        "step": training.step,
        "ratio": {"mean": statistics.ratio_sum / tokens, "max": statistics.ratio_max} if tokens else None,
        "clip_fraction": statistics.clipped / tokens if tokens else None,
        "kl": statistics.kl_sum / tokens if tokens and training.objective.beta > 0 else None,
        "mismatch": statistics.mismatch_sum / tokens if tokens else None,
        "grad_norm": norm,
        "lr": lr,
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


def _not_finite(training: Training) -> str:
    assert training.scored is not None
    return (
        f"the gradient of step {training.step + 1} is not finite ({_rows(training.scored.prompts)}). The weights before this "
        "step are kept; lower training.lr, or set training.precision: fp32"
    )


def _rows(prompts: Sequence[Prompt]) -> str:
    return "rows " + ", ".join(dict.fromkeys(prompt.row.where for prompt in prompts))
