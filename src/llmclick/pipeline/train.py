"""The train stage: from the untrained model to `train/checkpoint`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmclick.errors import TrainingStopped

if TYPE_CHECKING:
    from llmclick.data.prompts import Prompt
    from llmclick.interfaces import Completion
    from llmclick.modeling.llm.training.state import Training
    from llmclick.pipeline.engine import Engine
    from llmclick.pipeline.stage import Job
    from llmclick.rewards.scoring import Score, Scorer


def train(job: Job) -> dict[str, Any]:
    """Trains and writes `train/checkpoint` (and `train/adapter`). Returns what the stage's manifest records.

    Raises Interrupted (a snapshot was written), TrainingStopped, RewardError.
    """
    from llmclick.modeling.llm.process import prepare_process
    from llmclick.modeling.llm.training.loop import run_training
    from llmclick.pipeline.scores import make_scorer

    began = time.perf_counter()
    config = job.config
    prepare_process()
    with make_scorer(config, job.experiment / "run.log", job.console.notice, job.reward_files) as scorer:
        with job.console.progress("loading the model", None):
            training = build_training(job, scorer)
        resumed = training.journal.resume(training)
        announce(job, training, resumed)
        if job.tracking is not None:
            job.tracking.catch_up()
        job.console.steps(training.step, training.steps)
        try:
            ended_early = run_training(training)
        except TrainingStopped:
            if training.step:
                with contextlib.suppress(TrainingStopped):  # a full disk has its own sentence already
                    write_checkpoint(job, training)
            raise
        if ended_early:
            job.console.notice(ended_early)
        write_checkpoint(job, training)
    return {
        "steps": training.step,
        "planned_steps": training.steps,
        "ended_early": ended_early,
        "seconds": time.perf_counter() - began,
    }


def build_training(job: Job, scorer: Scorer) -> Training:
    """What the loop works with."""
    from llmclick.data.order import total_steps
    from llmclick.modeling.llm.training.journal import Journal
    from llmclick.modeling.llm.training.state import Training
    from llmclick.pipeline.data import read_dataset
    from llmclick.pipeline.engine import build_engine
    from llmclick.pipeline.scores import score_groups

    config = job.config
    settings = config.training
    dataset = read_dataset(job.dataset_folder)
    engine = build_engine(config, job.source, job.compute, dataset)

    def score(prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> list[Score]:
        return score_groups(scorer, prompts, groups, engine.text_of)

    def evaluate(step: int) -> dict[str, Any]:
        return evaluate_policy(job, engine, dataset.validation[: settings.eval_rows], scorer, step)

    return Training(
        config=config,
        learner=engine.learner,
        sampler=engine.sampler,
        objective=engine.objective,
        score=score,
        rows_of=engine.rows_of,
        steps=total_steps(
            len(dataset.train),
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            accumulation=settings.accumulation,
            iterations=config.method.iterations,
            max_steps=settings.max_steps,
        ),
        journal=Journal(
            job.experiment,
            job.console,
            keep=config.report.keep,
            tokens=config.report.tokens,
            text_of=engine.text_of,
            listeners=[job.tracking] if job.tracking is not None else [],
        ),
        evaluate=evaluate if settings.eval_every else None,
        should_stop=job.should_stop,
    )


def evaluate_policy(job: Job, engine: Engine, prompts: Sequence[Prompt], scorer: Scorer, step: int) -> dict[str, Any]:
    """The held-out greedy reward of the weights as they are in memory, after `step` optimizer steps.

    Raises SamplingInterrupted once `job.should_stop` says so, RewardError.
    """
    from llmclick.pipeline.engine import greedy_completions
    from llmclick.pipeline.scores import score_groups

    label = f"held-out rows after step {step}"
    completions = greedy_completions(engine.sampler, prompts, job.config, job.console, label, should_stop=job.should_stop)
    scores = score_groups(scorer, prompts, [[completion] for completion in completions], engine.text_of)
    totals = [score.total for score in scores]
    return {
        "step": step,
        "reward": sum(totals) / len(totals),
        "pass_rate": sum(score.passed for score in scores) / len(scores),
        "n": len(totals),
    }


def write_checkpoint(job: Job, training: Training) -> None:
    """Writes the weights as a checkpoint folder of the source's own shape; an adapter is merged, and kept beside it.

    Training is over after this: its memory is released first, and an adapter's model holds the merged weights.
    """
    from llmclick.modeling.llm.models.adapters import merged_state_dict, save_adapter
    from llmclick.modeling.llm.models.overlay import changed_values, save_overlay
    from llmclick.modeling.llm.training.journal import survive_full_disk

    policy = training.learner.policy
    checkpoint = job.experiment / "train" / "checkpoint"
    with survive_full_disk(training.step):
        training.sampler.close()
        training.learner.release()
        tensors = merged_state_dict(policy.model, in_place=True) if policy.adapter else policy.model.state_dict()
        save_overlay(job.source, tensors, checkpoint, policy.model)
        if policy.adapter:
            save_adapter(policy.model, job.experiment / "train" / "adapter")
    changed, total = changed_values(job.source, checkpoint)
    job.console.line(f"  {changed / max(total, 1):.1%} of the checkpoint's values differ from the untrained model's")
    if training.learner.moved and not changed:
        job.console.notice(
            "training moved the weights by less than the checkpoint's own precision can hold: the checkpoint equals the "
            "untrained model. Raise training.lr or train longer"
        )


def announce(job: Job, training: Training, resumed: bool) -> None:
    """What the start of training says: what trains, how often, on what, and what the sampler ignores."""
    config, policy = job.config, training.learner.policy
    say = job.console.line
    trained = sum(parameter.numel() for parameter in policy.trainable.values())
    total = sum(parameter.numel() for parameter in policy.model.module.parameters())
    what = f"{trained:,} of {total:,} parameters train" if trained < total else f"all {total:,} parameters train"
    say(f"  {what}, on {job.compute.device} in {job.compute.precision}")
    if policy.general is not None:
        say(f"  computed by transformers' own code: {policy.general}")
    most = config.training.max_steps
    if most is not None and training.steps < most:
        job.console.notice(
            f"training.max_steps is {most}, but the rows give only {training.steps} steps in {config.training.epochs} epochs; "
            "raise training.epochs to train longer"
        )
    per_step = config.training.batch_size * config.training.accumulation
    say(
        f"  {training.steps} optimizer steps; each batch samples {per_step} prompts x {config.method.group_size} = "
        f"{per_step * config.method.group_size} completions"
    )
    say(f"  sampling at temperature {config.method.temperature:g}, top_k, top_p and penalties off")
    if policy.model.stop_ids:
        say(f"  a completion ends at one of the ids {', '.join(map(str, policy.model.stop_ids))}")
    else:
        job.console.notice(
            "the model names no id that ends a completion (eos_token_id in its generation config, config or tokenizer): every "
            "completion will run to method.max_new_tokens and be cut"
        )
    for sentence in training.objective.method.announce():
        say(f"  {sentence}")
    if resumed:
        say(f"  resumed after step {training.step}")
