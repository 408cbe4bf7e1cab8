"""Worker processes for rewards: calls in order, each under a hard timeout, a dead worker replaced."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from llmclick.errors import Problem, RewardError
from llmclick.rewards.calls import Outcome
from llmclick.rewards.source import check_unchanged

#: Worker processes at most.
WORKERS = min(4, os.cpu_count() or 1)
#: Bytes that a worker may allocate.
MEMORY = 4 * 2**30
#: Seconds that a worker may take to import the user's files.
START_SECONDS = 120.0

_ANOTHER_AFTER = 0.1  # seconds of waiting before one more worker starts
_WINDOW = 64  # calls that one worker is ahead
_WINDOW_BYTES = 1 << 18
_LOOK = 0.1  # seconds between looks at whether a silent worker still lives
_HEARD = 4096  # bytes of a worker's standard error that are kept to be shown
_SHOWN = 12  # lines of it that are shown


@dataclass(frozen=True)
class Job:
    """A call: which bound reward, the completion, the row, and its limit in seconds. `right` tries the row's own answer."""

    reward: int
    completion: str
    row: dict[str, Any]
    timeout: float
    right: bool = False


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    to: int
    back: int
    error: int
    since: float
    ready: bool = False
    ready_at: float = 0.0
    outbox: bytearray = field(default_factory=bytearray)
    inbox: bytearray = field(default_factory=bytearray)
    doing: deque[int] = field(default_factory=deque)
    heard: bytes = b""  # the end of its standard error since the last answers came
    heard_before: bytes = b""


