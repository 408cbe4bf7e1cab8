"""Writing safetensors files tensor by tensor. The library's own writer first makes a second copy of everything as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's name of each dtype, in the order in which the library puts them into a file."""

DTYPES = {name: dtype for dtype, name in NAMES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: known by name, dtype and shape, made when it is its turn to be written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]


def write_tensors(path: Path, entries: Iterable[Entry], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file: 8 bytes of header length, the header as JSON, the tensors' bytes one after another.

    Larger elements come first, so that every tensor is aligned; byte for byte the file that the library writes.
    Raises ValueError for a dtype the format has no name for, or if a tensor is not what was announced.
    """
    ordered = sorted(entries, key=lambda entry: (list(NAMES).index(entry.dtype), entry.name))
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for entry in ordered:
        start, end = end, end + entry.dtype.itemsize * torch.Size(entry.shape).numel()
        header[entry.name] = {"dtype": NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for entry in ordered:
            tensor = entry.make().detach().to("cpu").contiguous()
            if tensor.dtype != entry.dtype or tuple(tensor.shape) != entry.shape:
                raise ValueError(f"{entry.name} was announced as {entry.dtype} {entry.shape}")
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def entry_of(name: str, tensor: Tensor) -> Entry:
    """A tensor that already exists."""
    return Entry(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)
