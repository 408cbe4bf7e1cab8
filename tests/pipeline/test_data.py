import json
from pathlib import Path
from typing import Any

import pytest

from llmclick.data.order import in_hash_order
from llmclick.data.prompts import Prompt
from llmclick.data.rows import Row
from llmclick.errors import InputError
from llmclick.pipeline.data import Dataset, prepare, read_dataset, write_dataset


def tokenizer(lab: Any) -> Any:
    from llmclick.modeling.llm.models.base import load_tokenizer
    from llmclick.pipeline.preflight import resolve_model

    return load_tokenizer(resolve_model(lab.config(), convert=False))


def row(text: str, answer: str = "1") -> dict[str, str]:
    return {"prompt": text, "answer": answer}


def test_sides_are_disjoint_and_held_out_rows_in_hash_order(lab: Any) -> None:
    """20 rows, a fifth held out: 16 and 4, no prompt on both sides, held-out rows sorted by their hash."""
    config = lab.config()
    dataset = prepare(config, tokenizer(lab))
    assert (len(dataset.train), len(dataset.validation)) == (16, 4)
    assert not {p.text for p in dataset.train} & {p.text for p in dataset.validation}
    ids = [p.row.id for p in dataset.validation]
    assert in_hash_order(ids, config.pipeline.seed) == [0, 1, 2, 3]
    assert dataset.counts == {"train": 16, "validation": 4, "rows": 20, "skipped": 0}


def test_duplicates_are_reported_and_never_across_the_split(lab: Any) -> None:
    """Equal rows are kept and counted, one prompt with two answers is pointed out, and neither is split."""
    lab.write_rows([row("a"), row("a"), row("b", "1"), row("b", "2"), *(row(f"c{n}") for n in range(10))])
    dataset = prepare(lab.config("data.validation=4"), tokenizer(lab))
    assert len(dataset.train) + len(dataset.validation) == 14
    assert not {p.text for p in dataset.train} & {p.text for p in dataset.validation}
    assert any(n.startswith("1 of 14 rows repeat another row exactly") and ":2" in n for n in dataset.notices)
    assert any(n.startswith("1 prompts occur with different contents") and ":3 and" in n for n in dataset.notices)


def test_skip_counts_what_it_leaves_out(lab: Any) -> None:
    """A row that does not fit is left out before the split and counted in a notice with the reason."""
    lab.write_rows([row("9 " * 200), *(row(f"c{n}") for n in range(10))])
    with pytest.raises(InputError, match="1 of 11 rows do not fit"):
        prepare(lab.config(), tokenizer(lab))
    dataset = prepare(lab.config("training.overflow=skip"), tokenizer(lab))
    assert dataset.counts == {"train": 8, "validation": 2, "rows": 11, "skipped": 1}
    assert any(n.startswith("1 of 11 rows are left out (training.overflow: skip)") for n in dataset.notices)


def test_one_row_only_cannot_be_split(lab: Any) -> None:
    """One row, or one prompt many times: exit 2 with the count, because one side would be empty."""
    for rows in ([row("a")], [row("a", str(n)) for n in range(5)]):
        lab.write_rows(rows)
        with pytest.raises(InputError, match="1 different prompts") as caught:
            prepare(lab.config(), tokenizer(lab))
        assert caught.value.problems[0].key == "data.validation"


def own(lab: Any, rows: list[dict[str, str]]) -> str:
    path = lab.folder / "held.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return f"data.validation={{sources: [{{name: local_jsonl, path: {path}}}]}}"


def test_own_held_out_rows_keep_training_apart(lab: Any) -> None:
    """A training row that asks what a held-out row asks is left out of training and named; nothing else is held out."""
    lab.write_rows([row("a"), row("b"), row("c"), row("b", "other answer")])
    dataset = prepare(lab.config(own(lab, [row("b"), row("x")])), tokenizer(lab))
    assert sorted(p.row.data["prompt"] for p in dataset.train) == ["a", "c"]
    assert sorted(p.row.data["prompt"] for p in dataset.validation) == ["b", "x"]
    assert any(n.startswith("2 training rows ask what a held-out row asks") and "rows.jsonl:2" in n for n in dataset.notices)


def test_own_held_out_rows_are_measured_too(lab: Any) -> None:
    """The length check covers both sides."""
    override = own(lab, [row("9 " * 200), row("x")])
    with pytest.raises(InputError, match=r"held\.jsonl:1"):
        prepare(lab.config(override), tokenizer(lab))
    dataset = prepare(lab.config(override, "training.overflow=skip"), tokenizer(lab))
    assert dataset.counts["skipped_validation"] == 1
    assert any(n.startswith("1 of 2 held-out rows are left out") for n in dataset.notices)


def test_the_files_give_back_what_was_written(tmp_path: Path) -> None:
    """Key order, nested values, floats, large integers and half surrogates come back exactly; the files are ASCII."""
    data = {"z": [0.1, 1e-300, -0.0, 10**40], "prompt": "é\u2028\U0001f600", "answer": "\ud800", "n": {"b": None, "a": True}}
    prompts = [
        Prompt(Row(data, "f:1", "0123-0"), (1, 2, 300), "text \u2028"),
        Prompt(Row({"prompt": "x"}, "f:2", "4-1"), (), ""),
    ]
    write_dataset(tmp_path, Dataset(prompts, prompts[:1]))
    again = read_dataset(tmp_path)
    assert again.train == prompts
    assert again.validation == prompts[:1]
    assert list(again.train[0].row.data) == ["z", "prompt", "answer", "n"]
    (tmp_path / "train.jsonl").read_text(encoding="ascii")
    assert len((tmp_path / "train.jsonl").read_bytes().splitlines()) == 2
