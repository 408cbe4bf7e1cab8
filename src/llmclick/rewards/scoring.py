"""Scoring: rewards on completions and rows, the same in check, training, validation and `llmclick reward`."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmclick.data.fields import keys_of, missing
from llmclick.errors import InputError, Problem, RewardError
from llmclick.registry import Entry
from llmclick.rewards import REWARDS, Reward
from llmclick.rewards.calls import CONTAINED, Outcome, call, call_right
from llmclick.rewards.imports import LOADED, METHOD_MODULE, load_imports
from llmclick.rewards.pool import Job, Pool
from llmclick.rewards.source import changed_files, check_unchanged, source_files
from llmclick.rewards.validate import Spec, check_specs, completed

if TYPE_CHECKING:
    from llmclick.data.rows import Row

#: Timeouts and dead workers are counted over so many completions in a row, across batches.
WINDOW = 100
#: A reward passes at its `pass_at` or this much below it, which is what sums of decimals lose.
ROUNDING = 1e-6
#: Totals are rounded to so many decimals, and to so many digits in all: what lies beyond is no more than rounding.
TOTAL_DECIMALS, TOTAL_DIGITS = 9, 12
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
    """`total` is the weighted sum that is optimised, `by_name` each reward raw (None: does not apply), `passed` whether the
    completion passes, `failures` how many rewards failed on it, by kind: timeout, died, memory, error.

    A completion passes when every reward that applies and has a positive weight reaches its `pass_at`, whatever the weights
    sum to. It does not pass when such a reward failed on it, when none of them applies (then nothing says that it is right),
    or when it was cut under `truncated: zero`.
    """

    total: float
    by_name: dict[str, float | None]
    passed: bool
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


def weighted_sum(terms: Sequence[tuple[float, float]]) -> float:
    """The sum of weight x value: the decimals exactly as they are written, rounded once, half to even.

    Rounded to 1e-9, above 1,000 to 12 digits: two sums that differ only by how they were rounded on the way are equal, so
    that they are no signal.

    >>> weighted_sum([(0.1, 1.0), (0.2, 1.0), (0.3, 0.0)]), weighted_sum([(0.1, 0.0), (0.2, 0.0), (0.3, 1.0)])
    (0.3, 0.3)
    """
    exact = sum((Fraction(repr(weight)) * Fraction(repr(value)) for weight, value in terms), Fraction(0))
    total = float(round(exact, TOTAL_DECIMALS))
    return float(f"{total:.{TOTAL_DIGITS}g}") if abs(total) >= 10 ** (TOTAL_DIGITS - TOTAL_DECIMALS) else total


def reaches(value: float, pass_at: float) -> bool:
    """Whether a reward's value passes.

    >>> reaches(0.7 + 0.1, 0.8), reaches(0.79, 0.8)
    (True, False)
    """
    return value >= pass_at - ROUNDING


class _Failing:
    """Which of the last completions took too long or ended their worker: at most max(1, 5 %) of `WINDOW` in a row may.

    While fewer have been scored, of those. A new scorer begins with none, so that a resumed run, which draws the same
    completion again, gets past the one that stopped it.
    """

    def __init__(self) -> None:
        self._before: deque[bool] = deque(maxlen=WINDOW - 1)

    def too_many(self, failing: set[int], size: int) -> tuple[int, int] | None:
        """Failures and completions of a stretch that has too many, None if there is none; `failing` are those known so far in a
        batch of `size`. What is not known yet could only make it worse, so the answer does not depend on the order of calls."""
        marks = [*self._before, *(place in failing for place in range(size))]
        length = min(len(marks), WINDOW)
        # The first stretch ends no earlier than the batch's first completion: those before were judged with their own batch.
        start = max(0, len(self._before) + 1 - length)
        count = sum(marks[start : start + length])
        while True:
            if count > max(1, length // 20):
                return count, length
            if start + length >= len(marks):
                return None
            count += marks[start + length] - marks[start]
            start += 1

    def took(self, failing: set[int], size: int) -> None:
        """The batch is scored."""
        self._before.extend(place in failing for place in range(size))


class _EnoughError(Exception):
    """Ends a trial early."""


class Scorer:
    """The rewards of a config, ready to score; a context manager that ends its workers.

    `files` is what `source_files` gave when the run was planned (default: what it gives now). Raises InputError if a reward is
    unknown or its params cannot work, RewardError if one of those files is no longer what it was.
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
        files: Mapping[str, str] | None = None,
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
        self._failing = _Failing()
        named = [{"name": bound.spec.name, "params": bound.params} for bound in self._bound]
        paths = [Path(path) for path in imports]
        if files is None:
            files = source_files(specs, imports)
        else:
            check_unchanged(changed_files(files))
        self._pool = Pool(named, paths, _modules(self._bound, paths), log, files)

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
        RewardError when more than max(1, 5 %) of the last 100 completions fail so, when a reward raises or returns no finite
        number (unless its `on_error` is zero), and when no reward applies to a completion.
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
                self._notify(f"reward {bound.spec.name}, {item.where}: {outcome.brief}; this completion scores 0")
                failing.add(at)
                if found := self._failing.too_many(failing, len(items)):
                    raise RewardError(_too_many(bound, item, *found, jobs[number].completion, outcome.detail))

        outcomes = self._run(jobs, seen)
        self._failing.took(failing, len(items))
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
        applied = [
            (bound, outcome, value)
            for bound, outcome in zip(self._bound, outcomes, strict=True)
            if (value := by_name[bound.spec.name]) is not None
        ]
        if not applied:
            why = "no reward applies: every one returned None"
            write = "leave the row out, or let one reward apply to it"
            raise RewardError(Problem(item.where, ", ".join(self.names), why, write, given=shown(self._visible(item.text))))
        asked = [
            not outcome.failure and reaches(value, bound.spec.pass_at)
            for bound, outcome, value in applied
            if bound.spec.weight > 0
        ]
        zeroed = self._zero_truncated and item.truncated
        total = 0.0 if zeroed else weighted_sum([(bound.spec.weight, value) for bound, _, value in applied])
        passed = bool(asked) and all(asked) and not zeroed
        return Score(total, by_name, passed, dict(Counter(outcome.failure for outcome in outcomes if outcome.failure)))


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
        why=f"{detail}; {failing} of the last {items} completions failed so, and more than max(1, 5 %) are too many",
        write=f"make the reward faster or safer, or raise its timeout (now {bound.spec.timeout:g} s)",
    )


