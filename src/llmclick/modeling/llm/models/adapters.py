"""Low-rank adapters (LoRA, arXiv 2106.09685) by peft: attached in place, off for the reference, merged for saving."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from llmclick.errors import InputError, Problem
from llmclick.modeling.llm.models.base import LanguageModel
from llmclick.tracking.files import whole_folder

_NAME = "default"


class AdapterSpec(Protocol):
    """`training.adapter`, as far as this module reads it."""

    @property
    def r(self) -> int:
        """Rank."""

    @property
    def alpha(self) -> float:
        """Scale: the adapter's output is multiplied by alpha / r."""

    @property
    def targets(self) -> str | Sequence[str]:
        """`auto`, or names of linear layers."""


class Adapter:
    """An adapter inside a model's module. Its parameters are the only ones that train."""

    def __init__(self, model: LanguageModel, wrapped: Any, targets: Sequence[str]) -> None:
        self.model = model
        self.wrapped = wrapped
        self.targets = tuple(targets)

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """The base model, bit for bit, while the context is open."""
        with self.wrapped.disable_adapter():
            yield


def attach(model: LanguageModel, spec: AdapterSpec, seed: int, where: str = "training.adapter") -> Adapter:
    """Puts LoRA layers into `model.module` (in place), freezes everything else and starts at the base model (B = 0).

    A is drawn from (seed, layer name), whatever the global random state is, and leaves that untouched.
    Raises InputError for targets that match nothing or that cannot be adapted.
    """
    from peft import LoraConfig, get_peft_model

    targets = model.lora_targets() if spec.targets == "auto" else list(spec.targets)
    _check_targets(model, targets, where)
    config = LoraConfig(
        r=spec.r,
        lora_alpha=spec.alpha,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        target_modules=_paths(model, targets),
    )
    with torch.random.fork_rng(devices=[]):
        wrapped = get_peft_model(model.module, config, adapter_name=_NAME)
    wrapped.eval()
    with torch.no_grad():
        for name, parameter in sorted(model.module.named_parameters()):
            if ".lora_A." in name:
                generator = torch.Generator().manual_seed(_address(seed, name))
                bound = 1.0 / math.sqrt(parameter.shape[1])  # kaiming_uniform with a = sqrt(5), LoRA's usual start
                parameter.copy_(torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator))
            elif ".lora_B." in name:
                parameter.zero_()
    adapter = Adapter(model, wrapped, targets)
    model.adapter = adapter
    return adapter


def adapter_state_dict(model: LanguageModel) -> dict[str, Tensor]:
    """The adapter's tensors by their names in `model.module`."""
    return {name: parameter for name, parameter in model.module.named_parameters() if ".lora_" in name}


def load_adapter_tensors(model: LanguageModel, tensors: Mapping[str, Tensor]) -> None:
    """Copies what `adapter_state_dict` gave over the attached adapter. Raises KeyError if the names differ."""
    own = adapter_state_dict(model)
    if different := sorted(set(own) ^ set(tensors)):
        raise KeyError(f"the adapter and the tensors differ in {different[0]!r}")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


@torch.no_grad()
def merged_state_dict(model: LanguageModel, *, in_place: bool = False) -> dict[str, Tensor]:
    """The text model's tensors with the adapter added into them: W + alpha / r * B A.

    The live weights stay as they are, or with `in_place` become the merged ones: half the memory, and the model is used up.
    """
    merged = model.state_dict()
    for name, layer in model.module.named_modules():
        if _NAME in getattr(layer, "lora_A", {}):
            weight = layer.base_layer.weight
            delta = layer.get_delta_weight(_NAME).to(weight)
            merged[f"{name}.weight"] = weight.add_(delta) if in_place else weight + delta
    return merged


def save_adapter(model: LanguageModel, folder: Path) -> None:
    """Writes the adapter alone, in peft's own format; the folder appears whole, replacing an older one."""
    from safetensors.torch import save_file

    config = model.adapter.wrapped.peft_config[_NAME].to_dict()
    config["base_model_name_or_path"] = model.source.name
    config["revision"] = model.source.revision
    config["inference_mode"] = True
    config["target_modules"] = list(model.adapter.targets)
    tensors = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": tensor.detach().cpu().contiguous()
        for name, tensor in adapter_state_dict(model).items()
    }
    with whole_folder(folder) as fresh:
        save_file(tensors, fresh / "adapter_model.safetensors", metadata={"format": "pt"})
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
        text = json.dumps(plain, indent=2, sort_keys=True, default=str) + "\n"
        (fresh / "adapter_config.json").write_text(text, "utf-8")


def trainable_report(model: LanguageModel) -> tuple[int, int, list[str]]:
    """(parameters that train, all parameters of the base model, names of those that train)."""
    trained = [(name, parameter) for name, parameter in model.module.named_parameters() if parameter.requires_grad]
    total = sum(parameter.numel() for name, parameter in model.module.named_parameters() if ".lora_" not in name)
    return sum(parameter.numel() for _, parameter in trained), total, [name for name, _ in trained]


def _check_targets(model: LanguageModel, targets: Sequence[str], where: str) -> None:
    modules = dict(model.module.named_modules())
    linear = model.lora_targets()
    problems = []

    def refuse(target: str, why: str) -> None:
        write = f"`targets: auto`, or some of: {', '.join(linear)}"
        problems.append(Problem(where=where, key="training.adapter.targets", given=target, why=why, write=write))

    if not targets:
        refuse("[]", "an adapter without targets would train nothing")
    for target in targets:
        found = [module for name, module in modules.items() if name.rpartition(".")[2] == target or name.endswith(f".{target}")]
        special = {id(model.module.get_output_embeddings()), id(model.module.get_input_embeddings())}
        if target in ("lm_head", "embed_tokens") or any(id(module) in special for module in found):
            shared = (
                "head and embeddings of this model are one tensor, and a merged head would not survive loading"
                if model.tied
                else ("log-probabilities are computed from the head's own weight, past any adapter on it")
            )
            refuse(target, f"the head and the embeddings cannot be adapted: {shared}")
        elif not found:
            refuse(target, "no layer of the model has this name")
        elif not all(isinstance(module, nn.Linear) for module in found):
            refuse(target, f"it names a {type(found[0]).__name__}, and only linear layers take an adapter")
    if problems:
        raise InputError(problems)


def _paths(model: LanguageModel, targets: Sequence[str]) -> list[str]:
    """Full names of the decoder's linear layers that the targets mean: nothing else can match by accident."""
    return [
        name
        for name, module in model.module.named_modules()
        if isinstance(module, nn.Linear) and any(name.endswith(f".{target}") for target in targets)
    ]


def _address(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"lora\0{seed}\0{name}".encode()).digest()[:8], "little") >> 1