class Pool:
    """Runs jobs in workers that all know the same rewards. Workers start when they are needed and stay until `close`.

    What a worker and its children write goes to `log`; the end of what they wrote on standard error is shown with a failure.

    `files` holds the SHA-256 of the files that define the rewards; a worker that finds other bytes there ends the run with
    RewardError.
    """

    def __init__(
        self,
        specs: Sequence[dict[str, Any]],
        imports: Sequence[Path],
        modules: Sequence[tuple[str, str]],
        log: Path | None,
        files: Mapping[str, str],
    ) -> None:
        self._start = {
            "files": dict(files),
            "specs": list(specs),
            "imports": [str(path.resolve()) for path in imports],
            "modules": list(modules),
            "memory": MEMORY,
        }
        self._log = log
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def close(self) -> None:
        """Ends all workers at once."""
        for worker in list(self._workers):
            self._end(worker)

    def run(self, jobs: Sequence[Job], seen: Callable[[int, Outcome], None] = lambda number, outcome: None) -> list[Outcome]:
        """The outcome of every job, in order. `seen` is told each as it comes and may raise, which ends the workers."""
        outcomes: list[Outcome | None] = [None] * len(jobs)
        waiting = deque(range(len(jobs)))
        encoded: dict[int, str] = {}

        def settle(number: int, outcome: Outcome) -> None:
            outcomes[number] = outcome
            seen(number, outcome)

        began = time.monotonic()
        try:
            while waiting or any(worker.doing for worker in self._workers):
                if waiting and self._is_short(began):
                    self._new_worker()
                for worker in self._workers:
                    self._fill(worker, waiting, jobs, encoded)
                self._exchange(jobs, settle, waiting)
            for worker in self._workers:
                self._listen(worker)
        except BaseException:
            self.close()
            raise
        done = [outcome for outcome in outcomes if outcome is not None]
        assert len(done) == len(jobs)
        return done

    def _is_short(self, began: float) -> bool:
        """Whether one more worker is worth its start: none is there, or all have been at work for a while."""
        ready = max((worker.ready_at for worker in self._workers), default=began)
        long = time.monotonic() - max(began, ready) >= _ANOTHER_AFTER
        return not self._workers or (len(self._workers) < WORKERS and long and all(worker.ready for worker in self._workers))

    def _fill(self, worker: _Worker, waiting: deque[int], jobs: Sequence[Job], encoded: dict[int, str]) -> None:
        ahead = min(_WINDOW, max(1, -(-len(waiting) // (2 * WORKERS))))
        while worker.ready and waiting and len(worker.doing) < ahead and len(worker.outbox) < _WINDOW_BYTES:
            number = waiting.popleft()
            job = jobs[number]
            row = encoded.get(id(job.row))
            if row is None:
                row = encoded[id(job.row)] = _json(job.row)
            right = ',"right":1' if job.right else ""
            worker.outbox += f'{{"i":{job.reward},"t":{_json(job.completion)},"r":{row}{right}}}\n'.encode(
                "utf-8", "surrogatepass"
            )
            if not worker.doing:
                worker.since = time.monotonic()
            worker.doing.append(number)
        self._watch(worker)

    def _watch(self, worker: _Worker) -> None:
        """Asks for room in the pipe only while there is something to write."""
        registered = worker.to in self._selector.get_map()
        if worker.outbox and not registered:
            self._selector.register(worker.to, selectors.EVENT_WRITE, worker)
        elif registered and not worker.outbox:
            self._selector.unregister(worker.to)

    def _exchange(self, jobs: Sequence[Job], settle: Callable[[int, Outcome], None], waiting: deque[int]) -> None:
        """Writes and reads what can be written and read now, then looks for workers that are late or dead."""
        now = time.monotonic()
        late = min((self._deadline(worker, jobs) for worker in self._workers), default=now)
        ended: set[int] = set()
        for key, _ in self._selector.select(max(0.0, min(_LOOK, late - now))):
            worker = key.data
            if key.fd == worker.to:
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    del worker.outbox[: os.write(worker.to, bytes(worker.outbox[:_WINDOW_BYTES]))]
            elif key.fd == worker.error:
                self._listen(worker)
            elif not self._read(worker, settle):
                ended.add(worker.back)
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.back in ended or worker.process.poll() is not None:
                while self._read(worker, settle):
                    pass
                self._lost(worker, Outcome(failure="died", detail=self._told(worker, _death(worker.process))), settle, waiting)
            elif now >= self._deadline(worker, jobs):
                seconds = jobs[worker.doing[0]].timeout if worker.doing else START_SECONDS
                told = self._told(worker, f"it took over {seconds:g} s")
                self._lost(worker, Outcome(failure="timeout", detail=told), settle, waiting)

    def _deadline(self, worker: _Worker, jobs: Sequence[Job]) -> float:
        if not worker.ready:
            return worker.since + START_SECONDS
        return worker.since + jobs[worker.doing[0]].timeout if worker.doing else float("inf")

    def _read(self, worker: _Worker, settle: Callable[[int, Outcome], None]) -> bool:
        """Takes in the answers that have come; False once the worker closed its end."""
        try:
            data = os.read(worker.back, 1 << 18)
        except BlockingIOError:
            return False
        if not data:
            return False
        worker.inbox += data
        *lines, rest = worker.inbox.split(b"\n")
        worker.inbox = bytearray(rest)
        self._listen(worker)
        for line in lines:
            worker.since = time.monotonic()
            answer = json.loads(line.decode("utf-8", "surrogatepass"))
            if "changed" in answer:
                check_unchanged(answer["changed"])
            if "refused" in answer:
                raise RewardError(_no_start("the worker could not load the rewards", answer["refused"]))
            if not worker.ready:
                worker.ready, worker.ready_at = True, worker.since
                continue
            detail = self._told(worker, answer["d"], before=False) if answer["f"] == "error" else answer["d"]
            settle(worker.doing.popleft(), Outcome(answer["v"], answer["f"], detail, answer["c"]))
        if lines:
            worker.heard, worker.heard_before = b"", worker.heard or worker.heard_before
        return True

    def _listen(self, worker: _Worker) -> None:
        """Takes in what the worker and its children wrote on standard error."""
        try:
            data = os.read(worker.error, 1 << 16)
        except BlockingIOError:
            return
        if not data:  # all who could write are gone or closed it
            with contextlib.suppress(KeyError):
                self._selector.unregister(worker.error)
            return
        worker.heard = (worker.heard + data)[-_HEARD:]
        if self._log is not None:
            with contextlib.suppress(OSError), open(self._log, "ab") as log:
                log.write(data)

    def _told(self, worker: _Worker, what: str, before: bool = True) -> str:
        """What happened, and the end of what was written on standard error meanwhile; or, with `before`, not long before."""
        self._listen(worker)
        heard = worker.heard or (worker.heard_before if before else b"")
        lines = heard.decode("utf-8", "replace").rstrip().splitlines()[-_SHOWN:]
        return what + "".join(["; the end of its standard error:", *(f"\n  {line}" for line in lines)]) if lines else what

    def _lost(self, worker: _Worker, outcome: Outcome, settle: Callable[[int, Outcome], None], waiting: deque[int]) -> None:
        """The call that a worker was in fails; those behind it go back to the front of the queue."""
        self._end(worker)
        if not worker.ready:
            raise RewardError(_no_start("a worker ended before it was ready", outcome.detail))
        if worker.doing:
            number = worker.doing.popleft()
            waiting.extendleft(reversed(worker.doing))
            worker.doing.clear()
            settle(number, outcome)

    def _new_worker(self) -> None:
        theirs_in, to = os.pipe()
        back, theirs_out = os.pipe()
        error, their_error = os.pipe()
        log: IO[bytes] | int = subprocess.DEVNULL
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            log = open(self._log, "ab")  # noqa: SIM115  # closed below, the worker has its own
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "llmclick.rewards.worker", str(theirs_in), str(theirs_out)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=their_error,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,  # a Ctrl-C is for the run, and what a reward starts ends with it
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
            os.close(their_error)
            if not isinstance(log, int):
                log.close()
        for end in (to, back, error):
            os.set_blocking(end, False)
        worker = _Worker(process, to, back, error, time.monotonic())
        here = {
            "parent": os.getpid(),
            "main_thread": threading.current_thread() is threading.main_thread(),
            "path": [os.path.abspath(folder) for folder in sys.path],
        }
        worker.outbox += _json({**self._start, **here}).encode("utf-8", "surrogatepass") + b"\n"
        self._workers.append(worker)
        self._selector.register(back, selectors.EVENT_READ, worker)
        self._selector.register(error, selectors.EVENT_READ, worker)
        self._watch(worker)

    def _end(self, worker: _Worker) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        self._listen(worker)
        for end in (worker.to, worker.back, worker.error):
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            os.close(end)
        self._workers.remove(worker)


def _json(value: Any) -> str:
    # Not as ASCII: escaped, two lone surrogates side by side would come out as one character.
    return json.dumps(value, ensure_ascii=False)


def _death(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return "its worker closed the pipe"
    return f"its worker was ended by {signal.Signals(-code).name}" if code < 0 else f"its worker ended with exit code {code}"


def _no_start(why: str, detail: str) -> Problem:
    return Problem(
        where="", key="method.reward", why=f"{why}:\n{detail}", write="mend the file; it is imported once more in every worker"
    )
