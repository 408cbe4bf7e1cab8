"""How sure a mean difference is: the percentile bootstrap and the sign-flip test, both over prompts. No torch.

Rows with the same prompt get the same greedy answer, so they are one observation, however often they are copied. Everything
here therefore draws whole prompts, while the mean stays the mean over rows.

Both intervals are the middle 95 % of means over drawn prompts. The bootstrap draws as many prompts as there are, with
replacement; the sign-flip interval takes every subset of them. The bootstrap alone is too narrow where prompts are few, where
some have many more rows than others, or where most of the change is in a few of them: docs/gate.md has the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
EXACT = 15
"""Up to this many prompts every subset is taken, 2 ** 15 = 32,768 at most; above, as many as there are resamples."""
FEWEST = 6
"""Prompts that an interval needs. Of 2 ** m sign patterns the one that was seen is always at least as extreme as itself, on
either side: a two-sided p of 2 / 2 ** m is at most 5 % from m = 6 on."""
_CHUNK = 1 << 20  # numbers drawn at once: 8 MB

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A 95 % interval of a mean difference. `method` says whose ends it has: bootstrap, sign-flip, or both (one each).

    The ends are infinite where fewer than `FEWEST` prompts were compared.
    """

    low: float
    high: float
    method: str


def paired_interval(differences: Sequence[float], prompts: Sequence[Hashable], seed: int) -> Interval:
    """The 95 % interval of the mean of paired differences, one per row (trained minus base): on either side the wider one of
    bootstrap and sign-flip interval.

    So it lies above 0 only if the sign-flip test rejects "no change" at 5 %, two-sided, and the bootstrap agrees. `prompts`
    names the prompt of each row. Raises ValueError without rows.
    """
    resampled = bootstrap_interval(differences, seed, prompts)
    flipped = signflip_interval(differences, seed, prompts)
    flips = flipped[0] < resampled[0] or flipped[1] > resampled[1]
    draws = resampled[0] < flipped[0] or resampled[1] > flipped[1]
    method = "both" if flips and draws else "sign-flip" if flips else "bootstrap"
    return Interval(min(resampled[0], flipped[0]), max(resampled[1], flipped[1]), method)


def bootstrap_interval(
    values: Sequence[float] | Floats, seed: int, prompts: Sequence[Hashable] | None = None
) -> tuple[float, float]:
    """The percentile bootstrap (Efron 1979) of a mean: the middle 95 % of the means of 10,000 resamples.

    A resample draws as many prompts as there are, with replacement, each with all of its rows; without `prompts` every value
    is one of its own. One prompt gives an interval of no width. Raises ValueError without values.
    """
    sums_P, rows_P = per_prompt(values, prompts)
    means = np.concatenate(
        [sums_P[drawn].sum(axis=1) / rows_P[drawn].sum(axis=1) for drawn in resamples(len(sums_P), seed)],
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def signflip_interval(values: Sequence[float], seed: int, prompts: Sequence[Hashable] | None = None) -> tuple[float, float]:
    """The means that the two-sided sign-flip test does not reject at 5 %.

    The test (Fisher 1935) of a mean t: if a change of a prompt by t + d is as likely as one by t - d, flipping the signs of
    the prompts' deviations from t gives equally likely data, and p is the share of the 2 ** m patterns whose sum is at least
    as far from 0 as the one that was seen. Solved for t, a pattern counts exactly from the mean of the prompts that it flips
    to the mean of those that it leaves. So the interval is the middle 95 % of the means of all subsets of the prompts, the
    empty one lying beyond either end (Hartigan 1969); nothing has to be searched, and 0 lies outside exactly where the test
    rejects "no change". Infinite ends below `FEWEST` prompts. Raises ValueError without values.
    """
    sums_P, rows_P = per_prompt(values, prompts)
    parts, count = [], 0
    for taken in subsets(len(sums_P), seed):
        count += len(taken)
        filled = taken[taken.any(axis=1)]
        parts.append((filled * sums_P).sum(axis=1) / (filled * rows_P).sum(axis=1))
    means = np.sort(np.concatenate(parts))
    return signflip_ends(means, count)


def signflip_ends(means: Floats, count: int) -> tuple[float, float]:
    """The two ends, given the sorted means of all subsets but the empty ones, and the `count` of all.

    On each side floor(count / 40) subsets, 2.5 %, are cut off, the empty ones first.
    """
    place = count // 40 - (count - len(means))
    if place < 0:
        return -math.inf, math.inf
    return float(means[place]), float(means[len(means) - 1 - place])


def per_prompt(values: Sequence[float] | Floats, prompts: Sequence[Hashable] | None = None) -> tuple[Floats, Floats]:
    """The sum of the values of each prompt's rows, and how many rows it has, in the order of first appearance."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError("an interval needs at least one value")
    if prompts is None:
        return array, np.ones(len(array))
    if len(prompts) != len(array):
        raise ValueError(f"{len(array)} values of {len(prompts)} prompts")
    numbers: dict[Hashable, int] = {}
    place = [numbers.setdefault(prompt, len(numbers)) for prompt in prompts]
    sums, rows = np.bincount(place, weights=array), np.bincount(place)
    return np.asarray(sums, dtype=np.float64), np.asarray(rows, dtype=np.float64)


def resamples(prompts: int, seed: int) -> Iterator[npt.NDArray[np.intp]]:
    """10,000 resamples, [some, prompts] indices at a time.

    The draws are raw Philox words addressed by the seed, so the same rows and seed give the same interval under every version
    of numpy.
    """
    bits = np.random.Philox(key=seed % (1 << 64))
    together = max(1, _CHUNK // prompts)
    for start in range(0, RESAMPLES, together):
        some = min(together, RESAMPLES - start)
        words = np.asarray(bits.random_raw(some * prompts), dtype=np.uint64)
        # The remainder favours small indices by prompts / 2**64, which nobody can measure.
        yield (words % np.uint64(prompts)).astype(np.intp).reshape(some, prompts)


def subsets(prompts: int, seed: int) -> Iterator[npt.NDArray[np.bool_]]:
    """Subsets of the prompts, [some, prompts] flags at a time: all of them up to `EXACT` prompts, else the empty one (the
    pattern that was seen, which belongs into every such test) and 9,999 at random, addressed by the seed."""
    if prompts <= EXACT:
        yield (np.arange(1 << prompts)[:, None] >> np.arange(prompts)) & 1 == 1
        return
    yield np.zeros((1, prompts), dtype=np.bool_)
    bits = np.random.Philox(key=(1 << 64) + seed % (1 << 64))  # other words than the bootstrap's
    width = -(-prompts // 64)
    together = max(1, _CHUNK // prompts)
    for start in range(0, RESAMPLES - 1, together):
        some = min(together, RESAMPLES - 1 - start)
        words = np.asarray(bits.random_raw(some * width), dtype="<u8").reshape(some, width)
        yield np.unpackbits(words.view(np.uint8), axis=1, count=prompts, bitorder="little") == 1
