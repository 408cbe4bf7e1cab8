"""Random numbers by address: one uniform number for each (seed, stream, row, sample, position), consumed from nowhere.

A completion's numbers therefore do not depend on batch layout, order, resume or the number of workers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

# Constants of the SplitMix64 generator (Steele, Lea, Flood 2014), used here as a hash of (key, position).
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def completion_key(seed: int, stream: str, row_id: str, sample: int) -> np.uint64:
    """The 64-bit key of one completion. `stream` names the sampling batch, e.g. `train/12`."""
    address = f"{seed}\x1f{stream}\x1f{row_id}\x1f{sample}".encode()
    return np.uint64(int.from_bytes(hashlib.blake2b(address, digest_size=8).digest(), "little"))


def uniforms(keys_B: npt.NDArray[np.uint64], position: int) -> npt.NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each key [B], at token `position` of each completion."""
    with np.errstate(over="ignore"):
        z = keys_B + _GAMMA * np.uint64(position + 1)
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
