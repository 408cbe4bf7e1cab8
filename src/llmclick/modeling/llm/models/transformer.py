"""Plain decoder transformers (Llama, Qwen3, SmolLM, Gemma text ...): what transformers' AutoModelForCausalLM loads."""

from __future__ import annotations

from typing import Any, Literal

import torch

from llmclick.errors import InputError, Problem
from llmclick.modeling.llm.models.base import load_checked
from llmclick.modeling.llm.models.source import Source


def load_transformer(source: Source, dtype: torch.dtype | Literal["auto"]) -> Any:
    """The causal language model in a folder, every weight in `dtype`. Raises InputError for anything else."""
    from transformers import AutoModelForCausalLM

    config = source.config()
    names = [str(name) for name in config.get("architectures") or ()]
    kinds = {*(str(kind) for kind in config.get("layer_types") or ())} - {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
    }
    why = ""
    if any(key.endswith(("vision_config", "audio_config")) for key in config):
        why = f"{config.get('model_type')!r} is a multimodal model, and of these only the dense Qwen3.5 models are supported"
    elif names and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        why = f"{names[0]} is not a causal language model"
    elif kinds:
        why = f"the model has layers of kind {sorted(kinds)[0]!r}, which no family of llmclick runs"
    if why:
        raise InputError(
            Problem(
                where=str(source.folder),
                key="model.name",
                given=source.name,
                why=why,
                write="a text model of a decoder family (Llama, Qwen3, SmolLM, Gemma text ...) or Qwen3.5",
            )
        )
    return load_checked(source, AutoModelForCausalLM.from_pretrained, dtype=dtype)
