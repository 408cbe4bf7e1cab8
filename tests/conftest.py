"""Every test runs offline and leaves the user's own cache alone."""

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does; tests share the machine


@pytest.fixture(scope="session")
def dense_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama; do not write into it."""
    from tests.tiny import tiny_dense

    return tiny_dense(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="session")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3.5 checkpoint; do not write into it."""
    from tests.tiny import tiny_hybrid

    return tiny_hybrid(tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(params=["dense", "hybrid"])
def any_folder(request: pytest.FixtureRequest) -> Path:
    """Both tiny checkpoints, one after the other."""
    folder: Path = request.getfixturevalue(f"{request.param}_folder")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hashes and converted models go to a folder of this test session, unless LLMCLICK_CACHE names one already."""
    if "LLMCLICK_CACHE" not in os.environ:
        os.environ["LLMCLICK_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(params=["in bf16", "in float32"])
def bf16_products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Products of bf16 operands both ways: as on a processor that has arithmetic for bf16, and as on one that has none."""
    from llmclick.modeling.llm.models import products

    emulates = request.param == "in float32"
    monkeypatch.setattr(products, "emulates_bf16", lambda device: emulates and device.type == "cpu")
    return str(request.param)
