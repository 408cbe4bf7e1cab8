"""Which arithmetic a machine has."""

from __future__ import annotations

import pytest

from llmclick.modeling.llm import compute


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
@pytest.mark.parametrize(
    ("flags", "limit", "has"),
    [
        ({"avx2", "avx512f"}, "", False),
        ({"avx2", "avx512f", "avx512_bf16"}, "", True),
        ({"avx2", "avx512f", "amx_bf16"}, "ALL", True),
        ({"avx2", "avx512f", "avx512_bf16"}, "avx512_core_bf16", True),
        ({"avx2", "avx512f", "avx512_bf16"}, "AVX512_CORE", False),
        ({"avx2", "avx512f", "avx512_bf16", "amx_bf16"}, "AVX2", False),
    ],
)
def test_bf16_is_the_processors_and_what_its_library_may_use(
    monkeypatch: pytest.MonkeyPatch, name: str, flags: set[str], limit: str, has: bool
) -> None:
    """The unit is there and oneDNN's limit, under either of its names, does not shut it out: it emulates the products then."""
    for variable in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(variable, raising=False)
    if limit:
        monkeypatch.setenv(name, limit)
    monkeypatch.setattr(compute, "cpu_features", lambda: frozenset(flags))
    assert compute.has_bf16("cpu") == has
