import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import llmclick
from llmclick.errors import InputError, Interrupted, TrainingStopped
from llmclick.pipeline.fingerprint import explain_folder
from llmclick.pipeline.preflight import disk_estimate, make_plan, preflight, resolve_model
from tests.waiting import LIMIT, until


def states(result: Any) -> list[str]:
    return [result.stages[stage]["state"] for stage in ("data", "train", "validate")]


def usage(free: int) -> Any:
    return shutil._ntuple_diskusage(10**9, 10**9 - free, free)  # type: ignore[attr-defined]


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_first_run_then_cached(lab: Any) -> None:
    """The first run does all three stages, the second none, in the same folder and with the same result."""
    first = lab.run()
    assert states(first) == ["ran", "ran", "ran"]
    second = lab.run()
    assert states(second) == ["cached", "cached", "cached"]
    assert lab.calls == ["train", "validate"]
    assert second.experiment == first.experiment
    assert (second.passed, second.exit, second.metrics) == (True, 0, first.metrics)
    assert second.checkpoint == first.experiment / "validate" / "checkpoint"


def test_the_folder_is_laid_out_as_documented(lab: Any) -> None:
    """output/<name>-<8 hex of the train fingerprint>/ with config, manifest, log and a relative link to the shared data."""
    plan = make_plan(lab.config())
    experiment = lab.run().experiment
    assert experiment == lab.output / f"tiny-{plan.fingerprints['train'][:8]}"
    for name in ("config.yaml", "manifest.json", "run.log", "data/train.jsonl", "data/manifest.json", "train/manifest.json"):
        assert (experiment / name).exists(), name
    assert os.readlink(experiment / "data") == f"../.shared/data-{plan.fingerprints['data'][:12]}"
    from llmclick.config.load import load_config

    assert load_config(experiment / "config.yaml") == lab.config()


def test_json_has_exactly_the_documented_keys(lab: Any) -> None:
    """`--json` of run: experiment, passed, exit, stages, metrics, checkpoint, all of them JSON."""
    result = lab.run().as_json()
    assert list(result) == ["experiment", "passed", "exit", "stages", "metrics", "checkpoint"]
    assert set(result["metrics"]["reward"]) == {"base", "trained", "difference", "low", "high", "n"}
    assert json.loads(json.dumps(result)) == result


def test_the_job_names_what_a_stage_works_with(lab: Any) -> None:
    """Each body gets its own fingerprint, the one of train, and the folder with the rows."""
    lab.run()
    plan = make_plan(lab.config())
    train, validate = lab.jobs
    assert (train.fingerprint, validate.fingerprint) == (plan.fingerprints["train"], plan.fingerprints["validate"])
    assert train.dataset_folder == plan.dataset_folder
    assert train.shared == lab.output / ".shared"


def test_a_new_bound_judges_again_and_nothing_else(lab: Any) -> None:
    """Another bound runs only validate, in the same folder; the failed verdict is cached with its exit code 3."""
    first = lab.run()
    lab.passed = False
    failed = lab.run("validation.gain.reward=1.5")
    assert states(failed) == ["cached", "cached", "ran"]
    assert failed.experiment == first.experiment
    assert (failed.passed, failed.exit, failed.checkpoint) == (False, 3, None)
    assert "validation.gain: reward 0.1 -> 1.5" in failed.stages["validate"]["why"]
    again = lab.run("validation.gain.reward=1.5")
    assert states(again) == ["cached", "cached", "cached"]
    assert again.exit == 3
    assert lab.calls == ["train", "validate", "validate"]


