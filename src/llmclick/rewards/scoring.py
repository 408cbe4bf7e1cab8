"""Scoring: rewards on completions and rows, the same in check, training, validation and `llmclick reward`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmclick.errors import InputError, Problem, RewardError
from llmclick.registry import Entry
from llmclick.rewards import REWARDS, Reward
from llmclick.rewards.calls import CONTAINED, Outcome, call, call_right
from llmclick.rewards.imports import LOADED, METHOD_MODULE, load_imports
from llmclick.rewards.pool import Job, Pool
from llmclick.rewards.validate import Spec, check_specs, completed

if TYPE_CHECKING:
    from llmclick.data.rows import Row

#: More than this share of a batch in timeouts and dead workers stops the run.
FAILING_SHARE = 0.05
#: A right answer scores at least this.
RIGHT = 1 - 1e-6
#: After so many timeouts and dead workers the trial of the rows ends early.
TRIAL_FAILURES = 20


@dataclass(frozen=True)
class ToScore:
    """A completion as text, its row, where the row stands, and whether the token budget cut it."""

    text: str
    row: dict[str, Any]
    where: str
    truncated: bool


@dataclass(frozen=True)
class Score:
    """`total` is the weighted sum that is optimised, `by_name` each reward raw (None: does not apply), `failures` how many
    rewards failed on this completion, by kind: timeout, died, memory, error."""

    total: float
    by_name: dict[str, float | None]
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Bound:
    spec: Spec
    entry: Entry[Reward]
    params: dict[str, Any]

    @property
    def in_process(self) -> bool:
        """Shipped and linear in its input; every other reward runs in a worker (where the system has pipes to wait for)."""
        return (self.entry.shipped and bool(self.entry.options.get("in_process"))) or os.name != "posix"


class _EnoughError(Exception):
    """Ends a trial early."""


class Scorer:
    """The rewards of a config, ready to score; a context manager that ends its workers.

    Raises InputError if a reward is unknown or its params cannot work.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        imports: Sequence[str | Path] = (),
        *,
        answer_after: str | None = None,
        truncated: str = "score",
        log: Path | None = None,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        load_imports(imports)
        problems = check_specs(specs, lambda key: "")
        if problems:
            raise InputError(problems)
        self._bound = [
            _Bound(spec, entry, completed(entry, spec.params)) for spec in specs for entry in [REWARDS.get(spec.name)]
        ]
        self._answer_after = answer_after
        self._zero_truncated = truncated == "zero"
        self._notify = notify
        named = [{"name": bound.spec.name, "params": bound.params} for bound in self._bound]
        paths = [Path(path) for path in imports]
        self._pool = Pool(named, paths, _modules(self._bound, paths), log)

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers; a later call starts new ones."""
        self._pool.close()

    @property
    def names(self) -> list[str]:
        """The rewards' names, in the config's order."""
        return [bound.spec.name for bound in self._bound]

    def score(self, items: Sequence[ToScore]) -> list[Score]:
        """Scores a batch of completions, in order.

        A call over its timeout or a worker that dies scores 0 for that completion, is told to `notify` and counted. Raises
        RewardError when more than 5 % of the batch fail so, when a reward raises or returns no finite number (unless its
        `on_error` is zero), and when no reward applies to a completion.
        """
        jobs = [
            Job(number, self._visible(item.text), item.row, bound.spec.timeout)
            for item in items
            for number, bound in enumerate(self._bound)
        ]
        failing: set[int] = set()

        def seen(number: int, outcome: Outcome) -> None:
            at, reward = divmod(number, len(self._bound))
            item, bound = items[at], self._bound[reward]
            if outcome.failure == "error" and bound.spec.on_error != "zero":
                raise RewardError(_failed(bound.spec.name, item.where, jobs[number].completion, outcome.detail))
            if outcome.failure in CONTAINED:
                self._notify(f"reward {bound.spec.name}, {item.where}: {outcome.detail}; this completion scores 0")
                failing.add(at)
                if len(failing) > FAILING_SHARE * len(items):
                    raise RewardError(_too_many(bound, item, len(failing), len(items), jobs[number].completion, outcome.detail))

        outcomes = self._run(jobs, seen)
        width = len(self._bound)
        return [self._total(item, outcomes[at * width : (at + 1) * width]) for at, item in enumerate(items)]

    def try_rows(self, rows: Sequence[Row]) -> list[Problem]:
        """Tries every reward on every row before training: an empty completion must give a number, and a completion made from
        the row's own answer must score 1 where the reward knows how to make one. Returns what is refused, by row."""
        problems: dict[int, list[Problem]] = {}
        jobs: list[Job] = []
        owners: list[tuple[int, _Bound]] = []
        for at, row in enumerate(rows):
            for number, bound in enumerate(self._bound):
                refuses = bound.entry.options.get("refuses") if bound.entry.shipped else None
                reason = refuses(row.data, bound.params) if refuses else None
                if reason is not None:
                    problems.setdefault(at, []).append(_refused(bound, row, reason))
                    continue
                for right in (False, True) if bound.entry.options.get("right") else (False,):
                    jobs.append(Job(number, "", row.data, bound.spec.timeout, right))
                    owners.append((at, bound))
        applies: dict[int, bool] = {}
        contained = 0

        def seen(number: int, outcome: Outcome) -> None:
            nonlocal contained
            at, bound = owners[number]
            problem = _trial_problem(bound, rows[at], jobs[number], outcome)
            if problem is not None:
                problems.setdefault(at, []).append(problem)
            if not jobs[number].right:
                applies[at] = applies.get(at, False) or outcome.value is not None or bool(outcome.failure)
            contained += outcome.failure in CONTAINED
            if contained >= TRIAL_FAILURES:
                raise _EnoughError

        try:
            self._run(jobs, seen)
        except _EnoughError:
            why = f"{contained} calls took too long or ended their worker, so the other rows were not tried"
            end = Problem(where="", key="method.reward", why=why, write="mend the reward")
            return [problem for at in sorted(problems) for problem in problems[at]] + [end]
        for at, row in enumerate(rows):
            if applies.get(at) is False and at not in problems:
                why = "every reward returned None for it, so it cannot be scored"
                problems[at] = [
                    Problem(row.where, ", ".join(self.names), why, "leave the row out, or let one reward apply to it")
                ]
        return [problem for at in sorted(problems) for problem in problems[at]]

    def _visible(self, text: str) -> str:
        """What rewards see of a completion."""
        if self._answer_after is None:
            return text
        _, found, after = text.rpartition(self._answer_after)
        return after if found else ""

    def _run(self, jobs: Sequence[Job], seen: Callable[[int, Outcome], None]) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(jobs)
        away: list[int] = []
        for number, job in enumerate(jobs):
            bound = self._bound[job.reward]
            if not bound.in_process:
                away.append(number)
                continue
            outcomes[number] = outcome = _call_here(bound, job)
            seen(number, outcome)
        if away:
            answers = self._pool.run([jobs[number] for number in away], lambda at, outcome: seen(away[at], outcome))
            for number, outcome in zip(away, answers, strict=True):
                outcomes[number] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _total(self, item: ToScore, outcomes: Sequence[Outcome]) -> Score:
        by_name = {
            bound.spec.name: 0.0 if outcome.failure else outcome.value
            for bound, outcome in zip(self._bound, outcomes, strict=True)
        }
        applied = [bound.spec.weight * value for bound in self._bound if (value := by_name[bound.spec.name]) is not None]
        if not applied:
            why = "no reward applies: every one returned None"
            write = "leave the row out, or let one reward apply to it"
            raise RewardError(Problem(item.where, ", ".join(self.names), why, write, given=shown(self._visible(item.text))))
        total = 0.0 if self._zero_truncated and item.truncated else sum(applied)
        return Score(total, by_name, dict(Counter(outcome.failure for outcome in outcomes if outcome.failure)))


