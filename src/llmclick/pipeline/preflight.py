"""Everything that can fail, before anything is written: `run` and `check` both come through here.

`make_plan` reads the config's model, rows and rewards far enough to know which stage is done; it imports no torch.
`preflight` then does what is left before the first step: templates and lengths, rewards on every row, the output folder, disk.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmclick.data.order import held_out_count, total_steps
from llmclick.data.problems import fold, shorten
from llmclick.data.rows import Row
from llmclick.data.sources import Rows, read_rows
from llmclick.errors import InputError, Problem
from llmclick.pipeline.data import Dataset
from llmclick.pipeline.fingerprint import (
    EARLIER,
    about_earlier,
    by_code,
    data_inputs,
    differences,
    fingerprint,
    reward_inputs,
    train_inputs,
    validate_inputs,
)
from llmclick.pipeline.intervals import FEWEST
from llmclick.pipeline.stage import (
    MANIFEST,
    SNAPSHOTS,
    STAGES,
    Manifest,
    check_data_files,
    check_version,
    checkpoint_source,
    file_sizes,
    missing_file,
    read_json,
    read_manifest,
)

SNAPSHOT_COPIES = 3
BYTES_PER_PARAMETER = 12
"""A snapshot of full training: weights and the two moments of AdamW, each in fp32."""


@dataclass(frozen=True)
class Planned:
    """What will happen to a stage: `state` is cached, run or skipped; `why` says it in words."""

    stage: str
    state: str
    why: str


@dataclass(frozen=True)
class Plan:
    """What a command will do. `inputs` and `fingerprints` are by stage, `stages` in order; `reward_files` are the files that
    define the rewards, each with its SHA-256."""

    config: Any
    source: Any
    rows: Rows
    compute: Any
    inputs: dict[str, dict[str, Any]]
    fingerprints: dict[str, str]
    experiment: Path
    shared: Path
    dataset_folder: Path
    stages: tuple[Planned, ...]
    notices: tuple[str, ...]
    reward_files: Mapping[str, str] = field(default_factory=dict)

    def state(self, stage: str) -> str:
        """cached, run or skipped."""
        return next(planned.state for planned in self.stages if planned.stage == stage)

    @property
    def cached(self) -> bool:
        """Whether nothing is left to do."""
        return all(planned.state != "run" for planned in self.stages)

    def folder(self, stage: str) -> Path:
        """Where the stage's manifest lies."""
        return self.dataset_folder if stage == "data" else self.experiment / stage


@dataclass(frozen=True)
class Disk:
    """Bytes that training will write at most at one time, and what is free at the output folder."""

    needed: int
    free: int
    parameters: int
    trained: int


@dataclass(frozen=True)
class Preflight:
    """What is known before the first step. `tokenizer` and `dataset` are None where no stage that needs them will run."""

    plan: Plan
    source: Any
    tokenizer: Any
    dataset: Dataset | None
    notices: tuple[str, ...]
    disk: Disk | None
    total_steps: int
    problems: tuple[Problem, ...] = field(default=())


def make_plan(config: Any, stages: Sequence[str] | None = None) -> Plan:
    """Which stages are done and why the others will run. Raises InputError with every problem of model, rows and rewards."""
    wanted = check_stages(config, stages)
    found = _read_inputs(config, check_package(config))
    compute, source, rows, inputs = found.compute, found.source, found.rows, found.inputs
    prints = {stage: fingerprint(stage_inputs) for stage, stage_inputs in inputs.items()}

    output = Path(config.pipeline.output_dir).expanduser()
    experiment = output / f"{config.pipeline.name}-{prints['train'][:8]}"
    shared = output / ".shared"
    dataset_folder = shared / f"data-{prints['data'][:12]}"
    planned: list[Planned] = []
    for stage in STAGES:
        folder = dataset_folder if stage == "data" else experiment / stage
        done, why = stage_state(stage, folder, prints[stage], inputs[stage], experiment)
        if done and stage == "validate" and planned[-1].state == "run":
            done, why = False, "because train runs"
        if stage in wanted:
            planned.append(Planned(stage, "cached" if done else "run", why))
        elif not done and any(later in wanted for later in STAGES[STAGES.index(stage) + 1 :]):
            raise InputError(_missing_stage(config, stage, wanted, experiment))
        else:
            planned.append(Planned(stage, "skipped", "not asked for"))
    _check_experiment(experiment, prints["train"])
    notices = list(compute.notices)
    if not (experiment / MANIFEST).exists():
        notices += neighbours(output, config.pipeline.name, experiment, inputs)
    return Plan(
        config,
        source,
        rows,
        compute,
        inputs,
        prints,
        experiment,
        shared,
        dataset_folder,
        tuple(planned),
        tuple(notices),
        reward_files(config),
    )


