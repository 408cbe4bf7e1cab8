"""`llmclick reward`: one completion or a file of them, scored as a run would score them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmclick.data.rows import identify
from llmclick.errors import InputError, Problem
from llmclick.rewards.imports import load_imports
from llmclick.rewards.scoring import Scorer, ToScore
from llmclick.rewards.validate import check_specs

_LINE = 'write one object a line: {"completion": "...", "row": {"answer": "11"}}'
_BATCH = 256


@dataclass(frozen=True)
class _Spec:
    """What the scorer reads of a config's RewardSpec, with its defaults."""

    name: str
    params: dict[str, Any]
    weight: float = 1.0
    timeout: float = 10.0
    on_error: str = "fail"
    pass_at: float = 1.0


@dataclass
class _Trial:
    """A completion with its row; `extra` is the whole line."""

    completion: str
    row: dict[str, Any]
    where: str
    extra: dict[str, Any] = field(default_factory=dict)


def try_one(name: str, params: str | None, imports: Sequence[Path], completion: str, row: str | None) -> dict[str, Any]:
    """Scores one completion. Gives `reward`, and `refused` (why) for a row that a run would refuse. Raises InputError for an
    unknown reward, params or JSON that cannot be used, and a reward that fails."""
    spec = _spec(name, params, imports)
    data = {} if row is None else _object(row, "--row", "row", 'write an object such as {"answer": "11"}')
    answered = next(iter(_answer(spec, imports, [_Trial(completion, data, "--row")])))
    if row is None and "refused" in answered:
        answered["refused"] = (
            f"""{name} needs the row too, such as --row '{{"answer": "11"}}'; without: {answered["refused"]}"""
        )
    return answered


def try_file(name: str, params: str | None, imports: Sequence[Path], file: Path) -> Iterator[dict[str, Any]]:
    """Scores every line of a file, in order: the line with `reward` added, and `refused` for an unusable row. All unreadable
    lines are reported together before anything is scored."""
    spec = _spec(name, params, imports)
    yield from _answer(spec, imports, _read(file))


def _spec(name: str, params: str | None, imports: Sequence[Path]) -> _Spec:
    load_imports(imports, "--imports")
    given = {} if params is None else _object(params, "--params", "params", 'write an object such as {"keys": ["city"]}')
    spec = _Spec(name, given)
    problems = check_specs([spec], lambda key: "--params" if key.endswith("params") else "llmclick reward")
    if problems:
        raise InputError(problems)
    return spec


def _answer(spec: _Spec, imports: Sequence[Path], trials: Sequence[_Trial]) -> Iterator[dict[str, Any]]:
    rows = identify((trial.row, trial.where) for trial in trials)
    with Scorer([spec], imports, answer_after=None, truncated="score", log=None, notify=lambda text: None) as scorer:
        for start in range(0, len(trials), _BATCH):
            batch = trials[start : start + _BATCH]
            refused = [next((problem.why for problem in scorer.try_rows([row])), None) for row in rows[start : start + _BATCH]]
            usable = [trial for trial, reason in zip(batch, refused, strict=True) if reason is None]
            scores = iter(scorer.score([ToScore(trial.completion, trial.row, trial.where, False) for trial in usable]))
            for trial, reason in zip(batch, refused, strict=True):
                if reason is not None:
                    yield {**trial.extra, "reward": 0.0, "refused": reason}
                    continue
                score = next(scores)
                yield {**trial.extra, "reward": score.total, **({"failures": dict(score.failures)} if score.failures else {})}


def _object(text: str, where: str, key: str, write: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(where, key, f"it is no JSON: {error}", write, given=text[:80])) from error
    if not isinstance(value, dict):
        raise InputError(Problem(where, key, "it is no JSON object", write, given=text[:80]))
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _read(file: Path) -> list[_Trial]:
    write = "name an existing JSONL file"
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise InputError(Problem(str(file), "", f"there is no file {file.absolute()}", write)) from error
    except (OSError, ValueError) as error:
        why = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(Problem(str(file), "", why, write)) from error
    trials: list[_Trial] = []
    problems: list[Problem] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        where = f"{file}:{number}"
        try:
            line = _object(raw.decode("utf-8"), where, "", _LINE)
        except UnicodeDecodeError:
            problems.append(Problem(where, "", "the line is not UTF-8", "save the file as UTF-8"))
            continue
        except InputError as error:
            problems += error.problems
            continue
        completion, row = line.get("completion"), line.get("row")
        if not isinstance(completion, str):
            problems.append(Problem(where, "completion", "every line has a completion, which is text", _LINE))
        elif not isinstance(row, dict):
            problems.append(Problem(where, "row", "every line has a row, which is an object", _LINE))
        else:
            trials.append(_Trial(completion, row, where, line))
    if problems:
        raise InputError(problems)
    if not trials:
        raise InputError(Problem(str(file), "", "the file has no lines", _LINE))
    return trials
