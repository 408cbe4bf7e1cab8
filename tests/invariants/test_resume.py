"""An interrupted run is the uninterrupted run, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmclick.errors import Interrupted
from llmclick.modeling.llm.models import packed_matrix
from llmclick.modeling.llm.training.journal import Journal
from llmclick.modeling.llm.training.state import Training
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
    "bf16, reused": ("training.precision=bf16", "method.iterations=3", "training.max_steps=8"),
    "fp32, reused": ("training.precision=fp32", "method.iterations=3", "training.max_steps=8"),
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


QUICK = {
    ("dense", "llm_grpo", "full", 4, False),
    ("dense", "llm_grpo", "lora, reused, kl", 5, True),
    ("dense", "llm_cispo", "full, reused", 4, False),
    ("hybrid", "llm_grpo", "full", 5, True),
    ("dense", "llm_grpo", "bf16, reused", 5, True),
    ("dense", "llm_grpo", "fp32, reused", 5, True),
    ("hybrid", "llm_grpo", "bf16, reused", 4, False),
}
"""One of each kind runs always; all combinations are slow."""

CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow, id=", ".join(map(str, case)))
    for family in ("dense", "hybrid")
    for recipe in ("llm_grpo", "llm_cispo")
    for variant in VARIANTS
    for step, kill in ((1, False), (4, False), (5, True))
    for case in [(family, recipe, variant, step, kill)]
    if not ("kl" in variant and recipe == "llm_cispo")  # CISPO has no beta
]


@pytest.mark.parametrize(("family", "recipe", "variant", "step", "kill"), CASES)
def test_interrupted_equals_uninterrupted(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    recipe: str,
    variant: str,
    step: int,
    kill: bool,
) -> None:
    """Metrics (all keys but the measured ones), completions, final weights and held-out answers are the same bytes."""
    # Decoding with weights laid out for the batch, and without.
    monkeypatch.setattr(packed_matrix, "FEWEST_TOKENS", 1 if step == 4 else 1000)
    overrides = VARIANTS[variant]
    tiny = Tiny(tmp_path, request.getfixturevalue(f"{family}_folder"), recipe)
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