_ABSENT = re.compile(r"the row has no '([^'\n]+)'|it raised KeyError\n(?:.*\n)*KeyError: '([^'\n]+)'")
"""What a shipped reward says of a row without its key, and what a user's reward says by failing."""


def _key_that_is_absent(reason: str, row: Row) -> str | None:
    found = _ABSENT.fullmatch(reason)
    key = (found[1] or found[2]) if found else None
    return key if key is not None and key not in row.data else None


def _refused(bound: _Bound, row: Row, reason: str) -> Problem:
    if (key := _key_that_is_absent(reason, row)) is not None:
        return Problem(row.where, bound.spec.name, reason, missing(row.data, key), given=keys_of(row.data))
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
        why, write, given = f"tried with {tried}: {outcome.detail}", "fix the reward or the row", ""
        if (key := _key_that_is_absent(outcome.detail, row)) is not None:
            given, write = keys_of(row.data), f"{missing(row.data, key)}, or read another key in the reward"
        return Problem(row.where, name, why, write, given)
    if job.right and (outcome.value is None or not reaches(outcome.value, bound.spec.pass_at)):
        why = f"a completion made from the row's own answer scores {outcome.value}, so no completion could be known to be right"
        return Problem(row.where, name, why, "mend the answer or leave the row out", given=shown(outcome.completion))
    return None


__all__ = ["Score", "Scorer", "ToScore", "reaches", "shown", "weighted_sum"]