def test_a_run_without_bounds_is_not_judged_anywhere(lab: Any) -> None:
    """Neither passed nor failed, exit 0, the checkpoint handed over; the last line, the plan of the next run, `explain DIR` and
    --json say so, and a checkpoint that is gone is linked again."""
    lab.passed = None
    first = lab.run("validation=null")
    assert (first.passed, first.exit, first.as_json()["passed"]) == (None, 0, None)
    assert first.checkpoint == first.experiment / "validate" / "checkpoint"
    last = lab.said.getvalue().splitlines()[-1]
    assert last == f"not judged, because no bound is set: {first.checkpoint}"
    again = lab.run("validation=null")
    assert (again.passed, again.exit, again.checkpoint) == (None, 0, first.checkpoint)
    assert again.stages["validate"]["why"] == "measured, not judged: no bound is set"
    assert "validate  cached: measured, not judged" in explain_folder(first.experiment)
    first.checkpoint.unlink()
    assert states(lab.run("validation=null")) == ["cached", "cached", "ran"]
    assert "passed" not in lab.said.getvalue()


def test_a_gain_that_no_held_out_rows_could_pass_is_said_before_training(lab: Any) -> None:
    """4 held-out prompts and a bound on the gain; not with 6, and not without such a bound."""
    (notice,) = [notice for notice in preflight(lab.config()).notices if "gain" in notice]
    assert "validation.gain: 4 held-out prompts can pass no bound on a gain, it takes at least 6: hold out" in notice
    assert lab.yaml.name in notice
    for override in ("data.validation=6", "validation={min: {reward: 0.5}}"):
        assert not [notice for notice in preflight(lab.config(override)).notices if "gain" in notice]
    capped = preflight(lab.config("data.validation=6", "validation.rows=5")).notices
    assert [notice for notice in capped if "5 held-out prompts" in notice]


@pytest.mark.parametrize(
    "override",
    [
        "training.save_every=3",
        "report.tokens=true",
        "compute.device=cpu",
        "method.reward.timeout=60",
        "method.reward.on_error=zero",
    ],
)
def test_how_it_runs_is_no_part_of_the_identity(lab: Any, override: str) -> None:
    """save_every, report, compute and how a reward is run change no fingerprint."""
    assert make_plan(lab.config(override)).fingerprints == make_plan(lab.config()).fingerprints


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("training.lr=2e-6", {"train", "validate"}),
        ("method.group_size=8", {"train", "validate"}),
        ("training.precision=other", {"train", "validate"}),
        ("training.eval_every=1", {"train", "validate"}),
        ("pipeline.recipe=llm_cispo", {"train", "validate"}),
        ("validation.rows=2", {"validate"}),
        ("pipeline.seed=1", {"data", "train", "validate"}),
        ("method.max_new_tokens=7", {"data", "train", "validate"}),
        ("training.max_length=127", {"data", "train", "validate"}),
        ("data.system=Be brief.", {"data", "train", "validate"}),
        ("data.validation=0.3", {"data", "train", "validate"}),
        ("method.reward.name=contains", {"data", "train", "validate"}),
        ("method.reward.weight=2", {"data", "train", "validate"}),
        ("method.reward.pass_at=0.5", {"data", "train", "validate"}),
    ],
)
def test_what_is_built_is_the_identity(lab: Any, override: str, changed: set[str]) -> None:
    """Each setting changes the fingerprints of the stages that it can change, and of no earlier one."""
    before = make_plan(lab.config())
    # auto is one of the two, which one depends on the processor.
    override = override.replace("other", "fp32" if before.compute.precision == "bf16" else "bf16")
    before, after = before.fingerprints, make_plan(lab.config(override)).fingerprints
    assert {stage for stage in before if before[stage] != after[stage]} == changed


def test_rows_count_by_content(lab: Any) -> None:
    """Another line order, CRLF and another file name are the same experiment; a changed answer is another."""
    before = make_plan(lab.config()).fingerprints
    lines = lab.rows.read_text().splitlines()
    lab.rows.write_bytes("\r\n".join(reversed(lines)).encode())
    other = lab.rows.rename(lab.folder / "other.jsonl")
    assert make_plan(lab.config(f"data.sources.0.path={other}")).fingerprints == before
    other.write_text("\n".join(lines).replace('"2"', '"3"'))
    assert make_plan(lab.config(f"data.sources.0.path={other}")).fingerprints["data"] != before["data"]


