"""Writing safetensors files tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmclick.tracking.tensors import NAMES, Entry, entry_of, write_tensors


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_the_bytes_are_the_librarys_own(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    """Every dtype, a scalar, an empty tensor and one that is not contiguous: the same file as safetensors writes."""
    generator = torch.Generator().manual_seed(1)
    tensors = {f"of {dtype}": (torch.randn(3, 5, generator=generator) * 9).to(dtype) for dtype in NAMES}
    tensors |= {"a scalar": torch.tensor(7), "empty": torch.zeros(0, 3), "é": torch.ones(2).bfloat16()}
    turned = torch.randn(4, 6, generator=generator).T
    save_file(tensors | {"turned": turned.contiguous()}, tmp_path / "theirs", metadata=metadata)
    write_tensors(
        tmp_path / "ours", [entry_of(name, tensor) for name, tensor in (tensors | {"turned": turned}).items()], metadata
    )
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert torch.equal(load_file(tmp_path / "ours")["turned"], turned)


def test_one_tensor_is_made_at_a_time(tmp_path: Path) -> None:
    """Each entry is made once, in the order of the file, when those before it are already written."""
    path = tmp_path / "file"
    seen: list[tuple[str, int]] = []

    def entry(name: str) -> Entry:
        def make() -> torch.Tensor:
            seen.append((name, path.stat().st_size))
            return torch.zeros(2**18)

        return Entry(name, torch.float32, (2**18,), make)

    write_tensors(path, [entry("c"), entry("a"), entry("b")])
    header = path.stat().st_size - 3 * 2**20
    assert [name for name, _ in seen] == ["a", "b", "c"]
    assert [size >= header + done * 2**20 - 2**17 for done, (_, size) in enumerate(seen)] == [True] * 3


def test_another_tensor_than_announced_is_refused(tmp_path: Path) -> None:
    """A wrong length would shift all that follows."""
    with pytest.raises(ValueError, match="a was announced as"):
        write_tensors(tmp_path / "file", [Entry("a", torch.float32, (2,), lambda: torch.zeros(3))])
