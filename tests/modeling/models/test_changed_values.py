"""What of an update survives the precision of a checkpoint's files."""

from pathlib import Path

import torch

from llmclick.modeling.llm.models.overlay import changed_values, save_overlay
from tests.tiny import load_tiny, source_of, tiny_dense


def test_an_update_below_bf16_is_counted_as_none(tmp_path: Path) -> None:
    """Half a unit of bf16 on every weight is lost; doubling one matrix of 32 x 32 changes its 1,024 values but the zeros."""
    folder = tiny_dense(tmp_path / "model", dtype=torch.bfloat16)
    model, source = load_tiny(folder), source_of(folder)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lost = {name: tensor * (1 + 2**-10) for name, tensor in tensors.items()}
    save_overlay(source, lost, tmp_path / "lost", model)
    assert changed_values(source, tmp_path / "lost")[0] == 0
    name = "model.layers.0.self_attn.q_proj.weight"
    save_overlay(source, tensors | {name: tensors[name] * 2}, tmp_path / "doubled", model)
    changed, total = changed_values(source, tmp_path / "doubled")
    assert changed == int((tensors[name] != 0).sum())
    assert total >= sum(tensor.numel() for name, tensor in tensors.items() if not name.startswith("lm_head"))
