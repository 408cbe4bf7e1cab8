import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmclick.tracking.console import Console, cells, duration, folded, step_line
from tests.waiting import until

HOSTILE = "</script>\x1b[2J\x1b]0;t\x07\u202e[red]x[/red]\r" + "y" * 10_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def record(seconds: float = 1.2) -> dict[str, Any]:
    return {
        "reward": 0.532,
        "pass_rate": 0.41,
        "groups": {"all_right": 1, "mixed": 6, "all_wrong": 1},
        "length": 12.3,
        "seconds": {"total": seconds},
    }


def plain(width: int = 80, json_mode: bool = False) -> tuple[Console, io.StringIO, io.StringIO, Clock]:
    err, out, clock = io.StringIO(), io.StringIO(), Clock()
    console = Console(json_mode, stream=err, results=None if json_mode else out, live=False, width=width, clock=clock)
    return console, err, out, clock


def test_a_step_line_says_reward_pass_rate_signal_length_seconds_and_what_is_left() -> None:
    assert step_line(record(), 12, 40, 33.6, 90) == (
        "step 12/40  reward 0.532  pass  41%  signal 6/8  length 12  1.2s  34s left"
    )


def test_a_step_line_fits_sixty_columns_and_keeps_every_number() -> None:
    line = step_line(record(), 12, 40, 33.6, 60)
    assert len(line) <= 60
    assert re.findall(r"[\d./%]+", line) == ["12/40", "0.532", "41%", "6/8", "12", "1.2", "34"]


def test_a_step_line_of_a_step_without_numbers_has_dashes() -> None:
    assert step_line({}, 1, 2, None, 80) == "step 1/2  reward -  pass    -  signal   -  length -  -"


def test_without_a_terminal_steps_come_every_ten_seconds_and_the_first_and_last_always() -> None:
    console, err, _, clock = plain()
    for step in range(1, 41):
        clock.now += 1.5
        console.step(record(), step, 40)
    shown = [int(match) for match in re.findall(r"step +(\d+)/40", err.getvalue())]
    assert shown == [1, 8, 15, 22, 29, 36, 40]


def test_stages_notices_and_results_are_always_printed_and_results_go_to_stdout() -> None:
    console, err, out, _ = plain()
    console.step(record(), 1, 9)
    console.stage("train", "new")
    console.notice("one thing")
    console.stage_done("train", 75)
    console.stage_done("data")
    console.table("Result", ["metric", "base"], [["reward", 0.25]])
    assert all(text in err.getvalue() for text in ("> train  new", "one thing", "train done in 1m15s", "data cached"))
    assert out.getvalue() == "Result\nmetric   base\n------  -----\nreward  0.250\n"


def test_json_mode_leaves_stdout_to_the_json_object() -> None:
    console, err, _, _ = plain(json_mode=True)
    console.table("Result", ["metric"], [["reward"]])
    console.result("done")
    assert "Result" in err.getvalue()
    assert "done" in err.getvalue()


def test_hostile_text_is_shown_and_does_nothing_anywhere(tmp_path: Path) -> None:
    """HTML, ANSI, bidi marks, Rich markup and 10,000 characters through every method, with bars and without."""
    for live in (False, True):
        err, out = io.StringIO(), io.StringIO()
        console = Console(stream=err, results=out, live=live, width=60, log=tmp_path / "run.log")
        console.plan([(HOSTILE, HOSTILE, HOSTILE)])
        console.stage(HOSTILE, HOSTILE)
        with console.progress(HOSTILE, 2) as bar:
            console.notice(HOSTILE)
            console.line(HOSTILE)
            bar.advance()
        console.error(HOSTILE)
        console.stage_done(HOSTILE, 1)
        console.table(HOSTILE, [HOSTILE], [[HOSTILE]])
        console.result(HOSTILE)
        console.close()
        written = err.getvalue() + out.getvalue()
        own = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err.getvalue()) if live else err.getvalue()
        assert "\x1b[2J" not in written
        assert "\u202e" not in written
        assert "\x07" not in written
        assert "\x1b" not in own + out.getvalue()
        assert "[red]x[/red]" in own
    assert re.fullmatch(r"[\x20-\x7e\n…]*", (tmp_path / "run.log").read_text())


def test_at_sixty_columns_nothing_wraps_that_can_be_broken() -> None:
    console, err, out, _ = plain(width=60)
    console.line("  6 optimizer steps; each batch samples 2 prompts x 16 = 32 completions of one row")
    console.sentence("failed: no checkpoint is handed over; the weights are kept in output/tiny-1a2b3c4d/train/checkpoint")
    console.facts([("a step", "2 prompts x 16 = 32 completions of at most 60 tokens, used for 2 steps"), ("disk", "40 MB")])
    console.plan([("train", "run", "method.reward changed since the last run of this experiment, in two places")])
    console.notice("the ratio is exactly 1, clip has no effect until iterations is at least 2, see the documentation")
    console.table(
        "Result",
        ["metric", "base", "trained", "difference", "95 % interval", "n", "bound", "verdict"],
        [["reward", 0.1, 0.9, 0.8, "0.700 to 0.900", 64, "gain of at least 0.5 over the base model", "passed"]],
    )
    assert max(map(len, (err.getvalue() + out.getvalue()).splitlines())) <= 60
    assert "gain of at least 0.5" in out.getvalue()
    assert err.getvalue().splitlines()[1].startswith("  completions")


