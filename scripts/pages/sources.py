"""What pages are made from: README.md, recipes, the texts of the config's keys."""

from __future__ import annotations

import json
import re
from typing import Any

from pages import ROOT
from pages.text import code, plain, slug


def readme(*titles: str, head: bool = True) -> str:
    """Sections of README.md by their titles, in that order; `head=False` leaves the first one's heading out."""
    text = re.sub(r"<!--.*?-->\n?", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    found = {title.strip(): body for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)}
    out = "\n\n".join(f"## {title}\n{found[title].rstrip()}" for title in titles)
    return out if head else out.partition("\n")[2]


def introduction() -> list[str]:
    """The paragraphs of README.md before its first section."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    return [part.strip().replace("\n", " ") for part in text.split("\n\n")[1:] if part.strip()]


def has_page(name: str) -> bool:
    """Whether a hand-written page is there."""
    return (ROOT / "docs" / f"{name}.md").exists()


def printed() -> list[str]:
    """What the first run in README.md printed, shortened for the landing page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.partition("<!-- first-run")[2].partition("<!-- /first-run")[0].splitlines()
    steps = [line.partition("  signal")[0] for line in lines if line.startswith("step ")]
    head = next(line for line in lines if line.startswith("metric"))
    width = head.index("trained") + len("trained")
    table = [head[:width], next(line for line in lines if line.startswith("reward "))[:width]]
    last = [line for line in lines if line.startswith("passed")]
    return ["$ uv run llmclick run configs/llm/quickstart.yaml", *steps, "", *table, "", *last]


def recipe(name: str) -> str:
    """A recipe's summary."""
    from llmclick.pipeline.recipes import RECIPES

    return RECIPES[name].summary


def key_text(dotted: str, info: Any, cls: Any, value: str = "") -> str:
    """What a key means, as one list item: with a value it is the value of a config, without one the default."""
    from llmclick.config.explain import default_text

    shown = code(value) if value else f"default {code(default_text(dotted, info, cls))}"
    return f"- [{code(dotted)}](./configuration#{slug(dotted)}): {shown}. {plain(info.description or '')}"


def keys_of(path: str) -> str:
    """The keys that a config sets, each with its value and its text, sources and rewards included."""
    from llmclick.config import names
    from llmclick.config.reading import read_file

    node, _ = read_file(str(ROOT / path), (ROOT / path).read_bytes())
    assert node is not None
    entries = list(names.all_keys())
    out: list[str] = []

    def below(prefix: str, value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                below(prefix, item)
            return
        found = [entry for entry in entries if entry[0] == prefix]
        inner = isinstance(value, dict) and any(entry[0].startswith(prefix + ".") for entry in entries)
        if found and not (inner or isinstance(value, list)):
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace("e-0", "e-")
            out.append(key_text(*found[-1], value=shown))
        elif isinstance(value, dict):
            for name, item in value.items():
                below(f"{prefix}.{name}" if prefix else name, item)

    below("", node.plain())
    return "\n".join(out)
