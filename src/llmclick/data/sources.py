"""Where rows come from. A source is one decorated function: its part of the config in, (data, where) pairs and problems out."""

from __future__ import annotations

import base64
import datetime
import decimal
import difflib
import math
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmclick.data.rows import Row, canonical, check_prompt, identify, read_jsonl, rename, shorten
from llmclick.errors import InputError, Problem
from llmclick.registry import Registry

Pairs = list[tuple[dict[str, Any], str]]
"""What a source gives: (row as a JSON object, where it stands)."""


@dataclass
class Read:
    """What a source found: the rows that are whole, and everything that is wrong with the others."""

    pairs: Pairs = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


Source = Callable[[Any, str], Read]
"""`source(spec, where)`: spec is the source's part of the config, where its place (`configs/x.yaml:17`)."""

SOURCES: Registry[Source] = Registry("data source", "llmclick.data")

_DATA_FILES = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")


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
    """A dataset of the Hugging Face Hub at a pinned commit, or a local folder of Parquet, CSV, JSON or JSONL files.

    The Hub's files are fetched once into the usual cache under their commit, and then read as a local folder; with
    HF_HUB_OFFLINE=1 only the cache is asked. The `datasets` library gives columns a type: null stands for an absent key, and
    a CSV's 007 is 7. Dates become ISO text, decimals text, NaN (pandas' missing value) null; bytes that are no text, images
    and infinities are refused with the column's name.
    """
    folder = Path(spec.dataset).expanduser()
    local = spec.dataset.startswith((".", "/", "~")) or folder.exists()
    if local:
        if not folder.is_dir():
            why = "no such folder" if not folder.exists() else "this is a file; one .jsonl file is read by local_jsonl"
            return Read(problems=[Problem(where, "dataset", why, "a folder with data files", str(folder.absolute()))])
    else:
        fetched = _fetch(spec, where)
        if isinstance(fetched, Problem):
            return Read(problems=[fetched])
        folder = fetched
    if not any(path.suffix in _DATA_FILES for path in folder.rglob("*")):
        why = f"the folder holds no file that ends in {', '.join(_DATA_FILES)}"
        return Read(problems=[Problem(where, "dataset", why, "a folder with data files", str(folder.absolute()))])
    try:
        stream, split = _open(spec, folder, where)
        return _rows_of(stream, f"{spec.dataset}/{split}", spec.limit)
    except InputError as error:
        return Read(problems=list(error.problems))
    except Exception as error:
        # The library raises whatever its readers raise; for the user it is one thing: the files cannot be read.
        why = f"the datasets library cannot read it: {_first_line(error)}"
        return Read(problems=[Problem(where, "dataset", why, "files that load_dataset reads", spec.dataset)])


