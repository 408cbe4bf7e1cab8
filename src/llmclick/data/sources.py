"""Where rows come from. A source is one decorated function: its part of the config in, (data, where) pairs and problems out."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmclick.data.fields import rename
from llmclick.data.files import DATA_FILES, is_data_file
from llmclick.data.problems import fold, shorten
from llmclick.data.rows import Row, check_prompt, identify, read_jsonl
from llmclick.data.splits import fetch, files_of
from llmclick.data.tables import Pairs, Read, json_value, read_files
from llmclick.errors import InputError, Problem
from llmclick.registry import Registry

Source = Callable[[Any, str], Read]
"""`source(spec, where)`: spec is the source's part of the config, where its place (`configs/x.yaml:17`)."""

SOURCES: Registry[Source] = Registry("data source", "llmclick.data")


@SOURCES.register("local_jsonl")
def local_jsonl(spec: Any, where: str) -> Read:
    """A JSON lines file: one object per line."""
    path = Path(spec.path).expanduser()
    if not path.is_file():
        return Read(problems=[_no_file(path, where)])
    try:
        pairs, problems = read_jsonl(path, str(spec.path), spec.limit)
    except OSError as error:
        why = f"the file cannot be read: {error.strerror or error}"
        return Read(problems=[Problem(where, "path", why, "a readable file", str(path.absolute()))])
    if not pairs and not problems:
        problems = [Problem(str(spec.path), "", "the file has no rows", "one JSON object per line", str(path.absolute()))]
    return Read(pairs, problems)


def _no_file(path: Path, where: str) -> Problem:
    """A path that is no file, with what lies there or nearby."""
    tried = str(path.absolute())
    if path.is_dir():
        return Problem(where, "path", "this is a folder, not a file", "the path of one .jsonl file in it", tried)
    here = path.absolute().parent
    while not here.exists():
        here = here.parent
    if here != path.absolute().parent or not here.is_dir():
        return Problem(where, "path", f"no such file: {here} is as far as the path exists", "a path from where you run", tried)
    near = difflib.get_close_matches(path.name, sorted(os.listdir(here)), n=3, cutoff=0.5)
    return Problem(
        where,
        "path",
        given=tried,
        why="no such file" + (f"; beside it lies {', '.join(near)}" if near else ""),
        write="a path relative to the folder in which you run llmclick, or an absolute one",
    )


@SOURCES.register("huggingface")
def huggingface(spec: Any, where: str) -> Read:
    """A dataset of the Hugging Face Hub at a pinned commit, a local folder of Parquet, CSV, JSON or JSONL files, or one such
    file.

    The Hub's files are fetched once into the usual cache under their commit, and then read as a local folder; with
    HF_HUB_OFFLINE=1 only the cache is asked. Which files belong to a split the `datasets` library says; the rows are read by
    `tables`. Dates of Parquet become ISO text, decimals text, NaN (pandas' missing value) null; bytes that are not text, images
    and infinities are refused with the column's name, which `fields: {column: null}` leaves out.
    """
    folder = Path(spec.dataset).expanduser()
    local = spec.dataset.startswith((".", "/", "~")) or folder.exists()
    if local and folder.is_file() and is_data_file(folder):
        return _read_split([(folder, str(spec.dataset))], {}, spec, where)
    if local:
        if not folder.is_dir():
            why = "no such folder or file" if not folder.exists() else f"this file does not end in {', '.join(DATA_FILES)}"
            return Read(problems=[Problem(where, "dataset", why, "a folder with data files, or one", str(folder.absolute()))])
    else:
        fetched = fetch(spec, where)
        if isinstance(fetched, Problem):
            return Read(problems=[fetched])
        folder = fetched
    if not any(is_data_file(path) for path in folder.rglob("*")):
        why = f"the folder holds no file that ends in {', '.join(DATA_FILES)}"
        return Read(problems=[Problem(where, "dataset", why, "a folder with data files", str(folder.absolute()))])
    try:
        files, options, notices = files_of(spec, folder, where, local=local)
    except InputError as error:
        return Read(problems=list(error.problems))
    except Exception as error:
        # The library raises whatever it meets in a folder or a card; for the user it is one thing: the files are not found.
        why = f"the datasets library cannot read the folder: {_first_line(error)}"
        return Read(problems=[Problem(where, "dataset", why, "files that load_dataset reads", spec.dataset)])
    read = _read_split(files, options, spec, where)
    read.notices[:0] = notices
    return read


