"""What a whole run leaves to read and hand on: report.html, the tracker's numbers, the commands that look at it afterwards."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llmclick import cli
from llmclick.config.load import load_config
from llmclick.errors import InputError, TrainingStopped
from llmclick.pipeline.preflight import make_plan
from llmclick.tracking.metrics import read_metrics
from llmclick.tracking.trackers import named_numbers
from tests.runs import Tiny

LINES = Path(__file__).parents[1] / "lines_tracker.py"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, dense_folder: Path) -> Tiny:
    """One run with a learning curve and a tracker, read by the tests below."""
    made = tracked(tmp_path_factory.mktemp("leaves"), dense_folder)
    made.run("training.eval_every=3", "tracker=lines", "training.precision=fp32")
    return made


def tracked(folder: Path, model: Path) -> Tiny:
    """A run whose imports also register a tracker that writes lines."""
    made = Tiny(folder / "run", model)
    made.yaml.write_text(made.yaml.read_text().replace("imports: [", f"imports: [{LINES}, "))
    return made


def lines(run: Tiny) -> list[tuple[int, dict[str, float]]]:
    return [tuple(json.loads(line)) for line in (run.experiment / "lines.jsonl").read_text().splitlines()]


def blob(run: Tiny, name: str) -> Any:
    html = (run.experiment / "report.html").read_text()
    found = re.search(rf'id="data-{name}">([^<]*)</script>', html)
    assert found
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def call(*args: Any) -> Any:
    cli._asked.update(debug=False, json=False)
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


# ---- report.html


def test_a_run_ends_with_its_page_and_says_where_it_is(tiny: Tiny) -> None:
    tiny.assert_it_trained(6)
    assert f"report: {tiny.experiment / 'report.html'}" in tiny.said.getvalue()
    assert blob(tiny, "metrics")["columns"]["reward"] == pytest.approx(
        [record["reward"] for record in read_metrics(tiny.experiment / "metrics.jsonl")], rel=1e-5
    )
    assert len(blob(tiny, "completions")["texts"]) == 6 * 2 * 4
    assert len(blob(tiny, "heldout")) == 6


def test_the_page_knows_what_differs_from_the_defaults(tiny: Tiny) -> None:
    """manifest.json records config.changed(): keys that were set, with their values."""
    changed = json.loads((tiny.experiment / "manifest.json").read_text())["changed"]
    assert changed["method.group_size"] == 4
    assert changed["training.eval_every"] == 3
    assert "training.weight_decay" not in changed
    html = (tiny.experiment / "report.html").read_text()
    assert re.search(r"<tr class=changed><th scope=\"row\">method.group_size<", html)
    assert re.search(r"<tr><th scope=\"row\">training.weight_decay<", html)


def test_the_learning_curve_is_in_the_file_the_page_and_the_terminal(tiny: Tiny) -> None:
    """eval_every 3 of 6 steps, step 0 included."""
    curve = read_metrics(tiny.experiment / "eval.jsonl")
    assert [record["step"] for record in curve] == [0, 3, 6]
    assert [point["step"] for point in blob(tiny, "metrics")["evaluations"]] == [0, 3, 6]
    for record in curve:
        assert f"held-out after step {record['step']}: reward {record['reward']:.3f}" in tiny.said.getvalue()
    # The last point is the same weights on the same rows as the gate, which reads them from the disk in the same type.
    verdict = json.loads((tiny.experiment / "validate" / "verdict.json").read_text())
    assert curve[-1]["reward"] == pytest.approx(verdict["metrics"]["reward"]["trained"])
    assert curve[0]["reward"] == pytest.approx(verdict["metrics"]["reward"]["base"])


def test_a_failed_gate_has_its_page_too(tmp_path: Path, dense_folder: Path) -> None:
    run = Tiny(tmp_path / "run", dense_folder)
    result = run.run("validation.min.reward=2.0")
    assert result.exit == 3
    assert "Did not pass" in (run.experiment / "report.html").read_text()


def test_a_stopped_run_has_a_page_of_what_is_there(tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that stops itself after three steps: the error stays the error, the page shows three steps."""
    import llmclick.modeling.llm.training.rollout as rollout

    real = rollout.sample_and_score

    def three(training: Any) -> Any:
        if training.step == 3:
            raise TrainingStopped("enough")
        return real(training)

    monkeypatch.setattr(rollout, "sample_and_score", three)
    run = Tiny(tmp_path / "run", dense_folder)
    with pytest.raises(TrainingStopped, match="enough"):
        run.run()
    assert len(blob(run, "metrics")["columns"]["reward"]) == 3
    assert "Not judged yet: over 3 steps" in (run.experiment / "report.html").read_text()
    assert f"report so far: {run.experiment / 'report.html'}" in run.said.getvalue()


