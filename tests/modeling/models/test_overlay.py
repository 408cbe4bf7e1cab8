"""A saved checkpoint is its source with the text tensors replaced, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from llmclick.modeling.llm.models.overlay import save_overlay
from llmclick.modeling.llm.models.source import weight_files
from tests.tiny import load_tiny, source_of, tiny_dense, tiny_hybrid


def tensors_of(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as reader:
            found |= {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
    return found


def trained(folder: Path, seed: int = 5) -> Any:
    model = load_tiny(folder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture(params=["tied", "untied", "qwen3", "hybrid", "hybrid untied"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, hybrid_folder: Path) -> Path:
    if request.param == "hybrid":
        return hybrid_folder
    if request.param == "hybrid untied":
        return tiny_hybrid(tmp_path / "source", tie=False)
    return tiny_dense(
        tmp_path / "source", tie=request.param != "untied", style="qwen3" if request.param == "qwen3" else "llama"
    )


def test_same_keys_dtypes_and_files(folder: Path, tmp_path: Path) -> None:
    """All keys of the source with their dtypes and shards; every other file byte-equal; every text tensor moved."""
    model = trained(folder)
    save_overlay(model.source, model.state_dict(), tmp_path / "out", model)
    before, after = tensors_of(folder), tensors_of(tmp_path / "out")
    assert {name: (t.dtype, t.shape) for name, t in before.items()} == {name: (t.dtype, t.shape) for name, t in after.items()}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in folder.iterdir())
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    for name in before:
        frozen = "visual" in name or name.startswith("mtp")
        assert before[name].view(torch.uint8).equal(after[name].view(torch.uint8)) == frozen, name


def test_loads_as_the_trained_model(folder: Path, tmp_path: Path) -> None:
    """Loaded again, the checkpoint gives the trained model's logits after rounding to the file's dtypes."""
    model = trained(folder)
    save_overlay(model.source, model.state_dict(), tmp_path / "out", model)
    again = load_tiny(tmp_path / "out")
    dtypes = {name.replace("model.language_model.", "model."): tensor.dtype for name, tensor in tensors_of(folder).items()}
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            parameter.copy_(parameter.to(dtypes[name]))
        ids = torch.arange(3, 40)[None]
        assert torch.equal(model.module(ids).logits, again.module(ids).logits)


def test_hybrid_loads_as_the_multimodal_class(hybrid_folder: Path, tmp_path: Path) -> None:
    """The original multimodal class loads the checkpoint, nothing missing or unexpected, and its text is the trained text."""
    from transformers import AutoTokenizer, Qwen3_5ForConditionalGeneration

    model = trained(hybrid_folder)
    save_overlay(model.source, model.state_dict(), tmp_path / "out", model)
    whole, report = Qwen3_5ForConditionalGeneration.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        ours = load_tiny(tmp_path / "out").module(ids).logits
        assert torch.allclose(whole(ids).logits, ours, atol=1e-5)


def test_dense_loads_with_auto_classes(dense_folder: Path, tmp_path: Path) -> None:
    """Plain AutoModelForCausalLM and AutoTokenizer load the folder, chat template and both end ids included."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = trained(dense_folder)
    save_overlay(model.source, model.state_dict(), tmp_path / "out", model)
    plain, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert plain.generation_config.eos_token_id == [2, 0]
    messages = [{"role": "user", "content": "hi"}]
    templates = [
        AutoTokenizer.from_pretrained(f).apply_chat_template(messages, tokenize=False) for f in (dense_folder, tmp_path / "out")
    ]
    assert templates[0] == templates[1]


def test_same_tensors_same_bytes_and_an_older_folder_is_replaced(any_folder: Path, tmp_path: Path) -> None:
    """Written twice, over an older checkpoint, the weight files are the same bytes and nothing of the old folder remains."""
    model = trained(any_folder)
    save_overlay(model.source, model.state_dict(), tmp_path / "a", model)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "stale.json").write_text("{}")
    save_overlay(model.source, model.state_dict(), tmp_path / "b", model)
    assert not (tmp_path / "b" / "stale.json").exists()
    for file in weight_files(tmp_path / "a"):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_no_training_state_and_no_pickles(dense_folder: Path, tmp_path: Path) -> None:
    """Optimizer files, pickles and other formats that lie in the source are not handed on."""
    import shutil

    shutil.copytree(dense_folder, tmp_path / "source")
    for name in ("optimizer.pt", "pytorch_model.bin", "trainer_state.json", "model.gguf", ".gitattributes"):
        (tmp_path / "source" / name).write_bytes(b"x")
    model = load_tiny(tmp_path / "source")
    save_overlay(model.source, model.state_dict(), tmp_path / "out", model)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in dense_folder.iterdir())


def test_a_tensor_without_a_place_is_refused(any_folder: Path, tmp_path: Path) -> None:
    """A trained tensor that the source has no place for is an error, and so is one that was left out; no folder appears."""
    model = load_tiny(any_folder)
    tensors = model.state_dict()
    with pytest.raises(ValueError, match="no place"):
        save_overlay(model.source, {**tensors, "model.extra.weight": torch.zeros(2)}, tmp_path / "out", model)
    with pytest.raises(ValueError, match=r"model\.norm\.weight .* not given"):
        save_overlay(model.source, {n: t for n, t in tensors.items() if n != "model.norm.weight"}, tmp_path / "out", model)
    with pytest.raises(ValueError, match="shape"):
        save_overlay(model.source, {**tensors, "model.norm.weight": torch.zeros(2)}, tmp_path / "out", model)
    assert not list(tmp_path.iterdir())


def test_the_weights_hash_follows_the_weights(any_folder: Path, tmp_path: Path) -> None:
    """The saved checkpoint has the source's tokenizer hash and another weights hash."""
    model = trained(any_folder)
    save_overlay(model.source, model.state_dict(), tmp_path / "out", model)
    ours = source_of(tmp_path / "out")
    assert ours.tokenizer_hash() == model.source.tokenizer_hash()
    assert ours.weights_hash() != model.source.weights_hash()
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == model.source.config()