@dataclass(frozen=True)
class _Inputs:
    compute: Any
    source: Any
    rows: Rows
    inputs: dict[str, dict[str, Any]]


def current_inputs(config: Any) -> dict[str, dict[str, Any]]:
    """The inputs of each stage as they are now. Raises InputError with everything that cannot be read."""
    return _read_inputs(config).inputs


def check_package(config: Any) -> list[Problem]:
    """Whether the tracker, if there is one, can be imported."""
    if config.tracker is None:
        return []
    from llmclick.tracking.trackers import check_tracker

    return check_tracker(config.tracker.name, config.where("tracker"))


def _read_inputs(config: Any, problems: Sequence[Problem] = ()) -> _Inputs:
    """`problems` are known already and are reported with what is found here."""
    problems = list(problems)
    compute = _try(lambda: _resolve_compute(config), problems)
    source = _try(lambda: resolve_model(config, convert=False), problems)
    rows = read_rows(config)
    problems += rows.problems
    rewards = _try(lambda: reward_inputs(config), problems)
    if source is None or compute is None or rewards is None or problems:
        _collect_the_rest(config, source, rows, problems)
        raise InputError(list(dict.fromkeys(problems)))
    data = data_inputs(config, rows, source, rewards)
    train = train_inputs(config, fingerprint(data), source, compute)
    inputs = {"data": data, "train": train, "validate": validate_inputs(config, fingerprint(train))}
    return _Inputs(compute, source, rows, inputs)


def _collect_the_rest(config: Any, source: Any, rows: Rows, problems: list[Problem]) -> None:
    """Something is wrong already; look for everything else that is, so that it is reported together."""
    if rows.rows or rows.held_out:
        usable = None if source is None else _try(lambda: resolve_model(config, convert=True), problems)
        if usable is not None:
            _try_data(config, rows, usable, problems)
        else:
            problems += try_rewards(config, [*rows.rows, *(rows.held_out or ())])
    problems += check_output(config, Path(config.pipeline.output_dir).expanduser() / config.pipeline.name)


def check_stages(config: Any, stages: Sequence[str] | None) -> tuple[str, ...]:
    """The stages asked for, in order. Raises InputError for an unknown one."""
    if stages is None:
        return tuple(config.pipeline.stages)
    unknown = [stage for stage in stages if stage not in (*STAGES, "all")]
    if unknown or not stages:
        given = ", ".join(unknown) or "(nothing)"
        write = f"--stages {','.join(STAGES)}, or a part of them"
        raise InputError(Problem("--stages", "pipeline.stages", f"the stages are {', '.join(STAGES)}", write, given))
    return tuple(stage for stage in STAGES if stage in stages or "all" in stages)


def _missing_stage(config: Any, stage: str, wanted: Sequence[str], experiment: Path) -> Problem:
    more = ",".join(s for s in STAGES if s == stage or s in wanted)
    return Problem(
        config.where("pipeline.stages"),
        "pipeline.stages",
        given=", ".join(wanted),
        why=f"the {stage} stage, which comes before, is not done for this config (looked for {experiment})",
        write=f"--stages {more}, or leave --stages out",
    )


