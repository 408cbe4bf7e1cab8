"""LoRA: deterministic start, an exact reference, an exact merge."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from llmclick.errors import InputError
from llmclick.modeling.llm.models.adapters import (
    adapter_state_dict,
    attach,
    load_adapter_tensors,
    merged_state_dict,
    save_adapter,
    trainable_report,
)
from llmclick.modeling.llm.models.overlay import save_overlay
from tests.tiny import load_tiny, tiny_dense

IDS = torch.arange(3, 40)[None]


def spec(**changes: Any) -> Any:
    return SimpleNamespace(**{"name": "lora", "r": 4, "alpha": 8.0, "targets": "auto", "dropout": 0.0, **changes})


def moved(folder: Path, **changes: Any) -> Any:
    """A model with an adapter whose B is no longer zero."""
    model = load_tiny(folder)
    attach(model, spec(**changes), seed=1)
    with torch.no_grad():
        for name, parameter in adapter_state_dict(model).items():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    return model


@torch.no_grad()
def logits(model: Any) -> Tensor:
    found: Tensor = model.logits(model.hidden(IDS, torch.arange(IDS.shape[1])[None]))
    return found


def test_starts_at_the_base_model_and_switches_off_to_it(any_folder: Path) -> None:
    """A fresh adapter changes no logit; a moved one does, and switched off gives the base model's logits bit for bit."""
    base = logits(load_tiny(any_folder))
    model = load_tiny(any_folder)
    attach(model, spec(), seed=1)
    assert torch.equal(logits(model), base)
    model = moved(any_folder)
    assert float((logits(model) - base).abs().max()) > 1e-2
    with model.adapter.disabled():
        assert torch.equal(logits(model), base)
    assert float((logits(model) - base).abs().max()) > 1e-2


def test_the_start_is_addressed_by_the_seed(any_folder: Path) -> None:
    """The same seed gives the same A whatever the global random state is, which stays untouched; another seed another A."""
    found = []
    for seed, state in ((1, 10), (1, 20), (2, 10)):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        model = load_tiny(any_folder)
        torch.set_rng_state(before)
        attach(model, spec(), seed=seed)
        assert torch.equal(before, torch.get_rng_state())
        found.append({name: p.clone() for name, p in adapter_state_dict(model).items() if "lora_A" in name})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert not any(torch.equal(found[0][name], found[2][name]) for name in found[0])
    for a in found[0].values():
        assert 0.8 < float(a.detach().abs().max()) * a.shape[1] ** 0.5 <= 1


def test_only_the_adapter_trains(any_folder: Path) -> None:
    """Every linear layer of the decoder gets an adapter, only A and B train, and no name has to do with vision or the head."""
    model = moved(any_folder)
    count, total, names = trainable_report(model)
    assert names == list(adapter_state_dict(model))
    assert count == sum(p.numel() for p in adapter_state_dict(model).values()) < total
    assert not [name for name in names if "visual" in name or "lm_head" in name or "embed" in name or "conv" in name]
    families = {
        "transformer": "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj",
        "hybrid": "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj in_proj_qkv in_proj_z in_proj_a in_proj_b out_proj",
    }
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in names} == set(families[model.family].split())
    model.logits(model.hidden(IDS, torch.arange(IDS.shape[1])[None])).square().sum().backward()
    graded = [name for name, p in model.module.named_parameters() if p.grad is not None and bool(p.grad.any())]
    assert set(graded) == set(names)


def test_merged_weights_are_the_adapted_model(any_folder: Path, tmp_path: Path) -> None:
    """Merging gives the adapted logits (1e-5) from a plain model, leaves the live weights bit-equal, and saves by overlay."""
    model = moved(any_folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    merged = merged_state_dict(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    plain = load_tiny(any_folder)
    assert set(merged) == set(plain.state_dict())
    plain.load_tensors(merged)
    assert float((logits(plain) - logits(model)).abs().max()) < 1e-5
    save_overlay(model.source, merged, tmp_path / "out", model)
    again = load_tiny(tmp_path / "out")
    assert float((logits(again) - logits(model)).abs().max()) < (1e-5 if model.family == "transformer" else 0.1)
    assert not [path for path in (tmp_path / "out").iterdir() if "adapter" in path.name]


def test_adapter_state_comes_back(any_folder: Path) -> None:
    """The tensors of one adapter loaded over a fresh one make the two models equal; other names are refused."""
    first, second = moved(any_folder), load_tiny(any_folder)
    attach(second, spec(), seed=9)
    load_adapter_tensors(second, adapter_state_dict(first))
    assert torch.equal(logits(first), logits(second))
    with pytest.raises(KeyError, match="differ"):
        load_adapter_tensors(second, {})


def test_saved_adapter_is_pefts(dense_folder: Path, tmp_path: Path) -> None:
    """peft puts the saved adapter on a plain model and gets the adapted logits; it names its base; same bytes twice."""
    from peft import PeftModel

    model = moved(dense_folder)
    save_adapter(model, tmp_path / "adapter")
    save_adapter(model, tmp_path / "twice")
    for path in (tmp_path / "adapter").iterdir():
        assert path.read_bytes() == (tmp_path / "twice" / path.name).read_bytes()
    plain = load_tiny(dense_folder)
    wrapped = PeftModel.from_pretrained(plain.module, tmp_path / "adapter").eval()
    assert wrapped.peft_config["default"].base_model_name_or_path == str(dense_folder)
    with torch.no_grad():
        assert torch.allclose(wrapped(IDS).logits, logits(model), atol=1e-6)


@pytest.mark.parametrize(
    ("targets", "why"),
    [
        (["q_proj", "query"], "no layer of the model has this name"),
        (["lm_head"], "head and embeddings of this model are one tensor"),
        (["embed_tokens"], "cannot be adapted"),
        (["norm"], "only linear layers"),
        (["mlp"], "only linear layers"),
        ([], "train nothing"),
    ],
)
def test_targets_that_cannot_work(dense_folder: Path, targets: list[str], why: str) -> None:
    """Targets that match nothing, the head, the embeddings or layers that are not linear are refused with a sentence."""
    model = load_tiny(dense_folder)
    with pytest.raises(InputError, match=why):
        attach(model, spec(targets=targets), seed=1)
    assert not adapter_state_dict(model)


def test_untied_head_is_refused_too(tmp_path: Path) -> None:
    """An adapter on an untied head would be seen by generate and not by the log-probabilities; it is refused."""
    model = load_tiny(tiny_dense(tmp_path / "m", tie=False))
    with pytest.raises(InputError, match="past any adapter"):
        attach(model, spec(targets=["lm_head"]), seed=1)


def test_named_targets_match_whole_names(hybrid_folder: Path) -> None:
    """`targets: [q_proj, out_proj]` adapts exactly the layers of these names."""
    model = moved(hybrid_folder, targets=["q_proj", "out_proj"])
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in adapter_state_dict(model)}
    assert layers == {"q_proj", "out_proj"}
