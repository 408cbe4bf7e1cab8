"""The user's page as tests: every key, value, name and path on it works as written. Only its facts are here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmclick.config.load import load_config
from llmclick.config.reading import read_file
from llmclick.errors import InputError

ROOT = Path(__file__).parents[2]
GRPO = "configs/llm/grpo.yaml"
GSM8K = "configs/llm/grpo_gsm8k.yaml"

PAGE = {
    "pipeline": {"recipe": "llm_grpo", "name": "grpo-qwen3.5-0.8b", "seed": 20260920, "output_dir": "./output"},
    "model": {
        "architecture": "hybrid",
        "name": "Qwen/Qwen3.5-0.8B",
        "revision": "2fc06364715b967f1860aea9cf38778875588b17",
    },
    "data": {"sources": [{"name": "local_jsonl", "path": "samples/llm_grpo.jsonl"}], "validation": 0.1},
    "method": {"group_size": 4, "max_new_tokens": 8, "temperature": 1.0, "reward": {"name": "exact_match"}},
    "training": {"epochs": 1, "lr": 2e-6, "batch_size": 2, "accumulation": 2, "max_length": 256, "max_steps": 4},
    "validation": {"min": {"reward": 0.0}},
}


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def written(path):
    node, problems = read_file(path, Path(path).read_bytes())
    assert problems == []
    return node.plain()


def test_the_config_has_exactly_the_keys_and_values_of_the_page():
    """No key more, no key less, and each value of the page's type."""
    assert written(GRPO) == PAGE
    assert [list(section) for section in written(GRPO).values()] == [list(section) for section in PAGE.values()]
    assert type(written(GRPO)["method"]["temperature"]) is float


def test_the_config_of_the_page_loads():
    """Every key arrives where the program reads it; the bound of 0.0 is accepted, with one notice."""
    config = load_config(GRPO)
    assert (config.method.group_size, config.method.max_new_tokens, config.method.temperature) == (4, 8, 1.0)
    assert [spec.name for spec in config.method.reward] == ["exact_match"]
    training = config.training
    assert (training.epochs, training.lr, training.batch_size, training.accumulation) == (1, 2e-6, 2, 2)
    assert (training.max_length, training.max_steps) == (256, 4)
    assert config.validation.min == {"reward": 0.0}
    assert (config.pipeline.seed, str(config.pipeline.output_dir)) == (20260920, "output")
    assert (config.model.kind, config.model.architecture) == ("hub", "hybrid")
    assert config.data.validation == 0.1
    assert len(config.notices) == 1


def test_the_second_config_trains_on_gsm8k_from_the_hub_with_last_number():
    """The data set, its subset and split, a pinned revision, the question as prompt."""
    config = load_config(GSM8K)
    (source,) = config.data.sources
    assert (source.name, source.dataset, source.subset, source.split) == ("huggingface", "openai/gsm8k", "main", "train")
    assert source.revision == "740312add88f781978c0658806c59bc2815b9866"
    assert source.fields == {"prompt": "question"}
    assert [spec.name for spec in config.method.reward] == ["last_number"]
    assert (config.model.name, config.model.revision) == (PAGE["model"]["name"], PAGE["model"]["revision"])
    assert config.notices == ()


@pytest.mark.parametrize("path", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("configs/llm/*.yaml")))
def test_every_shipped_config_loads(path):
    """Without a problem."""
    assert load_config(path).pipeline.recipe in ("llm_grpo", "llm_cispo")


def test_the_alternative_model_of_the_comment_loads():
    """The 2B at its own commit."""
    overrides = ["model.name=Qwen/Qwen3.5-2B", "model.revision=15852e8c16360a2fea060d615a32b45270f8a8fc"]
    assert load_config(GRPO, overrides).model.name == "Qwen/Qwen3.5-2B"


def test_the_other_rewards_of_the_page_are_there():
    """contains as the comment says, last_number, json_valid."""
    for name in ("contains", "last_number", "json_valid"):
        assert load_config(GRPO, [f"method.reward.name={name}"]).method.reward[0].name == name


def test_iterations_clip_beta_and_adapter_as_on_the_page():
    """The snippet about reusing sampled groups, both of its lines."""
    overrides = [
        "method.iterations=2",
        "method.clip=0.2",
        "method.beta=0.05",
        "training.adapter={name: lora, r: 16, alpha: 32}",
    ]
    config = load_config(GRPO, overrides)
    assert (config.method.group_size, config.method.iterations, config.method.clip, config.method.beta) == (4, 2, 0.2, 0.05)
    assert (config.training.adapter.name, config.training.adapter.r, config.training.adapter.alpha) == ("lora", 16, 32)


def test_beta_needs_the_adapter():
    """As the page says."""
    with pytest.raises(InputError, match=r"training\.adapter"):
        load_config(GRPO, ["method.beta=0.05"])


def test_cispo_takes_the_same_keys_and_no_beta():
    """Both methods have iterations and clip; beta is llm_grpo's."""
    config = load_config(GRPO, ["pipeline.recipe=llm_cispo", "method.iterations=2", "method.clip=0.2"])
    assert config.method.clip == 0.2
    with pytest.raises(InputError, match="llm_grpo only"):
        load_config(GRPO, ["pipeline.recipe=llm_cispo", "method.beta=0.05", "training.adapter={name: lora}"])


def test_the_decorator_of_the_page_works_where_the_page_shows_it(tmp_path):
    """json_valid, typed into modeling/llm/methods/grpo.py as shown, is the one that scores, although one ships."""
    shutil.copytree(ROOT / "src" / "llmclick", tmp_path / "llmclick", ignore=shutil.ignore_patterns("__pycache__"))
    place = tmp_path / "llmclick" / "modeling" / "llm" / "methods" / "grpo.py"
    typed = """
@REWARDS.register("json_valid")                 # modeling/llm/methods/grpo.py
def json_valid(completion: str, row: dict, params: dict) -> float: return 0.25
"""
    place.write_text(place.read_text(encoding="utf-8") + "\n" + typed, encoding="utf-8")
    command = [sys.executable, "-m", "llmclick.cli", "reward", "json_valid", "--completion", "{}", "--row", "{}"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "reward: 0.25\n"), done.stderr


def test_max_length_has_to_leave_room_for_max_new_tokens():
    """The page's length rule, as far as the config alone can tell."""
    with pytest.raises(InputError, match="max_new_tokens"):
        load_config(GRPO, ["training.max_length=8"])


def test_the_sample_rows_have_the_shape_of_the_page():
    """A prompt, as text or chat messages, and an answer; at least 200 of them."""
    import json

    rows = [json.loads(line) for line in Path("samples/llm_grpo.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 200
    assert all(isinstance(row["prompt"], (str, list)) and "answer" in row for row in rows)
