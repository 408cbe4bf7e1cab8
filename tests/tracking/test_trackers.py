"""Each tracker is read back from its own store; none of them can stop a run."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llmclick.errors import InputError
from llmclick.tracking.files import write_atomic
from llmclick.tracking.metrics import MetricsFile
from llmclick.tracking.trackers import TRACKERS, TrackedRun, Tracking, check_tracker, named_numbers, records_in, send
from tests.runs import Tiny

RECORDS: list[dict[str, Any]] = [
    {"step": step, "reward": step / 4, "reward/json_valid": 0.5, "groups": {"mixed": 3, "all_right": 1}, "kl": None, "lr": 2e-5}
    for step in (1, 2, 3)
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "output" / "cities-1a2b3c4d"
    for record in RECORDS:
        MetricsFile(folder / "metrics.jsonl").append(record)
    MetricsFile(folder / "eval.jsonl").append({"step": 2, "reward": 0.9, "n": 8})
    verdict = {"passed": True, "metrics": {"reward": {"base": 0.1, "trained": 0.9}}}
    write_atomic(folder / "validate" / "verdict.json", json.dumps(verdict).encode())
    write_atomic(folder / "config.yaml", b"pipeline: {name: cities}\nmethod: {group_size: 4}\n")
    return folder


def needs(package: str) -> Any:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"the extra {package} is not installed: uv sync --extra {package}")


def sent(run: Path, name: str, params: dict[str, Any], **environment: str) -> None:
    """In a process of its own."""
    code = f"from llmclick.tracking.trackers import send; assert send({str(run)!r}, {name!r}, {params!r}) == 3"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


Stored = dict[str, list[tuple[int, float]]]


def ran(folder: Path, model: Path, tracker: str, **environment: str) -> Path:
    """A real short run with a tracker and a learning curve, in a process of its own: trackers keep threads, servers and global
    state. Returns the experiment's folder."""
    tiny = Tiny(folder / "run", model)
    command = [sys.executable, "-m", "llmclick.cli", "run", str(tiny.yaml), "--set", f"tracker={tracker}"]
    done = subprocess.run(
        [*command, "--set", "training.eval_every=3"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tracker" not in done.stderr
    tiny.assert_it_trained(6)
    return tiny.experiment


def everything(experiment: Path) -> Stored:
    """What a tracker has to hold: each number of metrics.jsonl, eval.jsonl and the verdict, by name, with its step."""
    verdict = json.loads((experiment / "validate" / "verdict.json").read_text())
    told = [named_numbers(record) for record in records_in(experiment)]
    values: dict[str, float] = {"validate/passed": 1.0}
    for name, numbers in verdict["metrics"].items():
        values |= {f"validate/{name}/{key}": float(value) for key, value in numbers.items() if isinstance(value, (int, float))}
    wanted: Stored = {}
    for numbers, step in [*told, (values, 6)]:
        for name, value in numbers.items():
            wanted.setdefault(name, []).append((step, pytest.approx(value, rel=1e-5)))
    assert {"reward", "groups/mixed", "seconds/total", "eval/reward", "validate/reward/difference"} <= set(wanted)
    return wanted


@pytest.mark.slow
@needs("tensorboard")
def test_tensorboard_receives_every_metric(tmp_path: Path, dense_folder: Path) -> None:
    experiment = ran(tmp_path, dense_folder, "tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found: Stored = {}
    for path in sorted((experiment / "tensorboard").iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, float(tensor_util.make_ndarray(value.tensor))))
    assert found == everything(experiment)


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format (blocks of 32 KiB; checksum, length, kind) after 7 bytes."""
    place, whole = 7, b""
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


@pytest.mark.slow
@needs("wandb")
def test_wandb_receives_every_metric_offline(tmp_path: Path, dense_folder: Path) -> None:
    experiment = ran(tmp_path, dense_folder, "{name: wandb, mode: offline}")
    from wandb.proto import wandb_internal_pb2

    (path,) = (experiment / "wandb").glob("offline-run-*/*.wandb")
    found: Stored = {}
    for data in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in row.items():
            if not name.startswith("_") and name != "step":
                found.setdefault(name, []).append((row["step"], value))
    assert found == everything(experiment)


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_receives_every_metric_in_a_file_store(
    tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = ran(tmp_path, dense_folder, "mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(experiment.parent / "mlruns").as_uri())
    (stored,) = client.search_runs([client.get_experiment_by_name("llmclick").experiment_id])
    assert stored.data.params["method.group_size"] == "4"
    wanted = everything(experiment)
    assert set(stored.data.metrics) == {name.replace("/", ".") for name in wanted}
    for name, values in wanted.items():
        history = client.get_metric_history(stored.info.run_id, name.replace("/", "."))
        assert sorted((one.step, one.value) for one in history) == values


@pytest.mark.slow
@needs("trackio")
def test_trackio_receives_every_metric_in_its_database(tmp_path: Path, dense_folder: Path) -> None:
    experiment = ran(tmp_path, dense_folder, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    (path,) = (tmp_path / "trackio").glob("llmclick*.db")
    with sqlite3.connect(path) as database:
        query = "select step, metrics from metrics where run_name = ? order by id"
        rows = database.execute(query, (experiment.name,)).fetchall()
    found: Stored = {}
    for step, metrics in rows:
        for name, value in json.loads(metrics).items():
            found.setdefault(name, []).append((step, value))
    assert found == everything(experiment)


class Broken:
    """Fails at everything but opening."""

    def __init__(self, run: TrackedRun) -> None:
        pass

    def log(self, values: dict[str, float], step: int) -> None:
        raise OSError("no route to host")

    def close(self) -> None:
        raise OSError("no route to host")


class Unopenable(Broken):
    """Fails at opening."""

    def __init__(self, run: TrackedRun) -> None:
        raise RuntimeError("no key")


@pytest.mark.parametrize(("kind", "reason"), [(Broken, "OSError: no route to host"), (Unopenable, "RuntimeError: no key")])
def test_a_tracker_that_fails_is_one_line_and_a_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type, reason: str
) -> None:
    monkeypatch.setitem(TRACKERS._own, "broken", type(TRACKERS.get("wandb"))("broken", kind, "", 0, False))
    said: list[str] = []
    tracking = Tracking("broken", TrackedRun(tmp_path), said.append)
    for record in RECORDS:
        tracking.log(record)
    tracking.verdict({"passed": True, "metrics": {}}, 3)
    assert said == [f"tracker broken failed and the run goes on without it: {reason}"]
    tracking.close()
    assert said[1:] == [
        "broken: 5 times something could not be sent; metrics.jsonl has every number, and `llmclick report DIR --send broken` "
        "sends it later"
    ]


@pytest.mark.parametrize(("passed", "sent"), [(True, {"validate/passed": 1.0}), (False, {"validate/passed": 0.0}), (None, {})])
def test_a_run_that_was_not_judged_is_sent_as_neither(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, passed: bool | None, sent: dict[str, float]
) -> None:
    """Without bounds there is no `validate/passed`: 0 would read as failed, 1 as passed."""
    monkeypatch.setitem(TRACKERS._own, "memory", type(TRACKERS.get("wandb"))("memory", Memory, "", 0, False))
    monkeypatch.setattr(Memory, "got", [])
    tracking = Tracking("memory", TrackedRun(tmp_path), print)
    tracking.verdict({"passed": passed, "metrics": {"reward": {"n": 4, "interval": "bootstrap", "low": None}}}, 3)
    assert Memory.got == [(3, {"validate/reward/n": 4.0, **sent})]


class Memory:
    """Keeps what it is sent; `refuse` makes it fail at one step."""

    got: ClassVar[list[tuple[int, dict[str, float]]]] = []
    refuse: ClassVar[int | None] = None
    asked: ClassVar[int] = 0

    def __init__(self, run: TrackedRun) -> None:
        pass

    def log(self, values: dict[str, float], step: int) -> None:
        type(self).asked += 1
        if step == self.refuse:
            raise OSError("not now")
        self.got.append((step, values))

    def close(self) -> None:
        pass


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> type[Memory]:
    monkeypatch.setattr(Memory, "got", [])
    monkeypatch.setattr(Memory, "refuse", None)
    monkeypatch.setattr(Memory, "asked", 0)
    monkeypatch.setitem(TRACKERS._own, "memory", type(TRACKERS.get("wandb"))("memory", Memory, "", 0, False))
    return Memory


def test_a_resumed_run_sends_each_step_once(run: Path, memory: type[Memory]) -> None:
    """Killed after step 3, resumed from step 1: steps 2 and 3 are taken again and not sent again; what came new is."""
    first = Tracking("memory", TrackedRun(run), print)
    first.catch_up()
    assert [step for step, _ in memory.got] == [1, 2, 2, 3]
    MetricsFile(run / "metrics.jsonl").cut(1)
    again = Tracking("memory", TrackedRun(run), print)
    again.catch_up()
    for record in [*RECORDS[1:], {"step": 4, "reward": 1.0}]:
        again.log(record)
    assert [step for step, _ in memory.got] == [1, 2, 2, 3, 4]


def test_what_an_earlier_session_could_not_send_is_sent_first(run: Path, memory: type[Memory]) -> None:
    memory.refuse = 3
    for refuse, expected in ((3, [1, 2, 2]), (None, [1, 2, 2, 3])):
        memory.refuse = refuse
        tracking = Tracking("memory", TrackedRun(run), lambda text: None)
        tracking.catch_up()
        tracking.close()
        assert [step for step, _ in memory.got] == expected


def test_another_store_gets_everything_and_the_first_one_is_not_forgotten_for_another_tracker(
    run: Path, memory: type[Memory]
) -> None:
    assert send(run, "memory") == 3
    assert send(run, "memory") == 0
    assert send(run, "memory", {"project": "other"}) == 3


def test_a_tracker_that_keeps_failing_is_left_alone(tmp_path: Path, memory: type[Memory]) -> None:
    """Each failure may cost a timeout: after three in a row nothing is tried any more, and the count is still right."""
    said: list[str] = []
    memory.refuse = 1
    tracking = Tracking("memory", TrackedRun(tmp_path), said.append)
    for _ in range(40):
        tracking.log({"step": 1, "reward": 0.0})
    assert memory.asked == 3
    tracking.close()
    assert said[-1].startswith("memory: 40 times")


def test_a_full_disk_under_trackers_json_does_not_stop_a_run(
    tmp_path: Path, memory: type[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("llmclick.tracking.trackers.write_atomic", full)
    said: list[str] = []
    tracking = Tracking("memory", TrackedRun(tmp_path), said.append)
    tracking.log(RECORDS[0])
    assert "No space left" in said[0]


def test_numbers_are_named_by_their_place_and_nulls_are_left_out() -> None:
    record = {"step": 4, "reward": 0.5, "kl": None, "groups": {"mixed": 2}, "reward/x": 1, "reward_failures": {}}
    assert named_numbers(record) == ({"reward": 0.5, "groups/mixed": 2.0, "reward/x": 1.0}, 4)
    assert named_numbers({"step": 0, "reward": 0.5, "n": 8}) == ({"eval/reward": 0.5, "eval/n": 8.0}, 0)


def test_an_unknown_tracker_and_a_missing_package_are_said_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = check_tracker("wandbb", "x.yaml:3")
    assert problem.write.startswith("write one of wandb")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = check_tracker("mlflow", "x.yaml:3")
    assert "uv sync --extra mlflow" in problem.write
    with pytest.raises(InputError):
        send("nowhere", "mlflow")


def test_a_run_can_be_sent_to_the_users_own_tracker(run: Path) -> None:
    """Its file is among the config's imports; a new process finds it there."""
    own = Path(__file__).parents[1] / "lines_tracker.py"
    write_atomic(run / "config.yaml", f"pipeline: {{name: cities, imports: [{own}]}}\n".encode())
    sent(run, "lines", {})
    assert [json.loads(line)[0] for line in (run / "lines.jsonl").read_text().splitlines()] == [1, 2, 2, 3, 3]


def test_importing_the_trackers_imports_none_of_them() -> None:
    code = (
        "import sys, llmclick.tracking.trackers; "
        "sys.exit(any(name in sys.modules for name in ('wandb', 'mlflow', 'trackio', 'tensorboard', 'torch', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
