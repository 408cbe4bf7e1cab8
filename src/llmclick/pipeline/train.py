"""The train stage: from the untrained model to `train/checkpoint`."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmclick.errors import TrainingStopped

if TYPE_CHECKING:
    import torch

    from llmclick.config.schema import Config
    from llmclick.data.prompts import Prompt
    from llmclick.modeling.llm.compute import Compute
    from llmclick.modeling.llm.models.base import LanguageModel
    from llmclick.modeling.llm.models.source import Source
    from llmclick.modeling.llm.sampling.base import Completion, Request
    from llmclick.modeling.llm.sampling.local import LocalSampler
    from llmclick.modeling.llm.training.loop import Training
    from llmclick.modeling.llm.training.policy import Policy
    from llmclick.modeling.llm.training.step import Objective
    from llmclick.pipeline.data import Dataset
    from llmclick.pipeline.stage import Job
    from llmclick.rewards.scoring import Score, Scorer


def train(job: Job) -> dict[str, Any]:
    """Trains and writes `train/checkpoint` (and `train/adapter`). Returns what the stage's manifest records.

    Raises Interrupted (a snapshot was written), TrainingStopped, RewardError.
    """
    from llmclick.modeling.llm.process import prepare_process
    from llmclick.modeling.llm.training.loop import run_training
    from llmclick.pipeline.signals import deferred

    began = time.perf_counter()
    config = job.config
    prepare_process()
    with contextlib.ExitStack() as stack:
        should_stop = stack.enter_context(deferred(job.console.notice))
        scorer = stack.enter_context(make_scorer(config, job.experiment / "run.log", job.console.notice, job.reward_files))
        with job.console.progress("loading the model", None):
            training = build_training(job, scorer, should_stop)
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


@dataclass
class Engine:
    """What samples and trains: the policy with its optimizer, the sampler, the objective, the rows of each sampling batch."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    sampler: LocalSampler
    objective: Objective
    rows_of: Callable[[int], list[Prompt]]
    text_of: Callable[[list[int]], str]

    def requests(self, prompts: Sequence[Prompt]) -> list[Request]:
        """Prompts as the sampler takes them."""
        from llmclick.modeling.llm.sampling.base import Request

        return [Request(prompt.row.id, prompt.ids) for prompt in prompts]


def build_engine(config: Config, source: Source, compute: Compute, dataset: Dataset) -> Engine:
    """Loads the model, with its adapter if one trains, and puts together what works on it."""
    from llmclick.data.order import Stream
    from llmclick.modeling.llm.models.adapters import attach
    from llmclick.modeling.llm.models.base import load_language_model, load_tokenizer
    from llmclick.modeling.llm.sampling.local import LocalSampler
    from llmclick.modeling.llm.training.optim import adamw
    from llmclick.modeling.llm.training.policy import Policy
    from llmclick.modeling.llm.training.step import Objective
    from llmclick.pipeline.recipes import RECIPES

    method, settings = config.method, config.training
    tokenizer = load_tokenizer(source)
    model = load_language_model(
        source,
        architecture=config.model.architecture,
        device=compute.device,
        tokenizer=tokenizer,
        stop=method.stop,
    )
    adapter = attach(model, settings.adapter, config.pipeline.seed) if settings.adapter else None
    policy = Policy(model, compute.precision, adapter)
    stream = Stream(
        [prompt.row.id for prompt in dataset.train],
        epochs=settings.epochs,
        per_batch=settings.batch_size * settings.accumulation,
        seed=config.pipeline.seed,
    )

    def rows_of(index: int) -> list[Prompt]:
        # The draw's key stands for the row where one batch holds it twice: two groups, other random numbers.
        return [
            dataclasses.replace(prompt, row=dataclasses.replace(prompt.row, id=draw.key))
            for draw in stream.batch(index)
            for prompt in [dataset.train[draw.index]]
        ]

    return Engine(
        policy=policy,
        optimizer=adamw(policy.trainable, settings.lr, settings.weight_decay),
        sampler=LocalSampler(
            policy.sampler_model,
            seed=config.pipeline.seed,
            temperature=method.temperature,
            max_new_tokens=method.max_new_tokens,
            rows=method.sample_rows,
            autocast=policy.autocast,
        ),
        objective=Objective(
            method=RECIPES[config.pipeline.recipe].method_class()(method),
            temperature=method.temperature,
            average=method.average,
            ratio=method.ratio,
            beta=method.beta,
            correction=method.correction == "on" or (method.correction == "auto" and compute.precision == "bf16"),
            batch_size=settings.batch_size,
            micro_tokens=settings.micro_tokens,
        ),
        rows_of=rows_of,
        text_of=text_decoder(tokenizer, model),
    )


