"""report.html: one self-contained page of one experiment.

The page is put together from the files in assets/. What a reader needs first (the headline, the gate, the config) is plain
HTML; charts, held-out rows and completions are drawn from deflated JSON by the page's own scripts. A content security policy
that names the scripts by hash forbids everything else, requests included; text from models, rows and configs only ever enters
escaped here or as textContent there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from llmclick.pipeline.outcome import counted, interval_sources, table_title
from llmclick.report.embed import Embedded, embed
from llmclick.report.experiment import Experiment, read_experiment
from llmclick.report.story import Story, phases, tell
from llmclick.tracking.console import duration
from llmclick.tracking.escape import visible
from llmclick.tracking.files import write_atomic

_SCRIPTS = ("uplot/uPlot.iife.min.js", "text.js", "charts.js", "heldout.js", "completions.js", "main.js")
_STYLES = ("uplot/uPlot.min.css", "report.css")
_BADGES = {"passed": "Passed", "failed": "Did not pass", "not judged": "Not judged", "unfinished": "Unfinished"}
_PHASES = {"sample": "sampling", "score": "scoring", "train": "gradient", "sync": "syncing weights"}


def write_report(folder: str | Path) -> Path:
    """Write `report.html` into an experiment's folder, finished or not, and return its path.

    Raises InputError if the folder is no experiment.
    """
    run = read_experiment(folder)
    path = run.folder / "report.html"
    write_atomic(path, page(run).encode("utf-8", "backslashreplace"))
    return path


def page(run: Experiment) -> str:
    """The page as text."""
    data, story = embed(run), tell(run)
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    style = "\n".join(_asset(name) for name in _STYLES)
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    parts = {
        "policy": policy,
        "title": _text(run.name),
        "style": style,
        "script": script,
        "header": _header(run, story),
        "result": _result(run, story),
        "time": _time(run),
        "notices": _notices(run, data),
        "config": _config(run),
        "data": _data(run, data),
    }
    # One pass: a value may hold the text of a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("report.html"))


def _asset(name: str) -> str:
    return resources.files("llmclick.report").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"


def _text(value: object, limit: int | None = 2000) -> str:
    """Escaped twice over: nothing invisible, nothing that HTML reads."""
    return html.escape(visible(str(value), limit))


def _header(run: Experiment, story: Story) -> str:
    facts = [
        run.setting("pipeline.recipe"),
        run.setting("model.name"),
        f"{run.setting('training.adapter.name')} adapter" if run.setting("training.adapter.name") else None,
        run.folder.resolve().name,
    ]
    line = " · ".join(f"<span>{_text(fact, 120)}</span>" for fact in facts if fact)
    kind = story.badge.replace(" ", "-")
    return (
        f'<div class="name"><h1>{_text(run.name, 120)}</h1><span class="badge {kind}">{_BADGES[story.badge]}</span></div>'
        f'<p class="facts">{line}</p>'
    )


def _result(run: Experiment, story: Story) -> str:
    tiles = "".join(
        f"<div><dt>{_text(label)}</dt><dd>{_text(value)}</dd><dd class='note'>{_text(note)}</dd></div>"
        for label, value, note in story.tiles
    )
    sentences = "".join(f"<li>{_text(sentence)}</li>" for sentence in story.sentences)
    return (
        f'<p class="headline">{_text(story.headline)}</p>'
        + (f'<ul class="sentences">{sentences}</ul>' if sentences else "")
        + (f'<dl class="tiles">{tiles}</dl>' if tiles else "")
        + _gate(run)
    )


def _gate(run: Experiment) -> str:
    metrics = {str(name): values for name, values in (run.verdict.get("metrics") or {}).items() if isinstance(values, dict)}
    if not metrics:
        return '<p class="absent">No verdict yet: validate/verdict.json appears when the validate stage has run.</p>'
    bounds: dict[str, list[dict[str, Any]]] = {}
    for bound in run.verdict.get("bounds") or []:
        bounds.setdefault(str(bound.get("metric")), []).append(bound)
        metrics.setdefault(str(bound.get("metric")), {})
    body = "".join(_gate_row(name, values, bounds.get(name, [])) for name, values in metrics.items())
    head = "".join(
        f'<th scope="col"{kind}>{name}</th>'
        for name, kind in (
            ("Metric", ""),
            ("Base", ' class="number"'),
            ("Trained", ' class="number"'),
            ("Difference", ' class="number"'),
            ("95 % interval of the difference", ""),
            ("Rows", ' class="number"'),
            ("Bounds", ""),
        )
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Gate table"><table class="gate">'
        f"<caption>{_text(table_title(run.verdict, run.setting('method.max_new_tokens')))}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        + (f'<p class="note">{_text(sources)}</p>' if (sources := interval_sources(metrics)) else "")
    )


def _gate_row(name: str, values: dict[str, Any], bounds: Sequence[dict[str, Any]]) -> str:
    low, high = values.get("low"), values.get("high")
    sure = isinstance(low, (int, float)) and isinstance(high, (int, float))
    interval = f'{_interval(name, values)}<span class="range">{_signed(low)} to {_signed(high)}</span>' if sure else "–"
    verdicts = "".join(_bound(bound) for bound in bounds) or '<span class="note">none</span>'
    cells = (
        ("Base", "number", _number(values.get("base"))),
        ("Trained", "number", _number(values.get("trained"))),
        ("Difference", "number", _signed(values.get("difference"))),
        ("95 % interval of the difference", "interval", interval),
        ("Rows", "number", _text(_rows(values))),
        ("Bounds", "bounds", verdicts),
    )
    # On a narrow screen the table becomes blocks, in which each cell names itself.
    body = "".join(f'<td class="{kind}" data-label="{label}">{cell}</td>' for label, kind, cell in cells)
    return f'<tr><th scope="row">{_text(name, 80)}</th>{body}</tr>'


def _rows(values: dict[str, Any]) -> object:
    n, prompts = values.get("n", "–"), values.get("prompts")
    return n if prompts in (None, n) else counted(n, prompts)


def _bound(bound: dict[str, Any]) -> str:
    kind = "passed" if bound.get("passed") else "failed"
    words = {"min": "at least", "max": "at most", "gain": "gain of at least"}
    text = f"{words.get(str(bound.get('kind')), bound.get('kind'))} {_plain(bound.get('bound'))}"
    why = f'<span class="note">{_text(bound["why"])}</span>' if bound.get("why") else ""
    return f'<div class="bound {kind}">{"✓ passed" if kind == "passed" else "✗ missed"}: {_text(text)} {why}</div>'


def _interval(name: str, values: dict[str, Any]) -> str:
    """The interval as a bar with the mean as a dot, on an axis that is symmetric around no difference. Its colour says whether
    the change is good: more reward is, fewer truncated answers are, and a length is neither."""
    low, high, mean = (float(values.get(key) or 0) for key in ("low", "high", "difference"))
    reach = max(abs(low), abs(high), abs(mean), 1e-9) * 1.1
    x = [60 + 56 * value / reach for value in (low, high, mean)]
    good = {"length": 0, "truncated": -1}.get(name, 1)
    kind = "unsure" if not good or low <= 0 <= high else "up" if (low > 0) == (good > 0) else "down"
    return (
        '<svg class="bar" width="120" height="16" viewBox="0 0 120 16" aria-hidden="true">'
        '<line class="axis" x1="4" x2="116" y1="8" y2="8"/><line class="zero" x1="60" x2="60" y1="1" y2="15"/>'
        f'<rect class="{kind}" x="{x[0]:.1f}" y="4" width="{max(2.0, x[1] - x[0]):.1f}" height="8" rx="2"/>'
        f'<circle cx="{x[2]:.1f}" cy="8" r="3"/></svg>'
    )


def _time(run: Experiment) -> str:
    spent = phases(run)
    total = sum(seconds for _, seconds in spent)
    if not total:
        return '<p class="absent">No step is finished, so no time was spent on one.</p>'
    x, bars = 0.0, []
    for number, (_, seconds) in enumerate(spent):
        width = 1000 * seconds / total
        bars.append(f'<rect class="phase p{min(number, 5)}" x="{x:.1f}" y="0" width="{width:.1f}" height="20"/>')
        x += width
    rows = "".join(
        f'<tr><th scope="row"><span class="key p{min(number, 5)}"></span>{_text(_PHASES.get(name, name))}</th>'
        f'<td class="number">{_text(duration(seconds))}</td><td class="number">{100 * seconds / total:.0f} %</td></tr>'
        for number, (name, seconds) in enumerate(spent)
    )
    count = len(run.metrics)
    return (
        '<svg class="phases" viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true">' + "".join(bars) + "</svg>"
        f'<table class="narrow"><caption>Training by phase, {count} step{"s" if count != 1 else ""}</caption><tbody>{rows}'
        f'<tr class="sum"><th scope="row">in all</th><td class="number">{_text(duration(total))}</td>'
        f'<td class="number">{_text(duration(total / count))} a step</td></tr></tbody></table>'
    )


def _notices(run: Experiment, data: Embedded) -> str:
    notices = [*data.notices, *(str(notice) for notice in run.verdict.get("notices") or [])]
    return "".join(f'<p class="notice">{_text(notice)}</p>' for notice in notices)


def _config(run: Experiment) -> str:
    if not run.config:
        return '<p class="absent">config.yaml is not in this folder.</p>'
    changed = run.manifest.get("changed")
    known = isinstance(changed, (dict, list))
    rows, differing = [], 0
    for section, values in run.config.items():
        entries = values.items() if isinstance(values, dict) else [(None, values)]
        for key, value in entries:
            name = str(section) if key is None else f"{section}.{key}"
            differs = known and any(name == other or str(other).startswith(name + ".") for other in changed or ())
            differing += differs
            rows.append(
                f'<tr{" class=changed" if differs else ""}><th scope="row">{_text(name, 120)}</th>'
                f"<td><code>{_text(_plain(value))}</code></td></tr>"
            )
    note = (
        f"{differing} of {len(rows)} values are marked: they were set and differ from the default, or have none."
        if known
        else "Which values differ from the defaults is not recorded in this folder's manifest.json."
    )
    switch = '<label><input type="checkbox" id="only-changed"> only what differs</label>' if known else ""
    return (
        f'<p class="note">{note} {switch}</p><div class="scroll"><table class="config" id="config-table">'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _data(run: Experiment, data: Embedded) -> str:
    about = {"steps": len(run.metrics), "verdict": bool(run.verdict), "beta": run.setting("method.beta")}
    text = json.dumps(about, separators=(",", ":")).replace("<", "\\u003c")
    blobs = "".join(f'<script type="text/plain" id="data-{name}">{blob}</script>\n' for name, blob in data.blobs.items())
    return f'<script type="application/json" id="data-about">{text}</script>\n{blobs}'


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.0f}"


def _signed(value: object) -> str:
    text = _number(value)
    return text if text == "–" or text.startswith("-") else "+" + text
