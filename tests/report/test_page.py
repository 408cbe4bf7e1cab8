import base64
import json
import re
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from llmclick.errors import InputError
from llmclick.report import embed as embedding
from llmclick.report.experiment import read_experiment
from llmclick.report.page import write_report
from llmclick.report.story import tell
from llmclick.tracking.completions import CompletionsFolder
from llmclick.tracking.files import write_atomic
from llmclick.tracking.metrics import MetricsFile
from tests.report.synthetic import HOSTILE, write_run


def unpack(html: str, name: str) -> Any:
    found = re.search(rf'<script type="text/plain" id="data-{name}">([^<]*)</script>', html)
    assert found
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "cities-1a2b3c4d", steps=6, prompts=4)


def test_the_page_holds_every_completion_metric_and_held_out_row(run: Path) -> None:
    html = write_report(run).read_text()
    data = unpack(html, "completions")
    stored = [record for step in range(1, 7) for record in CompletionsFolder(run / "completions").read(step)]
    assert data["texts"] == [record["text"] for record in stored]
    assert data["reward"] == [record["reward"] for record in stored]
    assert data["passed"] == [int(record["passed"]) for record in stored]
    assert [data["prompts"][place][2] for place in data["prompt"]] == [record["prompt"] for record in stored]
    assert unpack(html, "metrics")["columns"]["groups.mixed"] == [
        json.loads(line)["groups"]["mixed"] for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert len(unpack(html, "heldout")) == 64


def test_nothing_hostile_is_in_the_page_as_it_was_written(run: Path) -> None:
    """Only our own two script elements with code exist, no text of a model or row is markup, nothing invisible is left."""
    html = write_report(run).read_text()
    assert len(re.findall(r"<script\b[^>]*>", html)) == 5  # about, three blobs, the code
    assert HOSTILE["html"] not in html
    assert "<img" not in html
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", html)
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "default-src 'none'" in html


def test_a_name_full_of_markup_is_escaped(tmp_path: Path) -> None:
    write_atomic(tmp_path / "config.yaml", b'pipeline: {name: "</title><script>alert(1)</script>{{data}}"}\n')
    html = write_report(tmp_path).read_text()
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{data}}" in html


@pytest.mark.parametrize("present", [["config.yaml"], ["metrics.jsonl"], ["completions"], ["validate"], ["manifest.json"]])
def test_an_unfinished_run_gets_a_page_that_says_what_is_missing(run: Path, tmp_path: Path, present: list[str]) -> None:
    for name in present:
        (tmp_path / name).symlink_to(run / name)
    html = write_report(tmp_path).read_text()
    if "validate" not in present:
        assert "No verdict yet" in html
        assert "Unfinished" in html
    if "config.yaml" not in present:
        assert "config.yaml is not in this folder" in html
    if "metrics.jsonl" not in present:
        assert "No step is finished" in html


def test_a_folder_that_is_no_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing in this folder"):
        write_report(tmp_path)


def test_ten_thousand_completions_of_three_hundred_characters_fit_whole_below_five_megabytes(tmp_path: Path) -> None:
    """Text that hardly compresses: random words of random letters."""
    import random

    rng = random.Random(1)
    folder = CompletionsFolder(tmp_path / "completions")
    for step in range(1, 41):
        texts = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz     ") for _ in range(300)) for _ in range(250)]
        folder.write(
            step, [{"row": f"{k // 8}", "prompt": "p", "text": text, "reward": rng.random()} for k, text in enumerate(texts)]
        )
    path = write_report(tmp_path)
    assert path.stat().st_size < 5_000_000
    assert len(unpack(path.read_text(), "completions")["texts"]) == 10_000


def test_past_the_limit_the_page_holds_first_last_and_every_kth_step_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "COMPLETIONS_BUDGET", 20_000)
    import random

    rng = random.Random(1)
    folder = CompletionsFolder(tmp_path / "completions", keep=0)
    for step in range(1, 101):
        folder.write(
            step, [{"row": "r", "text": "".join(rng.choice("0123456789abcdef") for _ in range(300))} for _ in range(8)]
        )
    html = write_report(tmp_path).read_text()
    data = unpack(html, "completions")
    held = data["held"]
    assert held[0] == 1
    assert held[-1] == 100
    gaps = {after - before for before, after in pairwise(held[:-1])}
    assert len(gaps) == 1
    assert f"The completions of {len(held)} of 100 steps are in this page" in html
    assert "The folder completions/ has every step" in html
    assert len(re.search(r'id="data-completions">([^<]*)<', html)[1]) <= 20_000  # type: ignore[index]


