"""The blocks and commands of README.md and of every page, hand-written or generated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, line, language and text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every Markdown file that a reader is sent to."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return top + sorted(path for path in (ROOT / "docs").rglob("*.md") if ".vitepress" not in path.parts)


def blocks() -> list[Block]:
    """All fenced blocks of all pages, in order."""
    found: list[Block] = []
    for path in pages():
        language, began, lines = "", 0, []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("```"):
                if began:
                    found.append(Block(str(path.relative_to(ROOT)), began, language, "\n".join(lines)))
                    began = 0
                else:
                    language, began, lines = line[3:].strip(), number, []
            elif began:
                lines.append(line)
        assert not began, f"{path}:{began}: a block that does not end"
    return found


def commands() -> list[tuple[str, str]]:
    """(place, command): the lines of all sh blocks, and the commands that stand in a sentence."""
    found = [
        (f"{block.page}:{block.line + number}", line)
        for block in blocks()
        if block.language == "sh"
        for number, line in enumerate(block.text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    for path in pages():
        fenced = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.startswith("```")
            if not fenced:
                inline = re.findall(r"`((?:uv|npm|llmclick|scripts/check)(?: [^`]+)?)`", line)
                found += [(f"{path.relative_to(ROOT)}:{number}", text) for text in inline if text not in NAMES]
    return found


NAMES = {"llmclick", "uv", "uv run"}
"""What looks like a command and is the name of one."""
