"""The data stage: rows to a training side and a held-out side, each a list of prompts, written as two JSON lines files."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmclick.data.order import in_hash_order, split
from llmclick.data.prompts import Prompt, Rendered, render
from llmclick.data.rows import Row, content_hash
from llmclick.data.sources import Rows, read_rows
from llmclick.errors import InputError, Problem

SIDES = ("train", "validation")


@dataclass(frozen=True)
class Dataset:
    """Prompts for training and held-out prompts (in hash order), what was left out, and what is worth saying."""

    train: list[Prompt]
    validation: list[Prompt]
    notices: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def prepare(
    config: Any, tokenizer: Any, *, context: int | None = None, rows: Rows | None = None, stop_ids: Sequence[int] = ()
) -> Dataset:
    """Read, render, measure and split. Raises InputError with every problem of every row.

    `context` is the model's own length limit, `rows` what was read before, `stop_ids` what ends a completion.
    """
    dataset, problems = try_prepare(config, tokenizer, context=context, rows=rows, stop_ids=stop_ids)
    if problems:
        raise InputError(problems)
    return dataset


def try_prepare(
    config: Any, tokenizer: Any, *, context: int | None = None, rows: Rows | None = None, stop_ids: Sequence[int] = ()
) -> tuple[Dataset, list[Problem]]:
    """As `prepare`, with the problems returned beside what could be made of the rest."""
    read = read_rows(config) if rows is None else rows
    problems = list(read.problems)
    options = {
        "system": config.data.system,
        "thinking": config.model.thinking,
        "variables": config.model.template,
        "stop_ids": stop_ids,
        "max_new_tokens": config.method.max_new_tokens,
        "max_length": config.training.max_length,
        "context": context,
        "overflow": config.training.overflow,
    }
    main = render(read.rows, tokenizer, **options)
    problems += main.problems
    seed = config.pipeline.seed
    notices = [*read.notices, *main.notices]
    if read.held_out is None:
        train, validation, more = _split_off(main, config, seed)
        skipped = {"skipped": len(main.skipped)}
        problems += [] if problems else more
        if main.skipped:
            notices.append(_left_out(main.skipped, len(read.rows), "rows", config))
        notices += _about_duplicates(read.rows, main.prompts)
    else:
        own = render(read.held_out, tokenizer, **options)
        problems += own.problems
        notices += [notice for notice in own.notices if notice not in notices]
        order = in_hash_order([prompt.row.id for prompt in own.prompts], seed)
        validation = [own.prompts[i] for i in order]
        train, apart = _kept_apart(main.prompts, validation)
        notices += apart
        skipped = {"skipped_train": len(main.skipped), "skipped_validation": len(own.skipped)}
        for side, rendered, count in (("training", main, len(read.rows)), ("held-out", own, len(read.held_out))):
            if rendered.skipped:
                notices.append(_left_out(rendered.skipped, count, f"{side} rows", config))
        notices += _about_duplicates(read.rows, main.prompts)
        if not problems:
            problems += _empty_sides(train, validation, config)
    counts = {"train": len(train), "validation": len(validation), "rows": len(read.rows), **skipped}
    return Dataset(train, validation, notices, counts), problems


def _split_off(main: Rendered, config: Any, seed: int) -> tuple[list[Prompt], list[Prompt], list[Problem]]:
    prompts = main.prompts
    ours, theirs = split([p.row.id for p in prompts], [p.text for p in prompts], config.data.validation, seed)
    train, validation = [prompts[i] for i in ours], [prompts[i] for i in theirs]
    return train, validation, _empty_sides(train, validation, config)


def _empty_sides(train: Sequence[Prompt], validation: Sequence[Prompt], config: Any) -> list[Problem]:
    if train and validation:
        return []
    side = "training" if not train else "the held-out side"
    different = len({prompt.text for prompt in [*train, *validation]})
    given = getattr(config.data.validation, "sources", None)
    return [
        Problem(
            config.where("data.validation"),
            "data.validation",
            given=f"{len(train) + len(validation)} rows with {different} different prompts, validation: "
            + ("own sources" if given is not None else str(config.data.validation)),
            why=f"nothing is left for {side}; rows with the same prompt stay on one side",
            write="more rows with different prompts, or another data.validation",
        )
    ]


def _kept_apart(train: Sequence[Prompt], validation: Sequence[Prompt]) -> tuple[list[Prompt], list[str]]:
    """The training prompts that are not held out as well. The user's held-out file is the promise, so training gives way."""
    held = {prompt.text for prompt in validation}
    both = [prompt for prompt in train if prompt.text in held]
    if not both:
        return list(train), []
    places = ", ".join(prompt.row.where for prompt in both[:5]) + (" and more" if len(both) > 5 else "")
    notice = f"{len(both)} training rows ask what a held-out row asks and are left out of training: {places}"
    return [prompt for prompt in train if prompt.text not in held], [notice]


def _left_out(skipped: Sequence[Prompt], count: int, what: str, config: Any) -> str:
    longest = max(len(prompt.ids) for prompt in skipped)
    return (
        f"{len(skipped)} of {count} {what} are left out (training.overflow: skip): with max_new_tokens "
        f"{config.method.max_new_tokens} they do not fit max_length {config.training.max_length}; the longest prompt has "
        f"{longest} tokens; first: {skipped[0].row.where}"
    )


def _about_duplicates(rows: Sequence[Row], prompts: Sequence[Prompt]) -> list[str]:
    """Equal rows are kept (each draws its own completions) and counted; equal prompts with other contents are pointed out."""
    notices = []
    equal = [row for row in rows if not row.id.endswith("-0")]
    if equal:
        notices.append(f"{len(equal)} of {len(rows)} rows repeat another row exactly; first: {equal[0].where}")
    contents: dict[str, dict[str, str]] = defaultdict(dict)
    for prompt in prompts:
        contents[prompt.text].setdefault(content_hash(prompt.row.data), prompt.row.where)
    clashes = [list(places.values()) for places in contents.values() if len(places) > 1]
    if clashes:
        notices.append(
            f"{len(clashes)} prompts occur with different contents (another answer?); first: {' and '.join(clashes[0][:3])}"
        )
    return notices


def write_dataset(folder: Path, dataset: Dataset) -> dict[str, Path]:
    """Write `train.jsonl` and `validation.jsonl` into an existing folder, each whole and synced. Returns them by side."""
    paths = {}
    for side in SIDES:
        path = folder / f"{side}.jsonl"
        with path.open("w", encoding="ascii", newline="\n") as file:
            for prompt in getattr(dataset, side):
                record = {
                    "id": prompt.row.id,
                    "where": prompt.row.where,
                    "row": prompt.row.data,
                    "ids": prompt.ids,
                    "text": prompt.text,
                }
                # ASCII only: half surrogate pairs come back as they were. Key order is the user's own.
                file.write(json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())
        paths[side] = path
    return paths


def read_dataset(folder: Path) -> Dataset:
    """What `write_dataset` wrote; the notices and counts are in the stage's manifest."""
    sides = {side: _read_side(folder / f"{side}.jsonl") for side in SIDES}
    return Dataset(sides["train"], sides["validation"], counts={side: len(prompts) for side, prompts in sides.items()})


def _read_side(path: Path) -> list[Prompt]:
    prompts = []
    with path.open(encoding="ascii") as file:
        for line in file:
            record = json.loads(line)
            row = Row(record["row"], record["where"], record["id"])
            prompts.append(Prompt(row, tuple(record["ids"]), record["text"]))
    return prompts
