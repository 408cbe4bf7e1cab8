"""When training ends because its batches carry no signal: what the whole silent run was, not its last batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmclick.errors import TrainingStopped


@dataclass(frozen=True)
class Silence:
    """The sampled batches in a row, up to now, in which no group had a signal. Sums over them, so that they fit a snapshot.

    `right` and `groups` count groups, those of which every completion passes and all; `wrong` says whether no completion of
    any batch passed or had a reward above 0; `reward` and `truncated` are sums of the batches' means.
    """

    batches: int = 0
    groups: int = 0
    right: int = 0
    wrong: bool = True
    reward: float = 0.0
    truncated: float = 0.0

    def then(self, metrics: Mapping[str, Any]) -> Silence:
        """The silence after one more sampled batch, none if a group of it had a signal."""
        groups = metrics["groups"]
        if groups["mixed"]:
            return Silence()
        return Silence(
            batches=self.batches + 1,
            groups=self.groups + groups["all_right"] + groups["all_wrong"],
            right=self.right + groups["all_right"],
            wrong=self.wrong and metrics["pass_rate"] == 0 and metrics["reward"] <= 0,
            reward=self.reward + metrics["reward"],
            truncated=self.truncated + metrics["truncated"],
        )

    def judged(self, patience: int) -> str | None:
        """Why training ends after `patience` such batches: a sentence if all groups of all of them were right, None if it does
        not end yet (or never, with a patience of 0). Raises TrainingStopped if it ends because nothing can be reinforced."""
        if not patience or self.batches < patience:
            return None
        if self.right == self.groups:
            return f"{self.batches} sampled batches in a row were all right: nothing is left to learn from these rows"
        help_ = "easier rows, a larger method.group_size, or a reward that gives part of the credit for part of the answer"
        truncated = self.truncated / self.batches
        if truncated > 0.5:
            help_ = f"{truncated:.0%} were cut by method.max_new_tokens: raise it first; then " + help_
        some = f", {self.right} of {self.groups} groups all right" if self.right else ""
        raise TrainingStopped(
            f"{self.batches} sampled batches in a row had no signal: within every group all completions were "
            f"{'wrong' if self.wrong else 'equal'} (mean reward {self.reward / self.batches:.3g}{some}), so there is nothing "
            f"to reinforce. What helps: {help_}. `llmclick check CONFIG --sample 16` forecasts it; training.patience: 0 never "
            "stops."
        )
