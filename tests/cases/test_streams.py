"""The exit code is the outcome's, whatever becomes of stdin, stdout and stderr: every command, every outcome, every stream."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.invariants.conftest import Lab
from tests.invariants.processes import Moment, Processes
from tests.invariants.test_kills import DRAW, RUN

pytestmark = pytest.mark.slow

STREAMS = ("files", "terminal", "pipe", "slow pipe", "closed pipe", "full device", "none")

# What is typed, with {yaml} the config, {out} an output folder of its own, {done} and {other} finished experiments, {new} a
# name; the exit code; what happens meanwhile.
OUTCOMES: dict[str, tuple[str, int, Moment | None]] = {
    "run: passed": ("run {yaml} {out}", 0, None),
    "run: passed, cached": ("run {yaml} {cached}", 0, None),
    "run: passed, as JSON": ("run {yaml} {out} --json", 0, None),
    "run: not judged": ("run {yaml} {out} --stages data,train", 0, None),
    "run: failed": ("run {yaml} {out} --set validation.min.reward=2", 3, None),
    "run: a key is wrong": ("run {yaml} {out} --set method.max_new_token=3", 2, None),
    "run: no such file": ("run nowhere.yaml", 2, None),
    "run: no signal": ("run {yaml} {out} --set training.patience=1 --set method.max_new_tokens=1 {flat}", 4, None),
    "run: interrupted while sampling": ("run {yaml} {out}", 130, Moment(DRAW, 9, signal=signal.SIGTERM)),
    "run: interrupted in the data stage": ("run {yaml} {out}", 130, Moment(RUN + "write_dataset", signal=signal.SIGHUP)),
    "run: a bug": ("run {yaml} {out}", 1, Moment(DRAW, 9, signal=0)),
    "check": ("check {yaml} {out}", 0, None),
    "check: samples, as JSON": ("check {yaml} {out} --sample 2 --json", 0, None),
    "check: a key is wrong": ("check {yaml} --set training.lr=fast", 2, None),
    "sample": ("sample {yaml} --rows 2 --greedy", 0, None),
    "sample: no such folder": ("sample {yaml} --checkpoint nowhere", 2, None),
    "reward": ('reward last_number --completion 11 --row {{"answer":"11"}}', 0, None),
    "reward: unknown": ("reward last_numbr --completion 11", 2, None),
    "rewards": ("rewards", 0, None),
    "recipes": ("recipes", 0, None),
    "explain a key": ("explain training.lr", 0, None),
    "explain a folder": ("explain {done}", 0, None),
    "explain: unknown": ("explain training.lrr", 2, None),
    "report": ("report {done}", 0, None),
    "report: no such folder": ("report nowhere", 2, None),
    "compare": ("compare {done} {other} --json", 0, None),
    "compare: one": ("compare {done}", 2, None),
    "new": ("new {new}", 0, None),
    "help": ("run --help", 0, None),
    "no such option": ("run --nonsense", 2, None),
}

FLAT = """
from llmclick import REWARDS

@REWARDS.register("flat_for_streams")
def flat(completion, row, params):
    return 0.0
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, dense_folder: Path) -> Iterator[Lab]:
    processes = Processes(tmp_path_factory.mktemp("streams"))
    made = Lab(tmp_path_factory.mktemp("project"), dense_folder, processes)
    (made.tiny.folder / "flat.py").write_text(FLAT)
    for output, more in (("done", []), ("other", ["--set=training.lr=2e-3"])):
        command = ["run", str(made.tiny.yaml), f"--set=pipeline.output_dir={made.tiny.folder / output}", *more]
        ended = processes.run(command)
        assert ended.code == 0, ended.err
    yield made
    processes.close()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_exit_code_is_the_outcomes(lab: Lab, tmp_path: Path, outcome: str) -> None:
    """The same code with a terminal, a pipe, a slow reader, a reader that left, a full device and no streams at all."""
    typed, code, moment = OUTCOMES[outcome]
    found = {}
    for streams in STREAMS:
        place = tmp_path / streams.replace(" ", "-")
        words = {
            "yaml": lab.tiny.yaml,
            "out": f"--set=pipeline.output_dir={place}",
            "cached": f"--set=pipeline.output_dir={lab.tiny.folder / 'done'}",
            "done": next((lab.tiny.folder / "done").glob("tiny-*")),
            "other": next((lab.tiny.folder / "other").glob("tiny-*")),
            "new": place,
            "flat": f"--set=pipeline.imports=[{lab.tiny.folder / 'flat.py'}] --set=method.reward={{name:&flat_for_streams}}",
        }
        args = [part.replace("&", " ") for part in typed.format(**words).split()]
        found[streams] = lab.processes.run(args, [moment] if moment else [], streams=streams).code
    assert found == dict.fromkeys(STREAMS, code)


def test_a_signal_while_nobody_reads(lab: Lab, tmp_path: Path) -> None:
    """A supervisor that stops reading and then stops the run, with the pipe full: exit 130 at the next boundary, not a hang."""
    moment = Moment(DRAW, 9, signal=signal.SIGTERM)
    command = ["run", str(lab.tiny.yaml), f"--set=pipeline.output_dir={tmp_path}"]
    assert lab.processes.run(command, [moment], streams="full pipe").code == 130
    [experiment] = tmp_path.glob("tiny-*")
    assert "SIGTERM: stopping after this step" in (experiment / "run.log").read_text()


def test_a_run_ends_while_nobody_reads(lab: Lab, tmp_path: Path) -> None:
    """The same without a signal: the work is done to the last stage; the process then waits for its reader, as any program."""
    command = ["run", str(lab.tiny.yaml), f"--set=pipeline.output_dir={tmp_path}"]
    process = lab.processes.start(command, streams="full pipe")
    process.until_exists(tmp_path, "tiny-*/validate/manifest.json")
    process.until_exists(tmp_path, "tiny-*/report.html")
    process.end()
