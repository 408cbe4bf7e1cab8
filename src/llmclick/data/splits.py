"""Which files of a data set belong to a split: fetched from the Hub at a pinned commit, named by the `datasets` library."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmclick.data.files import COMPRESSED, DATA_FILES, is_data_file
from llmclick.errors import InputError, Problem

_KNOWN_OPTIONS = {"name", "version", "data_dir", "data_files", "description", "features", "sep", "delimiter"}
"""What a data set's card may say about its files. Types (`features`) are the files' own here."""


def fetch(spec: Any, where: str) -> Path | Problem:
    """The dataset's files at the pinned commit, in the Hub's cache."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    name = f"{spec.dataset} at {spec.revision}"
    endings = [f"*{ending}{packed}" for ending in DATA_FILES for packed in ("", *COMPRESSED)]
    try:
        return Path(
            snapshot_download(spec.dataset, repo_type="dataset", revision=spec.revision, allow_patterns=["README.md", *endings])
        )
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


def files_of(spec: Any, folder: Path, where: str, *, local: bool) -> tuple[list[tuple[Path, str]], dict[str, Any], list[str]]:
    """The files of the split as (path, name for people), how the card says to read them, and what is worth saying.

    Raises InputError for a subset or split that is not there, for a way of reading that is not known, and for files of a local
    folder that belong to no split: nothing is left out without a word.
    """
    import datasets

    path = str(folder)
    subsets = datasets.get_dataset_config_names(path)
    if (spec.subset is not None and spec.subset not in subsets) or (
        spec.subset is None and len(subsets) > 1 and "default" not in subsets
    ):
        raise InputError(_not_there("subset", spec.subset, subsets, where))
    builder = datasets.load_dataset_builder(path, name=spec.subset)
    splits = {str(split): list(files) for split, files in (builder.config.data_files or {}).items()}
    split = spec.split
    if split is None and len(splits) == 1:
        split = next(iter(splits))
    if split not in splits:
        raise InputError(_not_there("split", split, sorted(splits), where))
    base = folder.resolve()
    left_out = [] if _has_card(folder) else _left_out(base, splits)
    if left_out and local:
        raise InputError(_belong_nowhere(left_out, splits, spec, where))
    notices = [f"{spec.dataset}: belongs to no split and is not read: {', '.join(left_out[:5])}"] if left_out else []
    files = [(Path(name), f"{spec.dataset.rstrip('/')}/{_relative(name, base)}") for name in splits[split]]
    return files, _options(builder.config, where), notices


def _relative(name: str, base: Path) -> str:
    path = Path(name)
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name


def _has_card(folder: Path) -> bool:
    """Whether the data set's own card says which files belong to which split."""
    from huggingface_hub import DatasetCard

    readme = folder / "README.md"
    return readme.is_file() and bool(DatasetCard.load(readme).data.to_dict().get("configs"))


def _left_out(base: Path, splits: dict[str, list[str]]) -> list[str]:
    """Data files of the folder that are in no split, as paths below it; hidden ones do not count."""
    used = {_relative(name, base) for files in splits.values() for name in files}
    found = (path.relative_to(base) for path in sorted(base.rglob("*")) if path.is_file() and is_data_file(path))
    visible = (name for name in found if not any(part.startswith((".", "__")) for part in name.parts))
    return [name.as_posix() for name in visible if name.as_posix() not in used]


def _belong_nowhere(left_out: Sequence[str], splits: dict[str, list[str]], spec: Any, where: str) -> Problem:
    read = ", ".join(f"{split} ({len(files)} file{'s' if len(files) != 1 else ''})" for split, files in splits.items())
    first = f"{spec.dataset.rstrip('/')}/{left_out[0]}"
    return Problem(
        where,
        "dataset",
        given=", ".join(left_out[:5]) + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""),
        why=f"the datasets library finds the splits {read} in this folder, and would leave these files out",
        write=f"a source of its own for each file (dataset: {first}), or move the files that are not meant out of the folder",
    )


def _options(config: Any, where: str) -> dict[str, Any]:
    """How the card says to read the files; only a CSV's separator is known."""
    plain = type(config)()
    changed = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in _KNOWN_OPTIONS and getattr(config, field.name) != getattr(plain, field.name)
    }
    if changed:
        name = next(iter(changed))
        why = f"the data set's card sets {name!r} for reading its files, which is not supported here"
        write = "a copy of the files without it, as a local folder of Parquet, CSV, JSON or JSONL files"
        raise InputError(Problem(where, "dataset", why, write, f"{name}: {changed[name]!r}"[:200]))
    separator = getattr(config, "delimiter", None) or getattr(config, "sep", ",")
    return {} if separator == "," else {"delimiter": separator}


def _not_there(key: str, given: str | None, known: Sequence[str], where: str) -> Problem:
    near = difflib.get_close_matches(given or "", known, n=1)
    return Problem(
        where,
        key,
        given=given or "(nothing)",
        why=f"the dataset has {key}s {', '.join(known)}" if given else f"the dataset has several {key}s: {', '.join(known)}",
        write=f"{key}: {near[0] if near else known[0] if known else '...'}",
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
