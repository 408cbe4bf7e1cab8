"""A file's bytes as they were before compression, and what kind of file they are."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

from llmclick.errors import Problem

DATA_FILES = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")
"""What a data file's name ends in, before the ending of a compressed one."""

COMPRESSED = (".gz", ".bz2", ".xz")

_UNPACK: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": gzip.decompress,
    b"BZh": bz2.decompress,
    b"\xfd7zXZ\x00": lzma.decompress,
}
_NOT_READ = {
    b"PK\x03\x04": "a ZIP archive (an Excel file is one too)",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"SQLite format 3": "an SQLite database",
}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def ending(name: str) -> str:
    """What a data file's name ends in: `.jsonl` for `train.jsonl.gz`.

    >>> ending("train.jsonl.gz"), ending("a.CSV"), ending("README")
    ('.jsonl', '.csv', '')
    """
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def is_data_file(path: Path) -> bool:
    """Whether a file's name says that it holds rows; `dataset_infos.json` describes others."""
    return ending(path.name) in DATA_FILES and path.name != "dataset_infos.json"


def read_bytes(path: Path, shown: str) -> tuple[bytes, Problem | None]:
    """A file's bytes, unpacked if it is compressed (whatever its name says). Raises OSError if it cannot be read."""
    raw = path.read_bytes()
    for magic, what in _NOT_READ.items():
        if raw.startswith(magic):
            return b"", Problem(shown, "", f"the file is {what}", "an unpacked file, as JSON lines, CSV or Parquet", path.name)
    for magic, unpack in _UNPACK.items():
        if raw.startswith(magic):
            try:
                return unpack(raw), None
            except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                why = f"the compressed file is damaged: {error}"
                return b"", Problem(shown, "", why, "write the file again, or unpack it first", path.name)
    return raw, None


def read_text(raw: bytes, shown: str) -> tuple[str, Problem | None]:
    """UTF-8 bytes as text without byte order mark, or the line that is not UTF-8."""
    if raw[:2] in _UTF_16:
        return "", Problem(shown, "", "the file is UTF-16; rows are read as UTF-8", "save the file as UTF-8")
    try:
        return raw.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        start = raw.rfind(b"\n", 0, error.start) + 1
        column = len(raw[start : error.start].decode("utf-8", "replace")) + 1
        return "", not_utf8(f"{shown}:{line}", raw[error.start], column)


def not_utf8(where: str, byte: int, column: int) -> Problem:
    """A line that is not UTF-8."""
    return Problem(
        where,
        "",
        given=f"byte 0x{byte:02x} at column {column}",
        why="the line is not valid UTF-8",
        write="save the file as UTF-8 (often it is Latin-1 or Windows-1252)",
    )


def other_format(raw: bytes, path: Path, shown: str) -> Problem | None:
    """Why a file is not JSON lines although its path was given for one: it is Parquet, CSV, or one JSON list."""
    source = f"{{name: huggingface, dataset: {shown}}}, which reads it"
    if raw.startswith(b"PAR1"):
        return Problem(shown, "", "the file is Parquet, and local_jsonl reads one JSON object per line", source, path.name)
    head = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"["):
        listed = f"{source}" if ending(path.name) == ".json" else "the same objects without the list, one on each line"
        return Problem(shown, "", "the file is one JSON list; each row must be on a line of its own", listed)
    if head.startswith(b"{"):
        return None
    line = head.partition(b"\n")[0].decode("utf-8", "replace").strip()
    named = ending(path.name) in (".csv", ".tsv")
    if named or _looks_like_csv(head):
        if not named:
            source = f"the file under a name that ends in .csv, and {{name: huggingface, dataset: {path.stem}.csv}}"
        why = "the file is CSV (columns named in the first line), and local_jsonl reads one JSON object per line"
        return Problem(shown, "", why, source, line[:80])
    return None


def _looks_like_csv(head: bytes) -> bool:
    """A first line of at least two names, and a second one of as many cells."""
    lines = head.decode("utf-8", "replace").splitlines()[:2]
    if len(lines) < 2 or "{" in lines[0]:
        return False
    for delimiter in ",;\t":
        first, second = (next(csv.reader([line], delimiter=delimiter)) for line in lines)
        if len(first) >= 2 and all(name.strip() for name in first) and len(first) == len(second):
            return True
    return False
