"""The forecast of learnability: what share of groups will carry a signal, before a gradient is paid for. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from llmclick.pipeline.intervals import bootstrap_interval

ENOUGH = 0.05
"""Below this expected share of groups with a signal a run is said not to be able to learn."""


@dataclass(frozen=True)
class Share:
    """The expected share of groups with a signal at one group size, with its 95 % interval over prompts."""

    group_size: int
    share: float
    low: float
    high: float


def signal_probability(rewards: Sequence[float], group_size: int) -> float:
    """The probability that `group_size` of these completions of one prompt, drawn without replacement, differ in reward.

    1 - sum over distinct rewards v of C(m_v, g) / C(n, g), m_v of the n completions having reward v: the unbiased estimate.
    Never from a pass rate over all prompts: prompts that are always right or always wrong would look like coin flips.

    >>> signal_probability([1, 1, 0, 0], 2)
    0.6666666666666667
    """
    alike = sum(comb(count, group_size) for count in Counter(rewards).values())
    return 1 - alike / comb(len(rewards), group_size)


def completions_needed(group_size: int) -> int:
    """Completions per prompt that the forecast samples: max(16, 2 x group_size)."""
    return max(16, 2 * group_size)


def forecast(rewards: Sequence[Sequence[float]], group_size: int, seed: int) -> Share:
    """The mean over prompts of `signal_probability`, with a bootstrap interval over the prompts."""
    shares = [signal_probability(of_prompt, group_size) for of_prompt in rewards]
    low, high = bootstrap_interval(shares, seed)
    return Share(group_size, sum(shares) / len(shares), low, high)


def advice(shares: Sequence[Share], asked: int, pass_rate: float, truncated: float) -> tuple[bool, str]:
    """Whether the run can learn, and a sentence that says so and what to change if not."""
    share = next(found for found in shares if found.group_size == asked)
    said = f"about {share.share:.0%} of groups will carry a signal (95 % interval {share.low:.0%} to {share.high:.0%})"
    if share.share >= ENOUGH:
        more = "" if share.share >= 0.2 else "; that is little: easier or more varied rows would make every step worth more"
        return True, f"can learn: {said}{more}"
    if pass_rate > 0.9:
        return (
            False,
            f"nothing to learn: {said}, because {pass_rate:.0%} of the answers are right already. Harder rows would help",
        )
    larger = [found for found in shares if found.group_size > asked and found.share >= ENOUGH]
    remedies = [f"method.group_size: {larger[0].group_size} (about {larger[0].share:.0%})"] if larger else []
    if truncated > 0.5:
        remedies.insert(0, f"a larger method.max_new_tokens ({truncated:.0%} of the answers were cut)")
    remedies += ["easier rows", "a prompt that says what the answer has to look like", "a reward with credit for parts"]
    return False, f"cannot learn: {said}. What helps: {', '.join(remedies)}"