def build_training(job: Job, scorer: Scorer, should_stop: Callable[[], bool]) -> Training:
    """What the loop works with."""
    from llmclick.data.order import total_steps
    from llmclick.modeling.llm.training.journal import Journal
    from llmclick.modeling.llm.training.loop import Training
    from llmclick.pipeline.data import read_dataset

    config = job.config
    settings = config.training
    dataset = read_dataset(job.dataset_folder)
    engine = build_engine(config, job.source, job.compute, dataset)

    def score(prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> list[Score]:
        return score_groups(scorer, prompts, groups, engine.text_of)

    def evaluate(step: int) -> dict[str, Any]:
        return evaluate_policy(job, engine, dataset.validation[: settings.eval_rows], scorer, step, should_stop)

    return Training(
        config=config,
        policy=engine.policy,
        optimizer=engine.optimizer,
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
        should_stop=should_stop,
    )


def make_scorer(
    config: Config, log: Path | None, notify: Callable[[str], None], files: Mapping[str, str] | None = None
) -> Scorer:
    """The config's rewards, ready to score. What they print goes to `log`; `files` are those that defined them in the plan."""
    from llmclick.rewards.scoring import Scorer

    return Scorer(
        config.method.reward,
        config.pipeline.imports,
        answer_after=config.method.answer_after,
        truncated=config.method.truncated,
        log=log,
        notify=notify,
        files=files,
    )


def text_decoder(tokenizer: Any, model: LanguageModel) -> Callable[[list[int]], str]:
    """Token ids to the text that rewards and people see: without the stop token, other special tokens left in."""
    stop_ids = frozenset(model.stop_ids)

    def text_of(ids: list[int]) -> str:
        end = len(ids) - 1 if ids and ids[-1] in stop_ids else len(ids)
        text: str = tokenizer.decode(ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    return text_of


def score_groups(
    scorer: Scorer,
    prompts: Sequence[Prompt],
    groups: Sequence[Sequence[Completion]],
    text_of: Callable[[list[int]], str],
) -> list[Score]:
    """Scores of all completions, group after group."""
    from llmclick.rewards.scoring import ToScore

    return scorer.score(
        [
            ToScore(text_of(completion.ids), prompt.row.data, prompt.row.where, completion.truncated)
            for prompt, group in zip(prompts, groups, strict=True)
            for completion in group
        ]
    )


def evaluate_policy(
    job: Job, engine: Engine, prompts: Sequence[Prompt], scorer: Scorer, step: int, should_stop: Callable[[], bool]
) -> dict[str, Any]:
    """The held-out greedy reward of the weights as they are in memory, after `step` optimizer steps.

    Raises SamplingInterrupted once `should_stop` says so, RewardError.
    """
    from llmclick.pipeline.validate import greedy_completions

    policy = engine.policy
    completions = greedy_completions(
        policy.sampler_model,
        prompts,
        job.config,
        job.console,
        f"held-out rows after step {step}",
        autocast=policy.autocast,
        should_stop=should_stop,
    )
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

    policy = training.policy
    checkpoint = job.experiment / "train" / "checkpoint"
    with survive_full_disk(training.step):
        training.release()
        tensors = merged_state_dict(policy.model, in_place=True) if policy.adapter else policy.model.state_dict()
        save_overlay(job.source, tensors, checkpoint, policy.model)
        if policy.adapter:
            save_adapter(policy.model, job.experiment / "train" / "adapter")
    changed, total = changed_values(job.source, checkpoint)
    job.console.line(f"  {changed / max(total, 1):.1%} of the checkpoint's values differ from the untrained model's")
    if training.moved and not changed:
        job.console.notice(
            "training moved the weights by less than the checkpoint's own precision can hold: the checkpoint equals the "
            "untrained model. Raise training.lr or train longer"
        )


def announce(job: Job, training: Training, resumed: bool) -> None:
    """What the start of training says: what trains, how often, on what, and what the sampler ignores."""
    config, policy = job.config, training.policy
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
