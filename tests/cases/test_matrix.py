"""docs/reliability.md and the tests that it names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_matrix_names_exists() -> None:
    """A name in the table is a function in that file, or a file."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 50
    for file, function in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in source, (file, function)