def stage_state(stage: str, folder: Path, print_: str, inputs: dict[str, Any], experiment: Path) -> tuple[bool, str]:
    """Whether a stage is done, and in words why or why not. Raises InputError where the folder must not be used."""
    manifest = read_manifest(folder)
    if manifest is None:
        return False, _never_finished(stage, folder, experiment)
    if manifest.fingerprint != print_:
        return False, "differs from last time: " + _joined(differences(manifest.inputs, inputs))
    if stage == "data":
        check_data_files(folder, manifest)
        copy = experiment / "data"
        if copy.is_dir() and not copy.is_symlink() and (own := read_manifest(copy)) is not None:
            check_data_files(copy, own)
        return True, _data_words(manifest)
    gone = missing_file(folder, manifest)
    judged = manifest.result.get("passed")
    if gone is None and stage == "validate" and judged is not False and not (folder / "checkpoint").exists():
        gone = "checkpoint is gone"
    if gone is None and stage != "data" and _checkpoint_differs(experiment, manifest):
        gone = "checkpoint has other weights" if stage == "train" else "../train/checkpoint has other weights"
    if gone is not None:
        return False, f"done before, but {stage}/{gone}"
    if stage != "validate":
        return True, "done"
    return True, "measured, not judged: no bound is set" if judged is None else f"judged: {'passed' if judged else 'failed'}"


def _data_words(manifest: Manifest) -> str:
    counts = manifest.result.get("counts", {})
    left_out = sum(count for name, count in counts.items() if name.startswith("skipped"))
    more = f", {left_out} left out because they do not fit" if left_out else ""
    return f"{counts.get('train', '?')} training and {counts.get('validation', '?')} held-out rows{more}"


def _checkpoint_differs(experiment: Path, manifest: Manifest) -> bool:
    """Whether `train/checkpoint` holds other weights than a stage made or judged (read again only if they changed)."""
    weights = manifest.result.get("weights")
    return weights is not None and weights != checkpoint_source(experiment).weights_hash()


def _never_finished(stage: str, folder: Path, experiment: Path) -> str:
    if stage != "train" or last_step(experiment) is None:
        return "first time"
    step = snapshot_step(experiment)
    return "began before without a snapshot; starts at step 1" if step is None else f"began before; continues after step {step}"


def snapshot_step(experiment: Path) -> int | None:
    """The optimizer step of the newest snapshot, by its name; None without one. A resume begins there."""
    names = [path.name for path in (experiment / "train" / SNAPSHOTS).glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdecimal()), default=None)


def last_step(experiment: Path) -> int | None:
    """The optimizer step of the last whole line of metrics.jsonl."""
    try:
        lines = (experiment / "metrics.jsonl").read_bytes().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _joined(differing: Sequence[str], shown: int = 6) -> str:
    more = f" and {len(differing) - shown} more" if len(differing) > shown else ""
    return ", ".join(differing[:shown]) + more or "nothing that can be named"


def neighbours(output: Path, name: str, experiment: Path, inputs: dict[str, dict[str, Any]]) -> list[str]:
    """A sentence about the newest experiment of the same name with another hash: how far it is, and what differs."""
    found = []
    for folder in output.glob(f"{name}-" + "[0-9a-f]" * 8) if output.is_dir() else []:
        manifest = read_json(folder / MANIFEST)
        if folder != experiment and manifest is not None and manifest.get("name") == name:
            found.append(((folder / MANIFEST).stat().st_mtime, folder, manifest))
    if not found:
        return []
    _, folder, manifest = max(found, key=lambda item: item[0])
    theirs = manifest.get("inputs", {})
    differing = differences(theirs.get("data", {}), inputs["data"])
    before = {key: value for key, value in theirs.get("train", {}).items() if key != "data stage"}
    differing += differences(before, {key: value for key, value in inputs["train"].items() if key != "data stage"})
    others = f" ({len(found) - 1} more of this name beside it)" if len(found) > 1 else ""
    if (folder / "train" / MANIFEST).exists():
        progress = "is trained"
    else:
        step = snapshot_step(folder)
        progress = f"is at step {step}" if step else "has no snapshot"
    named = list(dict.fromkeys(text for text in differing if text != EARLIER))
    changed = _joined(named)
    if by_code(before):
        also = f". Also different: {changed}" if named else ""
        return [f"{about_earlier(folder)}; this run is a new experiment beside it{others}{also}"]
    return [f"a new experiment beside {folder}{others}, which {progress} and stays as it is. Different: {changed}"]


