"""The doors of the package: a `Sampler` draws completions, a `Learner` moves weights, a `World` says who else works along.

A training step is `groups = sampler.sample(...)`, rewards, `learner.gradient(...)`, `learner.update(...)`,
`sampler.sync(learner.weights(), version)`. What differs by engine, device, process or machine lies behind these three; what
they hand to each other is defined here too. Nothing here imports torch.

Shapes: B completions of a batch, numbered b = prompt * group_size + sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from llmclick.modeling.llm.training.batch import SampledBatch
    from llmclick.modeling.llm.training.statistics import StepStatistics
    from llmclick.modeling.llm.training.step import Objective

Stop = Literal["stop", "length"]


@dataclass(frozen=True)
class Request:
    """One prompt: its token ids, and its row's id, which addresses its random numbers."""

    row_id: str
    ids: Sequence[int]


@dataclass(frozen=True)
class Sampling:
    """How to sample: completions per request, temperature (None: greedily), token budget, and the batch's name.

    `stream` addresses the random numbers of the batch. `together` is how many completions a local sampler decodes at once: with
    the requests it decides what lies beside what, and so the last bits; a server has a scheduler of its own.
    """

    group_size: int
    temperature: float | None
    max_new_tokens: int
    stream: str
    together: int


@dataclass(frozen=True)
class Completion:
    """One sampled completion: token ids in, token ids out; text exists for rewards and display only.

    `ids` and `logprobs` include the stop token if one was sampled (`stop`); a completion cut by the budget (`length`) has none.
    `entropy` is the mean over its tokens of the distribution's entropy, in nats (0 for greedy), None where the sampler does not
    know it. `version` is that of the weights that it was drawn from.
    """

    ids: list[int]
    logprobs: list[float]
    stop: Stop
    entropy: float | None
    version: int = 0

    @property
    def truncated(self) -> bool:
        """Whether the budget cut it."""
        return self.stop == "length"


class SamplingInterrupted(Exception):
    """`should_stop` said so between two tokens; what was sampled of the batch is dropped."""


@dataclass(frozen=True)
class Features:
    """What a sampler can promise.

    `entropy`: its completions have one. `exact`: the same requests and weights give the same completions, bit for bit, so that
    an interrupted run equals an uninterrupted one. `own_precision`: its log-probabilities are computed in another precision or
    by other code than the learner's, so that `method.correction: auto` is on.
    """

    entropy: bool
    exact: bool
    own_precision: bool


class WeightSource(Protocol):
    """The weights as they are now: full tensors under transformers' names, one by one, so that no second copy of all exists."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) pairs; a tensor is valid until the next one is asked for."""
        ...


class Sampler(Protocol):
    """Samples groups of completions from the weights that it was last synchronized with."""

    features: Features

    def sync(self, weights: WeightSource, version: int) -> None:
        """Sample from these weights from now on; completions carry `version`."""
        ...

    def sample(
        self,
        requests: Sequence[Request],
        how: Sampling,
        *,
        on_tokens: Callable[[int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[list[Completion]]:
        """`how.group_size` completions for each request, in order.

        `on_tokens(n)` is told after every token position how many of the positions are done (for a progress bar). Raises
        SamplingInterrupted once `should_stop` says so.
        """
        ...

    def close(self) -> None:
        """Give back what only further samples would need."""
        ...


class NotFinite(Exception):
    """The gradient's norm is not finite; no weight was moved."""


class NothingMoved(Exception):
    """An update with a gradient changed no weight. `norm` is the gradient's."""

    def __init__(self, norm: float) -> None:
        super().__init__(norm)
        self.norm = norm


class Learner(Protocol):
    """Owns the weights that train, their gradients and the optimizer's state."""

    def gradient(self, batch: SampledBatch, objective: Objective, *, first: bool) -> StepStatistics:
        """The gradient of one optimizer step on `batch`, in place of the last one, and what was seen on the way.

        `first` marks the first step on these samples: the learner's own log-probabilities become the old ones, r = 1 exactly.
        """
        ...

    def update(self, lr: float, max_norm: float) -> float:
        """Move the weights by the gradient, scaled to an L2 norm of at most `max_norm`. Returns the norm before scaling.

        Raises NotFinite, without moving anything, if the norm is not finite, and NothingMoved if no weight changed.
        """
        ...

    def weights(self) -> WeightSource:
        """The weights after the last update."""
        ...


class World(Protocol):
    """The processes that train together, as one of them sees them. `main` writes files and speaks."""

    rank: int
    size: int
    main: bool

    def total(self, sums: Sequence[float]) -> list[float]:
        """The sum over all processes of each number: denominators and metrics, one reduction a step."""
        ...

    def agree(self, stop: bool) -> bool:
        """Whether any process was asked to stop: all save at the same step."""
        ...
