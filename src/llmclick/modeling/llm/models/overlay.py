"""A trained checkpoint is its source's folder with the text tensors replaced: same keys, same dtypes, same other files.

Saving the text class itself would lose what it never loaded (vision tower, multi-token prediction) and change the config.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llmclick.modeling.llm.models.source import Source, weight_files
from llmclick.tracking.files import whole_folder
from llmclick.tracking.tensors import DTYPES, Entry, write_tensors

_NOT_COPIED = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".pkl",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    ".ot",
    ".tflite",
    ".lock",
)
_STATE_FILES = ("trainer_state.json", "optimizer.json", "scheduler.json", "pytorch_model.bin.index.json")


def save_overlay(source: Source, tensors: Mapping[str, Tensor], folder: Path, model: Any) -> None:
    """Writes `folder`: the files of `source` with `tensors` (named as in the text model's state_dict) in place of its own.

    Each tensor is cast to the dtype it has in the source; shards keep their names and members; the folder appears whole,
    replacing an older one. `model` is the LanguageModel or its module. The same tensors give the same bytes.
    Raises ValueError for a tensor that has no place in the source, or a text tensor of the model that was not given.
    """
    module = getattr(model, "module", model)
    replaced = _source_names(source, tensors, module)
    with whole_folder(folder) as fresh:
        _copy_files(source.folder, fresh)
        for file in weight_files(source.folder):
            _write_shard(file, replaced, fresh / file.name)


def _source_names(source: Source, tensors: Mapping[str, Tensor], module: Any) -> dict[str, Tensor]:
    """The tensors under the names that the source's files give them."""
    from transformers.core_model_loading import revert_weight_conversion

    own = {name.replace(".base_layer.", ".") for name in module.state_dict() if ".lora_" not in name}
    if lacking := sorted(own - set(tensors)):
        raise ValueError(f"{lacking[0]} is a tensor of the model and was not given to be saved")
    named = revert_weight_conversion(module, dict(tensors))
    shapes = _shapes(source)
    tied = _tied_names(module)
    placed: dict[str, Tensor] = {}
    for name, tensor in named.items():
        if name not in shapes:
            if name in tied:
                continue  # the embedding, which the source holds once
            raise ValueError(f"{name} has no place in {source.folder}")
        if shapes[name] != list(tensor.shape):
            raise ValueError(f"{name} has the shape {list(tensor.shape)}, in {source.folder} it is {shapes[name]}")
        placed[name] = tensor
    return placed


def _tied_names(module: Any) -> set[str]:
    """Names of heads that are the embedding itself."""
    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return set()
    return {name for name, _ in module.named_parameters(remove_duplicate=False) if name.endswith("lm_head.weight")}


def _shapes(source: Source) -> dict[str, list[int]]:
    from safetensors import safe_open

    shapes: dict[str, list[int]] = {}
    for file in weight_files(source.folder):
        with safe_open(file, framework="pt") as reader:
            shapes |= {name: list(reader.get_slice(name).get_shape()) for name in reader.keys()}  # noqa: SIM118 (no mapping)
    return shapes


def _write_shard(file: Path, replaced: Mapping[str, Tensor], target: Path) -> None:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as reader:
        entries = []
        for name in reader.keys():  # noqa: SIM118 - not a mapping
            there = reader.get_slice(name)
            dtype, shape = DTYPES[there.get_dtype()], tuple(there.get_shape())
            # Made when it is written, so that no shard is in memory as a whole; the source's own value is not even read.
            make = partial(_cast, replaced[name], dtype) if name in replaced else partial(reader.get_tensor, name)
            entries.append(Entry(name, dtype, shape, make))
        write_tensors(target, entries, metadata={"format": "pt"})


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to(dtype)


def _copy_files(source: Path, target: Path) -> None:
    """Config, tokenizer, templates, processor, licence: all but weights, other formats of them, and training state."""
    for path in sorted(source.iterdir()):
        if path.name.startswith(".") or path.suffix in _NOT_COPIED or path.name in _STATE_FILES:
            continue
        if path.is_file():
            shutil.copyfile(path, target / path.name)
        elif path.name == "additional_chat_templates":
            shutil.copytree(path, target / path.name)


def changed_values(source: Source, folder: Path) -> tuple[int, int]:
    """(values that differ from the source's, all values) of a checkpoint written over it, in the precision of the files."""
    from safetensors import safe_open

    changed = total = 0
    for before in weight_files(source.folder):
        with safe_open(before, framework="pt") as reader:
            names = list(reader.keys())
        for name in names:
            # Opened for each tensor: pages that were read stay in memory until the file is closed.
            with safe_open(before, framework="pt") as old, safe_open(folder / before.name, framework="pt") as new:
                one, other = old.get_tensor(name), new.get_tensor(name)
                # Part by part: the count converts what it counts.
                for part, now in zip(torch.split(one.reshape(-1), 2**24), torch.split(other.reshape(-1), 2**24), strict=True):
                    changed += int((part != now).sum())
                total += one.numel()
    return changed, total
