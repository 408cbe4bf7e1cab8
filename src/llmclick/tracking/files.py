"""Files that appear whole, and JSON lines that are the same bytes for the same content."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmclick.errors import InputError, Problem

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name, fsync, rename: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears whole: yields an empty one beside it, which takes its place, synced, when nothing was raised.

    What a killed attempt left is removed, so only one process at a time may write `folder`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield fresh
        fresh.chmod(0o777 & ~_umask())
        for path in fresh.rglob("*"):
            if path.is_file():
                path.chmod(0o666 & ~_umask())
                sync(path)
        sync(fresh)
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            folder.rename(folder.with_name(f".{folder.name}-old-{os.getpid()}"))
        fresh.rename(folder)
        sync(folder.parent)
        for old in folder.parent.glob(f".{folder.name}-old-*"):
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def sync(path: Path) -> None:
    """Bring a file or a folder's names to the disk; where a system cannot open folders, nothing is to be done."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, pattern: str = "*", older_than: float = 0.0) -> None:
    """Remove what kills in the middle of `write_atomic` left: where nobody else writes, or what is that many seconds old."""
    for left in folder.glob(f".{pattern}.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime >= older_than:
                left.unlink()


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk, a quota or a limit on files is used up (safetensors raises a class of its own)."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    if type(error).__name__ != "SafetensorError":
        return False
    found = re.search(r"os error (\d+)", str(error))
    return found is not None and int(found[1]) in _FULL


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def json_line(record: Mapping[str, Any], order: Sequence[str] = ()) -> bytes:
    """One compact line: keys in `order` first, the others sorted; non-finite numbers become null.

    ASCII only, so that lone surrogates survive and bidi or control characters cannot act when the file is shown.
    """
    rank = {key: place for place, key in enumerate(order)}

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            keys = sorted(value, key=lambda key: (rank.get(key, len(rank)), str(key)))
            return {str(key): clean(value[key]) for key in keys}
        if isinstance(value, (list, tuple)):
            return [clean(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if hasattr(value, "item") and not isinstance(value, (str, bytes)):  # a numpy or torch number
            return clean(value.item())
        return value

    return json.dumps(clean(record), separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def parse_lines(data: bytes, where: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """The whole lines of a JSON-lines file with their records. A torn end is left out; a bad line before a good
    one is an error."""
    good: list[tuple[bytes, dict[str, Any]]] = []
    bad: int | None = None
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        record = _record(line)
        if record is None:
            bad = bad or number
        elif bad is not None:
            raise InputError(
                Problem(
                    where=f"{where}:{bad}",
                    key="",
                    why="this line is no JSON object although whole lines follow it: the file was changed by hand or damaged",
                    write="put the line back or remove it",
                )
            )
        else:
            good.append((line + b"\n", record))
    return good


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
