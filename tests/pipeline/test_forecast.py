"""The forecast: an unbiased share of groups with a signal, seconds that add up, and a look that leaves the model as it was."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from llmclick.pipeline.check import StepSeconds, check, seconds_per_step
from llmclick.pipeline.forecast import Share, advice, completions_needed, forecast, signal_probability
from tests.pipeline.conftest import Lab


@pytest.mark.parametrize(
    "rewards",
    [[1, 1, 0, 0], [0] * 6, [1, 0, 0, 0, 0, 0, 0], [0.5, 1, 0, 0.5, 1, 0.25, 0.25], [0.1 + 0.2, 0.3, 0.3, 0.3]],
)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_probability_is_the_share_of_all_groups_that_could_be_drawn(rewards: list[float], size: int) -> None:
    """Counted one by one: groups of `size` of these completions whose rewards differ."""
    groups = list(itertools.combinations(rewards, size))
    counted = sum(max(group) > min(group) for group in groups) / len(groups)
    assert signal_probability(rewards, size) == pytest.approx(counted)


def test_prompts_of_very_different_difficulty_are_not_pooled() -> None:
    """Pass rates spread as Beta(.4, .4) and groups of 4: the truth is 0.40, which the pooled rate of 0.5 would call 0.88."""
    draw = random.Random(1)
    truth = 1 - 2 * (0.4 * 1.4 * 2.4 * 3.4) / (0.8 * 1.8 * 2.8 * 3.8)
    rates = [draw.betavariate(0.4, 0.4) for _ in range(4000)]
    rewards = [[float(draw.random() < rate) for _ in range(completions_needed(4))] for rate in rates]
    found = forecast(rewards, 4, seed=1)
    assert truth == pytest.approx(0.4035, abs=1e-4)
    assert found.share == pytest.approx(truth, abs=0.03)
    assert found.low < truth < found.high
    assert 1 - 2 * 0.5**4 == 0.875


def test_completions_are_twice_the_group_and_at_least_16() -> None:
    """max(16, 2 g)."""
    assert [completions_needed(size) for size in (2, 8, 9, 64)] == [16, 16, 18, 128]


@pytest.mark.parametrize(
    ("share", "pass_rate", "truncated", "can", "words"),
    [
        (0.5, 0.3, 0.0, True, "can learn: about 50% of groups"),
        (0.1, 0.01, 0.0, True, "that is little"),
        (0.01, 0.99, 0.0, False, "nothing to learn"),
        (0.01, 0.0, 0.0, False, "method.group_size: 16 (about 20%)"),
        (0.01, 0.0, 0.9, False, "a larger method.max_new_tokens (90% of the answers were cut)"),
    ],
)
def test_it_says_whether_and_what_to_change(share: float, pass_rate: float, truncated: float, can: bool, words: str) -> None:
    """One sentence each for what can learn, what is learnt already and what cannot be learnt so."""
    shares = [Share(8, share, share, share), Share(16, 0.2, 0.1, 0.3)]
    said = advice(shares, 8, pass_rate, truncated)
    assert said[0] is can
    assert words in said[1]


def test_the_seconds_of_a_step_add_up(lab: Lab) -> None:
    """Of four groups half have a signal: 15/16 of the first one's 3 s, and (2 - 15/16) / 3 of the 3 s that the others add.

    Two iterations share a sampling; with beta every group trains; one group alone costs its share.
    """
    timed = StepSeconds(sample=4.0, gradient=6.0, first_group=3.0, update=0.5, sync=0.25)
    assert seconds_per_step(lab.config(), timed, score=1.0, share=0.5) == 4 + 1 + 3.875 + 0.75
    assert seconds_per_step(lab.config(), timed, score=1.0, share=0.0) == 4 + 1 + 0.75
    assert seconds_per_step(lab.config(), timed, score=1.0, share=1.0) == 4 + 1 + 6 + 0.75
    assert seconds_per_step(lab.config("method.iterations=2"), timed, score=1.0, share=0.5) == 2.5 + 3.875 + 0.75
    single = lab.config("training.batch_size=1", "training.accumulation=1")
    assert seconds_per_step(single, timed, score=1.0, share=0.5) == 4 + 1 + 3 + 0.75
    kl = lab.config("method.beta=0.1", "training.adapter={name: lora}")
    assert seconds_per_step(kl, timed, score=1.0, share=0.5) == 4 + 1 + 6 + 0.75


def test_check_samples_the_untrained_model(tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing steps moves no weight, and nothing is written; a reward that always differs is foreseen to."""
    from llmclick.pipeline import engine

    lab = Lab(tmp_path, dense_folder)
    before, built = [], []

    def build(*given: Any) -> Any:
        built.append(made(*given))
        before.append({name: weight.detach().clone() for name, weight in built[0].learner.policy.trainable.items()})
        return built[0]

    made = engine.build_engine
    monkeypatch.setattr(engine, "build_engine", build)
    spread = Path(__file__).parents[1] / "spread_reward.py"
    result = check(lab.config(f"pipeline.imports=[{spread}]", "method.reward.name=spread"), 4, lab.console())
    for name, weight in built[0].learner.policy.trainable.items():
        assert weight.equal(before[0][name]), name
    assert result.forecast is not None
    assert result.forecast["completions"] == 4 * 16
    assert result.can_learn is True
    assert next(share["share"] for share in result.forecast["shares"] if share["group_size"] == 4) > 0.9
    assert result.memory_gb > 0
    assert not lab.output.exists()


SORTED = """
import zlib
from llmclick import REWARDS

@REWARDS.register("half_of_them")
def half_of_them(completion, row, params):
    return row["level"] * (zlib.crc32(completion.encode("utf-8", "surrogatepass")) % 7 / 6)
"""


def test_a_sorted_file_is_sampled_in_the_order_of_the_run(
    tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose first half never differs and whose second half always does: 12 prompts are those of the run's first three
    batches, and the share with a signal is theirs, where the file's first 12 rows would say 0."""
    from llmclick.pipeline import engine

    lab = Lab(tmp_path, dense_folder)
    lab.write_rows([{"prompt": f"What is {n} plus 2?", "answer": "x", "level": float(n >= 20)} for n in range(40)])
    file = tmp_path / "sorted_reward.py"
    file.write_text(SORTED)
    built: list[Any] = []
    made = engine.build_engine
    monkeypatch.setattr(engine, "build_engine", lambda *given: built.append(made(*given)) or built[0])
    config = lab.config(f"pipeline.imports=[{file}]", "method.reward.name=half_of_them", "data.validation=8")
    found = check(config, 12, lab.console()).forecast
    assert found is not None
    met = [prompt.row for number in range(3) for prompt in built[0].rows_of(number)]
    assert [example["where"] for example in found["examples"]] == [row.where for row in met[:3]]
    levels = sum(row.data["level"] for row in met) / 12
    assert 0.2 < levels < 0.8
    assert next(share["share"] for share in found["shares"] if share["group_size"] == 4) == pytest.approx(levels, abs=0.05)
