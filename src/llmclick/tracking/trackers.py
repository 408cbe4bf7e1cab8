"""Trackers: other places that receive every metric. Each is an extra, imported when used; none can stop a run.

A tracker is one registered class:

    @TRACKERS.register("mine", package="mine", extra="mine")
    class Mine:
        def __init__(self, run: TrackedRun) -> None: ...
        def log(self, values: dict[str, float], step: int) -> None: ...
        def close(self) -> None: ...
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llmclick.errors import InputError, Problem
from llmclick.registry import Registry


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
        trackio.init(config=dict(run.config), **options)

    def log(self, values: dict[str, float], step: int) -> None:
        """One row."""
        self._trackio.log(values, step=step)

    def close(self) -> None:
        """Write what is queued."""
        self._trackio.finish()


class Tracking:
    """A tracker that never stops a run: the first failure is one notice, the others are counted. Use as a listener of metrics
    and call `close` at the end."""

    def __init__(self, name: str, run: TrackedRun, notice: Callable[[str], None]) -> None:
        self.name = name
        self.failures = 0
        self._notice = notice
        self._tracker: Tracker | None = None
        self._attempt(lambda: self._open(run))

    def log(self, record: Mapping[str, Any]) -> None:
        """A record of metrics.jsonl or eval.jsonl (its numbers get the prefix `eval/`)."""
        self._send(*named_numbers(record))

    def verdict(self, verdict: Mapping[str, Any], step: int) -> None:
        """The content of validate/verdict.json, as numbers under `validate/`."""
        self._send(_verdict_numbers(verdict), step)

    def close(self) -> None:
        """Close the tracker and say how much it missed, if anything."""
        if self._tracker is not None:
            self._attempt(self._tracker.close)
            self._tracker = None
        if self.failures > 1:
            self._notice(f"{self.name}: {self.failures} times something could not be sent; metrics.jsonl has every number")

    def _open(self, run: TrackedRun) -> None:
        self._tracker = TRACKERS.get(self.name).value(run)

    def _send(self, values: dict[str, float], step: int) -> None:
        tracker = self._tracker
        if tracker is None:
            self.failures += 1
        elif values:
            self._attempt(lambda: tracker.log(values, step))

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever a tracker does wrong, the run is worth more
            self.failures += 1
            if self.failures == 1:
                reason = f"{type(error).__name__}: {error}"
                self._notice(f"tracker {self.name} failed and the run goes on without it: {reason[:300]}")


def check_tracker(name: str, where: str) -> list[Problem]:
    """What is wrong with `tracker` in a config before a run: an unknown name, or a package that is not installed."""
    if name not in TRACKERS:
        known = TRACKERS.nearest(name)
        return [
            Problem(where, "tracker", "there is no tracker of this name", f"write one of {', '.join(known)}, or none", name)
        ]
    options = TRACKERS.get(name).options
    package, extra = options.get("package"), options.get("extra")
    if package and importlib.util.find_spec(str(package)) is None:
        write = f"install it (the extra `{extra}`: `uv sync --extra {extra}`) or write `tracker: none`"
        return [Problem(where, "tracker", f"the package {package} is not installed", write, name)]
    return []


def send(folder: str | Path, tracker: str, params: Mapping[str, Any] | None = None) -> int:
    """Send a run that has already ended (or got as far as it did) to a tracker; returns how many steps it had.

    Raises InputError if the tracker is unknown or not installed or the folder is no experiment; what the tracker itself raises
    comes through, because here nothing else would be lost.
    """
    from llmclick.report.experiment import read_experiment

    problems = check_tracker(tracker, "send")
    if problems:
        raise InputError(problems)
    run = read_experiment(folder)
    receiver = TRACKERS.get(tracker).value(TrackedRun(run.folder, run.config, params or {}))
    try:
        records = [*run.metrics, *run.evaluations]
        for values, step in sorted(map(named_numbers, records), key=lambda item: item[1]):
            receiver.log(values, step)
        if run.verdict:
            receiver.log(_verdict_numbers(run.verdict), int(run.metrics[-1]["step"]) if run.metrics else 0)
    finally:
        receiver.close()
    return len(run.metrics)


def named_numbers(record: Mapping[str, Any]) -> tuple[dict[str, float], int]:
    """A record's numbers by name, nested ones as `groups/mixed`, without those that are null; and its step.

    A record of eval.jsonl is told by its `n` (it says how many rows it is a mean of): its names begin with `eval/`.
    """
    prefix = "eval/" if "n" in record else ""
    values = {prefix + name: value for name, value in _flat(record) if name != "step"}
    return values, int(record.get("step") or 0)


def _verdict_numbers(verdict: Mapping[str, Any]) -> dict[str, float]:
    values = {f"validate/{name}": value for name, value in _flat(verdict.get("metrics") or {})}
    return values | {"validate/passed": float(bool(verdict.get("passed")))}


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
