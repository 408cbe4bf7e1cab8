"""YAML 1.2 text to nodes that remember where they were written. Nothing here knows a config key.

The scanner is ruamel.yaml's; scalars, anchors, merge keys and duplicates are resolved here, because every one of them has
to be refused or accepted with its own line, and because a value must never be something else than what stands in the file:
no object tags, no dates, no `yes` that becomes true, no `1_000` that becomes a number or not depending on the version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.reader import ReaderError

from llmclick.errors import Problem

MAX_DEPTH = 40
MAX_NODES = 20_000
MAX_BYTES = 256 * 1024

Value = None | bool | int | float | str | list["Node"] | dict[str, "Node"]


@dataclass
class Node:
    """A value and where it was written (`file:line`, or `--set key=value`). `raw` is a plain scalar as typed; `reset`
    marks a `--set key=null`: the key is left out, whatever the file says."""

    where: str
    value: Value
    raw: str = ""
    reset: bool = False
    size: int = 1

    def plain(self) -> Any:
        """The value as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items() if not node.reset}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_GROUPED = re.compile(r"[-+]?[0-9]+(_[0-9]+)+(\.[0-9_]*)?([eE][-+]?[0-9]+)?")


def scalar(text: str) -> bool | int | float | str | None:
    """A plain (unquoted) scalar by YAML 1.2's core schema. Raises ValueError for an integer too long to convert."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


class _StopReading(Exception):
    """Reading cannot go on; the problem is already noted."""


@dataclass
class _Reader:
    place: Callable[[int], str]
    events: Iterator[Any]
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, Node | None] = field(default_factory=dict)
    nodes: int = 0

    def problem(self, line: int, why: str, write: str, *, key: str = "", given: str = "") -> None:
        self.problems.append(Problem(self.place(line), key, why, write, given))

    def count(self, line: int, size: int) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            self.problem(
                line,
                f"anchors and aliases expand to more than {MAX_NODES} values",
                "write the config without nested aliases",
            )
            raise _StopReading

    def node(self, event: Any, path: str, depth: int) -> Node:
        kind = type(event).__name__
        line = event.start_mark.line + 1
        if kind == "AliasEvent":
            return self.alias(event, line)
        self.count(line, 1)
        if depth > MAX_DEPTH:
            self.problem(line, f"values are nested more than {MAX_DEPTH} deep", "write a flatter config", key=path)
            raise _StopReading
        if getattr(event, "tag", None) is not None:
            self.problem(
                line,
                "YAML tags are not read: a config is text, numbers, lists and mappings",
                "leave the tag out; to force text, put the value in quotes",
                key=path,
                given=f"tag {event.tag}",
            )
        anchor = event.anchor
        if anchor is not None:
            self.anchors[anchor] = None  # an alias met before the end of this value would contain itself
        if kind == "MappingStartEvent":
            node = self.mapping(line, path, depth)
        elif kind == "SequenceStartEvent":
            node = self.sequence(line, path, depth)
        else:
            node = self.scalar(event, line, path)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def alias(self, event: Any, line: int) -> Node:
        target = self.anchors.get(event.anchor)
        if target is None:
            why = (
                f"*{event.anchor} stands inside the value that &{event.anchor} names, which would never end"
                if event.anchor in self.anchors
                else f"*{event.anchor} refers to an anchor that is not written above it"
            )
            self.problem(line, why, f"write &{event.anchor} before a complete value further up, or write the value out")
            raise _StopReading
        self.count(line, target.size)
        return replace(target, where=self.place(line))

    def scalar(self, event: Any, line: int, path: str) -> Node:
        text = str(event.value)
        if any("\ud800" <= char <= "\udfff" for char in text):
            self.problem(line, "half of a surrogate pair is no character", "write the character itself", key=path)
            text = text.encode("utf-8", "replace").decode()
        if event.style:
            return Node(self.place(line), text)
        if _GROUPED.fullmatch(text):
            self.problem(
                line,
                "digits grouped with _ are no number in YAML 1.2",
                f"write {text.replace('_', '')}, or quote it if you mean text",
                key=path,
                given=text,
            )
            text = text.replace("_", "")
        try:
            return Node(self.place(line), scalar(text), raw=text)
        except ValueError:
            self.problem(line, "a number of so many digits cannot be read", "write a shorter number", key=path)
            return Node(self.place(line), 0, raw=text)

    def sequence(self, line: int, path: str, depth: int) -> Node:
        items: list[Node] = []
        for event in self.events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            items.append(self.node(event, f"{path}.{len(items)}" if path else str(len(items)), depth + 1))
        return Node(self.place(line), items, size=1 + sum(item.size for item in items))

    def mapping(self, line: int, path: str, depth: int) -> Node:
        found: dict[str, Node] = {}
        merged: list[tuple[int, Node]] = []
        for event in self.events:
            if type(event).__name__ == "MappingEndEvent":
                break
            at = event.start_mark.line + 1
            key_node = self.node(event, path, depth + 1)
            if isinstance(key_node.value, (list, dict)):
                self.problem(at, "a list or mapping cannot be a key", "write a word before the colon", key=path)
                self.node(next(self.events), path, depth + 1)
                continue
            key = key_node.raw or str("" if key_node.value is None else key_node.value)
            dotted = f"{path}.{key}" if path else key
            value = self.node(next(self.events), dotted, depth + 1)
            if key == "<<" and key_node.raw:
                merged.append((at, value))
            elif key in found:
                first = found[key].where
                self.problem(
                    at,
                    f"the key is written twice, first at {first}; only one of the two could count",
                    "keep one of them",
                    key=dotted,
                )
            else:
                found[key] = replace(value, where=self.place(at))
        for at, value in merged:
            self.merge(at, value, found, path)
        return Node(self.place(line), found, size=1 + sum(node.size for node in found.values()))

    def merge(self, line: int, value: Node, into: dict[str, Node], path: str) -> None:
        for source in value.value if isinstance(value.value, list) else [value]:
            if not isinstance(source.value, dict):
                self.problem(line, "<< merges mappings only", "write <<: *name of a mapping", key=f"{path}.<<".lstrip("."))
                continue
            self.count(line, source.size)
            for key, node in source.value.items():
                into.setdefault(key, node)


def read_yaml(text: str, place: Callable[[int], str]) -> tuple[Node | None, list[Problem]]:
    """Reads one YAML document. `place(line)` says where a line is. The node is None when the text cannot be read at all
    or holds nothing."""
    yaml = YAML(typ="safe", pure=True)
    reader = _Reader(place, iter(()))
    root: Node | None = None
    documents = 0
    try:
        reader.events = iter(yaml.parse(text))
        for event in reader.events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                documents += 1
                if documents == 2:
                    line = event.start_mark.line + 1
                    reader.problem(line, "a second document starts here; a config is one", "remove the --- line")
                    raise _StopReading
            elif kind not in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                root = reader.node(event, "", 0)
    except _StopReading:
        return None, reader.problems
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reader.problem(line, "there is a character that YAML does not allow (a control character?)", "remove it")
        return None, reader.problems
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = getattr(error, "problem", None) or getattr(error, "context", None) or "not YAML"
        line = (mark.line if mark else 0) + 1
        reader.problem(
            line, f"this is not YAML: {said}", "check indentation, colons, brackets and quotes on this line and the one above"
        )
        return None, reader.problems
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        AssertionError,
        StopIteration,
        RecursionError,
    ) as error:
        # ruamel's scanner raises these on some malformed escapes and directives.
        reader.problem(1, f"this is not YAML: {type(error).__name__}: {error}", "check escapes and % lines")
        return None, reader.problems
    return root, reader.problems


def read_file(name: str, data: bytes) -> tuple[Node | None, list[Problem]]:
    """Reads the bytes of a config file called `name` in messages."""
    if len(data) > MAX_BYTES:
        why = f"the file has {len(data)} bytes; a config has at most {MAX_BYTES}"
        return None, [Problem(name, "", why, "name the config file; rows belong in a file of their own")]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        why = f"byte {data[error.start]:#04x} is not UTF-8"
        return None, [Problem(f"{name}:{line}", "", why, "save the file as UTF-8")]
    node, problems = read_yaml(text, lambda line: f"{name}:{line}")
    if problems:
        return node if node is not None and isinstance(node.value, dict) else None, problems
    if node is None or node.value is None:
        return None, [Problem(name, "", "the file is empty", "write a config; configs/llm/quickstart.yaml is a short one")]
    if not isinstance(node.value, dict):
        kind = "a list" if isinstance(node.value, list) else "one value"
        why = f"the file holds {kind}, not the sections of a config"
        return None, [Problem(node.where, "", why, "start with pipeline:, model:, data: and method:")]
    return node, []