def test_a_new_experiment_is_announced_with_what_differs(lab: Any) -> None:
    """When one of the same name lies beside it, the plan says how far that is and which inputs differ."""
    first = lab.run()
    rows = [json.loads(line) for line in lab.rows.read_text().splitlines()]
    lab.write_rows(rows[:-1])
    notices = make_plan(lab.config("training.lr=3e-6")).notices
    assert len(notices) == 1
    assert str(first.experiment) in notices[0]
    assert "is trained" in notices[0]
    assert "rows 20 -> 19" in notices[0]
    assert "training.lr 1e-06 -> 3e-06" in notices[0]
    (first.experiment / "train" / "manifest.json").unlink()
    (first.experiment / "train" / "snapshots" / "step-00000002").mkdir(parents=True)
    assert "is at step 2" in make_plan(lab.config("training.lr=3e-6")).notices[0]


def test_a_stage_that_broke_off_is_not_done(lab: Any) -> None:
    """Training that stops leaves no manifest; the same command begins it again and says where: after its newest snapshot, or at
    step 1 whatever was recorded without one."""

    def stop(job: Any) -> None:
        (job.experiment / "metrics.jsonl").write_text('{"step":1}\n{"step":2}\n{"st')
        raise TrainingStopped("no signal")

    lab.on_train = stop
    with pytest.raises(TrainingStopped):
        lab.run()
    plan = make_plan(lab.config())
    assert [planned.state for planned in plan.stages] == ["cached", "run", "run"]
    assert plan.stages[1].why == "began before without a snapshot; starts at step 1"
    for step in (2, 9, 10):
        (plan.experiment / "train" / "snapshots" / f"step-{step:08d}").mkdir(parents=True)
    assert make_plan(lab.config()).stages[1].why == "began before; continues after step 10"
    lab.on_train = lambda job: None
    assert states(lab.run()) == ["cached", "ran", "ran"]


