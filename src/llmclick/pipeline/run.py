"""`llmclick run`: the plan, then data, train and validate, each only if it is not done."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llmclick
from llmclick.errors import Interrupted, TrainingStopped
from llmclick.pipeline.data import Dataset, write_dataset
from llmclick.pipeline.lock import stage_lock
from llmclick.pipeline.outcome import show_outcome
from llmclick.pipeline.preflight import Plan, Preflight, last_step, make_plan, preflight, stage_state
from llmclick.pipeline.signals import deferred, stop_requested, stopped_by_signals
from llmclick.pipeline.stage import (
    MANIFEST,
    SNAPSHOTS,
    STAGES,
    Job,
    checkpoint_source,
    file_digest,
    file_sizes,
    link_folder,
    read_json,
    read_manifest,
    remove_link,
    sync_folder,
    write_json,
    write_manifest,
)
from llmclick.pipeline.unchanged import check_stage_inputs
from llmclick.tracking.files import is_full, remove_leftovers, write_atomic

PAGE = "report.html"


@dataclass(frozen=True)
class RunResult:
    """What a run came to. `passed` is None where nothing was judged: validate was not asked for, or has no
    bounds. `exit` is 0 or 3.

    `stages` maps a stage to {state: cached | ran | skipped, seconds, why}; `metrics` is what validate measured, `verdict` all
    that it returned; `checkpoint` is the handed-over folder, None if the gate failed.
    """

    experiment: Path
    passed: bool | None
    exit: int
    stages: dict[str, dict[str, Any]]
    metrics: dict[str, Any]
    checkpoint: Path | None
    verdict: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "experiment": str(self.experiment),
            "passed": self.passed,
            "exit": self.exit,
            "stages": self.stages,
            "metrics": self.metrics,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
        }


def run(config: Any, stages: Sequence[str] | None = None, console: Any = None) -> RunResult:
    """Bring an experiment as far as `stages` say (default: `pipeline.stages`) and return what came of it.

    Raises InputError before anything is written if anything of the user's cannot work, RewardError if a reward fails in the
    middle, TrainingStopped, and Interrupted (the same call continues).
    """
    if console is None:
        from llmclick.tracking.console import Console

        console = Console()
    with stopped_by_signals(), _full_disk():
        with console.progress("reading rows, rewards and model", None):
            plan = make_plan(config, stages)
        for notice in (*config.notices, *plan.notices):
            console.notice(notice)
        console.plan([(planned.stage, planned.state, planned.why) for planned in plan.stages])
        done: dict[str, dict[str, Any]] = {
            planned.stage: {"state": planned.state, "seconds": 0.0, "why": planned.why}
            for planned in plan.stages
            if planned.state != "run"
        }
        if not plan.cached:
            with console.progress("reading the model, trying every row", None):
                checked = preflight(config, plan=plan, fresh=False)
            for notice in checked.notices:
                console.notice(notice)
            _open_experiment(plan, console, checked.total_steps)
            with _reported(plan, console), _tracked(plan, console) as tracking:
                for planned in plan.stages:
                    if planned.state == "run":
                        done[planned.stage] = _run_stage(planned.stage, planned.why, plan, checked, console, tracking)
        _forget_snapshots(plan)
        result = _result(plan, {stage: done[stage] for stage in STAGES})
        page = plan.experiment / PAGE
        if plan.cached and not page.exists():
            _report(plan, console)
        budget = config.method.max_new_tokens
        show_outcome(console, result.experiment, result.verdict, budget, page if page.exists() else None)
        return result


@contextmanager
def _tracked(plan: Plan, console: Any) -> Iterator[Any]:
    """The config's tracker, open while stages run that have something to send; None without one."""
    sends = plan.state("train") == "run" or plan.state("validate") == "run"
    if plan.config.tracker is None or not sends:
        yield None
        return
    from llmclick.tracking.trackers import TrackedRun, Tracking

    wanted = plan.config.tracker
    tracking = Tracking(wanted.name, TrackedRun(plan.experiment, plan.config.as_dict(), wanted.params), console.notice)
    try:
        yield tracking
    finally:
        tracking.close()


@contextmanager
def _reported(plan: Plan, console: Any) -> Iterator[None]:
    """However the stages inside end, what there is of them becomes report.html; the way they ended stays what it was."""
    try:
        yield
    except BaseException:
        if _report(plan, console):
            console.line(f"report so far: {plan.experiment / PAGE}")
        raise
    _report(plan, console)


def _report(plan: Plan, console: Any) -> bool:
    """Write report.html if there is a step to show. A page that cannot be written is one notice: the run's files are all
    there without it."""
    if not (plan.experiment / "metrics.jsonl").exists():
        return False
    from llmclick.report.page import write_report

    try:
        write_report(plan.experiment)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        console.notice(f"report.html could not be written ({why}); `llmclick report {plan.experiment}` tries again")
        return False
    return True


def _open_experiment(plan: Plan, console: Any, steps: int) -> None:
    """The experiment's folder with its resolved config, its manifest and its log."""
    with _full_disk():
        plan.experiment.mkdir(parents=True, exist_ok=True)
        plan.shared.mkdir(exist_ok=True)
        remove_leftovers(plan.experiment, older_than=3600)  # another process may be opening the same folder
        write_atomic(plan.experiment / "config.yaml", plan.config.dump_yaml().encode("utf-8"))
        manifest = {
            "name": plan.config.pipeline.name,
            "version": llmclick.__version__,
            "fingerprint": plan.fingerprints["train"],
            "fingerprints": plan.fingerprints,
            "inputs": plan.inputs,
            "steps": steps,
            "changed": plan.config.changed(),
        }
        if read_json(plan.experiment / MANIFEST) != manifest:
            write_json(plan.experiment / MANIFEST, manifest)
        console.log_to(plan.experiment / "run.log")


