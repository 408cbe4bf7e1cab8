"""Files that appear whole, and JSON lines that are the same bytes for the same content."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmclick.errors import InputError, Problem


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
