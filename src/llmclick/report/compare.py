"""Several experiments on the same held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmclick.errors import InputError, Problem
from llmclick.pipeline.bootstrap import paired_interval
from llmclick.report.experiment import Experiment, read_experiment

SEED = 20260920


@dataclass(frozen=True)
class Compared:
    """One experiment: mean held-out reward on the shared rows, and the paired difference to the first experiment with its
    95 % interval (None for the first itself)."""

    folder: Path
    reward: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    left_out: int = 0


@dataclass(frozen=True)
class Comparison:
    """The experiments in the order given, `n` rows that all of them judged, and what a reader must know."""

    n: int
    experiments: tuple[Compared, ...]
    notices: tuple[str, ...] = ()

    columns = ("experiment", "reward", "difference", "95 % interval", "n")

    def rows(self) -> list[tuple[object, ...]]:
        """The cells for `Console.table`, in the order of `columns`."""
        return [
            (
                one.folder.name,
                one.reward,
                one.difference,
                None if one.low is None else f"{one.low:.3f} to {one.high:.3f}",
                self.n,
            )
            for one in self.experiments
        ]

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "n": self.n,
            "experiments": [
                {
                    "experiment": str(one.folder),
                    "reward": one.reward,
                    "difference": one.difference,
                    "low": one.low,
                    "high": one.high,
                    "rows_left_out": one.left_out,
                }
                for one in self.experiments
            ],
            "notices": list(self.notices),
        }


def compare(folders: Sequence[str | Path]) -> Comparison:
    """Compare trained models by the held-out rows (matched by id) that all experiments judged.

    The difference is paired row by row with the first experiment; the interval is the 95 % percentile bootstrap over rows
    (10,000 resamples, a fixed seed). Raises InputError with every folder that cannot be compared, or if no row is shared.
    """
    if len(folders) < 2:
        raise InputError(
            Problem("compare", "", "one experiment alone has nothing to be compared with", "name two or more folders")
        )
    found = [read_experiment(folder) for folder in folders]
    rewards = [_rewards(one) for one in found]
    missing = [
        Problem(
            where=str(one.folder / "validate" / "rows.jsonl"),
            key="",
            why="this experiment has no judged held-out rows: validate has not run there, or the folder is no experiment",
            write="run its config with the validate stage first",
        )
        for one, by_id in zip(found, rewards, strict=True)
        if not by_id
    ]
    if missing:
        raise InputError(missing)
    shared = [row for row in rewards[0] if all(row in other for other in rewards[1:])]
    if not shared:
        raise InputError(
            Problem(
                where=", ".join(str(one.folder) for one in found),
                key="",
                why="no held-out row is in all of them: their differences would be differences of rows, not of models",
                write="compare experiments with the same data.sources, data.validation and pipeline.seed",
            )
        )
    first = [rewards[0][row] for row in shared]
    compared = [Compared(found[0].folder, _mean(first), left_out=len(rewards[0]) - len(shared))]
    for one, by_id in zip(found[1:], rewards[1:], strict=True):
        differences = [by_id[row] - before for row, before in zip(shared, first, strict=True)]
        low, high = paired_interval(differences, SEED)
        mean = _mean([by_id[row] for row in shared])
        compared.append(Compared(one.folder, mean, _mean(differences), low, high, len(by_id) - len(shared)))
    return Comparison(len(shared), tuple(compared), tuple(_notices(found, compared)))


def _notices(found: Sequence[Experiment], compared: Sequence[Compared]) -> list[str]:
    notices = []
    for one, row in zip(found, compared, strict=True):
        if row.left_out:
            notices.append(
                f"{one.folder.name}: {row.left_out} of its held-out rows are not in every experiment and are left out"
            )
    for one in found[1:]:
        for key in ("reward", "max_new_tokens", "answer_after", "truncated"):
            if found[0].config and one.config and found[0].setting(f"method.{key}") != one.setting(f"method.{key}"):
                notices.append(
                    f"{one.folder.name}: method.{key} differs from {found[0].folder.name}; the rewards mean other things"
                )
    return notices


def _rewards(one: Experiment) -> dict[str, float]:
    by_id = {}
    for row in one.held_out:
        reward = (row.get("trained") or {}).get("reward")
        if isinstance(reward, (int, float)):
            by_id[str(row.get("id"))] = float(reward)
    return by_id


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
