"""The end of a run in words: the table of base against trained, the verdict bound by bound, and where the weights are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmclick.pipeline.intervals import FEWEST

COLUMNS = ("metric", "base", "trained", "difference", "95 % interval", "n")


def show_outcome(console: Any, experiment: Path, verdict: Mapping[str, Any], budget: int, report: Path | None = None) -> None:
    """Print it, as the last thing of a run. `verdict` is what validate returned, empty where it was not asked for; `budget` the
    tokens that an answer may take; `report` the page if there is one."""
    weights = experiment / "train" / "checkpoint"
    passed = verdict.get("passed")
    if verdict:
        metrics = verdict.get("metrics", {})
        console.table(table_title(verdict, budget), COLUMNS, [_row(name, values) for name, values in metrics.items()])
        if sources := interval_sources(metrics):
            console.sentence(sources)
        for notice in verdict.get("notices", []):
            console.notice(notice)
        for bound in verdict.get("bounds", []):
            console.sentence(_bound(bound))
    if report is not None:
        console.result(f"report: {report}")
    if not verdict:
        where = f"; the weights are in {weights}" if weights.exists() else ""
        console.sentence(f"not judged: the validate stage was not asked for{where}")
    elif passed is None:
        console.result(f"not judged, because no bound is set: {experiment / 'validate' / 'checkpoint'}")
    elif passed:
        console.result(f"passed: {experiment / 'validate' / 'checkpoint'}")
    else:
        console.sentence(f"failed: no checkpoint is handed over; the weights are kept in {weights}")


def table_title(verdict: Mapping[str, Any], budget: int | None) -> str:
    """What was measured: how the answers were made, and on how much."""
    limit = f", at most {budget} tokens" if budget is not None else ""
    number = f": {counted(verdict['rows'], verdict.get('prompts'))}" if verdict.get("rows") is not None else ""
    return f"Held-out rows, greedy{limit}{number}"


def counted(rows: object, prompts: object) -> str:
    """`24 rows`, or `24 rows of 6 prompts` where rows share a prompt."""
    said = f"{rows} row{'s' if rows != 1 else ''}"
    return said if prompts in (None, rows) else f"{said} of {prompts} prompt{'s' if prompts != 1 else ''}"


def interval_text(low: object, high: object) -> str | None:
    """An interval as every table shows it; None where there is none."""
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return None
    return f"{low:+.3f} .. {high:+.3f}"


def interval_sources(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """Whose ends the intervals have, by metric; empty where nothing says so."""
    sources = {"sign-flip": "sign-flip", "bootstrap": "bootstrap", "both": "an end of each"}
    named: dict[str, list[str]] = {}
    for name, values in metrics.items():
        if (source := values.get("interval")) in sources:
            named.setdefault(sources[str(source)], []).append(name)
        elif "prompts" in values and values.get("difference") is not None:
            named.setdefault(f"none (fewer than {FEWEST} prompts)", []).append(name)
    if not named:
        return ""
    said = [f"{source} for {', '.join(names) if len(named) > 1 else 'all'}" for source, names in named.items()]
    return f"95 % interval, the wider of bootstrap and sign-flip test: {'; '.join(said)}"


def _row(name: str, values: Mapping[str, Any]) -> list[object]:
    n, prompts = values.get("n"), values.get("prompts")
    return [
        name,
        values.get("base"),
        values.get("trained"),
        values.get("difference"),
        interval_text(values.get("low"), values.get("high")),
        n if prompts in (None, n) else counted(n, prompts),
    ]


def _bound(bound: Mapping[str, Any]) -> str:
    value = bound.get("value")
    shown = "no value" if value is None else f"{value:.4g}"
    words = f"{bound['kind']} {bound['metric']} {bound['bound']:g}: "
    return words + (f"met ({shown})" if bound["passed"] else f"missed ({bound.get('why') or shown})")
