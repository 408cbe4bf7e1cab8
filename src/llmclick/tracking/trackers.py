"""Trackers: other places that receive every metric. Each is an extra, imported when used; none can stop a run.

A tracker is one registered class:

    @TRACKERS.register("mine", package="mine", extra="mine")
    class Mine:
        def __init__(self, run: TrackedRun) -> None: ...
        def log(self, values: dict[str, float], step: int) -> None: ...
        def close(self) -> None: ...

A tracker gets every step once, in order. How far it has come stands in the experiment's trackers.json, so a resumed run does
not send again what it takes again (those steps are equal, only their measured seconds differ), sends first what an earlier
session could not, and a tracker that is new in a config gets the steps before it too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llmclick.errors import InputError, Problem
from llmclick.registry import Registry
from llmclick.tracking.files import write_atomic
from llmclick.tracking.metrics import read_metrics

SENT = "trackers.json"
"""How far each tracker has come: {name: {params, steps, evaluations}}."""
GIVE_UP = 3
"""Failures in a row after which a tracker is left alone: each may have cost a network timeout."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told when it opens: the experiment's `folder`, whose name is the run's name and stays the same after a
    resume, the resolved `config`, and `params`, the other keys under `tracker`."""

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name that the run has in the tracker."""
        return self.folder.resolve().name


class Tracker(Protocol):
    """Receives numbers by name (`reward`, `groups/mixed`, `eval/reward`, `validate/reward/trained`)."""

    def log(self, values: dict[str, float], step: int) -> None:
        """The numbers of one step."""

    def close(self) -> None:
        """No more will come: everything must be in the store when this returns."""


TRACKERS: Registry[Callable[[TrackedRun], Tracker]] = Registry("tracker", "llmclick.tracking")


@TRACKERS.register("tensorboard", package="tensorboard", extra="tensorboard")
class TensorBoard:
    """Event files in `folder` (default: tensorboard/ in the experiment's folder)."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(run.params.get("folder") or run.folder / "tensorboard"))

    def log(self, values: dict[str, float], step: int) -> None:
        """One scalar per name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


@TRACKERS.register("wandb", package="wandb", extra="wandb")
class WandB:
    """Weights & Biases; `project` (default llmclick) and every other key go to wandb.init, such as `mode: offline`."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        options = {
            "project": "llmclick",
            "name": run.name,
            "id": run.name,
            "resume": "allow",
            "dir": str(run.folder),
            **run.params,
        }
        # Quiet, and without the parts that read the terminal, the machine and the working folder.
        quiet = {"console": "off", "silent": True, "disable_git": True, "disable_code": True, "x_disable_stats": True}
        self._run = wandb.init(config=dict(run.config), settings=wandb.Settings(**quiet), **options)

    def log(self, values: dict[str, float], step: int) -> None:
        """One history row. The step is a value too: wandb keeps a row of an earlier step only by its own counter."""
        self._run.log({**values, "step": step})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


@TRACKERS.register("mlflow", package="mlflow", extra="mlflow")
class MLflow:
    """MLflow; `uri` (default: MLFLOW_TRACKING_URI, else mlruns/ beside the experiments) and `experiment` (default llmclick)."""

    def __init__(self, run: TrackedRun) -> None:
        beside = (run.folder.resolve().parent / "mlruns").as_uri()
        uri = str(run.params.get("uri") or os.environ.get("MLFLOW_TRACKING_URI") or beside)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # A server that does not answer must cost seconds, not MLflow's minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        if uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        name = str(run.params.get("experiment") or "llmclick")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        found = self._client.search_runs([experiment], f"tags.`llmclick.run` = '{run.name}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
        else:
            self._id = self._client.create_run(experiment, tags={"llmclick.run": run.name}, run_name=run.name).info.run_id
            for key, value in _flat_config(run.config):
                self._client.log_param(self._id, key, str(value)[:500])

    def log(self, values: dict[str, float], step: int) -> None:
        """All metrics of a step in one call; `reward.json_valid` for `reward/json_valid`, which is a file and a folder of one
        name in MLflow's file store."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(name.replace("/", "."), value, now, step) for name, value in values.items()])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)


