"""Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pages import ROOT


def code(text: str, cell: bool = False) -> str:
    """Inline code that shows exactly `text`; in a table's cell a bar is escaped."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    shown = text.replace("|", "\\|") if cell else text
    return f"{fence}{pad}{shown}{pad}{fence}"


def plain(text: str) -> str:
    """A field's text as Markdown: `<x>` outside code would be taken for HTML, `{{` for a template."""
    parts = re.split(r"(`+[^`]*`+)", text)
    return "".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table whose columns are not padded, so that one changed cell is one changed line."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def yaml_file(path: str) -> str:
    """A config as a block, under its name."""
    return f"{code(path)}:\n\n{yaml_block(path)}"


def yaml_block(path: str) -> str:
    """A config as a block."""
    return f"```yaml\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n```"


def join(*parts: str) -> str:
    """Blocks with one blank line between them."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def slug(title: str) -> str:
    """The anchor that VitePress gives a heading."""
    return re.sub(r"[^\w]+", "-", title.replace("`", "").lower()).strip("-")


def front_matter(value: Any, indent: str = "") -> Iterator[str]:
    """YAML lines of nested mappings, lists of mappings and text."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{key}:"
            yield from front_matter(item, indent + "  ")
        elif isinstance(item, list):
            yield f"{indent}{key}:"
            for entry in item:
                first, *rest = front_matter(entry, indent + "    ")
                yield f"{indent}  - {first.strip()}"
                yield from rest
        else:
            yield f"{indent}{key}: {json.dumps(item, ensure_ascii=False)}"
