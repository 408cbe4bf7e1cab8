"""completions/<step>.jsonl: every completion of a run, with its reward and why."""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llmclick.tracking.files import json_line, parse_lines, write_atomic

# One completion, in this order. `row` is the row's id, `where` its file and line, `sample` its place in the group (from 0),
# `prompt` the rendered prompt, `tokens` how many were sampled, `stop` "stop" or "length", `rewards` each named reward as it
# was returned (null: does not apply), `reward` the total that was optimised, `passed` whether it passes. `ids` and `logprobs`
# only with report.tokens.
FIELDS = (
    *("row", "where", "sample", "prompt", "text", "tokens", "stop", "rewards", "reward", "passed", "advantage"),
    *("ids", "logprobs"),
)

_STEP = re.compile(r"0|[1-9][0-9]*", re.ASCII)


class CompletionsFolder:
    """The folder of one run; the file of step 12 is 12.jsonl, or 12.jsonl.gz once it is old.

    What is compressed depends on what the files hold and on nothing else: a step stays plain if it is the newest, or if it
    and all newer steps together have at most `keep` bytes uncompressed. The rule is applied after every write and every cut,
    in both directions, and gzip gets no time stamp; so a resumed run leaves the bytes of an uninterrupted one.
    """

    def __init__(self, path: str | Path, keep: int = 200_000_000) -> None:
        self.path = Path(path)
        self.keep = keep
        self._sizes: dict[int, int] = {}

    def steps(self) -> list[int]:
        """The steps that have a file, in order."""
        return sorted(self._files())

    def write(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the completions of one step as one file that appears whole."""
        data = b"".join(json_line(record, FIELDS) for record in records)
        write_atomic(self._plain(step), data)
        self._packed(step).unlink(missing_ok=True)
        self._sizes[step] = len(data)
        self._settle()

    def cut(self, step: int) -> None:
        """Remove every step after `step`."""
        for known, files in self._files().items():
            if known > step:
                for file in files:
                    file.unlink(missing_ok=True)
                self._sizes.pop(known, None)
        self._settle()

    def read(self, step: int) -> list[dict[str, Any]]:
        """The completions of one step. Raises FileNotFoundError if it has none."""
        return [record for _, record in parse_lines(self._data(step), self._plain(step))]

    def size(self, step: int) -> int:
        """Bytes of one step's file, uncompressed."""
        if step not in self._sizes:
            plain = self._plain(step)
            self._sizes[step] = plain.stat().st_size if plain.exists() else len(self._data(step))
        return self._sizes[step]

    def _settle(self) -> None:
        files = self._files()
        total = 0
        for newest, step in enumerate(sorted(files, reverse=True)):
            # Past the limit everything older is past it too: no need to look into compressed files for their size.
            total = total + self.size(step) if total <= self.keep else total
            plain, packed = self._plain(step), self._packed(step)
            if newest == 0 or total <= self.keep:
                if not plain.exists():
                    write_atomic(plain, self._data(step))
                packed.unlink(missing_ok=True)
            elif plain.exists():
                write_atomic(packed, _pack(plain.read_bytes()))
                plain.unlink()

    def _data(self, step: int) -> bytes:
        plain = self._plain(step)
        if plain.exists():
            return plain.read_bytes()
        return gzip.decompress(self._packed(step).read_bytes())

    def _files(self) -> dict[int, list[Path]]:
        found: dict[int, list[Path]] = {}
        if self.path.is_dir():
            for entry in os.scandir(self.path):
                stem, _, ending = entry.name.partition(".")
                if _STEP.fullmatch(stem) and ending in ("jsonl", "jsonl.gz"):
                    found.setdefault(int(stem), []).append(Path(entry.path))
        return found

    def _plain(self, step: int) -> Path:
        return self.path / f"{step}.jsonl"

    def _packed(self, step: int) -> Path:
        return self.path / f"{step}.jsonl.gz"


def _pack(data: bytes) -> bytes:
    """Gzip without name and time (gzip.compress writes an operating-system byte that differs between Python versions)."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as file:
        file.write(data)
    return buffer.getvalue()
