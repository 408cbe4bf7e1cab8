"""The gate: paired metrics of base and trained model, their intervals, and the bounds they have to meet. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from llmclick.pipeline.bootstrap import paired_interval


class Bounds(Protocol):
    """The `validation` section of a config, as far as the gate reads it."""

    @property
    def min(self) -> Mapping[str, float]:
        """Lower bounds on the trained model's means."""

    @property
    def max(self) -> Mapping[str, float]:
        """Upper bounds on them."""

    @property
    def gain(self) -> Mapping[str, float]:
        """Bounds on the paired improvement."""


@dataclass(frozen=True)
class Measured:
    """One metric: means over the rows it exists for (`n`), the paired difference and its 95 % interval. None: no such value."""

    base: float | None
    trained: float | None
    difference: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Bound:
    """One bound, whether it was met, and why not."""

    kind: str
    metric: str
    bound: float
    value: float | None
    passed: bool
    why: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the gate says."""

    metrics: dict[str, Measured]
    bounds: list[Bound]
    notices: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every bound was met."""
        return all(bound.passed for bound in self.bounds)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "passed": self.passed,
            "metrics": {name: vars(measured) for name, measured in self.metrics.items()},
            "bounds": [vars(bound) for bound in self.bounds],
            "notices": self.notices,
        }


def judge(
    base: Sequence[Mapping[str, Any]],
    trained: Sequence[Mapping[str, Any]],
    bounds: Bounds,
    rewards: Sequence[str],
    seed: int,
) -> Verdict:
    """Compares the answers of both models to the same rows, in the same order.

    min and max compare means; a gain passes when the mean difference is at least the bound and the interval's lower end is
    above 0 (one row cannot show that). A missing or non-finite metric fails every bound on it.
    """
    metrics = {name: _measure(name, base, trained, seed) for name in metric_names(rewards)}
    found = [
        *(_against_mean("min", name, bound, metrics) for name, bound in bounds.min.items()),
        *(_against_mean("max", name, bound, metrics) for name, bound in bounds.max.items()),
        *(_gain(name, bound, metrics, base, trained) for name, bound in bounds.gain.items()),
    ]
    notices = [] if found else ["validation has no bounds: the numbers are reported, nothing was judged"]
    return Verdict(metrics, found, notices)


def metric_names(rewards: Sequence[str]) -> list[str]:
    """The metrics of a validation, in the order they are shown."""
    return ["reward", *(f"reward/{name}" for name in rewards), "pass_rate", "length", "truncated"]


def metric_of(name: str, answer: Mapping[str, Any]) -> float | None:
    """A metric of one answer; None if a reward did not apply to the row."""
    if name == "reward":
        return float(answer["reward"])
    if name.startswith("reward/"):
        value = answer["rewards"].get(name.removeprefix("reward/"))
        return None if value is None else float(value)
    if name == "pass_rate":
        return float(answer["passed"])
    if name == "length":
        return float(answer["tokens"])
    return float(answer["stop"] == "length")


def _measure(name: str, base: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]], seed: int) -> Measured:
    pairs = _pairs(name, base, trained)
    if not pairs:
        return Measured(None, None, None, None, None, 0)
    before, after = np.array(pairs).T
    difference = after - before
    if not np.isfinite(difference).all():
        return Measured(_finite(before.mean()), _finite(after.mean()), None, None, None, len(pairs))
    low, high = paired_interval(difference, seed)
    return Measured(float(before.mean()), float(after.mean()), float(difference.mean()), low, high, len(pairs))


def _pairs(name: str, base: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    both = ((metric_of(name, before), metric_of(name, after)) for before, after in zip(base, trained, strict=True))
    return [(before, after) for before, after in both if before is not None and after is not None]


def _against_mean(kind: str, name: str, bound: float, metrics: Mapping[str, Measured]) -> Bound:
    value = metrics[name].trained if name in metrics else None
    if value is None or not math.isfinite(value):
        return Bound(kind, name, bound, None, False, f"{name} has no finite value")
    passed = value >= bound if kind == "min" else value <= bound
    word = "below" if kind == "min" else "above"
    return Bound(kind, name, bound, value, passed, "" if passed else f"{name} is {value:.4g}, {word} {bound:g}")


def _gain(
    name: str,
    bound: float,
    metrics: Mapping[str, Measured],
    base: Sequence[Mapping[str, Any]],
    trained: Sequence[Mapping[str, Any]],
) -> Bound:
    measured = metrics.get(name)
    if measured is None or measured.difference is None or measured.low is None or measured.high is None:
        return Bound("gain", name, bound, None, False, f"{name} has no finite value")
    difference = measured.difference
    if measured.n < 2:
        return Bound("gain", name, bound, difference, False, "one held-out row cannot show a gain: hold out more")
    if difference < bound:
        why = f"{name} changed by {difference:+.4g}, less than {bound:g}" + _too_few(name, bound, base, trained)
        return Bound("gain", name, bound, difference, False, why)
    if measured.low <= 0:
        why = f"the interval of the difference reaches down to {measured.low:+.3g}" + _too_few(name, bound, base, trained)
        return Bound("gain", name, bound, difference, False, why)
    return Bound("gain", name, bound, difference, True)


def _too_few(name: str, bound: float, base: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]]) -> str:
    """Says so when so few rows could not show the asked gain even if it were there.

    A mean of n differences with standard deviation s has a 95 % half-width of 1.96 s / sqrt(n); it has to be below the gain.
    """
    differences = [after - before for before, after in _pairs(name, base, trained)]
    if bound <= 0 or len(differences) < 2:
        return ""
    spread = float(np.std(differences, ddof=1))
    needed = math.ceil((1.96 * spread / bound) ** 2)
    if needed <= len(differences):
        return ""
    return f"; {len(differences)} rows are too few to see a gain of {bound:g} here, about {needed} would do"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
