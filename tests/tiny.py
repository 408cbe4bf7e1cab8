"""Tiny random checkpoints with real tokenizers and chat templates, built offline in the formats that users have.

`tiny_dense` is a Llama, Mistral, Qwen2, Qwen3 or Gemma 2; `tiny_hybrid` is Qwen3.5's structure: three gated-delta-net layers
and one of full attention, a vision tower and a multi-token-prediction head beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "What is 9 plus 2? Reply with the number only.",
    "Write a JSON object with the keys city and country for Paris. Reply with JSON only.",
    '{"city": "Paris", "country": "France"}',
    "The answer is 11. The capital of France is Paris, a city of two million people.",
    "Think step by step, then give the final answer as one number or one word: yes or no.",
    "user system assistant think tool model",
]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

THINKING = (
    CHATML.removesuffix("{% endif %}") + "{% if enable_thinking is defined and enable_thinking %}{{ '<think>\\n' }}"
    "{% else %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
"""Thinks only if told to, as the published templates of the 0.8B and the 2B do."""


def train_tokenizer(size: int) -> Tokenizer:
    """Byte-level BPE with single digits; ids 0, 1, 2 are <|endoftext|>, <|im_start|>, <|im_end|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", "utf-8")


def write_tokenizer(folder: Path, tokenizer: Tokenizer, template: str, **settings: Any) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": 2048,
            **settings,
        },
    )


def randomise(model: torch.nn.Module, seed: int, scale: float) -> None:
    """Normal weights of that scale, addressed by name and seed; wide enough for a peaked, not uniform, next token."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            generator = torch.Generator().manual_seed(seed * 1_000_003 + sum((i + 1) * ord(c) for i, c in enumerate(name)))
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("A_log"):
                tensor.copy_(noise * 0.5 - 3)  # a memory of some twenty tokens; a short one drowns padding tests in rounding
            elif tensor.ndim == 1:
                tensor.add_(noise * 0.1)
            else:
                tensor.copy_(noise * scale)


def tiny_dense(
    folder: str | Path,
    *,
    style: str = "llama",
    vocab: int = 320,
    layers: int = 2,
    hidden: int = 32,
    seed: int = 0,
    tie: bool = True,
    scale: float = 0.15,
    dtype: torch.dtype = torch.float32,
    max_length: int = 2048,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A two-layer model of the `style` with random weights; its generation config has two stop ids (2 and 0).

    The vocabulary is `vocab` ids exactly, all of them tokens. `config` replaces keys of the config, for other shapes; a Mistral
    has no sliding window unless it says so.
    """
    import transformers

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(vocab)
    size = tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(f"<|spare_{number}|>", normalized=False) for number in range(vocab - size)])
    write_tokenizer(folder, tokenizer, CHATML)
    names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2"}
    extra: dict[str, Any] = {}
    if style == "mistral":
        extra = {"sliding_window": None}
    if style == "gemma2":
        extra = {"sliding_window": 16, "query_pre_attn_scalar": hidden // 4, "final_logit_softcapping": 5.0}
    settings = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "max_position_embeddings": max_length,
        "tie_word_embeddings": tie,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **extra,
        **(config or {}),
    }
    model = getattr(transformers, f"{names[style]}ForCausalLM")(getattr(transformers, f"{names[style]}Config")(**settings))
    randomise(model, seed, scale)
    model.generation_config.eos_token_id = [2, 0]
    model.generation_config.pad_token_id = 0
    model.to(dtype).save_pretrained(folder)
    write_json(
        folder / "generation_config.json",
        {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True, "temperature": 0.6, "top_k": 20},
    )
    return folder


SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]
"""Qwen3.5's, in the order of their ids; the first is 248044 in the published tokenizer."""


def hybrid_tokenizer(first_special: int) -> Tokenizer:
    """The small byte-level BPE, its special tokens moved to `first_special` and the gap filled with tokens no text reaches."""
    content = json.loads(train_tokenizer(300).to_str())
    words = [word for word, _ in sorted(content["model"]["vocab"].items(), key=lambda item: item[1])][3:]
    vocabulary = [*words, *(f"<filler {number}>" for number in range(len(words), first_special)), *SPECIAL_TOKENS]
    content["model"]["vocab"] = {word: number for number, word in enumerate(vocabulary)}
    content["added_tokens"] = [
        {
            "id": first_special + number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token.startswith("<|"),
        }
        for number, token in enumerate(SPECIAL_TOKENS)
    ]
    return Tokenizer.from_str(json.dumps(content))


