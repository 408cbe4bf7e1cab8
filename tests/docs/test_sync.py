"""The generated pages are their sources' and nobody else's."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = {
    "src/llmclick/config/schema.py": [
        ("How often the training rows are gone through.", "How many times every training row is seen."),
        ("default=25,\n        description=\"Writes a snapshot", "default=26,\n        description=\"Writes a snapshot"),
    ],
    "src/llmclick/rewards/text.py": [
        ('| "Paris." | {"answer": "Paris"} | {} | 1 |', '| "Lima." | {"answer": "Lima"} | {} | 1 |'),
    ],
    "configs/llm/grpo.yaml": [("  max_new_tokens: 8\n", "  max_new_tokens: 9\n")],
}  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    """A copy of what pages are made from, and of the pages."""
    for name in ("src", "docs", "scripts", "configs", "samples"):
        ignored = shutil.ignore_patterns("__pycache__", ".vitepress", "node_modules")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def sync(folder, *options, seed="0"):
    env = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONHASHSEED": seed, "COLUMNS": str(60 + int(seed))}
    command = [sys.executable, str(folder / "scripts" / "sync.py"), *options]
    return subprocess.run(command, cwd=folder.parent, env=env, capture_output=True, text=True)


def texts(folder):
    return {path.name: path.read_text(encoding="utf-8") for path in [folder / "README.md", *(folder / "docs").glob("*.md")]}


def test_every_page_is_up_to_date():
    """What `npm run sync` would write is what lies in docs/ and README.md."""
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "sync.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_source_is_found_and_mended_and_nothing_else_changes(copy):
    """A field's text, a default, a row of a reward's table and a value of a config: --check fails, a sync mends every page, and
    the lines that differ are the changed ones; a second sync, in a terminal of another width, changes nothing."""
    before = texts(copy)
    for name, changes in CHANGES.items():
        text = (copy / name).read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (copy / name).write_text(text, encoding="utf-8")
    checked = sync(copy, "--check")
    assert checked.returncode == 1
    for name in ("grpo", "configuration", "rewards"):
        assert f"out of date: docs/{name}.md" in checked.stdout
    assert texts(copy) == before

    assert sync(copy).returncode == 0
    after = texts(copy)
    changed = {
        (name, old, new)
        for name in before
        for old, new in zip(before[name].splitlines(), after[name].splitlines(), strict=True)
        if old != new
    }
    marks = ("seen", "26", "Lima", "9")
    assert {name for name, _, _ in changed} == {"grpo.md", "configuration.md", "rewards.md"}
    assert all(any(mark in new for mark in marks) for _, _, new in changed), changed
    assert len(changed) == 6  # text and value in grpo.md (2 + 1), text and default in configuration.md, a row in rewards.md
    assert sync(copy, "--check", seed="7").returncode == 0


def test_a_page_that_nothing_generates_any_more_is_removed(copy):
    """It says that it is generated, and no source is left."""
    page = copy / "docs" / "gone.md"
    page.write_text((copy / "docs" / "grpo.md").read_text(encoding="utf-8"), encoding="utf-8")
    assert "out of date: docs/gone.md" in sync(copy, "--check").stdout
    sync(copy)
    assert not page.exists()
    assert (copy / "docs" / "methods.md").exists()


def test_every_generated_page_names_sources_that_exist():
    """At its end, as paths of this repository."""

    pages = [
        path for path in (ROOT / "docs").glob("*.md") if "npm run sync" in path.read_text(encoding="utf-8").splitlines()[-1]
    ]
    assert len(pages) >= 12
    for page in pages:
        last = page.read_text(encoding="utf-8").splitlines()[-1]
        sources = re.findall(r"`([^`]+)`", last.partition(". This page")[0])
        assert sources
        assert all(list(ROOT.glob(source)) for source in sources), last
