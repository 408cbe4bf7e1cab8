"""The errors a person can meet: one class per exit code; each problem says what was set, why it fails and what to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the user's input.

    `where` is `file:line` (or `--set`, or a folder), `key` the dotted config key, row key or reward name ("" if none),
    `given` what was found there ("" if nothing), `why` a sentence, `write` the remedy as a sentence.
    """

    where: str
    key: str
    why: str
    write: str
    given: str = ""

    def __str__(self) -> str:
        head = "  ".join(part for part in (self.where, self.key) if part)
        lines = [head] if head else []
        if self.given:
            lines.append(f"  given: {self.given}")
        lines.append(f"  why:   {self.why}")
        lines.append(f"  write: {self.write.removeprefix('write ')}")
        return "\n".join(lines)


class LlmclickError(Exception):
    """Base of everything that llmclick raises on purpose. `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(LlmclickError):
    """The user's input (config, rows, rewards, model name) is wrong. Carries every problem that was found, in order."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | Problem) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n\n".join(str(problem) for problem in self.problems))


class RewardError(InputError):
    """A reward failed in the middle of a run (raised, or returned something that is no number)."""


class TrainingStopped(LlmclickError):
    """Training stopped itself: non-finite numbers, no signal, sampler and trainer disagree, disk full in the middle."""

    exit_code = 4


class Interrupted(LlmclickError):
    """A signal ended the run at a step boundary; the same command continues it."""

    exit_code = 130
