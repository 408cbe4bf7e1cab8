"""What is judged are the weights that are there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmclick.pipeline import train
from tests.runs import Tiny


def test_other_weights_are_answered_and_judged_anew(
    tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged checkpoint is trained again; when other weights come of it (here the untrained ones, elsewhere another number
    of threads is enough), their own answers are judged: equal to the base model's, where the first checkpoint's differed."""
    tiny = Tiny(tmp_path, dense_folder)
    first = tiny.run("training.lr=1e-1")
    assert first.metrics["length"]["n"] == 6
    assert [row["trained"]["text"] for row in held_out(tiny)] != [row["base"]["text"] for row in held_out(tiny)]
    weights = tiny.experiment / "train" / "checkpoint" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    written = train.write_checkpoint

    def untrained(*args: Any) -> None:
        written(*args)
        shutil.copy(dense_folder / "model.safetensors", weights)

    monkeypatch.setattr(train, "write_checkpoint", untrained)
    second = tiny.run("training.lr=1e-1")
    assert [second.stages[stage]["state"] for stage in ("data", "train", "validate")] == ["cached", "ran", "ran"]
    assert [row["trained"]["text"] for row in held_out(tiny)] == [row["base"]["text"] for row in held_out(tiny)]
    assert second.metrics["reward"]["difference"] == 0


def held_out(tiny: Tiny) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tiny.experiment / "validate" / "rows.jsonl").read_text().splitlines()]
