"""Rewards as a config names them: unknown names, unknown parameters, values that cannot work."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from llmclick.errors import Problem
from llmclick.registry import Entry
from llmclick.rewards import REWARDS, Reward


class Spec(Protocol):
    """What rewards read of a config's RewardSpec."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def weight(self) -> float: ...  # noqa: D102
    @property
    def timeout(self) -> float: ...  # noqa: D102
    @property
    def on_error(self) -> str: ...  # noqa: D102
    @property
    def pass_at(self) -> float: ...  # noqa: D102
    @property
    def params(self) -> dict[str, Any]: ...  # noqa: D102


class NamedSpec(Protocol):
    """A reward's name and params."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def params(self) -> dict[str, Any]: ...  # noqa: D102


def check_specs(specs: Sequence[Spec], where: Callable[[str], str]) -> list[Problem]:
    """What is wrong with names, params and pass_at of `method.reward`; `where` gives the place of a dotted key.

    The user's files must be loaded (`load_imports`). A shipped reward refuses a param that it does not have; a user's does so
    if it was registered with `params=`, a dataclass or a pydantic model.
    """
    problems: list[Problem] = []
    for number, spec in enumerate(specs):
        key = f"method.reward.{number}" if len(specs) > 1 else "method.reward"
        if spec.name not in REWARDS:
            known = REWARDS.nearest(spec.name)
            problems.append(
                Problem(
                    where=where(f"{key}.name"),
                    key=f"{key}.name",
                    given=spec.name,
                    why=f"no reward has this name; known, closest first: {', '.join(known)}",
                    write=f"name: {known[0]}, or register your own in a file that pipeline.imports names",
                )
            )
            continue
        entry = REWARDS.get(spec.name)
        problems += _check_package(entry, key, where)
        problems += _check_plain(entry, key, where)
        if entry.shipped and not 0 < spec.pass_at <= 1:
            never = "no completion would ever pass" if spec.pass_at > 1 else "every completion would pass"
            place = f"{key}.pass_at"
            why = f"{spec.name} gives 0 to 1, so {never}"
            problems.append(Problem(where(place), place, why, "write a number above 0 and at most 1", f"{spec.pass_at:g}"))
        for name, given, why, write in _param_problems(entry, spec.params):
            shown = f"{key}.{name}" if name else key
            place = where(shown if name in spec.params else f"{key}.params" if spec.params else key)
            problems.append(Problem(where=place, key=shown, given=given, why=why, write=write))
    return problems


def _check_package(entry: Entry[Reward], key: str, where: Callable[[str], str]) -> list[Problem]:
    package, extra = entry.options.get("package"), entry.options.get("extra")
    if not package or not entry.shipped or importlib.util.find_spec(package) is not None:
        return []
    why = f"it needs the package {package.replace('_', '-')}, which is not installed"
    write = f"uv sync --extra {extra}, or pip install 'llmclick[{extra}]'"
    return [Problem(where=where(f"{key}.name"), key=f"{key}.name", given=entry.name, why=why, write=write)]


def _check_plain(entry: Entry[Reward], key: str, where: Callable[[str], str]) -> list[Problem]:
    """Whether calling it gives a value: an async function gives a coroutine, one with `yield` a generator."""
    called = getattr(entry.value, "__call__", None)  # noqa: B004  # its own method, of an object that is called
    for function in (entry.value, called):
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            why, write = "it is an async function, and rewards are called without await", "def instead of async def"
        elif inspect.isgeneratorfunction(function):
            why, write = "it has a yield, so calling it gives a generator and not a number", "return instead of yield"
        else:
            continue
        given = f"{entry.name}, defined at {entry.file}:{entry.line}"
        return [Problem(where=where(f"{key}.name"), key=f"{key}.name", given=given, why=why, write=write)]
    return []


def _param_problems(entry: Entry[Reward], params: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Param, what was given, why it cannot work, what to write."""
    model = entry.options.get("params")
    if model is None:
        return []
    if not (isinstance(model, type) and dataclasses.is_dataclass(model)):
        return _model_problems(model, params)
    fields = {field.name: field for field in dataclasses.fields(model)}
    found: list[tuple[str, str, str, str]] = []
    for name, value in params.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1, cutoff=0.0)
            why = (
                f"{entry.name} has no such parameter; it has {', '.join(fields)}"
                if fields
                else f"{entry.name} has no parameters"
            )
            found.append((name, _shown(value), why, f"{close[0]}, or leave it out" if close else "leave it out"))
            continue
        reason = _wrong(fields[name], value)
        if reason:
            found.append((name, _shown(value), f"{entry.name} cannot use this value", reason))
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in params:
            help = field.metadata.get("help", "")
            found.append(
                (name, "", f"{entry.name} needs it" + (f": {help}" if help else ""), f"{name}: ..., see `llmclick explain`")
            )
    if not found:
        try:
            model(**params)
        except Exception as error:
            found.append(("", _shown(dict(params)), f"{entry.name} cannot use these parameters: {error}", "mend them"))
    return found


_PLAIN = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "list": (list,), "dict": (dict,)}


def _wrong(field: dataclasses.Field[Any], value: object) -> str | None:
    """What to write instead of a value, by the field's own check or, without one, by its annotation."""
    check = field.metadata.get("check")
    if check is not None:
        reason: str | None = check(value)
        return reason
    kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
    allowed = _PLAIN.get(kind)
    if allowed is None or (isinstance(value, allowed) and (kind == "bool" or not isinstance(value, bool))):
        return None
    return f"write a value of type {kind}"


def _model_problems(model: Any, params: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """A pydantic model, or any class that takes the params as keywords and raises."""
    try:
        model.model_validate(dict(params)) if hasattr(model, "model_validate") else model(**params)
    except Exception as error:
        details = getattr(error, "errors", None)
        if not callable(details):
            return [("", _shown(dict(params)), f"the reward cannot use these parameters: {error}", "mend them")]
        return [
            (".".join(map(str, item["loc"])), _shown(item.get("input")), str(item["msg"]), "mend this parameter")
            for item in details()
        ]
    return []


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def completed(entry: Entry[Reward], params: Mapping[str, Any]) -> dict[str, Any]:
    """The params that a reward is called with: what the config gives, and the declared defaults of the rest."""
    model = entry.options.get("params")
    if model is None:
        return dict(params)
    if dataclasses.is_dataclass(model):
        return {**dataclasses.asdict(model(**params)), **params}  # type: ignore[operator]
    made = model.model_validate(dict(params)) if hasattr(model, "model_validate") else None
    return dict(params) if made is None else dict(made.model_dump(mode="json"))


def described(entry: Entry[Reward]) -> list[tuple[str, str, str]]:
    """The declared params of a reward: name, default as text, meaning."""
    model = entry.options.get("params")
    if model is None or not dataclasses.is_dataclass(model):
        return []
    return [
        (
            field.name,
            "required" if field.default is dataclasses.MISSING else str(field.default),
            str(field.metadata.get("help", "")),
        )
        for field in dataclasses.fields(model)
    ]