@TRACKERS.register("trackio", package="trackio", extra="trackio")
class Trackio:
    """Trackio's local store; `project` (default llmclick) and every other key go to trackio.init, such as `space_id`."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        options = {"project": "llmclick", "name": run.name, "resume": "allow", "embed": False, **run.params}
        options = {"auto_log_gpu": False, "auto_log_cpu": False, **options}
        self._trackio = trackio
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            trackio.init(config=dict(run.config), **options)

    def log(self, values: dict[str, float], step: int) -> None:
        """One row."""
        self._trackio.log(values, step=step)

    def close(self) -> None:
        """Write what is queued."""
        with contextlib.redirect_stdout(sys.stderr):
            self._trackio.finish()


class Tracking:
    """A tracker that never stops a run: the first failure is one notice, after a few in a row it is left alone. Use it as a
    listener of metrics, after `catch_up`, and call `close` at the end."""

    def __init__(self, name: str, run: TrackedRun, notice: Callable[[str], None]) -> None:
        self.name = name
        self.failures = 0
        self._in_a_row = 0
        self._notice = notice
        self._receiver: Receiver | None = None
        self._attempt(lambda: self._open(run))

    def catch_up(self) -> None:
        """Send what the experiment's files hold and the tracker was not sent yet (once they are cut to where a run resumes)."""
        if self._receiver is not None:
            for record in records_in(self._receiver.run.folder):
                self.log(record)

    def log(self, record: Mapping[str, Any]) -> None:
        """A record of metrics.jsonl or eval.jsonl (its numbers get the prefix `eval/`)."""
        self._send(lambda receiver: receiver.log(record))

    def verdict(self, verdict: Mapping[str, Any], step: int) -> None:
        """The content of validate/verdict.json, as numbers under `validate/`."""
        self._send(lambda receiver: receiver.verdict(verdict, step))

    def close(self) -> None:
        """Close the tracker and say how much it missed, if anything."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            self._attempt(receiver.close)
        if self.failures > 1:
            self._notice(
                f"{self.name}: {self.failures} times something could not be sent; metrics.jsonl has every number, and "
                f"`llmclick report DIR --send {self.name}` sends it later"
            )

    def _open(self, run: TrackedRun) -> None:
        self._receiver = Receiver(self.name, run)

    def _send(self, action: Callable[[Receiver], object]) -> None:
        receiver = self._receiver
        if receiver is None or self._in_a_row >= GIVE_UP:
            self.failures += 1
        else:
            self._attempt(lambda: action(receiver))

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
            self._in_a_row = 0
        except Exception as error:  # whatever a tracker does wrong, the run is worth more
            self.failures += 1
            self._in_a_row += 1
            if self.failures == 1:
                reason = f"{type(error).__name__}: {error}"
                self._notice(f"tracker {self.name} failed and the run goes on without it: {reason[:300]}")


class Receiver:
    """An open tracker that is sent each step once. Raises what the tracker raises; a step that failed may be sent again."""

    def __init__(self, name: str, run: TrackedRun) -> None:
        self.run = run
        self._name = name
        self._file = run.folder / SENT
        before = self._read().get(name) or {}
        # Another project or folder is another store, which has nothing yet.
        same = isinstance(before, dict) and before.get("params") == dict(run.params)
        self._sent = {kind: int(before.get(kind, -1)) if same else -1 for kind in ("steps", "evaluations")}
        self._tracker = TRACKERS.get(name).value(run)

    def log(self, record: Mapping[str, Any]) -> bool:
        """Send a record unless it was sent before; says whether it was."""
        values, step = named_numbers(record)
        kind = "evaluations" if "n" in record else "steps"
        if step <= self._sent[kind]:
            return False
        if values:
            self._tracker.log(values, step)
        self._sent[kind] = step
        mine = {self._name: {"params": dict(self.run.params), **self._sent}}
        write_atomic(self._file, json.dumps(self._read() | mine, indent=1, default=str).encode("ascii") + b"\n")
        return True

    def verdict(self, verdict: Mapping[str, Any], step: int) -> None:
        """Send a verdict, however often it is judged."""
        self._tracker.log(_verdict_numbers(verdict), step)

    def close(self) -> None:
        """Close the tracker."""
        self._tracker.close()

    def _read(self) -> dict[str, Any]:
        try:
            value = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}


def records_in(folder: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl and eval.jsonl in the order of their steps."""
    records = [*read_metrics(folder / "metrics.jsonl"), *read_metrics(folder / "eval.jsonl")]
    return sorted(records, key=lambda record: int(record.get("step") or 0))


