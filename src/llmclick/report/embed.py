"""What of a run goes into its page: everything, or as much as keeps the page below 5 MB, and what was left out is said."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmclick.report.experiment import Experiment

COMPLETIONS_BUDGET = 3_600_000
"""Bytes that the completions may take in the page, after compression and base64; past it the page holds first, last and every
k-th step."""
HELD_OUT_BUDGET = 900_000
"""The same for the held-out rows' texts, which are cut shorter past it."""
TEXT_LIMITS = (20_000, 4_000, 1_000, 300)
"""Characters of one text in the page: the first limit that fits the budget."""
MOST_POINTS = 4_000
"""Points of a chart; longer runs are shown as means over as many steps as needed."""


@dataclass(frozen=True)
class Embedded:
    """`blobs` by name: deflated JSON in base64. `notices`: what the page leaves out, as sentences."""

    blobs: dict[str, str]
    notices: list[str] = field(default_factory=list)


def embed(run: Experiment) -> Embedded:
    """The metrics, held-out rows and completions of a run, packed for the page."""
    notices: list[str] = []
    blobs = {
        "metrics": _pack(_columns(run, notices)),
        "heldout": _held_out(run, notices),
        "completions": _completions(run, notices),
    }
    return Embedded(blobs, notices)


def _pack(value: object) -> str:
    """Compact ASCII JSON (lone surrogates survive), zlib, base64: what DecompressionStream("deflate") reads."""
    data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def _columns(run: Experiment, notices: list[str]) -> dict[str, Any]:
    """metrics.jsonl as columns: nested numbers get a dotted name; a missing number is null."""
    flat = [dict(_flat(record)) for record in run.metrics]
    every = math.ceil(len(flat) / MOST_POINTS)
    if every > 1:
        notices.append(f"Each point of a chart is the mean of {every} steps; metrics.jsonl has every step.")
        flat = [_mean(flat[start : start + every]) for start in range(0, len(flat), every)]
    names = list(dict.fromkeys(name for record in flat for name in record))
    return {
        "columns": {name: [_short(record.get(name)) for record in flat] for name in names},
        "evaluations": [{key: _short(value) for key, value in _flat(record)} for record in run.evaluations],
    }


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)):
            yield f"{prefix}{key}", value


def _mean(records: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    mean: dict[str, float | None] = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [value for record in records if (value := record.get(name)) is not None]
        mean[name] = sum(values) / len(values) if values else None
    mean["step"] = records[-1].get("step")
    return mean


def _short(value: object) -> float | None:
    """Six significant digits are more than a chart shows."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _held_out(run: Experiment, notices: list[str]) -> str:
    for limit in TEXT_LIMITS:
        cut = [0]
        rows = [
            {
                "id": str(row.get("id", "")),
                "where": str(row.get("where", "")),
                "prompt": _cut(row.get("prompt"), limit, cut),
                **{side: _answer(row.get(side), limit, cut) for side in ("base", "trained")},
            }
            for row in run.held_out
        ]
        packed = _pack(rows)
        if len(packed) <= HELD_OUT_BUDGET:
            break
    if cut[0]:
        notices.append(f"Texts of held-out rows are shown up to {limit:,} characters; validate/rows.jsonl has them whole.")
    return packed


def _answer(answer: object, limit: int, cut: list[int]) -> dict[str, Any] | None:
    if not isinstance(answer, Mapping):
        return None
    rewards = answer.get("rewards")
    return {
        "text": _cut(answer.get("text"), limit, cut),
        "stop": str(answer.get("stop", "")),
        "reward": _short(answer.get("reward")),
        "passed": answer.get("passed") is True,
        "rewards": {str(name): _short(value) for name, value in rewards.items()} if isinstance(rewards, Mapping) else {},
    }


def _cut(text: object, limit: int, cut: list[int]) -> str:
    """The text, or its first `limit` characters; `cut` counts."""
    whole = "" if text is None else str(text)
    if len(whole) <= limit:
        return whole
    cut[0] += 1
    return whole[:limit] + "…"


def _completions(run: Experiment, notices: list[str]) -> str:
    folder = run.completions
    steps = folder.steps()
    if not steps:
        return _pack({"steps": 0, "texts": []})
    read: dict[int, list[dict[str, Any]]] = {}

    def packed(every: int, limit: int) -> tuple[str, list[int], int]:
        held = sorted({steps[0], *steps[::every], steps[-1]})
        for step in held:
            read.setdefault(step, folder.read(step))
        cut = [0]
        return _pack(_table({step: read[step] for step in held}, len(steps), limit, cut)), held, cut[0]

    # How far apart the held steps must be follows from the size of a few; then one look tells whether it fits.
    probe = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    for step in probe:
        read[step] = folder.read(step)
    for limit in TEXT_LIMITS:
        size = len(_pack(_table({step: read[step] for step in probe}, len(steps), limit, [0])))
        every = max(1, math.floor(size / len(probe) * len(steps) / COMPLETIONS_BUDGET))
        fits = False
        while not fits and every <= max(1, len(steps) // 8):
            blob, held, cut = packed(every, limit)
            fits = len(blob) <= COMPLETIONS_BUDGET
            if not fits:
                every = max(every + 1, math.ceil(every * len(blob) / COMPLETIONS_BUDGET))
        if fits:
            break
    if not fits:  # a few steps of very many completions: first and last, texts as short as they get
        blob, held, cut = packed(len(steps), TEXT_LIMITS[-1])
    if len(held) < len(steps):
        notices.append(
            f"The completions of {len(held)} of {len(steps)} steps are in this page: the first, the last and every "
            f"{_ordinal(every if fits else len(steps))} between them. The folder completions/ has every step."
        )
    if cut:
        notices.append(f"{cut:,} texts are shown up to {limit:,} characters; the folder completions/ has them whole.")
    return blob


def _table(by_step: Mapping[int, Sequence[Mapping[str, Any]]], steps: int, limit: int, cut: list[int]) -> dict[str, Any]:
    """Columns, so that equal things lie together: prompts once, then one entry per completion."""
    prompts: dict[tuple[str, str, str], int] = {}
    records = [(step, record) for step in sorted(by_step) for record in by_step[step]]
    names = list(dict.fromkeys(name for _, record in records for name in (record.get("rewards") or {})))
    for _, record in records:
        prompts.setdefault(_prompt(record), len(prompts))
    return {
        "steps": steps,
        "held": sorted(by_step),
        "prompts": [[row, where, _cut(prompt, limit, cut)] for row, where, prompt in prompts],
        "prompt": [prompts[_prompt(record)] for _, record in records],
        "step": [step for step, _ in records],
        "sample": [_short(record.get("sample")) for _, record in records],
        "tokens": [_short(record.get("tokens")) for _, record in records],
        "stop": [str(record.get("stop", "")) for _, record in records],
        "reward": [_short(record.get("reward")) for _, record in records],
        "passed": [int(record.get("passed") is True) for _, record in records],
        "advantage": [_short(record.get("advantage")) for _, record in records],
        "rewards": {name: [_short((record.get("rewards") or {}).get(name)) for _, record in records] for name in names},
        "texts": [_cut(record.get("text"), limit, cut) for _, record in records],
    }


def _prompt(record: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(record.get("row", "")), str(record.get("where", "")), str(record.get("prompt", ""))


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
