"""Files that are edited while a run goes: nothing that the new text gives ever stands under the old text's fingerprint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from llmclick.errors import InputError, RewardError
from llmclick.modeling.llm.training import learner
from llmclick.pipeline.stage import read_manifest
from llmclick.rewards.scoring import Scorer, ToScore
from tests.pipeline.conftest import Lab, lab  # noqa: F401  # a fixture
from tests.rewards.specs import Spec, write
from tests.runs import SPREAD, Tiny

HALF = """
from llmclick import REWARDS

@REWARDS.register({name!r})
def half(completion, row, params):
    import os
    from {helper} import value
    if completion == "die":
        os._exit(7)
    return value
"""


def own_reward(tiny: Tiny, name: str) -> Path:
    """The spread reward under another name, in a file of the run's own."""
    file = write(tiny.folder / f"{name}.py", SPREAD.read_text().replace('"spread"', repr(name)))
    tiny.yaml.write_text(tiny.yaml.read_text().replace(str(SPREAD), str(file)).replace("name: spread", f"name: {name}"))
    return file


def test_a_reward_edited_while_the_run_trains_stops_before_it_scores(
    tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edited at step 3, training ends with the function that it began with, validate refuses and names the file, and no answer
    is kept; with the file put back the same command ends as the undisturbed run."""
    tiny = Tiny(tmp_path, dense_folder)
    file = own_reward(tiny, "edited_in_training")
    before = file.read_text()
    tiny.run()
    whole = tiny.put_aside()
    norm, calls = learner.gradient_norm, []

    def edit(parameters: Any) -> Any:
        calls.append(0)
        if len(calls) == 3:
            file.write_text(before.replace("% 7 / 6", "% 5 / 4"))
        return norm(parameters)

    with monkeypatch.context() as patch:
        patch.setattr(learner, "gradient_norm", edit)
        with pytest.raises(RewardError, match="edited or removed") as caught:
            tiny.run()
    assert caught.value.problems[0].where == str(file)
    assert caught.value.exit_code == 2
    assert read_manifest(tiny.experiment / "train") is not None
    assert read_manifest(tiny.experiment / "validate") is None
    assert not list((tiny.folder / "output").rglob("answers.jsonl"))
    file.write_text(before)
    tiny.run()
    assert tiny.left() == whole


@pytest.mark.parametrize("which", ["the reward", "its helper"])
@pytest.mark.parametrize("how", ["edited", "removed"])
def test_a_worker_that_starts_again_refuses_other_bytes(tmp_path: Path, which: str, how: str) -> None:
    """A worker dies after the file, or the module beside it, was edited or removed: the next one scores nothing, and the error
    names that file."""
    name = f"half_{which.split()[-1]}_{how}"
    helper = write(tmp_path / f"helper_of_{name}.py", "value = 0.5\n")
    file = write(tmp_path / f"{name}.py", HALF.format(name=name, helper=helper.stem))
    with Scorer([Spec(name)], [file]) as scorer:

        def score(*texts: str) -> list[float]:
            return [score.total for score in scorer.score([ToScore(text, {}, "r:1", False) for text in texts])]

        assert score("fine") == [0.5]
        edited = file if which == "the reward" else helper
        if how == "removed":
            edited.unlink()
        else:
            edited.write_text(edited.read_text().replace("value", "value", 1) + "\nvalue = 1.0\n")
        assert score("fine") == [0.5], "the worker that is there has what it began with"
        with pytest.raises(RewardError, match="edited or removed") as caught:
            score(*["fine"] * 30, "die", *["fine"] * 30)
        assert [problem.where for problem in caught.value.problems] == [str(edited)]


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json", "model.safetensors"])
def test_a_model_that_changes_while_the_run_trains_is_not_judged(lab: Lab, dense_folder: Path, name: str) -> None:  # noqa: F811
    """Tokenizer, template, configuration or weights differ after training: validate does not begin; put back, it does."""
    model = lab.folder / "model"
    shutil.copytree(dense_folder, model)
    lab.yaml.write_text(lab.yaml.read_text().replace(str(dense_folder), str(model)))
    before = (model / name).read_bytes()
    at, other = (len(before) - 1, bytes([before[-1] ^ 1])) if name.endswith("tensors") else (len(before), b"\n")
    lab.on_train = lambda job: (model / name).write_bytes(before[:at] + other) and None
    with pytest.raises(InputError, match="changed after this run had read them"):
        lab.run()
    assert lab.calls == ["train"]
    (model / name).write_bytes(before)
    assert lab.run().passed
    assert lab.calls == ["train", "validate"]


def test_data_files_that_change_while_the_run_trains_are_not_judged(lab: Lab) -> None:  # noqa: F811
    """A held-out row edited in the data stage's folder during training: validate names it instead of judging on it."""
    lab.on_train = lambda job: (job.dataset_folder / "validation.jsonl").write_text("{}\n") and None
    with pytest.raises(InputError, match=r"validation\.jsonl was changed"):
        lab.run()
    assert lab.calls == ["train"]
