"""One process per stage: a second one says whom it waits for, and then finds the work done."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from llmclick.tracking.files import write_atomic


@contextmanager
def stage_lock(folder: Path, name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold `<folder>/<name>.lock`, after waiting for whoever holds it; `say` is told once for whom.

    The lock is the operating system's: it ends with the process that holds it, however that ends. Beside it lies who that is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / f"{name}.json"
    lock = FileLock(folder / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for {_holder(holder)}, which works on the same {name.partition('-')[0]} stage; its result will be used")
        lock.acquire(poll_interval=0.2)
    try:
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        write_atomic(holder, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode())
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_bytes())
        return f"process {who['pid']} on {who['host']} (since {who['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
