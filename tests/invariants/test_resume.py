"""An interrupted run is the uninterrupted run, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmclick.errors import Interrupted
from llmclick.modeling.llm.training.journal import Journal
from llmclick.modeling.llm.training.loop import Training
from tests.runs import Tiny

VARIANTS = {
    "full": (),
    "full, reused": ("method.iterations=3", "training.max_steps=8", "training.schedule=cosine"),
    "lora, reused, kl": (
        "method.iterations=3",
        "training.adapter.r=4",
        "training.lr=1e-2",
        "method.beta=0.1",
        "training.max_steps=8",
    ),
    "evaluated": ("training.eval_every=2", "training.eval_rows=4", "training.epochs=2"),
}


class Killed(BaseException):
    """Stands for a kill: nothing is written on the way out."""


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int, kill: bool) -> None:
    """Ends training after optimizer step `step`: as a signal would, or as a kill would (once)."""
    stepped = Journal.stepped
    done = False

    def then_stop(self: Journal, training: Training, record: dict[str, object], first: bool) -> None:
        nonlocal done
        stepped(self, training, record, first)  # type: ignore[arg-type]
        if training.step == step and not done:
            done = True
            if kill:
                raise Killed
            training.should_stop = lambda: True

    monkeypatch.setattr(Journal, "stepped", then_stop)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("recipe", ["llm_grpo", "llm_cispo"])
@pytest.mark.parametrize(("step", "kill"), [(1, False), (4, False), (5, True)])
def test_interrupted_equals_uninterrupted(
    tmp_path: Path,
    any_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    recipe: str,
    step: int,
    kill: bool,
) -> None:
    """Metrics (all keys but the measured ones), completions, final weights and held-out answers are the same bytes."""
    if "kl" in variant and recipe == "llm_cispo":
        pytest.skip("CISPO has no beta")
    overrides = VARIANTS[variant]
    tiny = Tiny(tmp_path, any_folder, recipe)
    tiny.run(*overrides)
    tiny.assert_it_trained(8 if "reused" in variant else 6)
    assert not (tiny.experiment / "train" / "snapshots").exists()
    whole = tiny.put_aside()

    with monkeypatch.context() as patch:
        stop_after(patch, step, kill)
        with pytest.raises((Interrupted, Killed)):
            tiny.run(*overrides)
    tiny.run(*overrides)
    assert "resumed after step" in tiny.said.getvalue()
    assert tiny.left() == whole


def test_weights_move(tmp_path: Path, dense_folder: Path) -> None:
    """The trained checkpoint differs from the source in every matrix that can learn."""
    from safetensors.torch import load_file

    tiny = Tiny(tmp_path, dense_folder)
    tiny.run()
    before = load_file(dense_folder / "model.safetensors")
    after = load_file(tiny.experiment / "train" / "checkpoint" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name] != after[name]).any() for name in before if before[name].ndim == 2)
