"""What a training run leaves on disk: metrics.jsonl, completions/, eval.jsonl and snapshots; and how it goes on from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from llmclick.errors import TrainingStopped
from llmclick.interfaces import Completion
from llmclick.modeling.llm.compute import cpu_features
from llmclick.modeling.llm.training.batch import SampledBatch
from llmclick.modeling.llm.training.patience import Silence
from llmclick.modeling.llm.training.snapshot import Snapshot, read_snapshot, write_snapshot
from llmclick.pipeline.stage import SNAPSHOTS
from llmclick.rewards.scoring import Score
from llmclick.tracking.completions import CompletionsFolder
from llmclick.tracking.files import is_full, remove_leftovers
from llmclick.tracking.metrics import MetricsFile

if TYPE_CHECKING:
    from llmclick.modeling.llm.training.state import Training
    from llmclick.tracking.console import Console


class MetricsListener(Protocol):
    """A tracker: is told every record that metrics.jsonl and eval.jsonl get."""

    def log(self, record: Mapping[str, Any]) -> None:
        """One record."""
        ...


class Journal:
    """The files of one experiment. `text_of` turns token ids into text for display."""

    def __init__(
        self,
        experiment: Path,
        console: Console,
        *,
        keep: int,
        tokens: bool,
        text_of: Callable[[list[int]], str],
        listeners: list[MetricsListener],
    ) -> None:
        self.console = console
        self.snapshots = experiment / "train" / SNAPSHOTS
        self.metrics = MetricsFile(experiment / "metrics.jsonl")
        self.evaluations = MetricsFile(experiment / "eval.jsonl")
        self.evaluated_step: int | None = None
        self.completions = CompletionsFolder(experiment / "completions", keep)
        self._tokens = tokens
        self._text_of = text_of
        self._listeners = listeners

    def stepped(self, training: Training, record: dict[str, Any], first: bool) -> None:
        """An optimizer step is done: its line, and the completions if it was the first on them."""
        with survive_full_disk(training.step - 1):
            if first:
                self.completions.write(training.step, self._records(training))
            self.metrics.append(record)
        self.console.step(record, training.step, training.steps)
        for listener in self._listeners:
            listener.log(record)

    def evaluated(self, record: dict[str, Any]) -> None:
        """The held-out reward while training."""
        with survive_full_disk(record["step"]):
            self.evaluations.append(record)
        self.evaluated_step = record["step"]
        self.console.evaluation(record)
        for listener in self._listeners:
            listener.log(record)

    @contextlib.contextmanager
    def sampling(self, training: Training) -> Iterator[Callable[[int], None]]:
        """A progress bar over the tokens of a long sampling; yields what to call with the positions done."""
        label, total = f"sampling for step {training.step + 1}", training.config.method.max_new_tokens
        with self.console.progress(label, total, "tokens") as bar:
            yield bar.reach

    @contextlib.contextmanager
    def working(self, training: Training, what: str) -> Iterator[None]:
        """Something inside a step that cannot say how far it is."""
        with self.console.progress(f"{what} of step {training.step + 1}", None):
            yield

    def save(self, training: Training) -> None:
        """Writes a snapshot of the state after `training.step` steps."""
        with survive_full_disk(training.step):
            write_snapshot(self.snapshots, _snapshot_of(training))

    def resume(self, training: Training) -> bool:
        """Puts `training` where the newest whole snapshot left it and cuts the files back to that step."""
        snapshot = read_snapshot(self.snapshots, self.console.notice)
        step = snapshot.step if snapshot else 0
        for file in (self.metrics.path, self.evaluations.path):
            remove_leftovers(file.parent, f"{file.name}.*")
        remove_leftovers(self.completions.path)
        self.metrics.cut(step)
        self.evaluations.cut(step)
        self.evaluated_step = max((int(record["step"]) for record in self.evaluations.read()), default=None)
        self.completions.cut(step)
        if snapshot is None:
            return False
        _restore(training, snapshot, self.console)
        return True

    def _records(self, training: Training) -> Iterator[dict[str, Any]]:
        assert training.scored is not None
        batch = training.scored.batch
        for row, (completion, score) in enumerate(zip(batch.completions, training.scored.scores, strict=True)):
            prompt = training.scored.prompts[row // batch.group_size]
            tokens = {"ids": completion.ids, "logprobs": completion.logprobs} if self._tokens else {}
            yield {
                "row": prompt.row.id,
                "where": prompt.row.where,
                "sample": row % batch.group_size,
                "prompt": prompt.text,
                "text": self._text_of(completion.ids),
                "tokens": len(completion.ids),
                "stop": completion.stop,
                "rewards": score.by_name,
                "reward": score.total,
                "passed": score.passed,
                "advantage": float(batch.advantages_B[row]),
                **tokens,
            }


@contextlib.contextmanager
def survive_full_disk(step: int) -> Iterator[None]:
    """A disk that fills up in the middle ends the run in words; the last good snapshot stays."""
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise TrainingStopped(
            f"the disk is full ({error}) after step {step}. Free some space and run the same command: it continues from the "
            "last snapshot"
        ) from error


def _snapshot_of(training: Training) -> Snapshot:
    tensors = training.learner.tensors()
    state: dict[str, Any] = {
        "silence": vars(training.silence),
        "moved": training.learner.moved,
        "threads": torch.get_num_threads(),
        "processor": sorted(cpu_features()),
        "scored": None,
    }
    if training.scored is not None and training.step % training.config.method.iterations:
        state["scored"], batch_tensors = _pack(training)
        tensors |= batch_tensors
    return Snapshot(training.step, tensors, state)


def _pack(training: Training) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The sampled batch that is in use between two of its optimizer steps."""
    scored = training.scored
    assert scored is not None
    batch = scored.batch
    tensors = {f"batch/old/{row}": values for row, values in batch.old.items()}
    tensors |= {f"batch/reference/{row}": values for row, values in batch.reference.items()}
    state = {
        "completions": [vars(completion) for completion in batch.completions],
        "scores": [vars(score) for score in scored.scores],
        "advantages": batch.advantages_B.tolist(),
        "silent": batch.silent_B.tolist(),
        "masked": batch.masked_B.tolist(),
        "metrics": scored.metrics,
    }
    return state, tensors


