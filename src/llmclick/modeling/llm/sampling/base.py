"""What a sampler takes and gives: token ids in, token ids out. Text exists for rewards and display only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Stop = Literal["stop", "length"]


@dataclass(frozen=True)
class Request:
    """One prompt: its token ids, and its row's id, which addresses its random numbers."""

    row_id: str
    ids: Sequence[int]


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    `ids` and `logprobs` include the stop token if one was sampled (`stop`); a completion cut by the budget (`length`) has none.
    `entropy` is the mean over its tokens of the distribution's entropy, in nats (0 for greedy).
    """

    ids: list[int]
    logprobs: list[float]
    stop: Stop
    entropy: float

    @property
    def truncated(self) -> bool:
        """Whether the budget cut it."""
        return self.stop == "length"


class SamplingInterrupted(Exception):
    """`should_stop` said so between two tokens; what was sampled of the batch is dropped."""


class Sampler(Protocol):
    """Samples groups of completions."""

    def sample(
        self,
        requests: Sequence[Request],
        group_size: int,
        stream: str,
        *,
        on_tokens: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[list[Completion]]:
        """`group_size` completions for each request, in order. `stream` names the batch for the random numbers.

        `on_tokens(n)` is told after every token position how many of the positions are done (for a progress bar).
        """
        ...
