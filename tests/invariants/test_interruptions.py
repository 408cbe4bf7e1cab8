"""Signals, damaged snapshots, full disks, two processes: nothing is lost, and the end is the undisturbed one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmclick import __version__
from llmclick.modeling.llm.training.snapshot import snapshot_steps
from tests.invariants.conftest import Lab, assert_equal, everything_left, experiment
from tests.invariants.processes import Moment
from tests.invariants.test_kills import DRAW, MOMENTS, OVERLAY, RUN, SNAPSHOT, VALIDATE
from tests.runs import read_metrics

pytestmark = pytest.mark.slow

# 6 draws a batch: the 21st is in the batch after step 3, the 41st in the one after step 6; snapshots come at steps 2, 4, 6.
AFTER_3, AFTER_6 = Moment(DRAW, 21), Moment(DRAW, 41)

SIGNALLED = {
    "data": (Moment(RUN + "write_dataset", signal=signal.SIGTERM), None, "the same command continues"),
    "loading": (
        Moment("llmclick.modeling.llm.models.base:load_language_model", signal=signal.SIGINT),
        0,
        "stopped while sampling for step 1 of 8",
    ),
    "sampling": (Moment(DRAW, 21, signal=signal.SIGTERM), 3, "stopped while sampling for step 4 of 8"),
    "backward": (
        Moment("llmclick.modeling.llm.models.self_attention:attend_backward", 7, signal=signal.SIGINT),
        None,
        "stopped after step",
    ),
    "checkpoint": (Moment(OVERLAY + "_write_shard", signal=signal.SIGTERM), None, "stopped after the train stage"),
    "validate": (Moment(DRAW, 5, inside=VALIDATE + "answers", signal=signal.SIGINT), None, "stopped while the base model"),
}


@pytest.mark.parametrize("phase", SIGNALLED)
def test_one_signal_stops_at_a_boundary(lab: Lab, whole: dict[str, Any], tmp_path: Path, phase: str) -> None:
    """SIGINT or SIGTERM: exit 130 with a sentence and no traceback; during sampling the step is dropped and the last boundary
    saved; the same command continues and ends as if nothing had happened."""
    moment, saved, words = SIGNALLED[phase]
    stopped = lab.run(tmp_path / "out", moment)
    assert stopped.code == 130, stopped.err
    assert words in stopped.err
    assert "Traceback" not in stopped.err
    if saved is not None:
        assert snapshot_steps(experiment(tmp_path / "out") / "train" / "snapshots")[-1] == saved
    again = lab.run(tmp_path / "out")
    assert again.code == 0, again.err
    assert ("resumed after step" in again.err) == (phase in ("loading", "sampling", "backward"))
    assert_equal(everything_left(tmp_path / "out"), whole)


def test_a_second_signal_leaves_at_once(lab: Lab, whole: dict[str, Any], tmp_path: Path) -> None:
    """The second SIGTERM comes while the snapshot of the first is written: exit 130, that snapshot is not there, the one before
    is, and the same command continues from it."""
    moments = (Moment(DRAW, 21, signal=signal.SIGTERM), Moment(SNAPSHOT + "write_tensors", 2, signal=signal.SIGTERM))
    stopped = lab.run(tmp_path / "out", *moments)
    assert stopped.code == 130, stopped.err
    assert snapshot_steps(experiment(tmp_path / "out") / "train" / "snapshots") == [2]
    again = lab.run(tmp_path / "out")
    assert again.code == 0, again.err
    assert "resumed after step 2" in again.err
    assert_equal(everything_left(tmp_path / "out"), whole)


def test_the_reward_before_the_first_step_is_recorded_once(lab: Lab, tmp_path: Path) -> None:
    """Stopped while sampling for step 1 of a run with eval_every: eval.jsonl has step 0 once, as in the undisturbed run."""
    lab_evaluated = Lab.__new__(Lab)
    lab_evaluated.__dict__ |= lab.__dict__ | {"overrides": (*lab.overrides, "--set", "training.eval_every=4")}
    assert lab_evaluated.run(tmp_path / "whole").code == 0
    # 6 held-out rows of 6 tokens are 6 draws: the 8th is the second of training.
    assert lab_evaluated.run(tmp_path / "out", Moment(DRAW, 8, signal=signal.SIGTERM)).code == 130
    assert lab_evaluated.run(tmp_path / "out").code == 0
    steps = [record["step"] for record in read_metrics(experiment(tmp_path / "out") / "eval.jsonl")]
    assert steps == [0, 4, 8]
    assert_equal(everything_left(tmp_path / "out"), everything_left(tmp_path / "whole"))


def truncate(folder: Path) -> None:
    os.truncate(folder / "tensors.safetensors", 1000)


def alter(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def alter_words(folder: Path) -> None:
    path = folder / "snapshot.json"
    path.write_text(path.read_text().replace('"batches": 0', '"batches": 9'))


@pytest.mark.parametrize("damage", [truncate, alter, alter_words])
def test_a_damaged_snapshot_is_passed_over(
    lab: Lab, whole: dict[str, Any], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """A truncated or altered newest snapshot: one line names it, the one before is used, and the end is the same."""
    assert lab.run(tmp_path / "out", AFTER_6).code == -signal.SIGKILL
    snapshots = experiment(tmp_path / "out") / "train" / "snapshots"
    assert snapshot_steps(snapshots) == [4, 6]
    damage(snapshots / "step-00000006")
    again = lab.run(tmp_path / "out")
    assert again.code == 0, again.err
    assert "step-00000006" in again.err
    assert "going on from step 4 instead" in again.err
    assert_equal(everything_left(tmp_path / "out"), whole)


def test_two_damaged_snapshots_are_refused(lab: Lab, tmp_path: Path) -> None:
    """Exit 2 with both named and what to do; nothing is trained and nothing recorded is lost."""
    assert lab.run(tmp_path / "out", AFTER_6).code == -signal.SIGKILL
    snapshots = experiment(tmp_path / "out") / "train" / "snapshots"
    for step in (4, 6):
        truncate(snapshots / f"step-{step:08d}")
    metrics = (experiment(tmp_path / "out") / "metrics.jsonl").read_bytes()
    refused = lab.run(tmp_path / "out")
    assert refused.code == 2, refused.err
    for part in ("step-00000004", "step-00000006", "checksum", f"delete the folder {snapshots}"):
        assert part in refused.err, part
    assert (experiment(tmp_path / "out") / "metrics.jsonl").read_bytes() == metrics
    assert snapshot_steps(snapshots) == [4, 6]


# Bytes that a file may have: the rows' file, a snapshot (346 kB), a checkpoint (115 kB).
FULL = {"data": (2_000, ()), "snapshot": (200_000, ()), "checkpoint": (100_000, ("training.save_every=100",))}


@pytest.mark.parametrize("what", FULL)
def test_a_disk_that_fills_up(lab: Lab, whole: dict[str, Any], tmp_path: Path, what: str) -> None:
    """A file that cannot grow in the middle of a run: exit 4 in words, the last good snapshot stays, and with room again the
    same command continues to the same end."""
    limit, overrides = FULL[what]
    if what == "snapshot":
        assert lab.run(tmp_path / "out", AFTER_3).code == -signal.SIGKILL
    full = lab.processes.run(
        [*lab.command(tmp_path / "out"), *(f"--set={override}" for override in overrides)], file_limit=limit
    )
    assert full.code == 4, full.err
    assert "the disk is full" in full.err
    assert "Traceback" not in full.err
    if what == "snapshot":
        assert snapshot_steps(experiment(tmp_path / "out") / "train" / "snapshots") == [2]
    again = lab.run(tmp_path / "out")
    assert again.code == 0, again.err
    assert_equal(everything_left(tmp_path / "out"), whole)


def test_a_second_process_waits_and_reuses(lab: Lab, whole: dict[str, Any], tmp_path: Path) -> None:
    """Two processes on one experiment: the second says whom it waits for, then finds every stage done by the first."""
    first = lab.processes.start(lab.command(tmp_path / "out"), [Moment(DRAW, 9, signal=signal.SIGSTOP)])
    first.until("> train")
    second = lab.processes.start(lab.command(tmp_path / "out"))
    second.until(f"waiting for process {first.pid}")
    first.until_stopped()
    os.kill(first.pid, signal.SIGCONT)
    ends = [first.wait(), second.wait()]
    assert [end.code for end in ends] == [0, 0], [end.err for end in ends]
    assert "> train" in ends[0].err
    assert "> train" not in ends[1].err
    assert_equal(everything_left(tmp_path / "out"), whole)


def test_a_second_process_takes_over_from_a_killed_one(lab: Lab, whole: dict[str, Any], tmp_path: Path) -> None:
    """The one that holds the lock is killed while another waits: that one continues from the last snapshot."""
    first = lab.processes.start(lab.command(tmp_path / "out"), [Moment(DRAW, 21, signal=signal.SIGSTOP)])
    first.until("> train")
    second = lab.processes.start(lab.command(tmp_path / "out"))
    second.until(f"waiting for process {first.pid}")
    first.until_stopped()
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait().code == -signal.SIGKILL
    end = second.wait()
    assert end.code == 0, end.err
    assert "resumed after step 2" in end.err
    assert_equal(everything_left(tmp_path / "out"), whole)


def test_what_must_not_be_used_is_refused(lab: Lab, tmp_path: Path) -> None:
    """A changed file under data/, a folder of another major version, an output folder below a file: exit 2 with the place and
    the remedy, and nothing is changed or written."""
    assert lab.run(tmp_path / "out", AFTER_3).code == -signal.SIGKILL
    folder = experiment(tmp_path / "out")
    rows = folder / "data" / "train.jsonl"
    original = rows.read_bytes()
    rows.write_bytes(original.replace(b"plus", b"less", 1))
    before = names_and_sizes(tmp_path)
    refused = lab.run(tmp_path / "out")
    assert refused.code == 2, refused.err
    assert all(part in refused.err for part in ("train.jsonl was changed", "delete the folder"))
    rows.write_bytes(original)

    manifest = folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace(f'"version": "{__version__}"', '"version": "999.0.0"'))
    refused = lab.run(tmp_path / "out")
    assert refused.code == 2, refused.err
    assert all(part in refused.err for part in ("another major version", "999.0.0", "output_dir"))
    manifest.write_text(text)

    (tmp_path / "file").write_text("")
    refused = lab.run(tmp_path / "file" / "out")
    assert refused.code == 2, refused.err
    assert all(part in refused.err for part in ("pipeline.output_dir", "is not a folder"))
    (tmp_path / "file").unlink()
    assert names_and_sizes(tmp_path) == before


def names_and_sizes(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_size for path in folder.rglob("*") if "/locks" not in str(path)}


VARIANTS = {
    "lora, reused batches, kl": (
        ("method.iterations=3", "training.adapter.r=4", "training.lr=1e-2", "method.beta=0.1"),
        ("optimizer: after they moved", "snapshot: written and not renamed"),
    ),
    "cispo, reused batches": (
        ("pipeline.recipe=llm_cispo", "method.iterations=3"),
        ("optimizer: after they moved", "recording: completions without their metrics"),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_kinds_of_training(lab: Lab, tmp_path: Path, variant: str) -> None:
    """LoRA with KL and CISPO, each batch used three times, killed in the middle of a batch: the same end as undisturbed."""
    overrides, moments = VARIANTS[variant]
    other = Lab.__new__(Lab)
    other.__dict__ |= lab.__dict__ | {"overrides": (*lab.overrides, *(f"--set={override}" for override in overrides))}
    assert other.run(tmp_path / "whole").code == 0
    for moment in moments:
        output = tmp_path / moment.replace(" ", "_")
        assert other.run(output, MOMENTS[moment]).code == -signal.SIGKILL
        again = other.run(output)
        assert again.code == 0, again.err
        assert_equal(everything_left(output), everything_left(tmp_path / "whole"))
