"""The end of a run in words: the table of base against trained, the verdict bound by bound, and where the weights are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLUMNS = ("metric", "base", "trained", "difference", "95 % interval", "n")


def show_outcome(
    console: Any, experiment: Path, passed: bool | None, verdict: Mapping[str, Any], report: Path | None = None
) -> None:
    """Print it, as the last thing of a run; `passed` is None where nothing was judged, `report` the page if there is one."""
    weights = experiment / "train" / "checkpoint"
    if passed is not None:
        metrics = verdict.get("metrics", {})
        console.table("Held-out rows, greedy", COLUMNS, [_row(name, values) for name, values in metrics.items()])
        for notice in verdict.get("notices", []):
            console.notice(notice)
        for bound in verdict.get("bounds", []):
            console.sentence(_bound(bound))
    if report is not None:
        console.result(f"report: {report}")
    if passed is None:
        where = f"; the weights are in {weights}" if weights.exists() else ""
        console.sentence(f"not judged: the validate stage was not asked for{where}")
    elif passed and not verdict.get("bounds"):
        console.result(f"not judged, for want of bounds: {experiment / 'validate' / 'checkpoint'}")
    elif passed:
        console.result(f"passed: {experiment / 'validate' / 'checkpoint'}")
    else:
        console.sentence(f"failed: no checkpoint is handed over; the weights are kept in {weights}")


def _row(name: str, values: Mapping[str, Any]) -> list[object]:
    low, high = values.get("low"), values.get("high")
    interval = None if low is None or high is None else f"{low:+.3f} .. {high:+.3f}"
    return [name, values.get("base"), values.get("trained"), values.get("difference"), interval, values.get("n")]


def _bound(bound: Mapping[str, Any]) -> str:
    value = bound.get("value")
    shown = "no value" if value is None else f"{value:.4g}"
    words = f"{bound['kind']} {bound['metric']} {bound['bound']:g}: "
    return words + (f"met ({shown})" if bound["passed"] else f"missed ({bound.get('why') or shown})")