def test_progress_without_a_terminal_is_a_line_every_ten_seconds_and_nests_in_a_step() -> None:
    console, err, _, clock = plain()
    with console.progress("sampling", 100, "tokens") as outer, console.progress("rows", 4) as inner:
        for _ in range(30):
            clock.now += 1
            outer.advance()
        inner.advance(4)
    assert err.getvalue().splitlines() == [f"  sampling: {done} of 100 tokens" for done in (10, 20, 30)]


def test_a_bar_that_starts_over_says_where_it_is() -> None:
    """`reach` sets the place itself: a second chunk of rows begins at its first token again."""
    console, err, _, clock = plain()
    with console.progress("sampling", 8, "tokens") as bar:
        for done in (8, 3):
            clock.now += 10
            bar.reach(done)
    assert err.getvalue().splitlines() == ["  sampling: 8 of 8 tokens", "  sampling: 3 of 8 tokens"]


def test_a_long_silence_is_broken_by_the_bar_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal: what cannot say how far it is speaks after one interval, a counting bar after a minute."""
    monkeypatch.setattr("llmclick.tracking.console.PLAIN_INTERVAL", 0.05)
    monkeypatch.setattr("llmclick.tracking.console.SILENCE", 0.2)
    for total, expected in (
        (None, r"  gradient of step 3: \S+s so far"),
        (40.0, r"  gradient of step 3: 0 of 40 tokens after \S+s"),
    ):
        err = io.StringIO()
        console = Console(stream=err, results=io.StringIO(), live=False)
        with console.progress("gradient of step 3", total, "tokens"):
            until(lambda err=err: err.getvalue().endswith("\n"), "a whole line")
        assert re.fullmatch(expected, err.getvalue().splitlines()[0])


@pytest.mark.parametrize(
    "text", ["a " * 200, "x" * 1000, "日本語" * 50, "", "short", "one two three four five six seven " + "y" * 70]
)
def test_a_folded_line_keeps_every_character_and_its_width(text: str) -> None:
    pieces = folded(text, 20)
    assert "".join(pieces) == text
    assert all(cells(piece) <= 20 for piece in pieces)


def test_a_quoted_text_stands_behind_a_bar_and_does_nothing() -> None:
    console, _, out, _ = plain(width=60)
    console.quote("answer", "first line\n" + HOSTILE)
    shown = out.getvalue().splitlines()
    assert shown[:2] == ["  answer", "  | first line"]
    assert all(line.startswith("  | ") and cells(line) <= 60 for line in shown[1:])
    assert not set(out.getvalue()) & {"\x1b", "\u202e", "\x07"}


def test_live_bars_nest_and_disappear() -> None:
    err = io.StringIO()
    console = Console(stream=err, results=io.StringIO(), live=True, width=70)
    with console.progress("sampling", 3) as outer, console.progress("decoding", 3) as inner:
        outer.advance()
        inner.advance()
    console.step(record(), 1, 2)
    console.step(record(), 2, 2)
    console.stage_done("train", 2)
    console.close()
    assert "sampling" in err.getvalue()
    assert "  decoding" in err.getvalue()
    assert err.getvalue().endswith("train done in 2.0s\n")
    assert "2/2" in err.getvalue()


def test_the_log_has_every_line_also_those_before_the_folder_existed(tmp_path: Path) -> None:
    console, err, _, clock = plain()
    console.stage("train", "new")
    console.log_to(tmp_path / "x" / "run.log")
    for step in range(1, 5):
        clock.now += 0.1
        console.step(record(), step, 9)
    console.table("Result", ["metric"], [["reward"]])
    console.close()
    lines = (tmp_path / "x" / "run.log").read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\S+ > train  new", lines[0])
    assert sum("step" in line for line in lines) == 4
    assert lines[-1].endswith(" reward")
    assert err.getvalue().count("step") == 1


def test_wide_and_combining_characters_are_counted_as_a_terminal_draws_them() -> None:
    assert (cells("日本"), cells("e\u0301"), cells("ab")) == (4, 1, 2)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0s"), (1.24, "1.2s"), (9.97, "10s"), (59.6, "1m00s"), (185, "3m05s"), (7800, "2h10m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rich_is_not_imported_until_a_bar_is_drawn() -> None:
    code = (
        "import sys; from llmclick.tracking.console import Console; c = Console(live=False); c.notice('x'); "
        "c.table('t', ['a'], [[1]]); sys.exit('rich' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