def _run_stage(stage: str, why: str, plan: Plan, checked: Preflight, console: Any, tracking: Any) -> dict[str, Any]:
    """One stage under its lock. Somebody else may have finished it while this process waited."""
    key = plan.fingerprints["data"][:12] if stage == "data" else plan.experiment.name
    with stage_lock(plan.shared / "locks", f"{stage}-{key}", console.line):
        folder = plan.folder(stage)
        # Also without waiting: the other process may have finished between the plan and the lock.
        finished, words = stage_state(stage, folder, plan.fingerprints[stage], plan.inputs[stage], plan.experiment)
        if finished:
            _link_data(plan)
            return {"state": "cached", "seconds": 0.0, "why": f"finished by another process meanwhile: {words}"}
        check_stage_inputs(stage, plan)
        console.stage(stage, why)
        began = time.perf_counter()
        with _full_disk():
            folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(folder)
            # The old manifest goes first: killed halfway, the stage must not look done.
            (folder / MANIFEST).unlink(missing_ok=True)
            if stage == "train":  # what was judged, and handed over, are not the weights that come now
                (plan.folder("validate") / MANIFEST).unlink(missing_ok=True)
                remove_link(plan.folder("validate") / "checkpoint")
            # Training and judging stop themselves, and what they made in hours is recorded first.
            with deferred(console.notice) if stage != "data" else nullcontext(stop_requested) as should_stop:
                files, result = _BODIES[stage](_job(stage, plan, checked, console, tracking, should_stop), checked)
                if stage != "data":  # which weights were made, or judged: neither stage is done for others
                    result = {**result, "weights": checkpoint_source(plan.experiment).weights_hash()}
                seconds = time.perf_counter() - began
                sync_folder(folder)
                write_manifest(
                    folder,
                    stage,
                    plan.fingerprints[stage],
                    plan.inputs[stage],
                    files=files,
                    result=result,
                    seconds=seconds,
                )
            _link_data(plan)
        console.stage_done(stage, seconds)
        if stop_requested() and stage != STAGES[-1]:
            raise Interrupted(f"stopped after the {stage} stage; the same command continues")
        return {"state": "ran", "seconds": round(seconds, 3), "why": why}


def _data(job: Job, checked: Preflight) -> tuple[dict[str, Any], dict[str, Any]]:
    dataset: Dataset | None = checked.dataset
    assert dataset is not None, "preflight prepares the rows whenever the data stage runs"
    paths = write_dataset(job.dataset_folder, dataset)
    files = {path.name: file_digest(path) for path in paths.values()}
    counts = dataset.counts
    job.console.line(f"  {counts['train']} rows train, {counts['validation']} are held out")
    return files, {"counts": counts, "notices": dataset.notices}


def _train(job: Job, checked: Preflight) -> tuple[dict[str, Any], dict[str, Any]]:
    from llmclick.pipeline.train import train

    result = train(job)
    return file_sizes(job.experiment / "train", "checkpoint", "adapter"), result


def _validate(job: Job, checked: Preflight) -> tuple[dict[str, Any], dict[str, Any]]:
    from llmclick.pipeline.validate import validate

    result = validate(job)
    if job.tracking is not None:
        job.tracking.verdict(result, last_step(job.experiment) or 0)
    return {}, result


_BODIES: dict[str, Callable[[Job, Preflight], tuple[dict[str, Any], dict[str, Any]]]] = {
    "data": _data,
    "train": _train,
    "validate": _validate,
}


def _job(stage: str, plan: Plan, checked: Preflight, console: Any, tracking: Any, should_stop: Callable[[], bool]) -> Job:
    return Job(
        config=plan.config,
        experiment=plan.experiment,
        source=checked.source,
        dataset_folder=plan.dataset_folder,
        fingerprint=plan.fingerprints[stage],
        compute=plan.compute,
        console=console,
        shared=plan.shared,
        should_stop=should_stop,
        tracking=tracking,
        reward_files=plan.reward_files,
    )


def _link_data(plan: Plan) -> None:
    """`data` in the experiment's folder, once there is something behind it."""
    if (plan.dataset_folder / MANIFEST).exists() and plan.experiment.is_dir():
        link_folder(plan.experiment / "data", plan.dataset_folder)


def _result(plan: Plan, stages: dict[str, dict[str, Any]]) -> RunResult:
    verdict: dict[str, Any] = {}
    passed: bool | None = None
    if stages["validate"]["state"] != "skipped":
        manifest = read_manifest(plan.experiment / "validate")
        verdict = manifest.result if manifest is not None else {}
        passed = verdict.get("passed")
    checkpoint = plan.experiment / "validate" / "checkpoint"
    return RunResult(
        experiment=plan.experiment,
        passed=passed,
        exit=3 if passed is False else 0,
        stages=stages,
        metrics=dict(verdict.get("metrics", {})),
        checkpoint=checkpoint if verdict and passed is not False and checkpoint.exists() else None,
        verdict=verdict,
    )


def _forget_snapshots(plan: Plan) -> None:
    """Nothing is resumed once train is done; while its manifest is not written, a kill must find them."""
    if plan.state("train") != "skipped" and (plan.experiment / "train" / MANIFEST).exists():
        shutil.rmtree(plan.experiment / "train" / SNAPSHOTS, ignore_errors=True)


@contextmanager
def _full_disk() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        place = getattr(error, "filename", None) or getattr(error, "strerror", None) or error
        raise TrainingStopped(
            f"the disk is full or a file may not grow further ({place}); free some space, then the same command continues"
        ) from error