def test_validate_killed_in_the_middle_does_not_look_done(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged with bound A, killed while judging with B, asked for A again: it judges again."""
    lab.run()

    def killed(job: Any) -> dict[str, Any]:
        raise RuntimeError("killed")

    monkeypatch.setattr(sys.modules["llmclick.pipeline.validate"], "validate", killed)
    with pytest.raises(RuntimeError):
        lab.run("validation.gain.reward=0.2")
    monkeypatch.setattr(sys.modules["llmclick.pipeline.validate"], "validate", lab.validate)
    assert states(lab.run()) == ["cached", "cached", "ran"]


def test_lost_files_are_made_again(lab: Any) -> None:
    """A deleted checkpoint trains again, a deleted link judges again, a deleted data folder is prepared again."""
    result = lab.run()
    (result.experiment / "validate" / "checkpoint").unlink()
    assert states(lab.run()) == ["cached", "cached", "ran"]
    weights = result.experiment / "train" / "checkpoint" / "model.safetensors"
    weights.write_bytes(b"")
    assert states(lab.run()) == ["cached", "ran", "ran"]
    weights.write_bytes(b"WEIGHTS")
    assert states(lab.run()) == ["cached", "ran", "ran"]
    (result.experiment / "data").unlink()
    shutil.rmtree(lab.output / ".shared")
    assert states(lab.run()) == ["ran", "cached", "cached"]
    assert (result.experiment / "data" / "train.jsonl").exists()


@pytest.mark.parametrize("change", ["edited", "deleted"])
def test_changed_data_files_are_refused(lab: Any, change: str) -> None:
    """A file under data/ that no longer matches its manifest is exit 2 and names the file and the remedy."""
    path = lab.run().experiment / "data" / "validation.jsonl"
    path.write_text(path.read_text().replace("plus", "minus")) if change == "edited" else path.unlink()
    with pytest.raises(InputError, match=r"validation\.jsonl") as caught:
        lab.run()
    assert caught.value.exit_code == 2
    assert "delete the folder" in caught.value.problems[0].write


@pytest.mark.parametrize("where", ["manifest.json", "train/manifest.json", "data/manifest.json"])
def test_another_major_version_is_refused(lab: Any, where: str) -> None:
    """A folder of version 1 is refused by version 0, whichever manifest says so."""
    path = lab.run().experiment / where
    path.write_text(path.read_text().replace(f'"version": "{llmclick.__version__}"', '"version": "1.0.0"'))
    with pytest.raises(InputError, match="another major version"):
        lab.run()


def test_stages_can_be_chosen(lab: Any) -> None:
    """data,train is not judged; validate alone before that says what to add; an unknown stage is refused."""
    with pytest.raises(InputError, match="--stages data,validate"):
        lab.run(stages=("validate",))
    assert not lab.output.exists()
    result = lab.run(stages=("data", "train"))
    assert states(result) == ["ran", "ran", "skipped"]
    assert (result.passed, result.exit, result.checkpoint, result.metrics) == (None, 0, None, {})
    assert states(lab.run(stages=("validate",))) == ["skipped", "skipped", "ran"]
    with pytest.raises(InputError, match="the stages are data, train, validate"):
        lab.run(stages=("trian",))


def test_everything_wrong_is_reported_together_and_nothing_written(lab: Any) -> None:
    """A bad line, an empty prompt, a row that does not fit, one the reward cannot use and an output folder below a file."""
    (lab.folder / "file").write_text("")
    lab.rows.write_text(
        '{"prompt": "ok", "answer": "1"}\n{"prompt": "x",\n{"prompt": "", "answer": "1"}\n'
        + json.dumps({"prompt": "9 " * 200, "answer": "1"})
        + '\n{"prompt": "no answer"}\n'
    )
    before = everything_below(lab.folder)
    with pytest.raises(InputError) as caught:
        lab.run(f"pipeline.output_dir={lab.folder / 'file' / 'out'}")
    text = str(caught.value)
    for part in ("rows.jsonl:2", "rows.jsonl:3", "rows.jsonl:4", "rows.jsonl:5", "is not a folder"):
        assert part in text, part
    assert everything_below(lab.folder) == before
    assert lab.calls == []


def test_a_broken_tokenizer_does_not_hide_the_rest(lab: Any, dense_folder: Path) -> None:
    """A tokenizer that cannot be loaded, a row that the reward cannot use and a bad output folder are one report."""
    model = lab.folder / "model"
    shutil.copytree(dense_folder, model)
    (model / "tokenizer.json").write_text("{")
    (lab.folder / "file").write_text("")
    lab.write_rows([{"prompt": "a", "answer": "1"}, {"prompt": "no answer"}])
    with pytest.raises(InputError) as caught:
        lab.run(f"model.name={model}", f"pipeline.output_dir={lab.folder / 'file' / 'out'}")
    for part in ("tokenizer", "rows.jsonl:2", "is not a folder"):
        assert part in str(caught.value), part


def test_rows_that_do_not_fit_write_nothing(lab: Any) -> None:
    """With sound rows but a small max_length the run ends before its output folder exists."""
    with pytest.raises(InputError, match="20 of 20 rows do not fit"):
        lab.run("training.max_length=20")
    assert not lab.output.exists()


def test_a_folder_that_cannot_be_written_is_found_before(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output folder without write permission is exit 2."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="cannot be written"):
        lab.run()


def test_disk_by_hand(lab: Any, dense_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 snapshots x 12 bytes x parameters plus the weights' bytes; too little free is exit 2 before the first step."""
    from safetensors import safe_open

    with safe_open(dense_folder / "model.safetensors", "np") as file:
        parameters = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118 - no mapping
    size = (dense_folder / "model.safetensors").stat().st_size
    config = lab.config()
    disk = disk_estimate(config, resolve_model(config, convert=False), lab.output / "x")
    assert disk.parameters == disk.trained == parameters
    assert disk.needed == 36 * parameters + size
    adapter = lab.config("training.adapter={name: lora, r: 2, alpha: 4}")
    assert disk_estimate(adapter, resolve_model(config, convert=False), lab.output / "x").trained < parameters
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage(disk.needed - 1))
    with pytest.raises(InputError, match="3 snapshots of 12 bytes"):
        lab.run()
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage(disk.needed))
    assert lab.run().exit == 0


