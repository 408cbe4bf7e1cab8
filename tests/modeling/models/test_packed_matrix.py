"""Products from weights laid out once against plain ones: projections, the head, and decoding as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from llmclick.config.schema import AdapterSpec
from llmclick.modeling.llm.models import decoder, packed_matrix
from llmclick.modeling.llm.models.adapters import attach
from llmclick.modeling.llm.models.head import Head
from llmclick.modeling.llm.models.packed_matrix import PackedMatrix, pays
from llmclick.modeling.llm.models.projection import Projection
from llmclick.modeling.llm.training.policy import Policy
from tests.tiny import load_tiny

pytestmark = pytest.mark.skipif(not packed_matrix._available(), reason="this torch is built without MKL")


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [2, 7, 64, 200])
@pytest.mark.parametrize("bias", [True, False])
def test_product_is_the_linear_layers(rows: int, bias: bool) -> None:
    """For the rows it was made for, and for fewer, whose missing rows leave no trace."""
    weight, offset = random(70, 33, seed=2), random(70, seed=3) if bias else None
    matrix = PackedMatrix(weight, rows)
    for given in {rows, rows // 2 + 1}:
        assert matrix.fits(given)
        x = random(given, 33, seed=given)
        assert torch.allclose(matrix.product(x, offset), functional.linear(x, weight, offset), atol=1e-5, rtol=1e-5)
    assert [matrix.fits(given) for given in (rows // 2, rows + 1)] == [False, False]


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_projection_and_head_are_the_same_from_it(dense_folder: Path, dtype: torch.dtype) -> None:
    """A projection with an adapter and a head with a bias; where bf16 has a unit of its own there are no packed weights."""
    model: Any = load_tiny(dense_folder)
    model.module.lm_head.bias = torch.nn.Parameter(random(model.vocab_size))
    attach(model, AdapterSpec(r=4, alpha=8.0, targets="auto"), 3)
    layer = model.module.get_decoder().layers[0].self_attn
    with torch.no_grad():
        layer.q_proj.lora_B["default"].weight.normal_(generator=torch.Generator().manual_seed(4))
    projection = Projection([layer.q_proj, layer.k_proj, layer.v_proj], dtype)
    head = Head(model, dtype)
    x = random(6, layer.q_proj.in_features)
    assert projection._adapters()
    assert model.head_bias is not None
    for each, call in ((projection, projection), (head, head.logits)):
        matrix = each.pack(6)  # type: ignore[attr-defined]
        if each._product == torch.bfloat16:  # type: ignore[attr-defined]
            assert matrix is None
            continue
        with torch.no_grad():
            plain = call(x.to(dtype))
            packed = call(x.to(dtype), matrix)
        # A sum in another order may round to the neighbouring bf16 number.
        assert torch.allclose(packed.float(), plain.float(), rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-5)
        assert torch.equal(call(x[:3].to(dtype), matrix), call(x[:3].to(dtype)))  # too few rows for it: the plain product


def test_it_pays_for_a_batch_that_is_decoded_for_a_while() -> None:
    """Neither for one row, nor for very many, nor for a handful of tokens."""
    assert [pays(rows, 64) for rows in (1, 2, 256, 257)] == [False, True, True, False]
    assert [pays(32, tokens) for tokens in (15, 16)] == [False, True]


def test_all_weights_are_packed_or_none(any_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further copy of the weights: all of them, or none where there is no room for copies."""
    policy = Policy(load_tiny(any_folder), "fp32")
    assert policy.decoder is not None
    assert set(policy.decoder.pack(8, 16, policy.head)) == {*policy.decoder.projections, policy.head}
    monkeypatch.setattr(decoder, "keeps_plain", lambda _: False)
    policy = Policy(load_tiny(any_folder), "fp32")
    assert policy.decoder is not None
    assert policy.decoder.pack(8, 16, policy.head) == {}
