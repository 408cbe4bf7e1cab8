"""What pydantic says about a value, as two sentences: why it cannot work, and what to write."""

from __future__ import annotations

import re
from typing import Any

from llmclick.config import names
from llmclick.config.methods import Section
from llmclick.config.reading import Node


def said(item: Any, name: str, cls: type[Section], node: Node | None) -> tuple[str, str]:
    """Why pydantic refused a value and what to write, as sentences."""
    kind, context, given = item["type"], item.get("ctx", {}), item["input"]
    info = cls.model_fields.get(name)
    extra = info.json_schema_extra if info and isinstance(info.json_schema_extra, dict) else {}
    reason = f": {extra['reason']}" if "reason" in extra else ""
    example = "write a number, such as 0.5" if name in ("min", "max", "gain") and len(item["loc"]) > 1 else _example(name, cls)
    if kind == "llmclick":
        return context["why"], context["write"]
    if kind == "int_type":
        if isinstance(given, float) and given == int(given) if _finite(given) else False:
            return "a whole number is expected, and a decimal point makes it another kind", f"write {int(given)}"
        return f"a whole number is expected, not {_kind(given)}", _number(given, example)
    if kind in ("float_type", "finite_number"):
        if isinstance(given, float):
            return "a finite number is expected", example
        return f"a number is expected, not {_kind(given)}", _number(given, example)
    if kind == "bool_type":
        return f"true or false is expected, not {_kind(given)}", "write true or false"
    if kind == "string_type":
        raw = node.raw if node is not None and node.raw else None
        return f"text is expected, not {_kind(given)}", f'write "{raw}", in quotes' if raw else "write text"
    if kind == "literal_error":
        options = [option.strip("'") for option in re.findall(r"'[^']*'", context["expected"])]
        best = names.closest(str(given), options)
        return "it is none of the choices", f"write {best[0]}" + (f"; choices: {', '.join(best)}" if len(best) > 1 else "")
    bounds = {
        "greater_than": "more than",
        "greater_than_equal": "at least",
        "less_than": "less than",
        "less_than_equal": "at most",
    }
    if kind in bounds:
        limit = next(iter(context.values()))
        return f"it must be {bounds[kind]} {limit}{reason}", f"write a number of {bounds[kind]} {limit}"
    if kind in ("dict_type", "list_type", "tuple_type"):
        shape = extra.get("shape", "a mapping" if kind == "dict_type" else "a list")
        return f"{shape} is expected, not {_kind(given)}", example
    return str(item["msg"]), example


def _finite(value: Any) -> bool:
    return isinstance(value, float) and value - value == 0


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    kinds = {bool: "true or false", int: "a whole number", float: "a number with a decimal point", str: "text"}
    return kinds.get(type(value), "a mapping" if isinstance(value, dict) else "a list")


def _number(given: Any, example: str) -> str:
    """The remedy for a number that was written as text."""
    if isinstance(given, str):
        tidy = given.replace("_", "").replace(",", "").strip()
        if re.fullmatch(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", tidy):
            return f"write {tidy}, without quotes or separators"
    return example


def _example(name: str, cls: type[Section]) -> str:
    info = cls.model_fields.get(name)
    if info is None:
        return "leave it out"
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    if "hint" in extra:
        return f"write {name}: {extra['hint']}"
    default = info.get_default(call_default_factory=True)
    if default in (None, {}, ()):
        return f"write {extra['shape']}" if "shape" in extra else "write a value, or leave the key out"
    return f"write for example {name}: {extra.get('default', names.show(default))}"
