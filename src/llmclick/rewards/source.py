"""What a reward's score depends on: the bytes of the files that define it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from llmclick.errors import Problem, RewardError
from llmclick.rewards import REWARDS
from llmclick.rewards.imports import LOADED, belongs_to, imported_names, load_imports
from llmclick.rewards.validate import NamedSpec

_HERE = Path(__file__).parent


def source_hash(specs: Sequence[NamedSpec], imports: Sequence[str | Path]) -> dict[str, str]:
    """SHA-256 by reward name, over the bytes of the file that defines the reward, of the file of `imports` that registered it,
    and of every module that importing these loaded from under their folder.

    Bytes of files, never the text of functions: closures made by one factory share their text, and a decorator shows its
    wrapper. Raises InputError if a file of `imports` cannot be loaded.
    """
    load_imports(imports)
    return {spec.name: _digest(*_files(spec.name, imports)) for spec in specs}


def source_files(specs: Sequence[NamedSpec], imports: Sequence[str | Path]) -> dict[str, str]:
    """SHA-256 by path of every file that `source_hash` counts. Each worker reads these files once more when it starts, so a
    run keeps this to know that they are still what its fingerprint says. Raises InputError as `source_hash` does."""
    load_imports(imports)
    found = {file for spec in specs for file in _files(spec.name, imports)[0]}
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


def _files(name: str, imports: Sequence[str | Path]) -> tuple[set[Path], Path]:
    """The files that a reward's score depends on, and the folder of the one that defines it."""
    entry = REWARDS.get(name)
    file = Path(entry.file).resolve()
    if entry.shipped:
        return _shipped_files(file), file.parent
    files = {file} if file.is_file() else set()
    for path in map(Path, imports):
        loaded = LOADED.get(path.resolve())
        if loaded is not None and (name in loaded.names or loaded.path == file):
            files |= {loaded.path, *loaded.siblings}
    if len(files) == 1:
        files |= {other for other in _beside(file) if belongs_to(other, file.parent)}
    return files, file.parent


def _digest(files: set[Path], folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(files):
        name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name
        data = file.read_bytes()
        total.update(f"{len(name.encode('utf-8', 'surrogatepass'))} {len(data)}\n".encode())
        total.update(name.encode("utf-8", "surrogatepass"))
        total.update(data)
    return total.hexdigest()


def _shipped_files(file: Path) -> set[Path]:
    """A shipped reward's module and the modules of this package that it imports, and theirs."""
    found, waiting = {file}, [file]
    while waiting:
        for name in imported_names(waiting.pop()):
            other = _HERE / f"{name.removeprefix('llmclick.rewards.')}.py"
            if name.startswith("llmclick.rewards.") and other.is_file() and other not in found:
                found.add(other)
                waiting.append(other)
    return found


def _beside(file: Path) -> set[Path]:
    found, waiting = {file}, [file]
    while waiting:
        for name in imported_names(waiting.pop()):
            other = file.parent.joinpath(*name.split(".")).with_suffix(".py")
            if other.is_file() and other.resolve() not in found:
                found.add(other.resolve())
                waiting.append(other)
    return found
