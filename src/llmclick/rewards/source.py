"""What a reward's score depends on beside its params: a shipped reward's declared number, the bytes of a user's own files."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from llmclick.errors import Problem, RewardError
from llmclick.registry import Entry
from llmclick.rewards import REWARDS, Reward
from llmclick.rewards.imports import LOADED, belongs_to, imported_names, load_imports
from llmclick.rewards.validate import NamedSpec
from llmclick.semantics import installed_version


def reward_sources(specs: Sequence[NamedSpec], imports: Sequence[str | Path]) -> dict[str, Any]:
    """What stands for the code of each reward, by its name.

    A shipped reward: the `version` of its registration (1 if it says none) and the versions of the `libraries` that score for
    it. A user's reward: the SHA-256 over the bytes of the file that defines it, of the file of `imports` that registered it,
    and of every module that importing these loaded from under their folder, with the versions of the libraries they import.

    Bytes of files, never the text of functions: closures made by one factory share their text, and a decorator shows its
    wrapper. Raises InputError if a file of `imports` cannot be loaded.
    """
    load_imports(imports)
    return {spec.name: _source(REWARDS.get(spec.name), imports) for spec in specs}


def source_files(specs: Sequence[NamedSpec], imports: Sequence[str | Path]) -> dict[str, str]:
    """SHA-256 by path of every file that `reward_sources` counts. Each worker reads these files once more when it starts, so a
    run keeps this to know that they are still what its fingerprint says. Raises InputError as `reward_sources` does."""
    load_imports(imports)
    entries = [REWARDS.get(spec.name) for spec in specs]
    found = {file for entry in entries if not entry.shipped for file in _own_files(entry, imports)}
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(found)}


def changed_files(files: Mapping[str, str]) -> list[str]:
    """Which of the files that `source_files` named have other bytes by now, or are gone."""
    return [path for path, digest in files.items() if _sha256(Path(path)) != digest]


def check_unchanged(changed: Iterable[str]) -> None:
    """Raises RewardError if any file changed: scores from the new text must not stand under the old one's fingerprint."""
    problems = [
        Problem(
            where=path,
            key="method.reward",
            why="the file was edited or removed after this run had read it: what is scored next would be another reward's",
            write="put the file back as it was, and the same command continues; as it is now, the same command begins another "
            "experiment",
        )
        for path in changed
    ]
    if problems:
        raise RewardError(problems)


def _sha256(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _source(entry: Entry[Reward], imports: Sequence[str | Path]) -> Any:
    if entry.shipped:
        libraries = entry.options.get("libraries", ())
        return {"version": entry.options.get("version", 1), **{name: installed_version(name) for name in libraries}}
    files = _own_files(entry, imports)
    digest = _digest(files, Path(entry.file).resolve().parent)
    versions = {name: installed_version(name) for name in _libraries(files)}
    return {"source": digest, **versions} if versions else digest


def _own_files(entry: Entry[Reward], imports: Sequence[str | Path]) -> set[Path]:
    file = Path(entry.file).resolve()
    files = {file} if file.is_file() else set()
    for path in map(Path, imports):
        loaded = LOADED.get(path.resolve())
        if loaded is not None and (entry.name in loaded.names or loaded.path == file):
            files |= {loaded.path, *loaded.siblings}
    if len(files) == 1:
        files |= {other for other in _beside(file) if belongs_to(other, file.parent)}
    return files


def _libraries(files: Iterable[Path]) -> list[str]:
    """The installed distributions that the files import from; Python's own modules count for nothing."""
    imported = {name.partition(".")[0] for file in files for name in imported_names(file)}
    imported -= {*sys.stdlib_module_names, "llmclick", *(file.stem for file in files)}
    if not imported:
        return []
    known = packages_distributions()
    return sorted({distribution for name in imported for distribution in known.get(name, ())})


def _digest(files: set[Path], folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(files):
        name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name
        data = file.read_bytes()
        total.update(f"{len(name.encode('utf-8', 'surrogatepass'))} {len(data)}\n".encode())
        total.update(name.encode("utf-8", "surrogatepass"))
        total.update(data)
    return total.hexdigest()


def _beside(file: Path) -> set[Path]:
    found, waiting = {file}, [file]
    while waiting:
        for name in imported_names(waiting.pop()):
            other = file.parent.joinpath(*name.split(".")).with_suffix(".py")
            if other.is_file() and other.resolve() not in found:
                found.add(other.resolve())
                waiting.append(other)
    return found