def test_a_page_that_cannot_be_written_is_one_notice(
    tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path) -> Path:
        raise ValueError("a bug in the page")

    monkeypatch.setattr("llmclick.report.page.write_report", broken)
    run = Tiny(tmp_path / "run", dense_folder)
    assert run.run().passed
    assert "report.html could not be written (ValueError: a bug in the page)" in run.said.getvalue()
    assert "report: " not in run.said.getvalue()


def test_a_cached_run_writes_a_page_that_is_gone_and_keeps_one_that_is_there(tmp_path: Path, dense_folder: Path) -> None:
    run = Tiny(tmp_path / "run", dense_folder)
    run.run()
    page = run.experiment / "report.html"
    page.unlink()
    run.run()
    assert page.exists()
    page.write_text("mine")
    run.run()
    assert page.read_text() == "mine"


def test_a_run_without_bounds_is_measured_and_not_judged(tmp_path: Path, dense_folder: Path) -> None:
    """A real run: null in verdict.json, None and exit 0 for the caller, the checkpoint handed over, the badge, and a table
    that names rows and tokens."""
    run = Tiny(tmp_path / "run", dense_folder)
    result = run.run("validation=null")
    said = json.loads((run.experiment / "validate" / "verdict.json").read_text())
    assert (said["passed"], said["rows"], said["prompts"]) == (None, 6, 6)
    assert (result.passed, result.exit) == (None, 0)
    assert result.checkpoint == run.experiment / "validate" / "checkpoint"
    assert (result.checkpoint / "model.safetensors").is_file()
    assert '<span class="badge not-judged">Not judged</span>' in (run.experiment / "report.html").read_text()
    assert "Held-out rows, greedy, at most 6 tokens: 6 rows\n" in run.said.getvalue()
    assert "95 % interval, the wider of bootstrap and sign-flip test: " in run.said.getvalue()
    assert run.said.getvalue().splitlines()[-1].startswith("not judged")


def test_rows_with_equal_prompts_are_counted_as_one_prompt(tmp_path: Path, dense_folder: Path) -> None:
    """Held-out rows of their own: three prompts twice each, the second time with another answer. The prompts are what the model
    read, so two rows differ in nothing but what the reward sees."""
    run = Tiny(tmp_path / "run", dense_folder)
    rows = [{"prompt": f"Add {k % 3} and 1.", "answer": str(k)} for k in range(6)]
    own = run.folder / "held.jsonl"
    own.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run.run(f"data.validation={{sources: [{{name: local_jsonl, path: {own}}}]}}")
    reward = result.metrics["reward"]
    assert (reward["n"], reward["prompts"], reward["low"], reward["interval"]) == (6, 3, None, None)
    assert "Held-out rows, greedy, at most 6 tokens: 6 rows of 3 prompts" in run.said.getvalue()
    assert (
        "95 % interval, the wider of bootstrap and sign-flip test: none (fewer than 6 prompts) for all" in run.said.getvalue()
    )


# ---- trackers


def test_the_tracker_of_the_config_receives_every_number_and_the_verdict(tiny: Tiny) -> None:
    """Read back from its own store: all of metrics.jsonl and eval.jsonl in the order of the run, then the gate."""
    metrics, curve = (read_metrics(tiny.experiment / name) for name in ("metrics.jsonl", "eval.jsonl"))
    order = [curve[0], *metrics[:3], curve[1], *metrics[3:], curve[2]]
    *sent, (step, verdict) = lines(tiny)
    assert sent == [(step, values) for values, step in map(named_numbers, order)]
    assert (step, verdict["validate/passed"]) == (6, 1.0)
    reward = json.loads((tiny.experiment / "validate" / "verdict.json").read_text())["metrics"]["reward"]
    assert verdict["validate/reward/difference"] == reward["difference"]


