"""Training that stops itself: what it says, what stays on disk, and that the same command goes on where it can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llmclick.errors import RewardError, TrainingStopped
from llmclick.modeling.llm.training import learner
from llmclick.modeling.llm.training.journal import Journal
from llmclick.modeling.llm.training.snapshot import snapshot_steps
from tests.runs import Tiny, read_metrics


def test_a_gradient_that_is_not_finite(tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At step 4 a gradient becomes infinite: exit 4 with the step and its rows, three steps recorded, the snapshot of step 2
    kept; without the fault the same command ends as the undisturbed run."""
    tiny = Tiny(tmp_path, dense_folder)
    tiny.run()
    whole = tiny.put_aside()
    norm = learner.gradient_norm
    calls = 0

    def infinite_once(parameters: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        found = list(parameters)
        if calls == 4:
            found[0].grad[0] = float("inf")
        return norm(found)

    with monkeypatch.context() as patch:
        patch.setattr(learner, "gradient_norm", infinite_once)
        with pytest.raises(TrainingStopped, match="the gradient of step 4 is not finite") as caught:
            tiny.run()
    assert caught.value.exit_code == 4
    assert str(caught.value).count("rows.jsonl:") == 2
    assert [record["step"] for record in read_metrics(tiny.experiment / "metrics.jsonl")] == [1, 2, 3]
    assert snapshot_steps(tiny.experiment / "train" / "snapshots") == [2]
    assert not (tiny.experiment / "validate" / "checkpoint").exists()
    tiny.run()
    assert tiny.left() == whole


@pytest.mark.parametrize("lr", ["1e30", "1e300"])
def test_weights_that_explode(tmp_path: Path, dense_folder: Path, lr: str) -> None:
    """A learning rate that drives the weights to infinity: exit 4, naming the step, its rows and the learning rate; null in
    metrics.jsonl where a number does not exist, never NaN."""
    tiny = Tiny(tmp_path, dense_folder)
    with pytest.raises(TrainingStopped, match=r"step \d") as caught:
        tiny.run(f"training.lr={lr}", "training.max_grad_norm=1e30")
    assert "rows.jsonl:" in str(caught.value)
    assert "learning rate" in str(caught.value) or "training.lr" in str(caught.value)
    assert b"NaN" not in (tiny.experiment / "metrics.jsonl").read_bytes()


def always(folder: Path, value: str, patience: int = 3) -> tuple[str, ...]:
    """Overrides for a reward that gives `value` for whatever was written."""
    file = folder / "always_reward.py"
    name = folder.name  # of this test alone: a second reward of one name would be refused
    file.write_text(
        f"from llmclick import REWARDS\n\n@REWARDS.register({name!r})\n"
        f"def always(completion, row, params):\n    return {value}\n"
    )
    return (f"pipeline.imports=[{file}]", f"method.reward.name={name}", f"training.patience={patience}")


def test_nothing_left_to_learn(tmp_path: Path, dense_folder: Path) -> None:
    """All completions of three batches in a row are right: training ends early, says so, and validate decides."""
    tiny = Tiny(tmp_path, dense_folder)
    result = tiny.run(*always(tmp_path, "1.0"))
    assert result.exit == 0
    assert result.stages["validate"]["state"] == "ran"
    assert "3 sampled batches in a row were all right" in tiny.said.getvalue()
    assert [record["step"] for record in read_metrics(tiny.experiment / "metrics.jsonl")] == [1, 2, 3]


@pytest.fixture(scope="module")
def constants(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An override that imports two rewards, one that always gives 1 and one that always gives 0."""
    file = tmp_path_factory.mktemp("constants") / "constants_reward.py"
    lines = ["from llmclick import REWARDS"]
    for name, value in (("always_one", 1.0), ("always_two", 1.0), ("always_none", 0.0)):
        lines += [f"@REWARDS.register({name!r})", f"def {name}(completion, row, params):", f"    return {value}"]
    file.write_text("\n".join(lines) + "\n")
    return f"pipeline.imports=[{file}]"


def test_weights_that_sum_to_less_than_one_can_be_all_right(tmp_path: Path, dense_folder: Path, constants: str) -> None:
    """Weights .5 and .4, both rewards perfect: every completion passes, here, in training's held-out rows and in the gate, and
    nothing is left to learn."""
    tiny = Tiny(tmp_path, dense_folder)
    rewards = "[{name: always_one, weight: 0.5}, {name: always_two, weight: 0.4}]"
    overrides = (f"method.reward={rewards}", "training.patience=3", "training.eval_every=2", "validation.min={pass_rate: 1.0}")
    result = tiny.run(constants, *overrides)
    assert (result.exit, result.passed) == (0, True)
    assert "3 sampled batches in a row were all right" in tiny.said.getvalue()
    left = tiny.experiment
    assert [(line["pass_rate"], line["groups"]["all_right"]) for line in read_metrics(left / "metrics.jsonl")] == [(1.0, 2)] * 3
    assert {line["pass_rate"] for line in read_metrics(left / "eval.jsonl")} == {1.0}
    kept = [json.loads(line) for line in (left / "completions" / "1.jsonl").read_text().splitlines()]
    held = [json.loads(line) for line in (left / "validate" / "rows.jsonl").read_text().splitlines()]
    assert [(record["reward"], record["passed"]) for record in kept] == [(0.9, True)] * 8
    assert [(row["base"]["passed"], row["trained"]["passed"]) for row in held] == [(True, True)] * 6


def test_a_total_of_one_need_not_be_right(tmp_path: Path, dense_folder: Path, constants: str) -> None:
    """One reward always 1 and one always 0, of weight 1 each: exit 4, all equal, and no completion passes."""
    tiny = Tiny(tmp_path, dense_folder)
    with pytest.raises(TrainingStopped, match=r"all completions were equal \(mean reward 1\)"):
        tiny.run(constants, "method.reward=[{name: always_one}, {name: always_none}]", "training.patience=3")
    assert {record["pass_rate"] for record in read_metrics(tiny.experiment / "metrics.jsonl")} == {0.0}


def test_a_mark_below_one_decides_what_is_right(tmp_path: Path, dense_folder: Path) -> None:
    """A reward that always gives 0.5 stops with exit 4; with `pass_at: 0.5` it is all right, and the run ends early."""
    tiny = Tiny(tmp_path, dense_folder)
    result = tiny.run(*always(tmp_path, "0.5"), "method.reward.pass_at=0.5")
    assert result.exit == 0
    assert "3 sampled batches in a row were all right" in tiny.said.getvalue()
    assert {record["pass_rate"] for record in read_metrics(tiny.experiment / "metrics.jsonl")} == {1.0}


@pytest.mark.parametrize(("value", "word"), [("0.0", "wrong"), ("0.5", "equal")])
def test_nothing_to_reinforce(tmp_path: Path, dense_folder: Path, value: str, word: str) -> None:
    """All wrong, or all equal, for three batches: exit 4, which of the two, what helps (all were cut: the budget first), the
    weights kept in train/checkpoint; again the same command says the same."""
    tiny = Tiny(tmp_path, dense_folder)
    for _ in range(2):
        with pytest.raises(TrainingStopped, match="3 sampled batches in a row had no signal") as caught:
            tiny.run(*always(tmp_path, value))
        text = str(caught.value)
        assert caught.value.exit_code == 4
        assert f"all completions were {word}" in text
        assert "were cut by method.max_new_tokens: raise it first" in text
        assert "method.group_size" in text
        assert (tiny.experiment / "train" / "checkpoint" / "model.safetensors").exists()
        assert not (tiny.experiment / "validate").exists()


TURNS = """
from pathlib import Path
from llmclick import REWARDS

@REWARDS.register("NAME")
def turns(completion, row, params):
    return float(Path(params["value"]).read_text())
"""


class Killed(BaseException):
    """Stands for a kill: nothing is written on the way out."""


@pytest.mark.parametrize("values", ["0 0 1", "1 1 0"])
def test_the_last_batch_alone_decides_nothing(
    tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch, values: str
) -> None:
    """Two all-wrong batches and one all-right, or the mirror image: exit 4 with the mean and the share of both, not "nothing is
    left to learn" and not "all wrong". A run that was killed after the second one and resumed says the same."""
    value, file, given = tmp_path / "value", tmp_path / "turns_reward.py", values.split()
    name = "turns_" + given[0]  # a second reward of one name would be refused
    file.write_text(TURNS.replace("NAME", name))
    reward = f"method.reward={{name: {name}, value: {value}}}"
    overrides = (f"pipeline.imports=[{file}]", reward, "training.patience=3")
    stepped = Journal.stepped
    kills: list[int] = []

    def then_turn(self: Journal, training: Any, *more: Any) -> None:
        stepped(self, training, *more)
        value.write_text(given[training.step % 3])

    def then_kill(self: Journal, training: Any) -> None:
        saved(self, training)
        if training.step == 2 and kills:
            kills.pop()
            raise Killed

    saved = Journal.save
    monkeypatch.setattr(Journal, "stepped", then_turn)
    monkeypatch.setattr(Journal, "save", then_kill)
    said = []
    for killed in (False, True):
        tiny = Tiny(tmp_path / str(killed), dense_folder)
        value.write_text(given[0])
        if killed:
            kills.append(1)
            with pytest.raises(Killed):
                tiny.run(*overrides)
        with pytest.raises(TrainingStopped) as caught:
            tiny.run(*overrides)
        assert caught.value.exit_code == 4
        assert ("resumed after step 2" in tiny.said.getvalue()) is killed
        said.append(str(caught.value))
    right = 2 * given.count("1")
    assert f"all completions were equal (mean reward {right / 6:.3g}, {right} of 6 groups all right)" in said[0]
    assert said[0] == said[1]


def test_patience_0_never_stops(tmp_path: Path, dense_folder: Path) -> None:
    """With `patience: 0` six batches without a signal are six steps of gradient zero, and no weight moves."""
    tiny = Tiny(tmp_path, dense_folder)
    tiny.run(*always(tmp_path, "0.0", patience=0))
    records = read_metrics(tiny.experiment / "metrics.jsonl")
    assert [record["grad_norm"] for record in records] == [0.0] * 6
    trained = (tiny.experiment / "train" / "checkpoint" / "model.safetensors").read_bytes()
    assert trained == (dense_folder / "model.safetensors").read_bytes()


FLAGGED = """
import zlib
from pathlib import Path
from llmclick import REWARDS

@REWARDS.register("flagged")
def flagged(completion, row, params):
    if Path(params["flag"]).exists():
        return float("nan")
    return zlib.crc32(completion.encode("utf-8", "surrogatepass")) % 7 / 6
"""


def test_a_reward_that_returns_nan_in_the_middle(tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the batch after step 3 a reward returns NaN: exit 2 with reward, row and completion, and a snapshot of step 3. When it
    gives numbers again, the same command goes on from there and ends as the undisturbed run."""
    flag, file = tmp_path / "flag", tmp_path / "flagged_reward.py"
    file.write_text(FLAGGED)
    overrides = (f"pipeline.imports=[{file}]", f"method.reward={{name: flagged, flag: {flag}}}")
    tiny = Tiny(tmp_path, dense_folder)
    tiny.run(*overrides)
    tiny.assert_it_trained(6)
    whole = tiny.put_aside()
    stepped = Journal.stepped

    def then_raise_the_flag(self: Journal, training: Any, *more: Any) -> None:
        stepped(self, training, *more)
        if training.step == 3:
            flag.touch()

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "stepped", then_raise_the_flag)
        with pytest.raises(RewardError) as caught:
            tiny.run(*overrides)
    assert caught.value.exit_code == 2
    assert all(part in str(caught.value) for part in ("flagged", "rows.jsonl:", "completion", "nan"))
    assert snapshot_steps(tiny.experiment / "train" / "snapshots") == [2, 3]
    flag.unlink()
    tiny.run(*overrides)
    assert "resumed after step 3" in tiny.said.getvalue()
    assert tiny.left() == whole
