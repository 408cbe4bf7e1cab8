"""Keys of a row under other names: what `fields` says, and what it should say when a key is not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmclick.errors import Problem

_MEANT = {
    "prompt": ("question", "problem", "instruction", "query", "input", "text", "messages", "task", "puzzle"),
    "answer": (
        "solution",
        "ground_truth",
        "final_answer",
        "expected_answer",
        "correct_answer",
        "gold",
        "target",
        "label",
        "output",
        "response",
        "completion",
        "expected",
        "result",
        "chosen",
    ),
    "labels": ("choices", "options"),
}
"""What other data sets call a key, likeliest first."""

_USERS, _MODELS = ("user", "human"), ("assistant", "gpt", "model", "bot")
_ABSENT = object()


def rename(data: dict[str, Any], fields: Mapping[str, str | None], where: str) -> tuple[dict[str, Any], Problem | None]:
    """`data` with `fields` applied: {target: source} moves the value of `source` to `target`, all at once, and {column: null}
    leaves a column out.

    A source with dots reads inside objects and lists (`reward_model.ground_truth`, `messages.0.content`), and what it reads
    from stays. A source that the row lacks is refused, and so is a target that would overwrite a key which is not itself
    renamed or read from.
    """
    if not fields:
        return data, None
    sources = {target: source for target, source in fields.items() if source is not None}
    values = {target: _find(data, source) for target, source in sources.items()}
    missing = [sources[target] for target, value in values.items() if value is _ABSENT]
    if missing:
        return data, Problem(
            where,
            "fields",
            given=keys_of(data),
            why=f"fields names {', '.join(map(repr, missing))}, which this row does not have",
            write=_instead(data, sources, missing),
        )
    moved = {source for source in sources.values() if source in data} | {key for key in fields if fields[key] is None}
    read = moved | {source.partition(".")[0] for source in sources.values()}
    kept = {key: value for key, value in data.items() if key not in moved}
    taken = [target for target in sources if target in kept and target not in read]
    if taken:
        return data, Problem(
            where,
            "fields",
            given=keys_of(data),
            why=f"the row already has {taken[0]!r}, which fields would overwrite with {sources[taken[0]]!r}",
            write=f"a place for the old value too: {{{taken[0]}: {sources[taken[0]]}, old_{taken[0]}: {taken[0]}}}",
        )
    return {**kept, **values}, None


def _find(data: Any, path: str) -> Any:
    """The value at a path; a key that has dots itself comes first."""
    if isinstance(data, dict) and path in data:
        return data[path]
    first, dot, rest = path.partition(".")
    if not dot:
        return _item(data, path)
    inside = _item(data, first)
    return _ABSENT if inside is _ABSENT else _find(inside, rest)


def _item(data: Any, key: str) -> Any:
    if isinstance(data, dict):
        return data.get(key, _ABSENT)
    if isinstance(data, list) and key.isdecimal() and int(key) < len(data):
        return data[int(key)]
    return _ABSENT


def keys_of(data: Mapping[str, Any]) -> str:
    """A row's keys for a message."""
    return f"the row's keys are {', '.join(map(repr, data)) or '(none)'}"


def missing(data: Mapping[str, Any], key: str) -> str:
    """What to write where a row has no `key`: the entry of `fields` that is probably meant."""
    found = suggestion(data, key)
    if found is None:
        return f"a key {key!r} in every row, or name the key that holds it: fields: {{{key}: ...}}"
    return f"fields: {{{', '.join(f'{target}: {source}' for target, source in found.items())}}} in the source"


def suggestion(data: Mapping[str, Any], key: str) -> dict[str, str] | None:
    """The `fields` that would give the row this key, and those of one conversation together; None if nothing is likely."""
    turns = {target: source for target, source in (conversation(data) or {}).items() if target not in data}
    if key in turns:
        return turns
    paths = dict(_paths(data))
    for meant in _MEANT.get(key, ()):
        for path in paths:
            if path.rpartition(".")[2].lower() == meant and not (key != "prompt" and path == "prompt"):
                return {key: path}
    same = [path for path in paths if path.rpartition(".")[2].lower() == key.lower() and path != key]
    return {key: same[0]} if same else None


def conversation(data: Mapping[str, Any]) -> dict[str, str] | None:
    """`fields` for a row that holds a question and its answer as chat turns, in OpenAI's form or ShareGPT's."""
    for name, turns in data.items():
        if not (isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns)):
            continue
        who, what = ("from", "value") if "from" in turns[0] else ("role", "content")
        roles = [turn.get(who) for turn in turns]
        asked = next((at for at, role in enumerate(roles) if role in _USERS), None)
        if asked is None or not all(what in turn for turn in turns):
            continue
        if who == "role" and roles[-1] in _USERS and name != "prompt":
            return {"prompt": name}
        if asked + 1 < len(roles) and roles[asked + 1] in _MODELS:
            return {"prompt": f"{name}.{asked}.{what}", "answer": f"{name}.{asked + 1}.{what}"}
    return None


def _paths(data: Mapping[str, Any], before: str = "", deepest: int = 3) -> Iterator[tuple[str, Any]]:
    """Every key of a row and of the objects in it, outer ones first, as `fields` writes them."""
    for key, value in data.items():
        yield f"{before}{key}", value
    for key, value in data.items():
        if isinstance(value, dict) and deepest > 1:
            yield from _paths(value, f"{before}{key}.", deepest - 1)


def _instead(data: Mapping[str, Any], sources: Mapping[str, str], lacking: list[str]) -> str:
    """What to write instead of a source that is not there."""
    target = next(target for target, source in sources.items() if source in lacking)
    found = None if target in data else suggestion(data, target)
    if found is None:
        return "fields: {target: source} with keys that every row has"
    return f"fields: {{{', '.join(f'{name}: {source}' for name, source in found.items())}}}"
