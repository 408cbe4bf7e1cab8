"""Real `llmclick` processes that die where a test says: a server imports everything once and forks one process per run.

The product knows nothing of this: the forked process patches a function to send its own process a signal, and then is the
command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.waiting import until

SERVER = """
import sys
sys.path.insert(0, {root!r})
from tests.invariants.processes import serve
serve()
"""


@dataclass(frozen=True)
class Moment:
    """At the `nth` call of `at` ("module:attribute"), before it runs or after, while `inside` runs if given: a signal to the
    process, or an error that nobody expects (`signal=0`)."""

    at: str
    nth: int = 1
    after: bool = False
    inside: str | None = None
    signal: int = 9


@dataclass(frozen=True)
class Ended:
    """How a process ended: `code` is its exit code, negative for a signal; `err` is on one line, however it was wrapped."""

    code: int
    out: str
    err: str


class Processes:
    """The server's client: starts processes and waits for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER.format(root=root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def close(self) -> None:
        """Ends the server, and processes that still run or are stopped."""
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait(30)

    def start(
        self,
        args: Sequence[str],
        moments: Sequence[Moment] = (),
        file_limit: int | None = None,
        streams: str = "files",
    ) -> _Process:
        """`llmclick ARGS` in a process of its own, with at most `file_limit` bytes per file and stdin, stdout and stderr as
        `streams` says (see `connect`)."""
        self._count += 1
        out = self.folder / f"process-{self._count}"
        answer = self._ask(
            {
                "do": "start",
                "args": [str(arg) for arg in args],
                "moments": [asdict(moment) for moment in moments],
                "file_limit": file_limit,
                "streams": streams,
                "out": str(out),
            }
        )
        return _Process(self, answer["pid"], out)

    def run(
        self,
        args: Sequence[str],
        moments: Sequence[Moment] = (),
        file_limit: int | None = None,
        streams: str = "files",
    ) -> Ended:
        """The same, waited for."""
        return self.start(args, moments, file_limit, streams).wait()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer


@dataclass(frozen=True)
class _Process:
    server: Processes
    pid: int
    out: Path

    def wait(self) -> Ended:
        status = self.server._ask({"do": "wait", "pid": self.pid, "out": str(self.out)})["status"]
        return Ended(
            os.waitstatus_to_exitcode(status),
            self.out.with_suffix(".out").read_text(),
            " ".join(self.out.with_suffix(".err").read_text().split()),
        )

    def until(self, text: str) -> None:
        """Waits until the process has said so on stderr; fails at once if it ends without."""
        said = self.out.with_suffix(".err")

        def has_said() -> bool:
            ended = self._state() == "Z"  # asked first: what it said before is in the file then
            if said.exists() and text in said.read_text():
                return True
            assert not ended, f"ended without {text!r}: {said.read_text()}"
            return False

        until(has_said, f"it says {text!r}")

    def until_exists(self, folder: Path, pattern: str) -> None:
        """Waits until `folder` holds a file of that pattern."""
        until(lambda: any(folder.glob(pattern)), f"{pattern} is there")

    def end(self) -> None:
        """Ends it."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def until_stopped(self) -> None:
        """Waits until the process has stopped itself: a SIGCONT that came earlier would be lost."""
        until(lambda: self._state() == "T", "it has stopped itself")

    def _state(self) -> str:
        """R, S, T (stopped), Z (ended and not waited for) ...: "pid (name) state ...", a name may hold spaces; proc(5)."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]


def serve() -> None:
    """The server: one JSON request per line, one answer."""
    import torch

    # All that a run imports lazily, so that a forked process starts at once.
    import llmclick.cli
    import llmclick.config.load
    import llmclick.modeling.llm.models.adapters
    import llmclick.modeling.llm.models.base
    import llmclick.modeling.llm.models.overlay
    import llmclick.modeling.llm.models.transformer
    import llmclick.modeling.llm.training.loop
    import llmclick.pipeline.train
    import llmclick.pipeline.validate
    import llmclick.report.page  # noqa: F401

    torch.set_num_threads(1)
    known = set(sys.modules)
    requests = os.fdopen(os.dup(0), "r")
    answers = os.fdopen(os.dup(1), "w")
    for line in requests:
        request = json.loads(line)
        if request["do"] == "wait":
            _, status = os.waitpid(request["pid"], 0)
            known |= _import_as_well(Path(request["out"]).with_suffix(".modules"), known)
            answers.write(json.dumps({"status": status}) + "\n")
        else:
            pid = os.fork()
            if pid == 0:
                become(request)
            answers.write(json.dumps({"pid": pid}) + "\n")
        answers.flush()


