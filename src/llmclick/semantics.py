"""What llmclick computes, as declared numbers: the part of an experiment's identity that llmclick's own code stands for.

An experiment finished under one number is the experiment under that number for ever, whatever became of the code: a rename, a
moved file, a better sentence or a faster way to the same numbers changes nothing. A change of what is computed raises a number.
The golden runs under tests/golden fail until it does, and until the change log says what the number stands for.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SEMANTICS = {"data": 1, "train": 1, "validate": 1}
"""By stage.

`data`: which rows train and which are held out, their order, prompts as token ids, which rows are refused.
`train`: sampling, scoring, advantages, the objective, the optimizer and what is written as a checkpoint.
`validate`: greedy answers, scoring, metrics, intervals and the verdict.

Scoring belongs to the last two. A shipped reward has a number of its own, `version=` where it is registered.
"""


def installed_version(package: str) -> str:
    """The version of an installed library, which stands for its code as the numbers do for llmclick's; `none` if absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
