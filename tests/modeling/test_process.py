"""How threads wait for each other, decided before torch is loaded."""

from __future__ import annotations

import os

import pytest

from llmclick.modeling.llm.process import prepare_environment


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"GOMP_SPINCOUNT": "10000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_threads_spin_shortly_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, str], after: dict[str, str]
) -> None:
    """What the user has set in either variable stays, and nothing is set beside it."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    prepare_environment()
    found = {name: os.environ[name] for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY") if name in os.environ}
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert found == after
