"""The sentences on top of the page: did it learn, by how much and how sure, what still fails, where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmclick.pipeline.intervals import FEWEST
from llmclick.pipeline.outcome import counted
from llmclick.report.experiment import Experiment
from llmclick.tracking.console import duration

EQUAL = 1e-9  # as the gate: an end this close to 0 is at 0


@dataclass(frozen=True)
class Story:
    """`badge` is one of passed, failed, not judged, unfinished; `headline` the answer; `sentences` what belongs to it;
    `tiles` (label, value, note) for the figures under it."""

    badge: str
    headline: str
    sentences: list[str]
    tiles: list[tuple[str, str, str]]


def tell(run: Experiment) -> Story:
    """Say what the files of a run say."""
    reward = (run.verdict.get("metrics") or {}).get("reward") or {}
    sentences: list[str] = []
    tiles: list[tuple[str, str, str]] = []
    if _numbers(reward, "base", "trained", "difference"):
        headline = _judged(reward)
        budget = run.setting("method.max_new_tokens")
        how = f"greedy, at most {budget} tokens" if budget is not None else "greedy"
        note = f"{how}, {counted(reward.get('n'), reward.get('prompts'))}"
        tiles.append(("Held-out reward", f"{reward['base']:.2f} → {reward['trained']:.2f}", note))
        if _numbers(reward, "low", "high"):
            tiles.append(
                ("Difference", f"{reward['difference']:+.2f}", f"95 % interval {reward['low']:+.2f} to {reward['high']:+.2f}")
            )
    else:
        headline = _training(run)
    bounds = [bound for bound in run.verdict.get("bounds") or [] if isinstance(bound, dict)]
    missed = [bound for bound in bounds if not bound.get("passed")]
    if missed:
        sentences.append("The gate failed: " + "; ".join(_missed(bound) for bound in missed) + ".")
    elif run.verdict and not bounds:
        sentences.append("No bound was set, so nothing could fail: this is a measurement, not a judgement.")
    failing = _failing(run)
    if failing is not None:
        count, total, worse = failing
        text = f"{count} of {total} held-out rows still fail" if count else f"All {total} held-out rows pass"
        sentences.append(text + (f"; {worse} got a lower reward than from the base model." if worse else "; none got worse."))
        tiles.append(("Rows that still fail", f"{count} of {total}", "after training"))
    spent = _time(run)
    if spent:
        sentences.append(spent)
    stages = stage_seconds(run)
    if len(stages) > 1:
        sentences.append("By stage: " + _and([f"{stage} {duration(seconds)}" for stage, seconds in stages]) + ".")
    trained = sum(seconds for _, seconds in phases(run))
    whole = dict(stages).get("train", 0.0)
    if trained and whole > 1.02 * trained:
        sentences.append(
            f"Of the train stage, {duration(trained)} were steps and {duration(whole - trained)} what is around them: loading "
            "the model, held-out rows in between, snapshots and the checkpoint."
        )
    if trained:
        tiles.append(("Training time", duration(trained), f"{len(run.metrics)} steps"))
    return Story(_badge(run), headline, sentences, tiles)


def phases(run: Experiment) -> list[tuple[str, float]]:
    """Seconds of training by phase, summed over the steps; `other` is what no phase claims."""
    sums: dict[str, float] = {}
    whole = 0.0
    for record in run.metrics:
        seconds = record.get("seconds") or {}
        for name, value in seconds.items():
            if isinstance(value, (int, float)):
                if name == "total":
                    whole += value
                else:
                    sums[name] = sums.get(name, 0.0) + value
    order = ["sample", "score", "train", "sync"]
    known = sorted(sums.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))
    rest = whole - sum(value for _, value in known)
    return known + ([("other", rest)] if rest > 0.005 * whole and whole else [])


def stage_seconds(run: Experiment) -> list[tuple[str, float]]:
    """Seconds of the finished stages, as their manifests say (of a resumed stage: its last session)."""
    found = []
    for stage, manifest in run.stages.items():
        seconds = manifest.get("seconds")
        if isinstance(seconds, (int, float)):
            found.append((stage, float(seconds)))
    return found


def _badge(run: Experiment) -> str:
    if "passed" in run.verdict:
        passed = run.verdict["passed"]
        return "not judged" if passed is None or not run.verdict.get("bounds") else "passed" if passed else "failed"
    return "not judged" if run.stages.get("train") else "unfinished"


def _judged(reward: dict[str, Any]) -> str:
    change = f"the held-out reward went from {reward['base']:.2f} to {reward['trained']:.2f} ({reward['difference']:+.2f}"
    if _numbers(reward, "low", "high"):
        change += f", 95 % interval {reward['low']:+.2f} to {reward['high']:+.2f}"
        if reward["low"] == reward["high"]:
            change += ", the same on every row"
        if reward["low"] > EQUAL:
            opening = "It learned"
        elif reward["high"] < -EQUAL:
            opening = "It got worse"
        else:
            opening = "No certain change"
    else:
        opening = f"Measured on fewer than {FEWEST} prompts, which is too few for an interval"
    return f"{opening}: {change}) on {counted(reward.get('n'), reward.get('prompts'))} that training never saw."


def _training(run: Experiment) -> str:
    values = [float(record["reward"]) for record in run.metrics if isinstance(record.get("reward"), (int, float))]
    if not values:
        return "Nothing has been measured yet: no optimizer step is finished."
    window = max(1, min(5, len(values) // 2))
    first, last = sum(values[:window]) / window, sum(values[-window:]) / window
    steps = f"{len(values)} step{'s' if len(values) != 1 else ''}"
    if len(values) == 1:
        return f"Not judged yet: the sampled reward is {first:.2f} after {steps}."
    return (
        f"Not judged yet: over {steps} the sampled reward went from {first:.2f} to {last:.2f} "
        f"(means of the first and last {window}); held-out rows decide once validate has run."
    )


def _missed(bound: dict[str, Any]) -> str:
    why = bound.get("why")
    if why:
        return str(why).rstrip(".")
    value = bound.get("value")
    shown = f"{value:.3f}" if isinstance(value, (int, float)) else "missing"
    return f"{bound.get('kind')} {bound.get('metric')} asks for {bound.get('bound')}, it is {shown}"


def _failing(run: Experiment) -> tuple[int, int, int] | None:
    judged = []
    for row in run.held_out:
        base, trained = ((row.get(side) or {}).get("reward") for side in ("base", "trained"))
        passed = (row.get("trained") or {}).get("passed")
        if isinstance(trained, (int, float)) and isinstance(passed, bool):
            judged.append((base, trained, passed))
    if not judged:
        return None
    worse = sum(1 for base, trained, _ in judged if isinstance(base, (int, float)) and trained < base - 1e-9)
    return sum(1 for *_, passed in judged if not passed), len(judged), worse


def _time(run: Experiment) -> str:
    spent = phases(run)
    total = sum(seconds for _, seconds in spent)
    if not total:
        return ""
    words = {
        "sample": "sampling",
        "score": "scoring",
        "train": "the gradient",
        "sync": "syncing weights",
        "other": "everything else",
    }
    largest = sorted(spent, key=lambda item: -item[1])
    parts = [f"{words.get(name, name)} {100 * seconds / total:.0f} %" for name, seconds in largest if seconds >= 0.005 * total]
    return f"Training took {duration(total)} for {len(run.metrics)} steps: {_and(parts)}."


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _numbers(values: dict[str, Any], *names: str) -> bool:
    return all(isinstance(values.get(name), (int, float)) for name in names)
