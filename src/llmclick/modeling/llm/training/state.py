"""What one training run works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmclick.modeling.llm.training.patience import Silence
from llmclick.modeling.llm.training.schedule import learning_rate
from llmclick.modeling.llm.training.stopwatch import Stopwatch

if TYPE_CHECKING:
    from llmclick.config.schema import Config
    from llmclick.data.prompts import Prompt
    from llmclick.interfaces import Completion, Sampler
    from llmclick.modeling.llm.training.batch import SampledBatch
    from llmclick.modeling.llm.training.journal import Journal
    from llmclick.modeling.llm.training.learner import LocalLearner
    from llmclick.modeling.llm.training.step import Objective
    from llmclick.rewards.scoring import Score


@dataclass
class Scored:
    """A sampled batch with its scores [B], and what the steps that use it report of it."""

    batch: SampledBatch
    prompts: list[Prompt]
    scores: list[Score]
    metrics: dict[str, Any]


@dataclass
class Training:
    """`steps` counts optimizer steps, `step` those that are done; `rows_of` gives the prompts of a sampling batch."""

    config: Config
    learner: LocalLearner
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
    scored: Scored | None = field(default=None, repr=False)
    watch: Stopwatch = field(default_factory=Stopwatch, repr=False)

    @property
    def first(self) -> bool:
        """Whether the next step is the first one on its samples."""
        return self.step % self.config.method.iterations == 0

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        settings = self.config.training
        return learning_rate(self.step, self.steps, settings.lr, settings.schedule, settings.warmup)
