"""Signals at awkward moments of a run: in the middle of a write, in an evaluation, from a connection that drops."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmclick.config.load import load_config
from llmclick.errors import Interrupted, RewardError
from llmclick.modeling.llm.training.journal import Journal
from llmclick.pipeline import engine
from llmclick.pipeline.run import run
from llmclick.tracking.console import Console
from tests.runs import Tiny, read_metrics


@pytest.fixture
def tiny(tmp_path: Path, dense_folder: Path) -> Tiny:
    return Tiny(tmp_path, dense_folder)


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    """Whatever a test does to the handlers, pytest's own come back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def snapshots(tiny: Tiny) -> list[int]:
    names = (tiny.experiment / "train" / "snapshots").glob("step-*")
    return sorted(int(path.name.removeprefix("step-")) for path in names)


class SignalsWhileItWrites(io.StringIO):
    """A stream during whose `write` of a step's line a signal arrives."""

    def write(self, text: str) -> int:
        if "step 1/" in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)


@pytest.mark.parametrize("live", [False, True])
def test_a_signal_in_the_middle_of_a_write(tiny: Tiny, live: bool) -> None:
    """As a supervisor that reads "step 1/6" and stops the run: the line is whole, the run says so once, saves and ends; the
    same command goes on to the undisturbed end. (A handler that prints waits for its own thread's lock for ever.)"""
    tiny.run()
    whole = tiny.put_aside()
    stream = SignalsWhileItWrites()
    console = Console(stream=stream, results=stream, live=live, width=200)
    with pytest.raises(Interrupted, match=r"stopped (after step 1|while sampling for step 2) of 6"):
        run(load_config(tiny.yaml), None, console)
    console.close()
    assert stream.getvalue().count("SIGTERM: stopping after this step") == 1
    assert snapshots(tiny) == [1]
    tiny.run()
    assert "resumed after step 1" in tiny.said.getvalue()
    assert tiny.left() == whole


def after_step(monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    stepped = Journal.stepped

    def then(self: Journal, training: Any, *more: Any) -> None:
        stepped(self, training, *more)
        if training.step == step:
            do()

    monkeypatch.setattr(Journal, "stepped", then)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_each_signal_saves(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """A dropped connection, a batch system's warning, a supervisor, Ctrl-C: a snapshot of the step, exit 130."""
    with monkeypatch.context() as patch:
        after_step(patch, 3, lambda: os.kill(os.getpid(), number))
        with pytest.raises(Interrupted, match="stopped after step 3 of 6") as caught:
            tiny.run()
    assert caught.value.exit_code == 130
    assert f"{number.name}: stopping" in tiny.said.getvalue()
    assert snapshots(tiny) == [2, 3]


def test_a_dropped_connection_signals_twice(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel and the shell each send SIGHUP, a session's end SIGTERM too: none is a second thought, the step is saved."""

    def hang_up() -> None:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        after_step(patch, 3, hang_up)
        with pytest.raises(Interrupted, match="stopped after step 3 of 6"):
            tiny.run()
    assert snapshots(tiny) == [2, 3]


def test_nohup_is_respected(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started to ignore SIGHUP trains on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    after_step(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGHUP))
    assert tiny.run().exit == 0
    assert [record["step"] for record in read_metrics(tiny.experiment / "metrics.jsonl")] == list(range(1, 7))


EVALUATED = ("training.eval_every=2", "training.save_every=5")


def once_in_evaluation(monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    original = engine.greedy_completions

    def then(sampler: Any, prompts: Any, config: Any, console: Any, label: str, **more: Any) -> Any:
        if label == f"held-out rows after step {step}":
            do()
        return original(sampler, prompts, config, console, label, **more)

    monkeypatch.setattr(engine, "greedy_completions", then)


@pytest.mark.parametrize("step", [0, 4, 6])
def test_a_signal_in_an_evaluation(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """It ends there, with a snapshot of that step, also before the first and after the last one; the same command evaluates
    that step again, and leaves what the undisturbed run leaves."""
    tiny.run(*EVALUATED)
    tiny.assert_it_trained(6)
    assert [record["step"] for record in read_metrics(tiny.experiment / "eval.jsonl")] == [0, 2, 4, 6]
    whole = tiny.put_aside()
    with monkeypatch.context() as patch:
        once_in_evaluation(patch, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Interrupted, match=f"stopped evaluating after step {step} of 6"):
            tiny.run(*EVALUATED)
    assert snapshots(tiny)[-1] == step
    assert step not in [record["step"] for record in read_metrics(tiny.experiment / "eval.jsonl")]
    tiny.run(*EVALUATED)
    assert tiny.left() == whole


FLAGGED = """
import zlib
from pathlib import Path
from llmclick import REWARDS

@REWARDS.register("flagged_in_evaluation")
def flagged_in_evaluation(completion, row, params):
    if Path(params["flag"]).exists():
        return float("nan")
    return zlib.crc32(completion.encode("utf-8", "surrogatepass")) % 7 / 6
"""


def test_a_reward_that_fails_in_an_evaluation(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in the evaluation after step 4: exit 2 with a snapshot of step 4, from which the same command goes on to the
    undisturbed end once the reward gives numbers again."""
    flag, file = tmp_path / "flag", tmp_path / "flagged_in_evaluation.py"
    file.write_text(FLAGGED)
    overrides = (*EVALUATED, f"pipeline.imports=[{file}]", f"method.reward={{name: flagged_in_evaluation, flag: {flag}}}")
    tiny.run(*overrides)
    whole = tiny.put_aside()
    with monkeypatch.context() as patch:
        once_in_evaluation(patch, 4, flag.touch)
        with pytest.raises(RewardError, match="flagged_in_evaluation"):
            tiny.run(*overrides)
    assert snapshots(tiny) == [4]
    flag.unlink()
    tiny.run(*overrides)
    assert "resumed after step 4" in tiny.said.getvalue()
    assert tiny.left() == whole
