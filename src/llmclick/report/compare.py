"""Several experiments on the same held-out rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmclick.errors import InputError, Problem
from llmclick.pipeline.gate import exact_mean
from llmclick.pipeline.intervals import FEWEST, paired_interval
from llmclick.pipeline.outcome import counted, interval_text
from llmclick.report.experiment import Experiment, read_experiment

SEED = 20260920


@dataclass(frozen=True)
class Compared:
    """One experiment: mean held-out reward on the shared rows, and the paired difference to the first experiment with its
    95 % interval (None for the first itself, and below 6 prompts). `interval` says whose ends it has."""

    folder: Path
    reward: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    left_out: int = 0
    interval: str | None = None


@dataclass(frozen=True)
class Comparison:
    """The experiments in the order given, `n` rows of `prompts` prompts that all judged, and what a reader must know."""

    n: int
    prompts: int
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
                None if one.low is None else f"{interval_text(one.low, one.high)} ({one.interval})",
                self.n if self.prompts == self.n else counted(self.n, self.prompts),
            )
            for one in self.experiments
        ]

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "n": self.n,
            "prompts": self.prompts,
            "experiments": [
                {
                    "experiment": str(one.folder),
                    "reward": one.reward,
                    "difference": one.difference,
                    "low": one.low,
                    "high": one.high,
                    "interval": one.interval,
                    "rows_left_out": one.left_out,
                }
                for one in self.experiments
            ],
            "notices": list(self.notices),
        }


def compare(folders: Sequence[str | Path]) -> Comparison:
    """Compare trained models by the held-out rows (matched by id) that all experiments judged.

    The difference is paired row by row with the first experiment; its 95 % interval is the gate's, over prompts, with a fixed
    seed. Raises InputError with every folder that cannot be compared, or if no row is shared.
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
    prompts = _prompts(found[0], shared)
    first = [rewards[0][row] for row in shared]
    compared = [Compared(found[0].folder, _mean(first), left_out=len(rewards[0]) - len(shared))]
    for one, by_id in zip(found[1:], rewards[1:], strict=True):
        differences = [by_id[row] - before for row, before in zip(shared, first, strict=True)]
        after = [by_id[row] for row in shared]
        part = Compared(one.folder, _mean(after), _mean(differences), left_out=len(by_id) - len(shared))
        if len(set(prompts)) >= FEWEST:
            sure = paired_interval(differences, prompts, SEED)
            part = replace(part, low=sure.low, high=sure.high, interval=sure.method)
        compared.append(part)
    notices = _notices(found, compared)
    if len(set(prompts)) < FEWEST:
        notices.append(f"{len(set(prompts))} shared prompts are too few for an interval: it takes at least {FEWEST}")
    return Comparison(len(shared), len(set(prompts)), tuple(compared), tuple(notices))


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


def _prompts(one: Experiment, shared: Sequence[str]) -> list[str]:
    """The prompt of each row as the model read it; a row that was kept without one stands for itself."""
    by_id = {str(row.get("id")): str(row["prompt"]) for row in one.held_out if row.get("prompt") is not None}
    return [by_id.get(row, f"row {row}") for row in shared]


def _mean(values: Sequence[float]) -> float:
    mean = exact_mean(values)
    return math.nan if mean is None else float(mean)
