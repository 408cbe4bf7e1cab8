"""Writes the generated pages of docs/ and the generated parts of README.md from their sources.

    uv run python scripts/sync.py            # or npm run sync
    uv run python scripts/sync.py --check    # changes nothing, exits 1 and names what is out of date

Pages are a function of their sources alone: no time, no machine, no terminal width.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from pathlib import Path

from pages import PAGES, ROOT
from pages.reference import exit_codes
from pages.text import code, slug, yaml_block

FOOTER = "This page is generated. Edit its sources and run `npm run sync`."


def homes(texts: dict[str, str]) -> dict[str, str]:
    """Which page a heading of README.md went to: the first one that has it."""
    found: dict[str, str] = {}
    for name, text in texts.items():
        for title in re.findall(r"^## (.+)$", text, re.MULTILINE):
            found.setdefault(slug(re.sub(r"\s*\{#.*\}", "", title)), name)
    return found


def linked(name: str, text: str, where: dict[str, str]) -> str:
    """README's links as links between pages."""

    def replace(match: re.Match[str]) -> str:
        anchor = match[1]
        home = name if f"## {anchor}" in text else where.get(anchor, name)
        return f"](#{anchor})" if home == name else f"](./{home}#{anchor})"

    text = re.sub(r"\]\(#([\w-]+)\)", replace, text)
    text = re.sub(r"\]\(docs/([\w-]+)\.md", r"](./\1", text)
    return text.replace("](CONTRIBUTING.md)", "](./contributing)").replace("](CHANGELOG.md)", "](./changelog)")


def generated() -> dict[Path, str]:
    """Every generated file with the text it should have."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    regions = {"configs/llm/quickstart.yaml": yaml_block("configs/llm/quickstart.yaml"), "exit codes": exit_codes()}
    for name, inside in regions.items():
        pattern = rf"(<!-- sync: {re.escape(name)} -->\n).*?(<!-- /sync -->)"
        text, count = re.subn(pattern, lambda m, inside=inside: f"{m[1]}{inside}\n{m[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"README.md: the region <!-- sync: {name} --> is there {count} times, once is expected")
    out = {ROOT / "README.md": text}
    texts = {name: write() for name, (_, write) in PAGES.items()}
    where = homes(texts)
    for name, (sources, _) in PAGES.items():
        body = linked(name, texts[name], where).rstrip()
        listed = ", ".join(code(source) for source in sources)
        out[ROOT / "docs" / f"{name}.md"] = f"{body}\n\n---\n\n<small>Sources: {listed}. {FOOTER}</small>\n"
    return out


def left_over(wanted: dict[Path, str]) -> list[Path]:
    """Pages that say they are generated and that nothing generates any more."""
    pages = (ROOT / "docs").glob("*.md")
    return sorted(path for path in pages if path not in wanted and FOOTER in path.read_text(encoding="utf-8"))


def main() -> int:
    """Writes, or with --check compares. The README's own regions are written first: pages are made from it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    os.chdir(ROOT)
    wanted = generated()
    stale: list[Path] = []
    for _ in range(2):  # the second time with the README's new regions
        for path, text in wanted.items():
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            if before != text and path not in stale:
                stale.append(path)
                if check:
                    name = str(path.relative_to(ROOT))
                    changes = difflib.unified_diff(before.splitlines(), text.splitlines(), name, name, "", "", 0, "")
                    print("\n".join(list(changes)[:12]))
            if not check:
                path.write_text(text, encoding="utf-8")
        if check:
            break
        wanted = generated()
    for path in left_over(wanted):
        stale.append(path)
        if not check:
            path.unlink()
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}")
    if check and stale:
        print("run `npm run sync`, or without Node `uv run python scripts/sync.py`")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