def _fetch(spec: Any, where: str) -> Path | Problem:
    """The dataset's files at the pinned commit, in the Hub's cache."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    name = f"{spec.dataset} at {spec.revision}"
    patterns = ["README.md", *(f"*{ending}" for ending in _DATA_FILES)]
    try:
        return Path(snapshot_download(spec.dataset, repo_type="dataset", revision=spec.revision, allow_patterns=patterns))
    except RevisionNotFoundError:
        return Problem(where, "revision", "the Hub has no such commit of this dataset", "a full commit of it", name)
    except RepositoryNotFoundError:
        why = "the Hub has no such dataset, or it is private and HF_TOKEN is not set"
        return Problem(where, "dataset", why, "owner/name as on the Hub, or a local folder", name)
    except (LocalEntryNotFoundError, OSError) as error:
        if constants.HF_HUB_OFFLINE:
            why = "it is not in the Hub's cache, and HF_HUB_OFFLINE is set, so the Hub is not asked"
        else:
            why = f"the Hub cannot be reached and the dataset is not in its cache ({_first_line(error)})"
        return Problem(
            where,
            "dataset",
            given=name,
            why=why,
            write="a local folder that holds the files (dataset: ./my_folder), or HF_HOME=<a cache that has it>",
        )
    except Exception as error:
        why = f"the Hub did not give it: {_first_line(error)}"
        return Problem(where, "dataset", why, "owner/name and a full commit, or a local folder", name)


def _open(spec: Any, folder: Path, where: str) -> tuple[Iterable[Mapping[str, Any]], str]:
    """The stream of one split. Streaming reads the files themselves: no second copy in a cache that could be stale."""
    import datasets

    path = str(folder)
    subsets = datasets.get_dataset_config_names(path)
    if spec.subset is not None and spec.subset not in subsets:
        raise InputError(_not_there("subset", spec.subset, subsets, where))
    if spec.subset is None and len(subsets) > 1 and "default" not in subsets:
        raise InputError(_not_there("subset", None, subsets, where))
    streams = datasets.load_dataset(path, name=spec.subset, streaming=True)
    split = spec.split
    if split is None and len(streams) == 1:
        split = next(iter(streams))
    if split not in streams:
        raise InputError(_not_there("split", split, sorted(map(str, streams)), where))
    return streams[split], str(split)


def _not_there(key: str, given: str | None, known: Sequence[str], where: str) -> Problem:
    near = difflib.get_close_matches(given or "", known, n=1)
    return Problem(
        where,
        key,
        given=given or "(nothing)",
        why=f"the dataset has {key}s {', '.join(known)}" if given else f"the dataset has several {key}s: {', '.join(known)}",
        write=f"{key}: {near[0] if near else known[0] if known else '...'}",
    )


def _rows_of(stream: Iterable[Mapping[str, Any]], name: str, limit: int | None) -> Read:
    read = Read()
    for number, record in enumerate(stream, start=1):
        if limit is not None and number > limit:
            break
        where = f"{name}:{number}"
        try:
            data = {str(column): json_value(value, str(column)) for column, value in record.items()}
            canonical(data)
        except ValueError as error:
            write = "a dataset without this column, or with text or numbers in it"
            read.problems.append(Problem(where, "", str(error), write))
            continue
        read.pairs.append((data, where))
    if not read.pairs and not read.problems:
        read.problems.append(Problem(name, "", "the split has no rows", "a split with rows"))
    return read


def json_value(value: Any, column: str) -> Any:
    """A value as Python's JSON values; ValueError names the column of one that has no such form."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"column {column!r} holds an infinite number, which is no JSON value")
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(key): json_value(child, f"{column}.{key}") for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(child, column) for child in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            sample = base64.b64encode(bytes(value)[:6]).decode()
            raise ValueError(f"column {column!r} holds bytes that are no UTF-8 text (base64 {sample}...)") from None
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return json_value(value.tolist(), column)
    raise ValueError(f"column {column!r} holds a {type(value).__name__}, which is no JSON value")


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
    return Read(pairs, shorten(problems, "rows"))


def read_sources(specs: Sequence[Any], where: Callable[[int], str]) -> tuple[list[Row], list[Problem]]:
    """The rows of several sources one after the other, with ids counted over all of them."""
    pairs: Pairs = []
    problems: list[Problem] = []
    for number, spec in enumerate(specs):
        read = read_source(spec, where(number))
        pairs += read.pairs
        problems += read.problems
    return identify(pairs), problems


@dataclass(frozen=True)
class Rows:
    """All rows of a config. `held_out` are the user's own held-out rows, None if they are to be split off `rows`."""

    rows: tuple[Row, ...]
    held_out: tuple[Row, ...] | None
    problems: tuple[Problem, ...]


def read_rows(config: Any) -> Rows:
    """Read every source of `data.sources` and of `data.validation.sources`; problems are returned, not raised."""
    rows, problems = read_sources(config.data.sources, lambda n: config.where(f"data.sources.{n}"))
    own = getattr(config.data.validation, "sources", None)
    if own is None:
        return Rows(tuple(rows), None, tuple(problems))
    held_out, more = read_sources(own, lambda n: config.where(f"data.validation.sources.{n}"))
    return Rows(tuple(rows), tuple(held_out), (*problems, *more))
