"""The process that runs rewards which may hang, crash or print: `python -m llmclick.rewards.worker READ WRITE`.

It reads one JSON object a line from the descriptor READ and answers each with one on WRITE, in order; nothing else is ever
written there. Rewards are called in the main thread. stdout and stderr belong to the rewards.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

from llmclick.errors import InputError
from llmclick.registry import Entry
from llmclick.rewards import REWARDS, Reward
from llmclick.rewards.calls import Outcome, call, call_right
from llmclick.rewards.imports import load_imports, own_traceback
from llmclick.rewards.source import changed_files


def main(read: int, write: int) -> None:
    """Serves calls until the parent closes its end."""
    os.set_inheritable(read, False)
    os.set_inheritable(write, False)
    requests = os.fdopen(read, "rb")
    start = _object(requests.readline())
    _follow_parent(start["parent"], start["main_thread"])
    _limit_memory(start["memory"])
    refused = ""
    try:
        bound = _bind(start)
    except InputError as error:
        refused = str(error)
    except BaseException as error:
        refused = own_traceback(error)
    # After the import: whatever was read before this moment has the bytes that the run was planned with.
    if changed := changed_files(start["files"]):
        _send(write, {"changed": changed})
        return
    if refused:
        _send(write, {"refused": refused})
        return
    _send(write, {"ready": True})
    me = os.getpid()
    for line in requests:
        outcome = _answer(bound, line)
        if os.getpid() != me:
            os._exit(0)  # a reward forked, and this is the child on its way out
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm left behind would hit the next call
        _send(write, {"v": outcome.value, "f": outcome.failure, "d": outcome.detail, "c": outcome.completion})


def _answer(bound: list[tuple[Entry[Reward], dict[str, Any]]], line: bytes) -> Outcome:
    request = _object(line)
    entry, params = bound[request["i"]]
    # A reward that draws random numbers gives the same for the same completion, also after a resume.
    seed = zlib.crc32(request["t"].encode("utf-8", "surrogatepass"))
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
    params = json.loads(json.dumps(params)) if params else {}
    if request.get("right"):
        return call_right(entry.options["right"], entry.value, request["r"], _object(line)["r"], params)
    return call(entry.value, request["t"], request["r"], params)


def _bind(start: dict[str, Any]) -> list[tuple[Entry[Reward], dict[str, Any]]]:
    sys.path += [folder for folder in start["path"] if folder not in sys.path]
    load_imports(start["imports"])
    for module, file in start["modules"]:
        _load_module(module, file)
    bound = [(REWARDS.get(spec["name"]), spec["params"]) for spec in start["specs"]]
    for entry, _ in bound:
        if entry.shipped and "package" in entry.options:
            importlib.import_module(entry.options["package"])  # seconds that are not the first completion's
    return bound


def _load_module(module: str, file: str) -> None:
    """A reward that was registered outside of `imports`: by its module's name if that is the file, else by the file."""
    try:
        found = getattr(importlib.import_module(module), "__file__", None)
        if found is not None and Path(found).resolve() == Path(file).resolve():
            return
    except ImportError:
        pass
    load_imports([file])


def _object(line: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(line.decode("utf-8", "surrogatepass"))
    return value


def _send(write: int, answer: dict[str, Any]) -> None:
    data = memoryview(json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    while data:
        data = data[os.write(write, data) :]


def _limit_memory(size: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    # Linux counts in RLIMIT_DATA what a program allocates; RLIMIT_AS would also count the libraries that it maps.
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    try:
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            size = min(size, hard)
        resource.setrlimit(kind, (size, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):
        pass


def _follow_parent(parent: int, main_thread: bool) -> None:
    """Ends this process when its parent does, even in the middle of a call."""
    if sys.platform == "linux" and main_thread:  # the signal comes when the starting *thread* ends
        import ctypes

        pdeathsig = 1
        if ctypes.CDLL(None).prctl(pdeathsig, signal.SIGKILL, 0, 0, 0) == 0:
            if os.getppid() != parent:
                os._exit(1)
            return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
