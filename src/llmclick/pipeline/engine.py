"""The one place where learner and sampler are chosen and put together; training, `check`, `sample` and validate ask here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmclick.config.schema import Config
    from llmclick.data.prompts import Prompt
    from llmclick.interfaces import Completion, Request, Sampler
    from llmclick.modeling.llm.compute import Compute
    from llmclick.modeling.llm.models.base import LanguageModel
    from llmclick.modeling.llm.models.source import Source
    from llmclick.modeling.llm.training.learner import LocalLearner
    from llmclick.modeling.llm.training.policy import Policy
    from llmclick.modeling.llm.training.step import Objective
    from llmclick.pipeline.data import Dataset
    from llmclick.tracking.console import Console

TOGETHER = 16
"""Held-out rows decoded together: fixed, so that the gate's numbers do not depend on a batch size in the config."""


@dataclass
class Engine:
    """What samples and trains: the learner, the sampler on its weights, the objective, the rows of each sampling batch."""

    learner: LocalLearner
    sampler: Sampler
    objective: Objective
    rows_of: Callable[[int], list[Prompt]]
    text_of: Callable[[list[int]], str]


@dataclass
class Answerer:
    """A model that only answers: the sampler on it, and its ids as text."""

    sampler: Sampler
    text_of: Callable[[list[int]], str]


def build_engine(config: Config, source: Source, compute: Compute, dataset: Dataset) -> Engine:
    """Loads the model, with its adapter if one trains, and puts together what works on it."""
    from llmclick.data.order import Stream
    from llmclick.modeling.llm.models.adapters import attach
    from llmclick.modeling.llm.models.base import load_language_model, load_tokenizer
    from llmclick.modeling.llm.training.learner import LocalLearner
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

    sampler = local_sampler(policy.sampler_model, config, policy)
    return Engine(
        learner=LocalLearner(policy, settings.weight_decay),
        sampler=sampler,
        objective=Objective(
            method=RECIPES[config.pipeline.recipe].method_class()(method),
            temperature=method.temperature,
            max_new_tokens=method.max_new_tokens,
            average=method.average,
            ratio=method.ratio,
            beta=method.beta,
            correction=method.correction == "on" or (method.correction == "auto" and sampler.features.own_precision),
            batch_size=settings.batch_size,
            micro_tokens=settings.micro_tokens,
        ),
        rows_of=rows_of,
        text_of=text_decoder(tokenizer, model),
    )


def build_answerer(config: Config, source: Source, compute: Compute, tokenizer: Any) -> Answerer:
    """Loads `source` as a user would load it: in the file's dtype, without autocast, nothing of a trainer."""
    from llmclick.modeling.llm.models.base import load_language_model

    model = load_language_model(source, device=compute.device, dtype="auto", tokenizer=tokenizer, stop=config.method.stop)
    return Answerer(local_sampler(model, config), text_decoder(tokenizer, model))


def local_sampler(model: LanguageModel, config: Config, policy: Policy | None = None) -> Sampler:
    """The sampler in this process: on the weights that `policy` trains and in its precision, or on a model as it is."""
    from llmclick.modeling.llm.sampling.local import LocalSampler

    seed = config.pipeline.seed
    if policy is None:
        return LocalSampler(model, seed=seed)
    own_precision = policy.precision == "bf16"
    return LocalSampler(model, seed=seed, autocast=policy.autocast, refresh=policy.refresh, own_precision=own_precision)


def requests_of(prompts: Sequence[Prompt]) -> list[Request]:
    """Prompts as a sampler takes them."""
    from llmclick.interfaces import Request

    return [Request(prompt.row.id, prompt.ids) for prompt in prompts]


def greedy_completions(
    sampler: Sampler,
    prompts: Sequence[Prompt],
    config: Config,
    console: Console,
    label: str,
    *,
    should_stop: Callable[[], bool] | None = None,
) -> list[Completion]:
    """The greedy completion of each prompt, in fixed batches. Raises SamplingInterrupted once `should_stop` says so."""
    from llmclick.interfaces import Sampling

    how = Sampling(1, None, config.method.max_new_tokens, "greedy", TOGETHER)
    done: list[Completion] = []
    with console.progress(label, len(prompts), "rows") as bar:
        for start in range(0, len(prompts), TOGETHER):
            part = prompts[start : start + TOGETHER]
            done += [group[0] for group in sampler.sample(requests_of(part), how, should_stop=should_stop)]
            bar.advance(len(part))
    return done


def text_decoder(tokenizer: Any, model: LanguageModel) -> Callable[[list[int]], str]:
    """Token ids to the text that rewards and people see: without the stop token, other special tokens left in."""
    stop_ids = frozenset(model.stop_ids)

    def text_of(ids: list[int]) -> str:
        end = len(ids) - 1 if ids and ids[-1] in stop_ids else len(ids)
        text: str = tokenizer.decode(ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    return text_of
