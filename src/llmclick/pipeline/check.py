"""`llmclick check`: all that a run does before its first step, and with `--sample N` a look at what it will do after."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmclick.pipeline.engine import requests_of
from llmclick.pipeline.forecast import Share, advice, completions_needed, forecast
from llmclick.pipeline.preflight import Preflight, preflight
from llmclick.tracking.console import duration, gigabytes

if TYPE_CHECKING:
    from llmclick.config.schema import Config
    from llmclick.data.prompts import Prompt
    from llmclick.interfaces import Sampling
    from llmclick.pipeline.engine import Engine
    from llmclick.tracking.console import Console

GROUP_SIZES = (2, 4, 8, 16)
LONGEST = 5
SHOWN = 3


@dataclass(frozen=True)
class CheckResult:
    """What a check found. `memory_gb` is an estimate without `--sample`, a measurement with it; `forecast` is None without."""

    exit: int
    steps: int
    rows: dict[str, int]
    longest: list[dict[str, Any]]
    disk_gb: float
    memory_gb: float
    forecast: dict[str, Any] | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def can_learn(self) -> bool | None:
        """What the forecast says; None without one."""
        return None if self.forecast is None else bool(self.forecast["can_learn"])

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return dataclasses.asdict(self) | {"can_learn": self.can_learn}


def check(config: Config, sample: int | None, console: Console) -> CheckResult:
    """Raises InputError with everything that is wrong; exit 0 otherwise, also when the forecast is bad."""
    for notice in config.notices:
        console.notice(notice)
    with console.progress("reading model, trying every row", None):
        checked = preflight(config)
    for notice in (*checked.plan.notices, *checked.notices):
        console.notice(notice)
    assert checked.dataset is not None
    assert checked.disk is not None
    prompts = [*checked.dataset.train, *checked.dataset.validation]
    longest = sorted(prompts, key=lambda prompt: -len(prompt.ids))[:LONGEST]
    per_step = config.training.batch_size * config.training.accumulation
    result = CheckResult(
        exit=0,
        steps=checked.total_steps,
        rows={"train": len(checked.dataset.train), "validation": len(checked.dataset.validation)},
        longest=[{"where": prompt.row.where, "tokens": len(prompt.ids)} for prompt in longest],
        disk_gb=checked.disk.needed / 1e9,
        memory_gb=memory_estimate(config, checked),
        notices=[*config.notices, *checked.plan.notices, *checked.notices],
    )
    method = config.method
    room = config.training.max_length - method.max_new_tokens
    facts = [
        ("rows", f"{result.rows['train']} train, {result.rows['validation']} are held out"),
        (
            "a step",
            f"{per_step} prompts x {method.group_size} = {per_step * method.group_size} completions of at most "
            f"{method.max_new_tokens} tokens" + ("" if method.iterations == 1 else f", used for {method.iterations} steps"),
        ),
        ("training", f"{result.steps} optimizer steps"),
        ("disk", f"up to {gigabytes(result.disk_gb)}, {gigabytes(checked.disk.free / 1e9)} are free"),
    ]
    if sample is None:
        facts.append(("memory", f"about {gigabytes(result.memory_gb)}, a rough estimate (--sample N measures it)"))
    console.sentence("Config, rows and rewards are in order.")
    console.facts(facts)
    console.result("")
    console.table(
        f"Longest prompts, in tokens (at most {room} fit)",
        ("row", "tokens"),
        [(row["where"], row["tokens"]) for row in result.longest],
    )
    if sample is None:
        console.sentence("\nWhether it can learn: `llmclick check CONFIG --sample 16` samples the untrained model.")
        return result
    found = sample_forecast(config, checked, sample, console)
    show_forecast(found, config.method.group_size, result.steps, console)
    return dataclasses.replace(result, forecast=found, memory_gb=found["memory_gb"])


def memory_estimate(config: Config, checked: Preflight) -> float:
    """GB that training needs at most, roughly: fp32 weights, gradients and moments, and a micro-batch's activations."""
    assert checked.disk is not None
    weights = 4 * checked.disk.parameters + 12 * checked.disk.trained
    if checked.plan.compute.precision == "bf16":
        weights += 2 * checked.disk.parameters
    shape = checked.source.config()
    shape = shape.get("text_config", shape)
    width = int(shape.get("hidden_size", 1024)) * 2 + int(shape.get("intermediate_size", 4096)) * 3
    tokens = min(
        config.training.micro_tokens,
        config.training.batch_size * config.method.group_size * config.method.max_new_tokens,
    )
    activations = 4 * 2 * tokens * width * int(shape.get("num_hidden_layers", 24))
    return (weights + activations) / 1e9 + 0.7