def _check_experiment(experiment: Path, print_: str) -> None:
    manifest = read_json(experiment / MANIFEST)
    if manifest is None:
        return
    check_version(experiment, manifest)
    if manifest.get("fingerprint") not in (None, print_):
        raise InputError(
            Problem(
                str(experiment),
                "manifest.json",
                given=str(manifest.get("fingerprint"))[:16],
                why="the folder's name is this experiment's, but its manifest is another's",
                write="move the folder away",
            )
        )


def preflight(config: Any, stages: Sequence[str] | None = None, *, plan: Plan | None = None, fresh: bool = True) -> Preflight:
    """Everything left before the first step; writes nothing into the output folder. Raises InputError with all problems.

    With `fresh` (as `check` wants it) rows and rewards are tried even if the data stage is done; else only what stages that
    will run need.
    """
    plan = plan or make_plan(config, stages)
    problems: list[Problem] = []
    source = _try(lambda: resolve_model(config, convert=True), problems) or plan.source
    tokenizer = dataset = None
    if (fresh or plan.state("data") == "run") and not problems:
        tokenizer, dataset = _try_data(config, plan.rows, source, problems)
    problems += check_output(config, plan.experiment)
    disk = None
    if (fresh or plan.state("train") == "run") and not problems:
        disk = disk_estimate(config, source, plan.experiment)
        problems += _disk_problem(config, disk)
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return Preflight(
        plan=plan,
        source=source,
        tokenizer=tokenizer,
        dataset=dataset,
        notices=(*dataset.notices, *_too_few_for_a_gain(config, dataset)) if dataset is not None else (),
        disk=disk,
        total_steps=steps_of(config, training_rows(plan, dataset)),
    )


def _too_few_for_a_gain(config: Any, dataset: Dataset) -> list[str]:
    """A gain that no held-out answers could pass is worth knowing before the hours of training."""
    prompts = len({prompt.ids for prompt in dataset.validation[: config.validation.rows]})
    if not config.validation.gain or prompts >= FEWEST:
        return []
    return [
        f"{config.where('validation.gain')} validation.gain: {prompts} held-out prompts can pass no bound on a gain, it takes "
        f"at least {FEWEST}: hold out more rows (data.validation)"
    ]


def _try_data(config: Any, read: Rows, source: Any, problems: list[Problem]) -> tuple[Any, Dataset | None]:
    """Render, measure and split, then try the rewards; problems of the rows that were read are taken as reported."""
    from llmclick.data.prompts import context_length
    from llmclick.modeling.llm.models.base import load_tokenizer
    from llmclick.modeling.llm.models.stops import Stops, find_stops
    from llmclick.pipeline.data import try_prepare

    tokenizer = _try(lambda: load_tokenizer(source), problems)
    if tokenizer is None:
        problems += try_rewards(config, [*read.rows, *(read.held_out or ())])
        return None, None
    context = context_length(Path(source.folder), tokenizer)
    stops = _try(lambda: find_stops(source, tokenizer, stop=config.method.stop, where=config.where), problems) or Stops(())
    dataset, found = try_prepare(config, tokenizer, context=context, rows=read, stop_ids=stops.ids)
    dataset.notices.extend(stops.notices)
    problems += found[len(read.problems) :]
    rows = [*read.rows, *(read.held_out or ())]
    kept = {(prompt.row.id, prompt.row.where) for prompt in (*dataset.train, *dataset.validation)}
    problems += try_rewards(config, rows if found else [row for row in rows if (row.id, row.where) in kept])
    return tokenizer, dataset


def try_rewards(config: Any, rows: Sequence[Row]) -> list[Problem]:
    """Every reward on every row, as it will be called later; the rows that one refuses."""
    from llmclick.rewards.scoring import Scorer

    try:
        with Scorer(
            config.method.reward,
            config.pipeline.imports,
            answer_after=config.method.answer_after,
            truncated=config.method.truncated,
            log=None,
            notify=lambda text: None,
        ) as scorer:
            return shorten(fold(scorer.try_rows(rows)), "problems")
    except InputError as error:
        return list(error.problems)


