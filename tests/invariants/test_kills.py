"""A killed run is continued by the same command and ends as the undisturbed one, byte for byte."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.invariants.conftest import Lab, assert_equal, everything_left
from tests.invariants.processes import Moment

pytestmark = pytest.mark.slow

RUN = "llmclick.pipeline.run:"
LOOP, SNAPSHOT = "llmclick.modeling.llm.training.loop:", "llmclick.modeling.llm.training.snapshot:"
VALIDATE, OVERLAY = "llmclick.pipeline.validate:", "llmclick.modeling.llm.models.overlay:"
JOURNAL = "llmclick.modeling.llm.training.journal:"
DRAW = "llmclick.modeling.llm.sampling.local:LocalSampler._draw"

MOMENTS = {
    "data: the folder is not there yet": Moment(RUN + "_open_experiment"),
    "data: no row is written": Moment(RUN + "write_dataset"),
    "data: the second file is not synced": Moment("os:fsync", 2, inside=RUN + "write_dataset"),
    "data: the manifest is not written": Moment(RUN + "write_manifest"),
    "loading: the weights": Moment("llmclick.modeling.llm.models.base:load_language_model"),
    "sampling": Moment(DRAW, 27),
    "scoring": Moment("llmclick.rewards.scoring:Scorer.score", 3),
    "backward: inside a step": Moment("llmclick.modeling.llm.models.self_attention:attend_backward", 7),
    "optimizer: before the weights move": Moment("torch.optim:AdamW.step", 3),
    "optimizer: after they moved": Moment("torch.optim:AdamW.step", 4, after=True),
    "recording: completions without their metrics": Moment("llmclick.tracking.metrics:MetricsFile.append", 5),
    "snapshot: tensors without their checksum": Moment(SNAPSHOT + "write_tensors", 2, after=True),
    "snapshot: written and not renamed": Moment("pathlib:Path.rename", 2, inside=JOURNAL + "write_snapshot"),
    "snapshot: renamed, the oldest not removed": Moment("pathlib:Path.rename", 3, True, JOURNAL + "write_snapshot"),
    "checkpoint: no weight is written": Moment(OVERLAY + "_write_shard"),
    "checkpoint: written and not renamed": Moment("pathlib:Path.rename", inside=OVERLAY + "save_overlay"),
    "checkpoint: there, the stage's manifest is not": Moment(RUN + "write_manifest", 2),
    "train is done, its snapshots are still there": Moment(RUN + "write_manifest", 2, after=True),
    "validate: the base model answers": Moment(DRAW, 5, inside=VALIDATE + "answers"),
    "validate: the trained model answers": Moment(DRAW, 9, inside=VALIDATE + "answers"),
    "validate: before the verdict": Moment(VALIDATE + "_write_rows"),
    "linking: passed and not linked": Moment(VALIDATE + "link_checkpoint"),
    "linking: linked and not recorded": Moment(RUN + "write_manifest", 3),
    "the end: before the table": Moment(RUN + "show_outcome"),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_killed_at_any_moment(lab: Lab, whole: dict[str, Any], tmp_path: Path, name: str) -> None:
    """SIGKILL at that moment, then the same command: metrics, completions, weights, held-out answers and the names of all files
    are those of the undisturbed run."""
    killed = lab.run(tmp_path / "out", MOMENTS[name])
    assert killed.code == -signal.SIGKILL, killed.err
    again = lab.run(tmp_path / "out")
    assert again.code == 0, again.err
    assert_equal(everything_left(tmp_path / "out"), whole)