def test_check_and_run_share_the_preflight(lab: Any) -> None:
    """preflight gives rows, steps and disk without writing; 16 rows in steps of 4 are 4 steps."""
    checked = preflight(lab.config())
    assert checked.dataset is not None
    assert len(checked.dataset.train) == 16
    assert checked.total_steps == 4
    assert checked.disk is not None
    assert not lab.output.exists()
    assert preflight(lab.config("training.epochs=3", "method.iterations=2")).total_steps == 24


def test_ctrl_c_outside_of_training_is_130(lab: Any) -> None:
    """An interrupt in a stage is Interrupted, and the stage is not done."""

    def interrupt(job: Any) -> None:
        raise KeyboardInterrupt

    lab.on_train = interrupt
    with pytest.raises(Interrupted) as caught:
        lab.run()
    assert caught.value.exit_code == 130
    lab.on_train = lambda job: None
    assert states(lab.run()) == ["cached", "ran", "ran"]


def test_a_second_process_waits_and_reuses(lab: Any) -> None:
    """Two runs of one config at the same time train once; the second says for whom it waits."""
    started = threading.Event()

    def slow(job: Any) -> None:
        started.set()
        until(lambda: "waiting for process" in lab.said.getvalue(), "the second says that it waits")

    lab.on_train = slow
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(lab.run()))
    first.start()
    assert started.wait(LIMIT)
    results.append(lab.run())
    first.join()
    assert lab.calls.count("train") == 1
    assert lab.calls.count("validate") == 1
    assert f"waiting for process {os.getpid()}" in lab.said.getvalue()
    assert sorted(result.stages["train"]["state"] for result in results) == ["cached", "ran"]
    assert {result.exit for result in results} == {0}


def test_the_plan_comes_first_and_the_table_last(lab: Any) -> None:
    """Config notices, the plan with a reason for each stage, the stages, the table, the bounds, the checkpoint."""
    result = lab.run("method.clip=0.3")
    text = lab.said.getvalue()
    places = [
        text.index(part)
        for part in (
            "clip",
            "Plan",
            "> data",
            "16 rows train, 4 are held out",
            "> train",
            "95 % interval",
            "gain reward 0.1: met (0.5)",
        )
    ]
    assert places == sorted(places)
    assert text.splitlines()[-1] == f"passed: {result.experiment}/validate/checkpoint"
    assert "+0.200 .. +0.800" in text
    lab.passed = False
    lab.run("method.clip=0.3", "validation.gain.reward=0.9")
    assert "missed (too little)" in lab.said.getvalue()
    assert lab.said.getvalue().splitlines()[-1].endswith(f"{result.experiment}/train/checkpoint")
    lab.run("method.clip=0.3", stages=("data",))
    assert lab.said.getvalue().splitlines()[-1].startswith("not judged")


def test_explain_names_what_differs(lab: Any) -> None:
    """`explain DIR`: everything cached; after a changed row, the stage and the input that differs."""
    experiment = lab.run().experiment
    text = explain_folder(experiment)
    assert [line.split()[1] for line in text.splitlines()[1:]] == ["cached:"] * 3
    lab.write_rows([{"prompt": f"What is {n}?", "answer": str(n)} for n in range(20)])
    text = explain_folder(experiment)
    assert "data      would run again: contents of the 20 rows" in text
    assert "train     would run again, because data does" in text
    assert "another experiment" in text
    with pytest.raises(InputError, match="no such folder"):
        explain_folder(lab.folder / "nothing")


def test_planning_imports_no_torch(lab: Any) -> None:
    """Reading a config, its rows and its model far enough to plan leaves torch and transformers unimported."""
    script = (
        "import sys\n"
        "from llmclick.config.load import load_config\n"
        "from llmclick.pipeline.preflight import make_plan\n"
        f"plan = make_plan(load_config({str(lab.yaml)!r}))\n"
        "assert [p.state for p in plan.stages] == ['run'] * 3\n"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[]", done.stderr
