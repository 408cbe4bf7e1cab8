"""`llmclick explain` prints the schema, so that no sentence about a key exists twice."""

import re

import pytest

from llmclick.config.explain import explain
from llmclick.config.names import all_keys
from llmclick.config.schema import SECTIONS
from llmclick.errors import InputError


def test_every_key_has_a_text_of_its_own():
    """No key without a sentence, and no two keys with the same one."""
    texts = [(key, info.description) for key, info, _ in all_keys()]
    assert [key for key, text in texts if not text or not text.endswith((".", "is."))] == []
    assert len({text for _, text in texts}) == len(texts)


def test_one_key_shows_meaning_type_bound_and_default():
    """Of a number with a bound."""
    text = explain("method.group_size")
    assert "Completions sampled for every prompt." in text
    assert re.search(r"type +a whole number", text)
    assert re.search(r"bound +at least 2", text)
    assert re.search(r"default +8", text)


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("training.lr", ["1e-6, with training.adapter 1e-5", "more than 0"]),
        ("method.clip", ["0.2; llm_cispo 4.0"]),
        ("clip_high", ["method.clip_high", "none"]),
        ("pipeline.recipe", ["required"]),
        ("pipeline.stages", ["default  all"]),
        ("model.architecture", ["auto, transformer, hybrid"]),
        ("data.sources.0.path", ["data.sources.path", "local_jsonl"]),
        ("data.sources.revision", ["huggingface"]),
        ("training.adapter.dropout", ["Always 0"]),
        ("validation.rows", ["default  all"]),
        ("report.keep", ["200 MB"]),
        ("training.warmup", ["at least 0, at most 1"]),
        ("training.max_steps", ["at least 1", "none"]),
        ("sampler", ["sampler.name", "local"]),
        ("name", ["pipeline.name", "model.name"]),
    ],
)
def test_keys_of_every_kind_are_explained(key, parts):
    """Resolved defaults, choices, keys inside lists and mappings, names without their section."""
    text = explain(key)
    for part in parts:
        assert part in text


def test_without_a_key_every_key_is_listed_once_by_section():
    """One line each, at most as wide as asked."""
    for width in (60, 80, 100):
        lines = explain(None, width).splitlines()
        named = [line.split()[0] for line in lines if line.startswith("  ")]
        assert named == [key for key, _, _ in all_keys()]
        assert [line for line in lines if len(line) > width] == []
    assert [name for name in SECTIONS if f"\n{name}  " not in "\n" + explain()] == []


@pytest.mark.parametrize(
    ("asked", "nearest"), [("method.bta", "method.beta"), ("lrr", "training.lr"), ("num_generations", "method.group_size")]
)
def test_an_unknown_key_is_answered_with_the_nearest(asked, nearest):
    """As in a config."""
    with pytest.raises(InputError) as caught:
        explain(asked)
    assert nearest in caught.value.problems[0].write
