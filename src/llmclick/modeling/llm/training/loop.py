"""The training loop: rollout, gradient, update, sync, journal."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from llmclick.errors import Interrupted, RewardError, TrainingStopped
from llmclick.interfaces import NotFinite, NothingMoved, SamplingInterrupted
from llmclick.modeling.llm.process import HeapWatch
from llmclick.modeling.llm.training.metrics import step_metrics
from llmclick.modeling.llm.training.parity import check_parity
from llmclick.modeling.llm.training.rollout import next_batch, places
from llmclick.modeling.llm.training.step import Taken, take

if TYPE_CHECKING:
    from llmclick.modeling.llm.training.state import Scored, Training


def run_training(training: Training) -> str | None:
    """Takes every optimizer step that is left. Returns a sentence when training ended early because nothing is left to learn.

    Raises Interrupted (resumable), RewardError, or TrainingStopped with what to do.
    """
    heap = HeapWatch()
    started = training.step
    while True:
        evaluate_if_due(training)
        reason = training.silence.judged(training.config.training.patience)
        if reason is not None or training.step == training.steps:
            return reason
        if training.step != started:
            save_if_due(training)
        first = training.first
        scored = next_batch(training)
        taken = take_step(training, scored, first)
        training.step += 1
        training.journal.stepped(training, step_metrics(training, taken), first)
        heap.after_step(training.step)


def take_step(training: Training, scored: Scored, first: bool) -> Taken:
    """The next optimizer step, on `scored`; what cannot go on is TrainingStopped in the run's words."""
    number = training.step + 1
    probe = partial(check_parity, training.learner.policy, scored.batch) if training.step == 0 else None
    try:
        with training.journal.working(training, "gradient"):
            taken = take(
                training.learner,
                training.sampler,
                scored.batch,
                training.objective,
                first=first,
                lr=training.lr,
                max_norm=training.config.training.max_grad_norm,
                version=number,
                watch=training.watch,
                probe=probe,
            )
    except NotFinite:
        raise TrainingStopped(
            f"the gradient of step {number} is not finite ({places(scored.prompts)}). The weights before this step are kept; "
            "lower training.lr, or set training.precision: fp32"
        ) from None
    except NothingMoved as error:
        raise TrainingStopped(
            f"step {number} had a gradient (norm {error.norm:.3g}) and changed no weight: training.lr {training.lr:g} is below "
            "what float32 weights can move by; raise it"
        ) from None
    if not taken.statistics.tokens and scored.metrics["groups"]["mixed"]:
        training.journal.console.notice(f"step {number}: all completions with a signal are masked (truncated), no gradient")
    return taken


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
