"""A rollout: prompts to completions to rewards to advantages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmclick.errors import Interrupted, RewardError, TrainingStopped
from llmclick.interfaces import Request, Sampling, SamplingInterrupted
from llmclick.modeling.llm.methods.advantages import group_advantages, silent_groups
from llmclick.modeling.llm.training.batch import SampledBatch
from llmclick.modeling.llm.training.metrics import about_first_batch, batch_metrics
from llmclick.modeling.llm.training.state import Scored, Training

if TYPE_CHECKING:
    from llmclick.data.prompts import Prompt


def next_batch(training: Training) -> Scored:
    """The batch of the next step: a new one, or for `method.iterations` steps the one that was sampled last.

    Raises Interrupted (a snapshot was written), RewardError and TrainingStopped.
    """
    training.watch.start()
    if training.first:
        training.scored = sample_and_score(training)
        training.silence = training.silence.then(training.scored.metrics)
        if training.step == 0:
            for sentence in about_first_batch(training.scored.metrics):
                training.journal.console.notice(sentence)
    assert training.scored is not None
    return training.scored


def sample_and_score(training: Training) -> Scored:
    """The next sampling batch: prompts to completions to rewards to advantages."""
    config = training.config
    index = training.step // config.method.iterations
    prompts = training.rows_of(index)
    requests = [Request(prompt.row.id, prompt.ids) for prompt in prompts]
    method = config.method
    how = Sampling(method.group_size, method.temperature, method.max_new_tokens, f"train/{index}", method.sample_rows)
    groups = None
    try:
        with training.watch.measure("sample"), training.journal.sampling(training) as on_tokens:
            groups = training.sampler.sample(requests, how, on_tokens=on_tokens, should_stop=training.should_stop)
    except SamplingInterrupted:
        pass  # its traceback holds what decoding remembers, which need not lie in memory while a snapshot is written
    except TrainingStopped as error:
        raise TrainingStopped(f"while sampling for step {training.step + 1} ({places(prompts)}): {error}") from None
    if groups is None:
        training.journal.save(training)
        raise Interrupted(
            f"stopped while sampling for step {training.step + 1} of {training.steps}; the same command continues"
        )
    try:
        with training.watch.measure("score"), training.journal.working(training, "rewards"):
            scores = training.score(prompts, groups)
    except RewardError:
        training.journal.save(training)
        raise
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
    return Scored(batch, prompts, scores, batch_metrics(batch, scores, rewards_PG))


def places(prompts: Sequence[Prompt]) -> str:
    """Where the rows of a batch stand, for a message."""
    return "rows " + ", ".join(dict.fromkeys(prompt.row.where for prompt in prompts))
