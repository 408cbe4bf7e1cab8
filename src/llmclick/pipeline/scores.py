"""Completions to scores: the config's rewards on sampled groups, the same in training, `check`, `sample` and validate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmclick.config.schema import Config
    from llmclick.data.prompts import Prompt
    from llmclick.interfaces import Completion
    from llmclick.rewards.scoring import Score, Scorer


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