def tiny_hybrid(
    folder: str | Path,
    *,
    hidden: int = 32,
    layers: int = 4,
    seed: int = 0,
    scale: float = 0.1,
    real_ids: bool = False,
    tie: bool = True,
    text: Mapping[str, Any] | None = None,
) -> Path:
    """A Qwen3.5 checkpoint as published, but small and random: multimodal class, vision tower, MTP tensors, two shards.

    `A_log` and the delta-net norm are fp32, the rest bf16. With `real_ids` the special tokens have their published ids
    (248044 ...) in a vocabulary of 248320; otherwise they follow the ordinary tokens, and a few padded rows follow them.
    `text` replaces keys of the text config, for other shapes.
    """
    from safetensors.torch import save_file
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    first = 248044 if real_ids else 297
    vocab = 248320 if real_ids else 352
    write_tokenizer(folder, hybrid_tokenizer(first), THINKING)
    ids = {token: first + number for number, token in enumerate(SPECIAL_TOKENS)}
    config = Qwen3_5Config(
        text_config={
            "model_type": "qwen3_5_text",
            "vocab_size": vocab,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": tie,
            "eos_token_id": ids["<|endoftext|>"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
            "dtype": "bfloat16",
            **(text or {}),
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_heads": 2,
            "patch_size": 4,
            "out_hidden_size": hidden,
            "num_position_embeddings": 16,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tie,
        architectures=["Qwen3_5ForConditionalGeneration"],
    )
    model = Qwen3_5ForConditionalGeneration(config)
    randomise(model, seed, scale)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if not (tie and name == "lm_head.weight")}
    block = f"model.language_model.layers.{layers - 1}."
    for name, tensor in list(tensors.items()):
        if name.startswith(block):
            tensors[f"mtp.layers.0.{name.removeprefix(block)}"] = tensor.flip(0)
    generator = torch.Generator().manual_seed(seed)
    tensors["mtp.fc.weight"] = torch.randn(hidden, 2 * hidden, generator=generator)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{name}.weight"] = torch.randn(hidden, generator=generator)
    wide = ("A_log", "linear_attn.norm.weight")
    tensors = {name: (t if name.endswith(wide) else t.to(torch.bfloat16)).contiguous().clone() for name, t in tensors.items()}
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[: len(names) // 2],
        "model-00002-of-00002.safetensors": names[len(names) // 2 :],
    }
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / shard, metadata={"format": "pt"})
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(
        folder / "model.safetensors.index.json",
        {
            "metadata": {"total_size": size},
            "weight_map": {name: shard for shard, members in shards.items() for name in members},
        },
    )
    write_json(folder / "config.json", json.loads(config.to_json_string(use_diff=False)))
    stops = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    write_json(
        folder / "generation_config.json", {"eos_token_id": stops, "pad_token_id": stops[1], "do_sample": True, "top_k": 20}
    )
    write_json(
        folder / "preprocessor_config.json",
        {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "merge_size": 2},
    )
    return folder


def tiny_family(folder: str | Path, *, hybrid: bool = False, **settings: Any) -> Path:
    """`tiny_hybrid` or `tiny_dense`, for lists of families."""
    return (tiny_hybrid if hybrid else tiny_dense)(folder, **settings)


def source_of(folder: str | Path, **spec: Any) -> Any:
    """`folder` (or any other model.name) as llmclick resolves it."""
    from types import SimpleNamespace

    from llmclick.modeling.llm.models.base import resolve_source

    return resolve_source(SimpleNamespace(**{"name": str(folder), "revision": None, "architecture": "auto", **spec}), str)


def load_tiny(folder: str | Path, **options: Any) -> Any:
    """The LanguageModel in `folder`, fp32 on the CPU."""
    from llmclick.modeling.llm.models.base import load_language_model

    return load_language_model(source_of(folder), **options)