def test_texts_too_long_for_the_page_are_cut_and_counted(tmp_path: Path) -> None:
    CompletionsFolder(tmp_path / "completions").write(1, [{"row": "r", "text": "y" * 30_000}])
    html = write_report(tmp_path).read_text()
    assert unpack(html, "completions")["texts"] == ["y" * 20_000 + "…"]
    assert "1 texts are shown up to 20,000 characters" in html


def test_long_runs_are_drawn_as_means_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MOST_POINTS", 4)
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(1, 9):
        file.append({"step": step, "reward": float(step), "kl": None if step % 2 else 2.0})
    html = write_report(tmp_path).read_text()
    assert unpack(html, "metrics")["columns"] == {"step": [2, 4, 6, 8], "reward": [1.5, 3.5, 5.5, 7.5], "kl": [2.0] * 4}
    assert "the mean of 2 steps" in html


def verdict(folder: Path, low: float, high: float, passed: bool = True, bounds: list[dict[str, Any]] | None = None) -> Path:
    metrics = {"reward": {"base": 0.25, "trained": 0.5, "difference": 0.25, "low": low, "high": high, "n": 40}}
    text = json.dumps({"passed": passed, "metrics": metrics, "bounds": bounds or [], "notices": ["too few rows"]})
    write_atomic(folder / "validate" / "verdict.json", text.encode())
    return folder


@pytest.mark.parametrize(
    ("low", "high", "opening"),
    [(0.1, 0.4, "It learned"), (-0.1, 0.4, "No certain change"), (-0.4, -0.1, "It got worse"), (0.0, 0.4, "No certain change")],
)
def test_the_headline_says_what_the_interval_says(tmp_path: Path, low: float, high: float, opening: str) -> None:
    story = tell(read_experiment(verdict(tmp_path, low, high)))
    assert story.headline.startswith(
        f"{opening}: the held-out reward went from 0.25 to 0.50 (+0.25, 95 % interval {low:+.2f} to {high:+.2f}) on 40 rows"
    )
    assert story.badge == "not judged"