def check_name(name: str, where: str) -> list[Problem]:
    """What is wrong with a tracker's name."""
    if name in TRACKERS:
        return []
    write = f"write one of {', '.join(TRACKERS.nearest(name))}, or none"
    return [Problem(where, "tracker", "there is no tracker of this name", write, name)]


def check_tracker(name: str, where: str) -> list[Problem]:
    """What is wrong with a tracker before a run: an unknown name, or a package that is not installed."""
    if problems := check_name(name, where):
        return problems
    options = TRACKERS.get(name).options
    package, extra = options.get("package"), options.get("extra")
    if package and importlib.util.find_spec(str(package)) is None:
        write = f"`uv sync --extra {extra}` once, which installs it, or `tracker: none`"
        return [Problem(where, "tracker", f"the package {package} is not installed", write, name)]
    return []


def send(folder: str | Path, tracker: str, params: Mapping[str, Any] | None = None) -> int:
    """Send a run that has already ended (or got as far as it did) to a tracker; returns how many steps were sent.

    What was sent before, while the run went or by an earlier call, is not sent again. `params` are the config's where its
    tracker is this one. Raises InputError if the tracker is unknown or not installed or the folder is no experiment; what the
    tracker itself raises comes through, because here nothing else would be lost.
    """
    from llmclick.report.experiment import read_experiment

    run = read_experiment(folder)
    if tracker not in TRACKERS and (own := run.setting("pipeline.imports")):
        from llmclick.rewards.imports import load_imports

        load_imports([Path(path) for path in own], str(run.folder / "config.yaml"))  # one of them may be the user's tracker
    if problems := check_tracker(tracker, "--send"):
        raise InputError(problems)
    if params is None:
        configured = run.config.get("tracker")
        mine = isinstance(configured, dict) and configured.get("name") == tracker
        params = {key: value for key, value in configured.items() if key != "name"} if mine and configured else {}
    receiver = Receiver(tracker, TrackedRun(run.folder, run.config, params))
    try:
        sent = [record for record in records_in(run.folder) if receiver.log(record)]
        if run.verdict:
            receiver.verdict(run.verdict, int(run.metrics[-1]["step"]) if run.metrics else 0)
    finally:
        receiver.close()
    return sum("n" not in record for record in sent)


def named_numbers(record: Mapping[str, Any]) -> tuple[dict[str, float], int]:
    """A record's numbers by name, nested ones as `groups/mixed`, without those that are null; and its step.

    A record of eval.jsonl is told by its `n` (it says how many rows it is a mean of): its names begin with `eval/`.
    """
    prefix = "eval/" if "n" in record else ""
    values = {prefix + name: value for name, value in _flat(record) if name != "step"}
    return values, int(record.get("step") or 0)


def _verdict_numbers(verdict: Mapping[str, Any]) -> dict[str, float]:
    values = {f"validate/{name}": value for name, value in _flat(verdict.get("metrics") or {})}
    passed = verdict.get("passed")  # None where no bound is set: not judged is neither 0 nor 1
    return values if passed is None else values | {"validate/passed": float(passed)}


def _flat(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found.append((f"{prefix}{key}", float(value)))
    return found


def _flat_config(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        found += _flat_config(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found