def _read_split(files: Sequence[tuple[Path, str]], options: dict[str, Any], spec: Any, where: str) -> Read:
    without = {column for column, source in (spec.fields or {}).items() if source is None}
    try:
        read = read_files(files, without=without, limit=spec.limit, **options)
    except OSError as error:
        why = f"a file cannot be read: {error.strerror or error}"
        return Read(problems=[Problem(where, "dataset", why, "readable files", str(error.filename or spec.dataset))])
    if not read.pairs and not read.problems:
        name = files[0][1] if len(files) == 1 else f"{spec.dataset}, split {spec.split}"
        read.problems.append(Problem(name, "", "there are no rows in it", "a split or a file with rows"))
    return read


@SOURCES.register("reasoning_gym")
def reasoning_gym(spec: Any, where: str) -> Read:
    """Procedural tasks of the reasoning-gym package: question as prompt, answer, and metadata for its own scorer."""
    try:
        import reasoning_gym as gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        write = "uv sync --extra reasoning-gym, or pip install 'llmclick[reasoning-gym]'"
        return Read(problems=[Problem(where, "name", "the package reasoning-gym is not installed", write, "reasoning_gym")])
    if spec.task not in DATASETS:
        near = difflib.get_close_matches(spec.task, sorted(DATASETS), n=3)
        why = f"reasoning-gym has no such task; it has {len(DATASETS)}" + (f", among them {', '.join(near)}" if near else "")
        return Read(problems=[Problem(where, "task", why, f"task: {near[0] if near else 'chain_sum'}", spec.task)])
    options = dict(spec.config or {})
    try:
        tasks = gym.create_dataset(spec.task, size=spec.size, seed=spec.seed, **options)
        wanted = range(spec.size if spec.limit is None else min(spec.limit, spec.size))
        pairs: Pairs = []
        for number in wanted:
            item = tasks[number]
            metadata = json_value(item.get("metadata") or {}, "metadata")
            # A task's number says nothing about it; with it two equal sums would be two different rows.
            metadata.pop("source_index", None)
            data = {
                "prompt": item["question"],
                "answer": json_value(item["answer"], "answer"),
                "metadata": metadata,
                "task": spec.task,
            }
            pairs.append((data, f"reasoning_gym/{spec.task}:{number + 1}"))
    except Exception as error:
        why = f"reasoning-gym refuses this: {_first_line(error)}"
        return Read(problems=[Problem(where, "config", why, "size, seed and config that the task takes", str(options))])
    return Read(pairs)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def read_source(spec: Any, where: str) -> Read:
    """One source's rows, renamed by `fields`, cut to `limit`, each with a prompt that can be used; all problems collected."""
    if spec.name not in SOURCES:
        known = SOURCES.nearest(spec.name)
        return Read(
            problems=[Problem(where, "name", f"the data sources are {', '.join(known)}", f"name: {known[0]}", spec.name)]
        )
    read = SOURCES.get(spec.name).value(spec, where)
    pairs: Pairs = []
    problems = list(read.problems)
    for raw, place in read.pairs[: spec.limit]:
        data, problem = rename(raw, spec.fields or {}, place)
        problem = problem or check_prompt(data, place)
        if problem is None:
            pairs.append((data, place))
        else:
            problems.append(problem)
    return Read(pairs, shorten(fold(problems), "problems"), read.notices)


def read_sources(specs: Sequence[Any], where: Callable[[int], str]) -> tuple[list[Row], list[Problem]]:
    """The rows of several sources one after the other, with ids counted over all of them."""
    rows, problems, _ = _read_all(specs, where)
    return rows, problems


def _read_all(specs: Sequence[Any], where: Callable[[int], str]) -> tuple[list[Row], list[Problem], list[str]]:
    pairs: Pairs = []
    problems: list[Problem] = []
    notices: list[str] = []
    for number, spec in enumerate(specs):
        read = read_source(spec, where(number))
        pairs += read.pairs
        problems += read.problems
        notices += read.notices
    return identify(pairs), problems, notices


@dataclass(frozen=True)
class Rows:
    """All rows of a config, and what is worth saying about their files. `held_out` are the user's own held-out rows, None if
    they are to be split off `rows`."""

    rows: tuple[Row, ...]
    held_out: tuple[Row, ...] | None
    problems: tuple[Problem, ...]
    notices: tuple[str, ...] = ()


def read_rows(config: Any) -> Rows:
    """Read every source of `data.sources` and of `data.validation.sources`; problems are returned, not raised."""
    rows, problems, notices = _read_all(config.data.sources, lambda n: config.where(f"data.sources.{n}"))
    own = getattr(config.data.validation, "sources", None)
    if own is None:
        return Rows(tuple(rows), None, tuple(problems), tuple(notices))
    held_out, more, said = _read_all(own, lambda n: config.where(f"data.validation.sources.{n}"))
    return Rows(tuple(rows), tuple(held_out), (*problems, *more), (*notices, *said))
