"""Tiny random checkpoints with real tokenizers and chat templates, built offline in the formats that users have.

`tiny_dense` is a Llama, Qwen3 or Gemma 2; `tiny_hybrid` is Qwen3.5's structure: three gated-delta-net layers and one of full
attention, a vision tower and a multi-token-prediction head beside them.
"""

from __future__ import annotations

import json
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
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

THINKING = (
    CHATML.removesuffix("{% endif %}")
    + "{% if enable_thinking is defined and enable_thinking %}{{ '<think>\\n' }}{% else %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)


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
                tensor.copy_(noise * 0.5)
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
) -> Path:
    """A two-layer Llama, Qwen3 or Gemma 2 (`style`) with random weights; its generation config has two stop ids (2 and 0).

    The vocabulary is `vocab` ids exactly, all of them tokens.
    """
    import transformers

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(vocab)
    size = tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(f"<|spare_{number}|>", normalized=False) for number in range(vocab - size)])
    write_tokenizer(folder, tokenizer, CHATML)
    names = {"llama": "Llama", "qwen3": "Qwen3", "gemma2": "Gemma2"}
    extra: dict[str, Any] = {}
    if style == "gemma2":
        extra = {"sliding_window": 16, "query_pre_attn_scalar": hidden // 4, "final_logit_softcapping": 5.0}
    config = getattr(transformers, f"{names[style]}Config")(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=max_length,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        **extra,
    )
    model = getattr(transformers, f"{names[style]}ForCausalLM")(config)
    randomise(model, seed, scale)
    model.generation_config.eos_token_id = [2, 0]
    model.generation_config.pad_token_id = 0
    model.to(dtype).save_pretrained(folder)
    write_json(
        folder / "generation_config.json",
        {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True, "temperature": 0.6, "top_k": 20},
    )
    return folder
