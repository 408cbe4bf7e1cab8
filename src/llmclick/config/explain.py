"""What a config key means, printed from the schema."""

from __future__ import annotations

import textwrap
import types
import typing
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from llmclick.config import names
from llmclick.config.methods import CispoMethod, Section
from llmclick.config.schema import SECTIONS
from llmclick.config.sources import SOURCE_CONFIGS
from llmclick.errors import InputError, Problem


def explain(key: str | None = None, width: int = 80) -> str:
    """The text of one key, of a section with its keys, or (without a key) of all keys, wrapped to `width` columns.

    A key may be given without its section where that is unambiguous, and with list positions (`data.sources.0.path`).
    Raises InputError for a name that is no key, with the nearest one.
    """
    if key is None:
        blocks = [
            textwrap.fill(f"{name}  {_summary(SECTIONS[name].__doc__)}", width) + "\n" + _lines(name, width)
            for name in SECTIONS
        ]
        return "\n\n".join(blocks) + "\n\nllmclick explain KEY says more about one of them."
    asked = ".".join(part for part in key.strip().split(".") if not part.isdigit())
    found = [entry for entry in names.all_keys() if entry[0] == asked]
    if not found and asked in SECTIONS:
        return f"{asked}\n{_summary(SECTIONS[asked].__doc__)}\n\n{_lines(asked, width)}"
    if not found:
        found = [entry for entry in names.all_keys() if entry[0].rpartition(".")[2] == asked]
    if not found:
        raise InputError(_unknown(key, asked))
    return "\n\n".join(_one(dotted, info, cls, width) for dotted, info, cls in found)


def _unknown(key: str, asked: str) -> Problem:
    section, _, name = asked.rpartition(".")
    known = [dotted for dotted, _, _ in names.all_keys()]
    if section in SECTIONS:
        write = names.suggest(name, section, SECTIONS[section].model_fields)
    else:
        write = names.suggest(name, "", SECTIONS)
        if write.startswith("remove"):
            write = f"write {names.closest(asked, known)[0]}; `llmclick explain` lists all keys"
    return Problem("llmclick explain", key, "no key of a config has that name", write)


def _summary(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _lines(section: str, width: int) -> str:
    """The keys of a section, one line each: name, default and the start of the text."""
    entries = [entry for entry in names.all_keys() if entry[0].partition(".")[0] == section]
    column = min(32, max((len(dotted) for dotted, _, _ in entries), default=0))
    out = []
    for dotted, info, cls in entries:
        head = f"  {dotted:<{column}}  {default_text(dotted, info, cls):<9} "
        first = (info.description or "").replace("`", "").partition(". ")[0]
        out.append(
            head + textwrap.shorten(first, max(20, width - len(head)), placeholder=" ...") if len(head) < width - 20 else head
        )
    return "\n".join(line.rstrip() for line in out)


def _one(dotted: str, info: FieldInfo, cls: type[Section], width: int) -> str:
    text = textwrap.fill(info.description or "", width)
    source = next((name for name, config in SOURCE_CONFIGS.items() if config is cls), "")
    rows = [
        ("source", source),
        ("type", type_text(info)),
        ("bound", bound_text(info)),
        ("default", default_text(dotted, info, cls)),
    ]
    if dotted == "method.clip":
        rows[-1] = ("default", f"{default_text(dotted, info, cls)}; llm_cispo {CispoMethod.model_fields['clip'].default}")
    table = "\n".join(f"  {name:<9}{value}" for name, value in rows if value)
    below = [entry for entry in names.all_keys() if entry[0].startswith(dotted + ".")]
    inner = (
        "\n\n" + _wrapped("keys below: " + ", ".join(entry[0].removeprefix(dotted + ".") for entry in below), width)
        if below
        else ""
    )
    return f"{dotted}\n\n{text}\n\n{table}{inner}"


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ")


def default_text(dotted: str, info: FieldInfo, cls: type[Section]) -> str:
    """The default as a config would write it, `required` if there is none."""
    if info.is_required():
        return "required"
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    if "default" in extra:
        return str(extra["default"])
    value = info.get_default(call_default_factory=True)
    if dotted == "pipeline.stages":
        return "all"
    if value in (None, {}, ()):
        return "none"
    if isinstance(value, (str, bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else f"{value}"
    return str(value)


def type_text(info: FieldInfo) -> str:
    """What may be written, in words."""
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return str(extra["shape"]) if "shape" in extra else _type(info.annotation)


def _type(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in inner if part is not type(None))
    if origin is Literal:
        return ", ".join(str(part) for part in inner)
    if origin is dict:
        return "a mapping"
    if origin in (tuple, list):
        return "a list"
    simple = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if annotation in simple:
        return simple[annotation]
    return "a path" if getattr(annotation, "__name__", "") == "Path" else "a mapping"


def bound_text(info: FieldInfo) -> str:
    """The bound of a number, in words; empty if there is none."""
    metadata = list(info.metadata)
    for part in (info.annotation, *typing.get_args(info.annotation)):
        metadata += [
            item for found in getattr(part, "__metadata__", ()) for item in (getattr(found, "metadata", None) or [found])
        ]
    words = []
    for item in metadata:
        for kind, attribute, word in (
            (Ge, "ge", "at least"),
            (Gt, "gt", "more than"),
            (Le, "le", "at most"),
            (Lt, "lt", "less than"),
        ):
            if isinstance(item, kind):
                words.append(f"{word} {getattr(item, attribute)}")
    return ", ".join(dict.fromkeys(words))