def _import_as_well(path: Path, known: set[str]) -> set[str]:
    """What a process of before imported: the next one finds it there."""
    import importlib

    names = set(path.read_text().split("\n")) - known if path.exists() else set()
    for name in sorted(names):
        if name.startswith(("torch", "transformers", "tokenizers", "safetensors", "llmclick", "rich", "sympy")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    return names


def become(request: dict[str, Any]) -> None:
    """Turns this forked process into `llmclick ARGS`; never returns."""
    code = 70
    try:
        out = Path(request["out"])
        connect(out, request["streams"])
        sys.argv = ["llmclick", *request["args"]]
        for moment in request["moments"]:
            install(Moment(**moment))
        if request["file_limit"] is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
        from llmclick.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.flush()
        with contextlib.suppress(OSError):  # a file limit
            out.with_suffix(".modules").write_text("\n".join(list(sys.modules)))
        os._exit(code)


def connect(out: Path, streams: str) -> None:
    """Gives this process its stdin, stdout and stderr.

    files: kept in `out`.out and .err; terminal: one that is read; pipe, slow pipe: read at once, or 2 kB ten times a second;
    full pipe: one with no room, which is never read; closed pipe: its reader has left; full device: /dev/full; none: closed.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(out.with_suffix(suffix), os.O_CREAT | os.O_WRONLY | os.O_TRUNC), descriptor)
    if streams == "none":
        os.closerange(0, 3)
    elif streams == "full device":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        os.dup2(1, 2)
    elif streams != "files":
        here, there = os.openpty() if streams == "terminal" else os.pipe()
        for descriptor in (0, 1, 2) if streams == "terminal" else (1, 2):
            os.dup2(there, descriptor)
        os.close(there)
        if streams == "closed pipe":
            os.close(here)
        elif streams == "full pipe":
            os.set_blocking(1, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(1, b"x" * 4096)
            os.set_blocking(1, True)
        else:
            threading.Thread(target=_read, args=(here, streams == "slow pipe"), daemon=True).start()
    if streams == "none":
        sys.stdin = sys.stdout = sys.stderr = None  # type: ignore[assignment]  # as Python starts without them
    else:
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))


def _read(descriptor: int, slow: bool) -> None:
    with contextlib.suppress(OSError):  # a terminal that nobody writes to any more
        while os.read(descriptor, 2000 if slow else 1 << 16):
            time.sleep(0.1 if slow else 0)


def install(moment: Moment) -> None:
    """Patches the function of a moment so that its n-th call is the last."""
    owner, name, function = _find(moment.at)
    count = 0
    depth = 0

    def patched(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += depth > 0 or moment.inside is None
        here = count == moment.nth and (depth > 0 or moment.inside is None)
        if here and not moment.after:
            count += 1
            happen(moment)
        result = function(*args, **options)
        if here and moment.after:
            count += 1
            happen(moment)
        return result

    setattr(owner, name, patched)
    if moment.inside is not None:
        outer_owner, outer_name, outer = _find(moment.inside)

        def around(*args: Any, **options: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return outer(*args, **options)
            finally:
                depth -= 1

        setattr(outer_owner, outer_name, around)


def happen(moment: Moment) -> None:
    """Sends the signal, or raises what nobody expects."""
    if not moment.signal:
        raise RuntimeError("planted")
    os.kill(os.getpid(), moment.signal)


def _find(place: str) -> tuple[Any, str, Any]:
    import importlib

    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name, getattr(owner, name)
