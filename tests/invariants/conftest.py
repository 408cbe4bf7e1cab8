"""Real processes for the tests of this folder, and one undisturbed run to compare with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.invariants.processes import Ended, Moment, Processes
from tests.runs import Tiny, left_in, read_metrics

LONG = ("--set", "training.max_steps=8")


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    made = Processes(tmp_path_factory.mktemp("processes"))
    yield made
    made.close()


class Lab:
    """One config, and an output folder for each experiment of the same hash."""

    def __init__(self, folder: Path, model: Path, processes: Processes) -> None:
        self.tiny = Tiny(folder, model)
        self.processes = processes
        self.overrides: tuple[str, ...] = LONG

    def command(self, output: Path) -> list[str]:
        return ["run", str(self.tiny.yaml), *self.overrides, "--set", f"pipeline.output_dir={output}"]

    def run(self, output: Path, *moments: Moment, file_limit: int | None = None) -> Ended:
        return self.processes.run(self.command(output), moments, file_limit)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, dense_folder: Path, processes: Processes) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"), dense_folder, processes)


@pytest.fixture(scope="session")
def whole(lab: Lab) -> dict[str, Any]:
    """What the undisturbed run leaves; every one of its steps had a signal and moved weights."""
    output = lab.tiny.folder / "whole"
    ended = lab.run(output)
    assert ended.code == 0, ended.err
    records = read_metrics(experiment(output) / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 9))
    assert all(record["groups"]["mixed"] > 0 and record["grad_norm"] > 0 for record in records)
    return everything_left(output)


def experiment(output: Path) -> Path:
    [found] = output.glob("tiny-*")
    return found


def everything_left(output: Path) -> dict[str, Any]:
    """Everything that must be equal, and the names of all files, so that nothing half-written stays."""
    names = {str(path.relative_to(output)) for path in output.rglob("*") if "/locks/" not in str(path)}
    # Only these may be written by two processes at once, so what a kill left of them goes after an hour.
    names = {name for name in names if not re.search(r"/\.(answers\.jsonl|(config|manifest|report)\.\w+)\.\d+\.tmp$", name)}
    return left_in(experiment(output)) | {"names": names}


def assert_equal(got: dict[str, Any], whole: dict[str, Any]) -> None:
    for part in whole:
        assert got[part] == whole[part], part
