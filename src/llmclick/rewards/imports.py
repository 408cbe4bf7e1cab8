"""The user's own Python files: `pipeline.imports`, and rewards typed into `modeling/llm/methods/grpo.py`."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from llmclick.errors import InputError, Problem
from llmclick.rewards import REWARDS

#: Where the user's page says to write rewards.
METHOD_MODULE = "llmclick.modeling.llm.methods.grpo"

_HERE = Path(__file__).parent
_PREFIX = "llmclick_user_"
_FILES = "LLMCLICK_USER_FILES"  # the environment's {module: file}, for the children of a process that loaded them


@dataclass(frozen=True)
class Loaded:
    """A user's file after it ran: the rewards it registered and the files of its folder that it brought along."""

    path: Path
    names: tuple[str, ...]
    siblings: tuple[Path, ...]


#: By resolved path. A file runs once in a process, however often it is named.
LOADED: dict[Path, Loaded] = {}


def load_own() -> None:
    """Imports the method file, where rewards may be typed in. Raises InputError if that file cannot be imported."""
    try:
        importlib.import_module(METHOD_MODULE)
    except InputError:
        raise
    except Exception as error:
        spec = importlib.util.find_spec(METHOD_MODULE)
        raise InputError(_refused(Path(spec.origin if spec and spec.origin else METHOD_MODULE), error, "")) from error


def load_imports(paths: Sequence[str | Path], where: str = "") -> list[str]:
    """Runs the user's files so that what they register is known, and the method file.

    Each file runs once in a process, as a module of its own; files beside it can be imported from it. Returns notices: files
    that register nothing, shipped rewards that are replaced. Raises InputError with every file that is missing or fails;
    `where` is the place that names the files.
    """
    problems: list[Problem] = []
    notices: list[str] = []
    try:
        load_own()
    except InputError as error:
        problems += error.problems
    for given in paths:
        path = Path(given)
        if path.resolve() not in LOADED:
            problems += _load(path, where)
        loaded = LOADED.get(path.resolve())
        if loaded is not None and not loaded.names:
            notices.append(f"{path} registers no reward")
    if problems:
        raise InputError(problems)
    notices += [f"{own.name}: yours ({own.file}:{own.line}) replaces the shipped reward" for own, _ in REWARDS.replaced]
    return notices


def own_traceback(error: BaseException) -> str:
    """The traceback of a user's code, without the frames of llmclick that called it."""
    shown = traceback.TracebackException.from_exception(error)
    ours = ("calls.py", "imports.py", "worker.py")
    kept = [
        frame
        for frame in shown.stack
        if not frame.filename.startswith("<frozen importlib")
        and not (Path(frame.filename).parent == _HERE and Path(frame.filename).name in ours)
    ]
    shown.stack = traceback.StackSummary.from_list(kept)
    return "".join(shown.format(chain=False)).rstrip()


def _load(path: Path, where: str) -> list[Problem]:
    real = path.resolve()
    if not real.is_file():
        return [
            Problem(
                where=where or str(path),
                key="pipeline.imports",
                given=str(path),
                why=f"{'a folder, not a file' if real.is_dir() else 'no such file'}: {real}",
                write="name an existing Python file, relative to the folder that you run in",
            )
        ]
    name = f"{_PREFIX}{hashlib.sha256(str(real).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}_{real.stem}"
    before, modules = {entry.name: entry for entry in REWARDS}, set(sys.modules)
    folder = str(real.parent)
    if folder not in sys.path:
        # Last: a user's math.py or json.py must not stand before the library's.
        sys.path.append(folder)
    importlib.invalidate_caches()
    os.environ[_FILES] = json.dumps(_files() | {name: str(real)})
    spec = _spec(name, str(real))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except InputError as error:  # two rewards of one name
        del sys.modules[name]
        return list(error.problems)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        return [_refused(real, error, where)]
    problem = _wrong_sibling(real)
    if problem is not None:
        return [problem]
    names = tuple(entry.name for entry in REWARDS if before.get(entry.name) is not entry)
    brought = {Path(file) for key in set(sys.modules) - modules if (file := getattr(sys.modules[key], "__file__", None))}
    siblings = _statically_imported(real) | {file.resolve() for file in brought if belongs_to(file, real.parent)}
    LOADED[real] = Loaded(real, names, tuple(sorted(siblings - {real})))
    return []


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the file as it is. A cached .pyc is told by size and whole seconds, so it may be of a text before this one."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


class _Finder:
    """Finds the user's files under the names that they are loaded as, in a process that did not load them.

    A function that a reward hands to `multiprocessing` travels as its module's name. Children by `spawn` and `forkserver`
    start empty, import the main module of the worker and with it this one, and look that name up.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        file = _files().get(name) if name.startswith(_PREFIX) else None
        return None if file is None else _spec(name, file)


def _files() -> dict[str, str]:
    try:
        found = json.loads(os.environ.get(_FILES, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _spec(name: str, file: str) -> importlib.machinery.ModuleSpec:
    spec = importlib.util.spec_from_file_location(name, file, loader=_Loader(name, file))
    assert spec is not None
    return spec


if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.append(_Finder())


def _refused(path: Path, error: BaseException, where: str) -> Problem:
    line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno and error.filename == str(path) else ""
    return Problem(
        where=f"{path}{line}",
        key="pipeline.imports" if where else "",
        why=f"the file cannot be imported:\n{own_traceback(error)}",
        write="mend the file; `python` with the file's name runs it alone",
    )


def belongs_to(file: Path, folder: Path) -> bool:
    """Whether a module's file is the user's own under `folder`: no installed package, none of llmclick's."""
    file, folder = file.resolve(), folder.resolve()
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    library = any(
        file.is_relative_to(Path(prefix).resolve()) and not folder.is_relative_to(Path(prefix).resolve())
        for prefix in {sys.prefix, sys.base_prefix}
    )
    return file.is_relative_to(folder) and not installed and not library and not file.is_relative_to(_HERE.parent)


def imported_names(path: Path) -> list[str]:
    """The modules that a file imports anywhere in its text, as dotted names."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def _sibling(folder: Path, name: str) -> Path | None:
    base = folder.joinpath(*name.split("."))
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


def _statically_imported(path: Path) -> set[Path]:
    """Files of the same folder that a file imports, and theirs: also those that were loaded before."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        for name in imported_names(waiting.pop()):
            file = _sibling(path.parent, name)
            if file is not None and file.resolve() not in found:
                found.add(file.resolve())
                waiting.append(file)
    return found


def _wrong_sibling(path: Path) -> Problem | None:
    """A name that the file imports, that lies beside it, and that is another module in this process."""
    for name in imported_names(path):
        module, file = sys.modules.get(name.partition(".")[0]), _sibling(path.parent, name.partition(".")[0])
        found = getattr(module, "__file__", None)
        if file is not None and found and Path(found).resolve() != file.resolve():
            return Problem(
                where=str(path),
                key="pipeline.imports",
                given=f"import {name}",
                why=f"{file} lies beside it, but another module of that name is used: {found}",
                write=f"give {file.name} another name",
            )
    return None