def _call_here(bound: _Bound, job: Job) -> Outcome:
    if bound.entry.shipped:
        row = again = job.row  # shipped rewards change nothing
    else:
        import copy

        row, again = copy.deepcopy(job.row), copy.deepcopy(job.row)
    if job.right:
        return call_right(bound.entry.options["right"], bound.entry.value, row, again, bound.params)
    return call(bound.entry.value, job.completion, row, bound.params)


def _modules(bound: Sequence[_Bound], imports: Sequence[Path]) -> list[tuple[str, str]]:
    """Modules outside of `imports` that registered a reward in use, for the workers to import too."""
    known = {path.resolve() for path in imports}
    named = {name for path in known if path in LOADED for name in LOADED[path].names}
    modules: dict[str, str] = {}
    for one in bound:
        module = getattr(one.entry.value, "__module__", "") or ""
        if one.in_process or one.entry.shipped or one.spec.name in named or module == METHOD_MODULE:
            continue
        if not Path(one.entry.file).is_file():
            why = "it was defined outside of any file, so the worker that runs it cannot find it"
            raise InputError(
                Problem(one.entry.file, one.spec.name, why, "write it into a file and name that in pipeline.imports")
            )
        modules[module] = one.entry.file
    return list(modules.items())


def shown(text: str, limit: int = 200) -> str:
    """A completion for a message: quoted, shortened in the middle, everything that is no plain character escaped."""
    if len(text) > limit:
        text = f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
    return repr(text)


def _failed(name: str, where: str, completion: str, detail: str) -> Problem:
    return Problem(
        where=where,
        key=name,
        given=f"completion {shown(completion)}",
        why=detail,
        write="mend the reward, or `on_error: zero` to score 0 where it fails",
    )


def _too_many(bound: _Bound, item: ToScore, failing: int, items: int, completion: str, detail: str) -> Problem:
    return Problem(
        where=item.where,
        key=bound.spec.name,
        given=f"completion {shown(completion)}",
        why=f"{detail}; {failing} of {items} completions failed so, more than {FAILING_SHARE:.0%} of the batch",
        write=f"make the reward faster or safer, or raise its timeout (now {bound.spec.timeout:g} s)",
    )


def _refused(bound: _Bound, row: Row, reason: str) -> Problem:
    return Problem(
        where=row.where,
        key=bound.spec.name,
        why=reason,
        write="mend the row or leave it out; a column of another name is renamed with `fields`",
    )


def _trial_problem(bound: _Bound, row: Row, job: Job, outcome: Outcome) -> Problem | None:
    name = bound.spec.name
    if outcome.failure == "error" and bound.spec.on_error == "zero" and not job.right:
        return None
    if outcome.failure:
        tried = (
            f"its own answer {shown(outcome.completion)}"
            if outcome.completion
            else "its own answer"
            if job.right
            else "an empty completion"
        )
        return Problem(row.where, name, f"tried with {tried}: {outcome.detail}", "mend the reward or the row")
    if job.right and (outcome.value is None or outcome.value < RIGHT):
        why = f"a completion made from the row's own answer scores {outcome.value}, so no completion could be known to be right"
        return Problem(row.where, name, why, "mend the answer or leave the row out", given=shown(outcome.completion))
    return None


__all__ = ["Score", "Scorer", "ToScore", "shown"]