def sample_forecast(config: Config, checked: Preflight, count: int, console: Console) -> dict[str, Any]:
    """Takes two steps' work on the untrained model to measure it, then samples `count` prompts for the forecast: those that a
    run meets first."""
    from llmclick.modeling.llm.process import prepare_process
    from llmclick.modeling.llm.training.metrics import peak_memory
    from llmclick.pipeline.engine import build_engine
    from llmclick.pipeline.scores import make_scorer, score_groups

    assert checked.dataset is not None
    prepare_process()
    prompts = first_met(config, checked.dataset.train, count)
    with contextlib.ExitStack() as stack:
        scorer = stack.enter_context(make_scorer(config, None, console.notice))
        with console.progress("loading the model", None):
            engine = build_engine(config, checked.source, checked.plan.compute, checked.dataset)
        timed = time_steps(config, engine, console)
        memory = peak_memory()
        size = completions_needed(config.method.group_size)
        with console.progress("sampling for the forecast", len(prompts) * size, "completions") as bar:
            groups = []
            how = sampling(config, size, "check")
            # As many prompts at a time as a step decodes together, so that the bar moves.
            for start in range(0, len(prompts), step := max(1, config.method.sample_rows // size)):
                part = prompts[start : start + step]
                groups += engine.sampler.sample(requests_of(part), how)
                bar.advance(len(part) * size)
        began = time.perf_counter()
        scores = score_groups(scorer, prompts, groups, engine.text_of)
        score_seconds = (time.perf_counter() - began) / len(scores)
    rewards = [[score.total for score in scores[k * size : (k + 1) * size]] for k in range(len(prompts))]
    totals = [reward for of_prompt in rewards for reward in of_prompt]
    completions = [completion for group in groups for completion in group]
    pass_rate = sum(score.passed for score in scores) / len(scores)
    truncated = sum(completion.truncated for completion in completions) / len(completions)
    asked = config.method.group_size
    sizes = sorted({asked, *(other for other in GROUP_SIZES if other <= size)})
    shares = [forecast(rewards, other, config.pipeline.seed) for other in sizes]
    can_learn, words = advice(shares, asked, pass_rate, truncated)
    # Its upper end: as a run learns, more groups get a signal than the untrained model's.
    share = next(found.high for found in shares if found.group_size == asked)
    per_batch = config.training.batch_size * config.training.accumulation * asked
    return {
        "prompts": len(prompts),
        "completions": len(completions),
        "reward": sum(totals) / len(totals),
        "pass_rate": pass_rate,
        "truncated": truncated,
        "length": sum(len(completion.ids) for completion in completions) / len(completions),
        "shares": [vars(found) for found in shares],
        "can_learn": can_learn,
        "words": words,
        "seconds_per_step": seconds_per_step(config, timed, score_seconds * per_batch, share),
        "memory_gb": memory,
        "examples": _examples(prompts, groups, scores, engine, size),
    }


def first_met(config: Config, train: Sequence[Prompt], count: int) -> list[Prompt]:
    """The first `count` prompts of epoch 0, in its order. A file may be sorted, and its first rows alike; these are as good as
    drawn at random."""
    from llmclick.data.order import Stream

    stream = Stream([prompt.row.id for prompt in train], epochs=1, per_batch=1, seed=config.pipeline.seed)
    return [train[place] for place in stream.epoch(0)[:count]]


@dataclass(frozen=True)
class StepSeconds:
    """What one full batch takes: drawing it, its gradient with every group and with one trained, the update, renewing the
    sampler."""

    sample: float
    gradient: float
    first_group: float
    update: float
    sync: float


def time_steps(config: Config, engine: Engine, console: Console) -> StepSeconds:
    """Takes two steps that leave the weights as they are, and gives the second's seconds.

    The first one also pays for what later steps find in place: the optimizer's moments, kernels chosen, memory asked for. With
    gradient and moments there the second one reaches the memory that a run reaches.
    """
    with console.progress("timing two steps", 2, "steps") as bar:
        _time_step(config, engine, "check/step/0")
        bar.advance()
        return _time_step(config, engine, "check/step/1")


def _time_step(config: Config, engine: Engine, stream: str) -> StepSeconds:
    import numpy as np

    from llmclick.modeling.llm.training.batch import SampledBatch
    from llmclick.modeling.llm.training.step import take
    from llmclick.modeling.llm.training.stopwatch import Stopwatch

    watch = Stopwatch()
    group_size = config.method.group_size
    prompts = engine.rows_of(0)
    with watch.measure("sample"):
        groups = engine.sampler.sample(requests_of(prompts), sampling(config, group_size, stream))
    completions = [completion for group in groups for completion in group]
    batch = SampledBatch(
        prompts=[prompt.ids for prompt in prompts],
        completions=completions,
        group_size=group_size,
        advantages_B=np.where(np.arange(len(completions)) % 2 == 0, 1.0, -1.0),
        silent_B=np.zeros(len(completions), dtype=bool),
        masked_B=np.zeros(len(completions), dtype=bool),
    )
    take(
        engine.learner,
        engine.sampler,
        batch,
        engine.objective,
        first=True,
        lr=0.0,
        max_norm=config.training.max_grad_norm,
        version=0,
        watch=watch,
    )
    seconds = watch.seconds()
    only_first_B = np.arange(len(completions)) >= group_size
    lone = dataclasses.replace(batch, silent_B=only_first_B, old={}, reference={})
    watch.start()
    with watch.measure("gradient"):
        engine.learner.gradient(lone, engine.objective, first=True)
    return StepSeconds(
        sample=seconds["sample"],
        gradient=seconds["gradient"],
        first_group=watch.seconds()["gradient"],
        update=seconds["update"],
        sync=seconds["sync"],
    )


def sampling(config: Config, group_size: int, stream: str) -> Sampling:
    """As training samples, `group_size` completions a prompt."""
    from llmclick.interfaces import Sampling

    method = config.method
    return Sampling(group_size, method.temperature, method.max_new_tokens, stream, method.sample_rows)


def seconds_per_step(config: Config, timed: StepSeconds, score: float, share: float) -> float:
    """Seconds of a step of which a `share` of the groups carries a signal; `score` is for the rewards of a batch.

    Groups without a signal cost no gradient, unless a KL term acts on them. The first group that has one costs more than each
    further one: with n groups the gradient takes P(any) first + (n share - P(any)) / (n - 1) (all - first). A batch is drawn
    and scored once for all its iterations.
    """
    groups = config.training.batch_size * config.training.accumulation
    gradient = timed.gradient
    if config.method.beta == 0 and groups > 1:
        some = 1 - (1 - share) ** groups
        gradient = some * timed.first_group + (groups * share - some) / (groups - 1) * (timed.gradient - timed.first_group)
    elif config.method.beta == 0:
        gradient = share * timed.gradient
    return (timed.sample + score) / config.method.iterations + gradient + timed.update + timed.sync


def show_forecast(found: dict[str, Any], asked: int, steps: int, console: Console) -> None:
    """The forecast in words and tables; `asked` is the config's group size."""
    per_step = found["seconds_per_step"]
    console.sentence("\nThe untrained model")
    console.facts(
        [
            ("sampled", f"{found['completions']} completions of {found['prompts']} prompts"),
            ("reward", f"{found['reward']:.3f} in the mean; {found['pass_rate']:.0%} pass"),
            ("length", f"{found['length']:.0f} tokens in the mean; {found['truncated']:.0%} are cut off by max_new_tokens"),
            ("time", f"about {duration(per_step)} a step, {duration(steps * per_step)} for {steps} steps"),
            ("memory", f"about {gigabytes(found['memory_gb'])}"),
        ]
    )
    for example in found["examples"]:
        console.result(f"\n{example['where']}  reward {example['reward']:.4g}")
        console.quote("answer", example["text"])
    shares = [Share(**share) for share in found["shares"]]
    console.result("")
    console.table(
        "Groups with a signal, by group_size: completions of one prompt whose rewards differ; the others teach nothing",
        ("group_size", "with a signal", "95 % interval"),
        [
            (
                f"{share.group_size}" + (" (this config)" if share.group_size == asked else ""),
                f"{share.share:.0%}",
                f"{share.low:.0%} .. {share.high:.0%}",
            )
            for share in shares
        ],
    )
    console.sentence("\n" + found["words"][0].upper() + found["words"][1:] + ".")


def _examples(
    prompts: Sequence[Prompt], groups: Sequence[Sequence[Any]], scores: Sequence[Any], engine: Engine, size: int
) -> list[dict[str, Any]]:
    """One completion each of the first prompts, with its reward."""
    return [
        {
            "where": prompt.row.where,
            "text": engine.text_of(groups[k][0].ids),
            "reward": scores[k * size].total,
        }
        for k, prompt in enumerate(prompts[:SHOWN])
    ]