def _restore(training: Training, snapshot: Snapshot, console: Console) -> None:
    from llmclick.modeling.llm.training.state import Scored

    state, tensors = snapshot.state, snapshot.tensors
    training.step = snapshot.step
    training.silence = Silence(**state["silence"])
    training.learner.moved = state["moved"]
    training.learner.load(tensors)
    training.sampler.sync(training.learner.weights(), training.step)
    if torch.get_num_threads() != state["threads"]:
        torch.set_num_threads(state["threads"])
    if set(state["processor"]) != cpu_features():
        console.notice(
            "this processor is not of the kind that the run began on: it continues, but equality with an uninterrupted run is "
            "not promised"
        )
    packed = state["scored"]
    if packed is None:
        return
    prompts = training.rows_of(training.step // training.config.method.iterations)
    batch = SampledBatch(
        prompts=[prompt.ids for prompt in prompts],
        completions=[Completion(**completion) for completion in packed["completions"]],
        group_size=training.config.method.group_size,
        advantages_B=np.array(packed["advantages"], dtype=np.float64),
        silent_B=np.array(packed["silent"], dtype=bool),
        masked_B=np.array(packed["masked"], dtype=bool),
    )
    for name, values in tensors.items():
        kind, _, row = name.removeprefix("batch/").partition("/")
        if name.startswith("batch/"):
            getattr(batch, kind)[int(row)] = values.to(training.learner.policy.model.device)
    scores = [Score(**score) for score in packed["scores"]]
    training.scored = Scored(batch, prompts, scores, packed["metrics"])
