"""Which rows are held out, and in what order the others are sampled. Pure functions of the seed and the rows' ids.

Nothing is drawn from a stream of random numbers: every rank is a hash of what it ranks, so it does not depend on the order of
the file, on other rows, or on where a run was interrupted.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


def rank(*parts: object) -> bytes:
    """The SHA-256 of the parts, as a sort key that is as good as random and always the same."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()


def held_out_count(validation: int | float, rows: int) -> int:
    """How many rows to hold out: an integer is a count, a number between 0 and 1 a share, at least one row.

    >>> held_out_count(0.1, 200), held_out_count(0.1, 4), held_out_count(16, 200)
    (20, 1, 16)
    >>> held_out_count(0.35, 90)  # 31.5, a half, goes to the even number; as a product of floats it is 31.499999999999996
    32
    """
    if isinstance(validation, int):
        return validation
    return max(1, round(Fraction(repr(validation)) * rows))


def in_hash_order(ids: Sequence[str], seed: int) -> list[int]:
    """Positions of `ids`, sorted by the hash that decides who is held out."""
    return sorted(range(len(ids)), key=lambda i: (rank("split", seed, ids[i]), ids[i]))


def split(ids: Sequence[str], prompts: Sequence[str], validation: int | float, seed: int) -> tuple[list[int], list[int]]:
    """Positions of the training rows (in the rows' order) and of the held-out rows (in hash order).

    Rows are taken in hash order until enough are held out; rows with the same rendered prompt go together. A group of equal
    prompts that would exceed the count is passed over, unless nothing smaller is left to hold out. Either list may come out
    empty; the caller says so.
    """
    wanted = held_out_count(validation, len(ids))
    groups: dict[str, list[int]] = defaultdict(list)
    ranked = in_hash_order(ids, seed)
    for i in ranked:
        groups[prompts[i]].append(i)
    taken: list[int] = []
    for group in groups.values():  # in the order of their first member
        if len(taken) + len(group) <= wanted:
            taken += group
    if not taken and groups:
        taken = min(groups.values(), key=len)
    held = set(taken)
    return [i for i in range(len(ids)) if i not in held], [i for i in ranked if i in held]


@dataclass(frozen=True)
class Draw:
    """One prompt of a sampling batch: `index` into the training rows, the `epoch` it belongs to, and the `key` that addresses
    its random numbers. The key is the row's id; when a short epoch brings a row twice into one batch, the second is `id+1`."""

    index: int
    epoch: int
    key: str


class Stream:
    """The training rows of all epochs as one stream, cut into sampling batches; the last may be short, nothing is dropped."""

    def __init__(self, ids: Sequence[str], *, epochs: int, per_batch: int, seed: int) -> None:
        self._ids = tuple(ids)
        self._epochs, self._per_batch, self._seed = epochs, per_batch, seed
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """How many sampling batches there are."""
        return math.ceil(len(self._ids) * self._epochs / self._per_batch)

    def epoch(self, number: int) -> list[int]:
        """Positions of the rows in the order of this epoch (from 0)."""
        if number not in self._orders:
            ids = self._ids
            # A batch looks at neighbouring epochs; older orders would be kept for nothing.
            self._orders = {known: order for known, order in self._orders.items() if known == number - 1}
            self._orders[number] = sorted(range(len(ids)), key=lambda i: (rank("epoch", self._seed, number, ids[i]), ids[i]))
        return self._orders[number]

    def batch(self, number: int) -> list[Draw]:
        """The prompts of sampling batch `number` (from 0). The same whatever was asked before. IndexError past the last."""
        if not 0 <= number < len(self):
            raise IndexError(f"sampling batch {number} of {len(self)}")
        rows = len(self._ids)
        start = number * self._per_batch
        draws, seen = [], Counter[str]()
        for place in range(start, min(start + self._per_batch, rows * self._epochs)):
            epoch, at = divmod(place, rows)
            index = self.epoch(epoch)[at]
            row = self._ids[index]
            draws.append(Draw(index, epoch, f"{row}+{seen[row]}" if seen[row] else row))
            seen[row] += 1
        return draws


def total_steps(
    rows: int, *, epochs: int, batch_size: int, accumulation: int, iterations: int = 1, max_steps: int | None = None
) -> int:
    """Optimizer steps of a run: ceil(rows x epochs / (batch_size x accumulation)) x iterations, cut by `max_steps`.

    >>> total_steps(180, epochs=1, batch_size=2, accumulation=2)
    45
    >>> total_steps(180, epochs=1, batch_size=2, accumulation=2, iterations=2, max_steps=4)
    4
    """
    steps = math.ceil(rows * epochs / (batch_size * accumulation)) * iterations
    return steps if max_steps is None else min(steps, max_steps)