def check_output(config: Any, experiment: Path) -> list[Problem]:
    """Whether the experiment's folder could be written, without writing: the nearest folder above that exists decides."""
    place = experiment.absolute()
    while not os.path.lexists(place):
        place = place.parent
    where = config.where("pipeline.output_dir")
    tried = str(Path(config.pipeline.output_dir).expanduser().absolute())
    if not place.is_dir():
        why = f"{place} is not a folder, so nothing can be made below it"
        return [Problem(where, "pipeline.output_dir", why, "a folder that can be written", tried)]
    for folder in {place, *(path for path in (experiment.parent / ".shared", experiment / "train") if path.exists())}:
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            why = f"{folder} cannot be written (a read-only disk, or another user's folder)"
            return [Problem(where, "pipeline.output_dir", why, "a folder that can be written", tried)]
    return []


def disk_estimate(config: Any, source: Any, experiment: Path) -> Disk:
    """Three snapshots of 12 bytes for each trained parameter and the checkpoint, less what lies there from before."""
    shapes, weight_bytes = tensor_shapes(Path(source.folder))
    parameters = sum(_product(shape) for shape in shapes)
    adapter = config.training.adapter
    trained = parameters
    if adapter is not None:
        matrices = [shape for shape in shapes if len(shape) == 2]
        trained = sum(adapter.r * (shape[0] + shape[1]) for shape in matrices)
    needed = SNAPSHOT_COPIES * BYTES_PER_PARAMETER * trained + weight_bytes
    present = sum(file_sizes(experiment, "train").values()) if experiment.is_dir() else 0
    place = experiment.absolute()
    while not place.is_dir():
        place = place.parent
    return Disk(max(0, needed - present), shutil.disk_usage(place).free, parameters, trained)


def tensor_shapes(folder: Path) -> tuple[list[tuple[int, ...]], int]:
    """The shapes of all tensors in a checkpoint folder and its bytes, from the safetensors headers alone."""
    shapes: list[tuple[int, ...]] = []
    size = 0
    for path in sorted(folder.glob("*.safetensors")):
        size += path.stat().st_size
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        shapes += [tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]
    return shapes, size


def _product(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _disk_problem(config: Any, disk: Disk) -> list[Problem]:
    if disk.needed <= disk.free:
        return []
    write = "pipeline.output_dir on a larger disk, or free some space"
    if config.training.adapter is None:
        write += ", or training.adapter, which needs a small part of it"
    return [
        Problem(
            config.where("pipeline.output_dir"),
            "pipeline.output_dir",
            given=f"{disk.free / 1e9:.1f} GB are free",
            why=f"training may need {disk.needed / 1e9:.1f} GB: {SNAPSHOT_COPIES} snapshots of {BYTES_PER_PARAMETER} bytes for "
            f"each of {disk.trained:,} trained parameters, and the checkpoint",
            write=write,
        )
    ]


def training_rows(plan: Plan, dataset: Dataset | None) -> int:
    """How many rows train: exact once the data stage is known, before that as `data.validation` says."""
    if dataset is not None:
        return len(dataset.train)
    manifest = read_manifest(plan.dataset_folder)
    if manifest is not None:
        return int(manifest.result.get("counts", {}).get("train", 0))
    rows = len(plan.rows.rows)
    return rows if plan.rows.held_out is not None else rows - held_out_count(plan.config.data.validation, rows)


def steps_of(config: Any, rows: int) -> int:
    """Optimizer steps of a run over so many training rows."""
    training = config.training
    return total_steps(
        rows,
        epochs=training.epochs,
        batch_size=training.batch_size,
        accumulation=training.accumulation,
        iterations=config.method.iterations,
        max_steps=training.max_steps,
    )


def reward_files(config: Any) -> dict[str, str]:
    """The files that define the config's rewards, each with its SHA-256."""
    from llmclick.rewards.source import source_files

    return source_files(config.method.reward, config.pipeline.imports)


def resolve_model(config: Any, *, convert: bool) -> Any:
    """The model on this machine."""
    from llmclick.modeling.llm.models.source import resolve_source

    return resolve_source(config.model, config.where, convert=convert)


def _resolve_compute(config: Any) -> Any:
    from llmclick.modeling.llm.compute import resolve_compute

    return resolve_compute(config)


def _try(make: Callable[[], Any], problems: list[Problem]) -> Any:
    """What `make` returns, or None with its problems collected."""
    try:
        return make()
    except InputError as error:
        problems += error.problems
        return None