def test_a_resumed_run_sends_each_step_once(tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in step 4 with the last snapshot after step 2: step 3 is taken again, the tracker sees it once."""
    import llmclick.modeling.llm.training.rollout as rollout

    real = rollout.sample_and_score
    with monkeypatch.context() as patch:

        def stop(training: Any) -> Any:
            if training.step == 3:
                raise TrainingStopped("enough")
            return real(training)

        patch.setattr(rollout, "sample_and_score", stop)
        run = tracked(tmp_path, dense_folder)
        with pytest.raises(TrainingStopped):
            run.run("tracker=lines")
    run.run("tracker=lines")
    assert "resumed after step 2" in run.said.getvalue()
    assert [step for step, _ in lines(run)] == [1, 2, 3, 4, 5, 6, 6]


@pytest.mark.parametrize("broken", ["open", "log", "close"])
def test_a_failing_tracker_never_stops_a_run(tmp_path: Path, dense_folder: Path, broken: str) -> None:
    """And leaves what the run leaves without one."""
    run = tracked(tmp_path, dense_folder)
    assert run.run(f"tracker={{name: lines, broken: {broken}}}").passed
    assert run.said.getvalue().count("tracker lines failed and the run goes on without it") == 1
    run.assert_it_trained(6)


def test_a_tracker_changes_nothing_of_the_experiment(tiny: Tiny, tmp_path: Path, dense_folder: Path) -> None:
    """Same hash, same numbers and weights as a run without one."""
    paths = [make_plan(load_config(tiny.yaml, ["training.eval_every=3", *more])).experiment for more in ([], ["tracker=lines"])]
    assert paths[0] == paths[1]
    plain = tracked(tmp_path, dense_folder)
    plain.run("training.eval_every=3", "training.precision=fp32")
    assert all(plain.left()[what] == tiny.left()[what] for what in ("metrics", "eval", "weights"))


def test_an_unknown_tracker_or_a_missing_package_is_said_before_anything_runs(
    tmp_path: Path, dense_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the other problems of the file, the nearest name first, and the command that installs it."""
    run = Tiny(tmp_path / "run", dense_folder)
    with pytest.raises(InputError) as caught:
        run.run("tracker=tensorbord", "training.lr=-1")
    assert [problem.key for problem in caught.value.problems] == ["training.lr", "tracker"] or [
        problem.key for problem in caught.value.problems
    ] == ["tracker", "training.lr"]
    assert "tensorboard" in next(p for p in caught.value.problems if p.key == "tracker").write.split(",")[0]
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "mlflow" else real(name, *more))
    with pytest.raises(InputError, match="uv sync --extra mlflow"):
        run.run("tracker=mlflow")
    assert not (run.folder / "output").exists()


# ---- looking at it afterwards, by the command line


def test_report_writes_the_page_again_and_sends_a_finished_run(tiny: Tiny) -> None:
    page = tiny.experiment / "report.html"
    before = page.read_text()
    page.unlink()
    result = call("report", tiny.experiment)
    assert (result.exit_code, result.stdout) == (0, f"{page}\n")
    assert page.read_text() == before
    sent = call("report", tiny.experiment, "--send", "lines")
    assert (sent.exit_code, sent.stdout.splitlines()[1][:26]) == (0, "0 steps sent to lines (it ")
    (tiny.experiment / "trackers.json").unlink()
    assert "6 steps sent to lines" in call("report", tiny.experiment, "--send", "lines").stdout
    unknown = call("report", tiny.experiment, "--send", "line")
    assert unknown.exit_code == 2
    assert "write: one of lines" in unknown.stderr


def test_sample_of_the_checkpoint_shows_what_validate_recorded(tiny: Tiny) -> None:
    """Greedy, the same rows: the very texts and rewards of validate/rows.jsonl, of the base model too."""
    for side, options in (
        ("trained", ("--checkpoint", tiny.experiment / "train" / "checkpoint")),
        ("base", ()),
    ):
        result = call("sample", tiny.yaml, "--rows", 6, "--greedy", *options)
        assert result.exit_code == 0
        for row in (json.loads(line) for line in (tiny.experiment / "validate" / "rows.jsonl").read_text().splitlines()):
            from llmclick.tracking.escape import visible_lines

            assert row["where"] in result.stdout
            for line in visible_lines(row[side]["text"]).split("\n"):
                assert line in result.stdout
            assert f"reward {row[side]['reward']:.4g}" in result.stdout
        rewards = json.loads((tiny.experiment / "validate" / "verdict.json").read_text())["metrics"]["reward"]
        assert f"mean reward {rewards[side]:.3f} over 6 held-out rows" in result.stdout


def test_sample_draws_at_the_temperature_and_says_so(tiny: Tiny) -> None:
    first, again = (call("sample", tiny.yaml, "--rows", 3) for _ in range(2))
    assert first.stdout == again.stdout
    assert "at temperature 1" in first.stdout
    assert first.stdout.count("reward ") >= 3


def test_compare_of_two_runs_on_the_same_rows(tiny: Tiny, tmp_path: Path) -> None:
    """Another learning rate is another experiment beside the first; the rows are the same, so the difference is paired."""
    import shutil

    other = tmp_path / "tiny-ffffffff"
    shutil.copytree(tiny.experiment, other)
    rows = [json.loads(line) for line in (other / "validate" / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        row["trained"]["reward"] += 0.25
    (other / "validate" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = call("compare", tiny.experiment, other, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["n"] == 6
    assert found["experiments"][1]["difference"] == pytest.approx(0.25)
    assert (found["experiments"][1]["low"], found["experiments"][1]["high"]) == (pytest.approx(0.25), pytest.approx(0.25))


def test_reports_and_comparisons_import_no_torch(tiny: Tiny) -> None:
    code = (
        "import sys; from llmclick.report.page import write_report; from llmclick.report.compare import compare; "
        f"write_report({str(tiny.experiment)!r}); compare([{str(tiny.experiment)!r}] * 2); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
