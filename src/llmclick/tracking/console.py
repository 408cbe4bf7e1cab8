"""What a person sees while a run goes: stages, one line per step, notices, the result table.

Progress goes to stderr, results to stdout (to stderr too under --json, where stdout carries one JSON object). On a terminal
Rich draws live bars below the lines; without one the same lines come out plain, progress at most every ten seconds. Colour
is decoration only. Every text is treated as hostile: it is escaped here, callers pass it as it is.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import threading
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Protocol

from llmclick.tracking.escape import visible, visible_lines

PLAIN_INTERVAL = 10.0
"""Seconds between two progress lines without a terminal."""
SILENCE = 60.0
"""Seconds without a line after which a bar without a terminal says that it is still at it."""


class Bar(Protocol):
    """What `Console.progress` yields."""

    def advance(self, n: float = 1) -> None:
        """`n` more of the total are done."""

    def reach(self, done: float) -> None:
        """`done` of the total are done; less than before is the beginning of a next round."""


class Console:
    """The run's voice. Cheap to create; Rich is imported when the first live bar is drawn.

    `stream` and `results` replace stderr and stdout, `live` says whether bars are drawn (default: the stream is a terminal
    that can move its cursor), `clock` gives seconds.
    """

    def __init__(
        self,
        json_mode: bool = False,
        log: str | Path | None = None,
        *,
        stream: IO[str] | None = None,
        results: IO[str] | None = None,
        live: bool | None = None,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.json_mode = json_mode
        self.stream = stream if stream is not None else sys.stderr
        self.results = results if results is not None else (self.stream if json_mode else sys.stdout)
        self.live = _can_draw(self.stream) if live is None else live
        self._width = width
        self._clock = clock
        self._log: IO[str] | None = None
        self._backlog: list[str] = []
        self._last_progress = float("-inf")
        self._last_line = clock()
        self._lock = threading.Lock()
        self._recent: deque[float] = deque(maxlen=10)
        self._drawn: Any = None  # rich.progress.Progress while bars are shown
        self._steps_bar: Any = None
        self._open_bars = 0
        if log is not None:
            self.log_to(log)

    @property
    def width(self) -> int:
        """Columns to write in, at least 40."""
        return max(40, self._width or shutil.get_terminal_size((80, 24)).columns)

    def log_to(self, path: str | Path) -> None:
        """Copy every line, with the time, to the end of `path`; lines said before are copied first."""
        self._close_log()
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = open(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115 - lives as long as the run
        for line in self._backlog:
            self._log.write(line)
        self._backlog.clear()

    def close(self) -> None:
        """Remove the bars and close the log; the console can go on being used."""
        self._stop_drawing()
        self._close_log()

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Lines that are always printed.

    def line(self, text: str) -> None:
        """A line of progress text, always printed; wrapped below its own indent where it is too long."""
        body = text.lstrip(" ")
        self._say(self._wrapped(" " * (len(text) - len(body)), visible_lines(body)) if body else "")

    def notice(self, text: str) -> None:
        """Something the user should know: set apart, wrapped, always printed."""
        self._say(self._wrapped("note  ", visible_lines(text)), style="yellow")

    def error(self, text: str) -> None:
        """An error block."""
        self._stop_drawing()
        self._say(visible_lines(text), style="red")

    def plan(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """What will happen: (stage, "cached" or "run", why) for each stage."""
        self._say("Plan", style="bold")
        for stage, state, why in rows:
            self._say(self._wrapped(f"  {visible(stage, 30):<9} {visible(state, 10):<7} ", visible(why)))

    def stage(self, name: str, why: str = "") -> None:
        """A stage begins."""
        self._finish_steps()
        self._say(self._wrapped(f"> {visible(name, 30)}  ", visible(why)), style="bold")

    def steps(self, step: int, steps: int) -> None:
        """Training goes on after `step` of `steps`: on a terminal its bar appears."""
        if self.live and step < steps:
            self._draw_steps(step, steps, None)

    def stage_done(self, name: str, seconds: float | None = None) -> None:
        """A stage is done; without seconds it was cached."""
        self._finish_steps()
        took = "cached" if seconds is None else f"done in {duration(seconds)}"
        self._say(f"  {visible(name, 30)} {took}")

    def step(self, record: Mapping[str, Any], step: int, steps: int) -> None:
        """One optimizer step: `record` is its line of metrics.jsonl."""
        total = _number((record.get("seconds") or {}).get("total"))
        if total is not None:
            self._recent.append(total)
        left = (steps - step) * sum(self._recent) / len(self._recent) if self._recent else None
        text = step_line(record, step, steps, left, self.width)
        if self.live:
            self._say(text)
            self._draw_steps(step, steps, left)
        elif step in (1, steps) or self._due():
            self._last_progress = self._clock()
            self._say(text)
        else:
            self._write_log(text)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """One line of eval.jsonl: the held-out reward while training."""
        parts = [f"held-out after step {record.get('step')}: reward {_shown(record.get('reward'), '.3f')}"]
        if record.get("pass_rate") is not None:
            parts.append(f"pass {_percent(record['pass_rate'])}")
        self._say("  " + "  ".join(parts) + f"  (n={record.get('n')})", style="cyan")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A result, to stdout. Numbers are aligned right; what does not fit the width is one block of lines per row."""
        self._stop_drawing()
        cells = [[_cell(value) for value in row] for row in rows]
        right = [all(_is_number(row[k]) for row in rows if row[k] is not None) for k in range(len(columns))]
        self._result(
            table_text(self._wrapped("", visible(title)), [visible(name) for name in columns], cells, right, self.width)
        )

    def result(self, text: str) -> None:
        """A line of results, to stdout."""
        self._stop_drawing()
        self._result(visible_lines(text))

    def sentence(self, text: str) -> None:
        """A sentence of results, to stdout, wrapped between words."""
        self.result(self._wrapped("", visible_lines(text)))

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Results by name, to stdout: names in one column, their texts wrapped beside it."""
        column = max(cells(visible(name)) for name, _ in pairs) + 2
        for name, text in pairs:
            shown = visible(name)
            self.result(self._wrapped(shown + " " * (column - cells(shown)), visible(text)))

    def quote(self, label: str, text: str) -> None:
        """A text of a row or a model in a result: the label, then its lines behind a bar, wrapped, everything visible."""
        lines = []
        for line in visible_lines(text).split("\n"):
            lines += folded(line, self.width - 4)
        self.result("\n".join([f"  {label}", *(f"  | {line}".rstrip() for line in lines)]))

    # Progress inside something long.

    @contextmanager
    def progress(self, label: str, total: float | None, unit: str = "") -> Iterator[Bar]:
        """A bar for `total` pieces of work, `unit` says of what; nests, also inside a step. Without a terminal a line every ten
        seconds at most."""
        label, unit = visible(label, 40), visible(unit, 20)
        if not self.live:
            with _PlainBar(self, label, total, unit) as bar:
                yield bar
            return
        drawn = self._draw()
        task = drawn.add_task("  " * self._open_bars + label, total=total, unit=unit, note="")
        self._open_bars += 1
        try:
            yield _LiveBar(drawn, task)
        finally:
            self._open_bars -= 1
            if self._drawn is drawn:
                drawn.remove_task(task)
                if not self._open_bars and self._steps_bar is None:
                    self._stop_drawing()

    # Below: how it gets onto the screen.

    def _say(self, text: str, style: str = "") -> None:
        with self._lock:  # a bar without a terminal speaks from a thread of its own
            self._print(text, style)

    def _print(self, text: str, style: str) -> None:
        self._last_line = self._clock()
        self._write_log(text)
        if self._drawn is not None:
            from rich.text import Text

            self._drawn.console.print(Text(text, style=style), soft_wrap=True)
        else:
            self.stream.write(_coloured(text, style, self.stream) + "\n")
            self.stream.flush()

    def _result(self, text: str) -> None:
        self._write_log(text)
        self.results.write(text + "\n")
        self.results.flush()

    def _write_log(self, text: str) -> None:
        stamp = datetime.now().astimezone().isoformat(timespec="seconds")
        lines = "".join(f"{stamp} {line}\n" for line in text.split("\n"))
        if self._log is None:
            self._backlog.append(lines)
            return
        try:
            self._log.write(lines)
        except OSError:  # a full disk must not hide the message that says so
            self._log = None

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _wrapped(self, head: str, text: str) -> str:
        if not text:
            return head.rstrip()
        indent = " " * len(head)
        lines: list[str] = []
        for paragraph in text.split("\n"):
            wrapped = textwrap.wrap(paragraph, max(20, self.width - len(head)), break_long_words=False, break_on_hyphens=False)
            lines.extend(wrapped or [""])
        return "\n".join((head if k == 0 else indent) + line for k, line in enumerate(lines))

    def _due(self, since: float = float("-inf")) -> bool:
        return self._clock() - max(self._last_progress, since) >= PLAIN_INTERVAL

    def plain_progress(self, text: str, since: float) -> None:
        """A progress line if one is due (for bars without a terminal); `since` is when the bar began."""
        if self._due(since):
            self._last_progress = self._clock()
            self._say(text)

    def silence(self) -> float:
        """Seconds since the last line."""
        return self._clock() - self._last_line

    def now(self) -> float:
        """Seconds of the console's clock."""
        return self._clock()

    def _draw(self) -> Any:
        if self._drawn is None:
            from rich.console import Console as RichConsole
            from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
            from rich.text import Text

            class Count(ProgressColumn):
                """How far, of what; how long where nobody knows how far."""

                def render(self, task: Task) -> Text:
                    if task.total is None:
                        return Text(duration(task.elapsed or 0.0))
                    return Text(f"{task.completed:g}/{task.total:g} {task.fields['unit']}".rstrip())

            screen = RichConsole(
                file=self.stream, width=self._width, force_terminal=True, highlight=False, markup=False, emoji=False
            )
            self._drawn = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=max(8, self.width // 5)),
                Count(),
                TextColumn("{task.fields[note]}", markup=False),
                console=screen,
                transient=True,
                refresh_per_second=2,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._drawn.start()
        return self._drawn

    def _draw_steps(self, step: int, steps: int, left: float | None) -> None:
        drawn = self._draw()
        if self._steps_bar is None:
            self._steps_bar = drawn.add_task("steps", total=steps, unit="", note="")
        note = "" if left is None else f"{duration(left)} left"
        drawn.update(self._steps_bar, completed=step, total=steps, note=note)
        if step >= steps:
            self._finish_steps()

    def _finish_steps(self) -> None:
        self._recent.clear()
        if self._steps_bar is not None and self._drawn is not None:
            self._drawn.remove_task(self._steps_bar)
        self._steps_bar = None
        if not self._open_bars:
            self._stop_drawing()

    def _stop_drawing(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
        self._drawn = None
        self._steps_bar = None


class _LiveBar:
    def __init__(self, drawn: Any, task: Any) -> None:
        self._drawn, self._task = drawn, task

    def advance(self, n: float = 1) -> None:
        self._drawn.advance(self._task, n)

    def reach(self, done: float) -> None:
        self._drawn.update(self._task, completed=done)


class _PlainBar:
    """Says how far it is when told, every ten seconds at most; and by itself after a long silence."""

    def __init__(self, console: Console, label: str, total: float | None, unit: str) -> None:
        self._console, self._label, self._total, self._unit = console, label, total, unit
        self._done = 0.0
        self._since = console.now()
        self._over = threading.Event()

    def __enter__(self) -> _PlainBar:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def advance(self, n: float = 1) -> None:
        self.reach(self._done + n)

    def reach(self, done: float) -> None:
        self._done = done
        self._console.plain_progress(self._text(), self._since)

    def _text(self) -> str:
        if self._total is None:
            return f"  {self._label}: {duration(self._console.now() - self._since)} so far"
        return f"  {self._label}: {self._done:g} of {self._total:g} {self._unit}".rstrip()

    def _watch(self) -> None:
        wait = PLAIN_INTERVAL
        while not self._over.wait(wait):
            # What cannot tell how far it is speaks up sooner: nothing else will.
            if self._console.silence() >= (PLAIN_INTERVAL if self._total is None and wait == PLAIN_INTERVAL else SILENCE):
                text = self._text()
                more = "" if self._total is None else f" after {duration(self._console.now() - self._since)}"
                self._console.plain_progress(text + more, float("-inf"))
                wait = SILENCE / 2


def step_line(record: Mapping[str, Any], step: int, steps: int, left: float | None, width: int = 80) -> str:
    """`step 12/40  reward 0.532  pass 41%  signal 6/8  length 12  1.2s  45s left`, shorter words below 72 columns."""
    groups = record.get("groups") or {}
    mixed, count = _number(groups.get("mixed")), sum(_number(value) or 0 for value in groups.values())
    signal = "-" if mixed is None else f"{mixed:g}/{count:g}" if float(count).is_integer() and count != 1 else _percent(mixed)
    seconds = _number((record.get("seconds") or {}).get("total"))
    parts = [
        f"step {step:>{len(str(steps))}}/{steps}",
        f"reward {_shown(record.get('reward'), '.3f')}",
        f"pass {_percent(record.get('pass_rate')):>4}",
        f"signal {signal:>{2 * len(f'{count:g}') + 1}}",
        f"length {_shown(record.get('length'), '.0f')}",
        "-" if seconds is None else duration(seconds),
        *([] if left is None or step >= steps else [f"{duration(left)} left"]),
    ]
    line = "  ".join(parts)
    if len(line) > width:
        line = " ".join(parts).replace("step ", "", 1).replace("reward ", "rew ").replace("length ", "len ").replace("  ", " ")
    return line


def gigabytes(size: float) -> str:
    """`1.2 GB` for 1.2, `40 MB` for 0.04."""
    return f"{size:.1f} GB" if size >= 0.95 else f"{1000 * size:.0f} MB"


def duration(seconds: float) -> str:
    """`0.8s`, `45s`, `3m05s`, `2h10m`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def table_text(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], width: int) -> str:
    """An aligned table of escaped cells, or blocks of `column: value` lines where the columns do not fit `width`."""
    sizes = [max(cells(name), *(cells(row[k]) for row in rows)) if rows else cells(name) for k, name in enumerate(columns)]
    lines = [title] if title else []
    gap = next((space for space in ("  ", " ") if sum(sizes) + len(space) * (len(sizes) - 1) <= width), None)
    if gap is not None:
        lines.append(_aligned(columns, sizes, right, gap))
        lines.append(gap.join("-" * size for size in sizes))
        lines.extend(_aligned(row, sizes, right, gap) for row in rows)
    else:
        label = max(map(cells, columns))
        for number, row in enumerate(rows):
            lines.extend([""] if number else [])
            for name, value in zip(columns, row, strict=True):
                parts = textwrap.wrap(value, max(20, width - label - 2), break_on_hyphens=False) or [""]
                lines.append(f"{name}{' ' * (label - cells(name))}  {parts[0]}")
                lines.extend(" " * (label + 2) + part for part in parts[1:])
    return "\n".join(lines)


def folded(line: str, width: int) -> list[str]:
    """A line in pieces of at most `width` columns, cut at the last space where one is near; nothing is lost."""
    pieces: list[str] = []
    start = 0
    while True:
        end, used = start, 0
        while end < len(line) and used + cells(line[end]) <= width:
            used += cells(line[end])
            end += 1
        if end == len(line):
            return [*pieces, line[start:]]
        space = line.rfind(" ", start + 1, end)
        end = space + 1 if space > (start + end) // 2 else max(start + 1, end)
        pieces.append(line[start:end])
        start = end


def cells(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _aligned(values: Sequence[str], sizes: Sequence[int], right: Sequence[bool], gap: str) -> str:
    padded = []
    for value, size, at_right in zip(values, sizes, right, strict=True):
        space = " " * (size - cells(value))
        padded.append(space + value if at_right else value + space)
    return gap.join(padded).rstrip()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1f}"
    return visible(str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _shown(value: object, form: str) -> str:
    number = _number(value)
    return "-" if number is None else format(number, form)


def _percent(value: object) -> str:
    number = _number(value)
    return "-" if number is None else f"{100 * number:.0f}%"


def _can_draw(stream: IO[str]) -> bool:
    try:
        terminal = stream.isatty()
    except (AttributeError, ValueError):
        return False
    return terminal and os.environ.get("TERM", "") not in ("dumb", "unknown")


_CODES = {"bold": "1", "yellow": "33", "red": "31", "cyan": "36"}


def _coloured(text: str, style: str, stream: IO[str]) -> str:
    """Lines printed while no bar is drawn, without importing Rich."""
    if not style or os.environ.get("NO_COLOR") or not _can_draw(stream):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"
