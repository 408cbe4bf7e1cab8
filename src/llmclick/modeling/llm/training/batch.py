"""One sampled batch: prompts, their groups of completions, advantages, and how it is cut into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from llmclick.interfaces import Completion
from llmclick.modeling.llm.methods.losses import Denominators

WORTHWHILE = 1024
"""Tokens from which on matrix products run at full speed, so that a further micro-batch costs nothing but saves padding."""

WASTE = 0.1
"""Padding that a micro-batch of that size may have, as a share of its real tokens."""


@dataclass
class SampledBatch:
    """What one round of sampling gave. Rows are numbered b = prompt * group_size + sample.

    `prompts` are token ids; `masked_B` marks the completions that `truncated: mask` takes out of the loss. `old` and
    `reference` hold per-token log-probabilities [tokens of the row] by row, once they have been computed.
    """

    prompts: Sequence[Sequence[int]]
    completions: Sequence[Completion]
    group_size: int
    advantages_B: npt.NDArray[np.float64]
    silent_B: npt.NDArray[np.bool_]
    masked_B: npt.NDArray[np.bool_]
    old: dict[int, Tensor] = field(default_factory=dict)
    reference: dict[int, Tensor] = field(default_factory=dict)

    def length(self, row: int) -> int:
        """Sampled tokens of a row, its stop token included."""
        return len(self.completions[row].ids)

    def denominators(self, longest: int) -> Denominators:
        """Scored tokens and sequences of the whole step."""
        scored = [row for row in range(len(self.completions)) if not self.masked_B[row]]
        return Denominators(sum(map(self.length, scored)), len(scored), longest)

    def trained_rows(self, skip_silent: bool) -> list[int]:
        """Rows that have tokens in the loss: not masked and, where no KL acts on them, not in a silent group."""
        left_out_B = self.masked_B | self.silent_B if skip_silent else self.masked_B
        return [int(row) for row in np.flatnonzero(~left_out_B)]


@dataclass(frozen=True)
class Chunk:
    """Prompts that are forwarded together, and the micro-batches of rows that continue them."""

    prompts: tuple[int, ...]
    micro_batches: tuple[tuple[int, ...], ...]


def plan(batch: SampledBatch, rows: Sequence[int], batch_size: int, micro_tokens: int) -> list[Chunk]:
    """Cuts the rows into chunks and micro-batches, a function of the tokens alone.

    A chunk holds at most `batch_size` prompts and, padded, `micro_tokens` prompt tokens; a micro-batch at most `micro_tokens`
    padded completion tokens (at least one prompt, one row). Sorted by length, longest first, so that little is padding.
    """
    by_prompt: dict[int, list[int]] = {}
    for row in rows:
        by_prompt.setdefault(row // batch.group_size, []).append(row)
    prompts = sorted(by_prompt, key=lambda prompt: (-len(batch.prompts[prompt]), prompt))
    chunks = []
    for part in _cut(prompts, lambda prompt: len(batch.prompts[prompt]), micro_tokens, batch_size):
        members = sorted((row for prompt in part for row in by_prompt[prompt]), key=lambda row: (-batch.length(row), row))
        micro = _cut(members, batch.length, micro_tokens, len(members), waste=WASTE)
        chunks.append(Chunk(tuple(part), tuple(map(tuple, micro))))
    return chunks


def plan_packed(
    batch: SampledBatch, rows: Sequence[int], batch_size: int, micro_tokens: int
) -> list[list[tuple[int, tuple[int, ...]]]]:
    """Cuts the rows into micro-batches without padding, each a list of (prompt, its rows); a function of the tokens alone.

    A micro-batch holds at most `batch_size` prompts and `micro_tokens` tokens of prompts and completions. A group that alone
    has more is spread over several, which forward its prompt again: each then holds at least half as many completion tokens.
    """
    by_prompt: dict[int, list[int]] = {}
    for row in rows:
        by_prompt.setdefault(row // batch.group_size, []).append(row)
    parts = []
    for prompt, members in by_prompt.items():
        length = len(batch.prompts[prompt])
        room = max(micro_tokens - length, micro_tokens // 2)
        members = sorted(members, key=lambda row: (-batch.length(row), row))
        start = used = 0
        for at, row in enumerate(members):
            if at > start and used + batch.length(row) > room:
                parts.append((length + used, prompt, tuple(members[start:at])))
                start, used = at, 0
            used += batch.length(row)
        parts.append((length + used, prompt, tuple(members[start:])))
    micro_batches: list[list[tuple[int, tuple[int, ...]]]] = []
    left = 0
    for tokens, prompt, members_of in sorted(parts, key=lambda part: (-part[0], part[1], part[2])):
        if not micro_batches or tokens > left or len(micro_batches[-1]) == batch_size:
            micro_batches.append([])
            left = micro_tokens
        micro_batches[-1].append((prompt, members_of))
        left -= tokens
    return micro_batches


def _cut(items: list[int], length: Callable[[int], int], tokens: int, most: int, waste: float | None = None) -> list[list[int]]:
    """Runs of items (longest first), at most `most` each and padded at most `tokens`; at least one item.

    With `waste` a run of WORTHWHILE tokens ends before its padding exceeds that share of its real tokens.
    """
    runs: list[list[int]] = []
    real = 0
    for item in items:
        if runs and len(runs[-1]) < most:
            padded = (len(runs[-1]) + 1) * length(runs[-1][0])
            wasteful = waste is not None and padded > WORTHWHILE and padded > (1 + waste) * (real + length(item))
            if padded <= tokens and not wasteful:
                runs[-1].append(item)
                real += length(item)
                continue
        runs.append([item])
        real = length(item)
    return runs