def test_rows_fail_that_did_not_pass_whatever_their_reward(tmp_path: Path) -> None:
    """Of three rows one passed with 0.9, and one with a total of 2 did not, nor the one that got worse: 2 of 3 still fail."""
    judged = [(0.0, 0.9, True), (2.0, 2.0, False), (1.0, 0.5, False)]
    rows = [{"base": {"reward": b}, "trained": {"reward": t, "passed": passed}} for b, t, passed in judged]
    write_atomic(tmp_path / "validate" / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    story = tell(read_experiment(tmp_path))
    assert "2 of 3 held-out rows still fail; 1 got a lower reward than from the base model." in story.sentences
    assert ("Rows that still fail", "2 of 3", "after training") in story.tiles
    assert [row["trained"]["passed"] for row in unpack(write_report(tmp_path).read_text(), "heldout")] == [True, False, False]


def test_a_missed_bound_is_in_the_sentences_and_the_table(tmp_path: Path) -> None:
    bound = {"kind": "gain", "metric": "reward", "bound": 0.3, "value": 0.25, "passed": False, "why": "the gain is 0.25"}
    verdict(tmp_path, 0.1, 0.4, passed=False, bounds=[bound])
    html = write_report(tmp_path).read_text()
    assert "Did not pass" in html
    assert "The gate failed: the gain is 0.25." in html
    assert "✗ missed: gain of at least 0.3" in html
    assert "too few rows" in html


def test_the_page_names_the_budget_the_prompts_and_whose_interval_it_is(tmp_path: Path) -> None:
    """24 rows of 8 prompts, answers of at most 40 tokens; the reward's interval is the sign-flip test's, pass_rate has none."""
    reward = {"base": 0.25, "trained": 0.5, "difference": 0.25, "low": 0.1, "high": 0.4, "n": 24, "prompts": 8}
    few = {"base": 0.25, "trained": 0.5, "difference": 0.25, "low": None, "high": None, "n": 4, "prompts": 4, "interval": None}
    metrics = {"reward": {**reward, "interval": "sign-flip"}, "pass_rate": few}
    text = json.dumps({"passed": None, "rows": 24, "prompts": 8, "metrics": metrics, "bounds": [], "notices": []})
    write_atomic(tmp_path / "validate" / "verdict.json", text.encode())
    write_atomic(tmp_path / "config.yaml", b"method: {max_new_tokens: 40}\n")
    html = write_report(tmp_path).read_text()
    assert "<caption>Held-out rows, greedy, at most 40 tokens: 24 rows of 8 prompts</caption>" in html
    assert '<td class="number" data-label="Rows">24 rows of 8 prompts</td>' in html
    assert '<td class="number" data-label="Rows">4</td>' in html
    assert "sign-flip for reward; none (fewer than 6 prompts) for pass_rate" in html
    story = tell(read_experiment(tmp_path))
    assert story.badge == "not judged"
    assert story.headline.endswith("on 24 rows of 8 prompts that training never saw.")
    assert story.tiles[0][2] == "greedy, at most 40 tokens, 24 rows of 8 prompts"


def test_without_an_interval_the_headline_claims_nothing(tmp_path: Path) -> None:
    """Two rows from 0 to 1 were "It learned ... 95 % interval +1.00 to +1.00"; and an end that is 0 but for rounding is 0."""
    values = {"base": 0.0, "trained": 1.0, "difference": 1.0, "low": None, "high": None, "n": 2, "prompts": 2}
    text = json.dumps({"passed": None, "rows": 2, "prompts": 2, "metrics": {"reward": values}, "bounds": [], "notices": []})
    write_atomic(tmp_path / "validate" / "verdict.json", text.encode())
    assert tell(read_experiment(tmp_path)).headline.startswith(
        "Measured on fewer than 6 prompts, which is too few for an interval"
    )
    assert tell(read_experiment(verdict(tmp_path, 5e-17, 0.4))).headline.startswith("No certain change")


def test_a_run_before_validation_tells_what_it_sampled(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(1, 11):
        file.append({"step": step, "reward": step / 10, "seconds": {"sample": 3.0, "train": 1.0, "total": 4.0}})
    story = tell(read_experiment(tmp_path))
    assert story.badge == "unfinished"
    assert "over 10 steps the sampled reward went from 0.30 to 0.80" in story.headline
    assert "Training took 40s for 10 steps: sampling 75 % and the gradient 25 %." in story.sentences


def test_the_stages_say_how_long_they_took(tmp_path: Path) -> None:
    for stage, seconds in (("data", 1.5), ("train", 70.0), ("validate", 12.0)):
        write_atomic(tmp_path / stage / "manifest.json", json.dumps({"seconds": seconds}).encode())
    assert "By stage: data 1.5s, train 1m10s and validate 12s." in tell(read_experiment(tmp_path)).sentences


def test_time_around_the_steps_is_told_where_it_is_some(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "metrics.jsonl").append({"step": 1, "reward": 0.5, "seconds": {"sample": 50.0, "total": 60.0}})
    for stage, seconds in (("data", 1.5), ("train", 70.0)):
        write_atomic(tmp_path / stage / "manifest.json", json.dumps({"seconds": seconds}).encode())
    assert any(
        sentence.startswith("Of the train stage, 1m00s were steps and 10s what is around them")
        for sentence in tell(read_experiment(tmp_path)).sentences
    )


def test_an_interval_without_width_is_explained(tmp_path: Path) -> None:
    assert (
        "95 % interval +0.25 to +0.25, the same on every row)" in tell(read_experiment(verdict(tmp_path, 0.25, 0.25))).headline
    )


@pytest.mark.parametrize(
    ("metric", "low", "high", "colour"),
    [
        ("reward", 0.1, 0.3, "up"),
        ("reward", -0.3, -0.1, "down"),
        ("truncated", -0.3, -0.1, "up"),
        ("truncated", 0.1, 0.3, "down"),
        ("length", -9.0, -3.0, "unsure"),
        ("pass_rate", -0.1, 0.3, "unsure"),
    ],
)
def test_the_colour_of_an_interval_says_whether_the_change_is_good(
    tmp_path: Path, metric: str, low: float, high: float, colour: str
) -> None:
    """More reward is good, fewer truncated answers are, a shorter answer is neither."""
    values = {"base": 0.5, "trained": 0.5, "difference": (low + high) / 2, "low": low, "high": high, "n": 9}
    write_atomic(tmp_path / "validate" / "verdict.json", json.dumps({"passed": True, "metrics": {metric: values}}).encode())
    write_atomic(tmp_path / "config.yaml", b"pipeline: {name: x}\n")
    assert f'<rect class="{colour}"' in write_report(tmp_path).read_text()
