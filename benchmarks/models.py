"""Random checkpoints for benchmarks, built offline: any vocabulary, or the exact shape of a published model.

    python benchmarks/models.py dense FOLDER VOCABULARY [HIDDEN LAYERS]
    python benchmarks/models.py qwen3.5-0.8b FOLDER
    python benchmarks/models.py without-stop FOLDER SOURCE

Run as a process of its own, so that building a model is not in the memory of what measures it. Ends in one JSON line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.tiny import CHATML, randomise, tiny_hybrid, train_tokenizer, write_json, write_tokenizer  # noqa: E402

QWEN35 = {
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
"""The text model of Qwen3.5-0.8B beside its 24 layers of width 1024 and its vocabulary of 248320, tied."""
STOP_KEYS = ("eos_token_id", "eos_token")


def main() -> None:
    kind, folder, *rest = sys.argv[1:]
    if kind == "dense":
        made = dense(Path(folder), *map(int, rest))
    elif kind == "without-stop":
        made = without_stop(Path(folder), Path(rest[0]))
    else:
        made = qwen35(Path(folder))
    print(json.dumps(made))


def dense(folder: Path, vocabulary: int, hidden: int = 256, layers: int = 8) -> dict[str, Any]:
    """A tied Llama with random weights and a real tokenizer; no token ends a completion, so that lengths are what was asked."""
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    content = json.loads(train_tokenizer(300).to_str())
    words = content["model"]["vocab"]
    words.update({f"<filler {number}>": number for number in range(len(words), vocabulary)})
    write_tokenizer(folder, Tokenizer.from_str(json.dumps(content)), CHATML, model_max_length=8192)
    remove_keys(folder / "tokenizer_config.json")
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=hidden // 8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    randomise(model, 0, 0.05)
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    write_json(folder / "generation_config.json", {"pad_token_id": 0})
    return {"folder": str(folder), "parameters": sum(tensor.numel() for tensor in model.parameters())}


def qwen35(folder: Path) -> dict[str, Any]:
    """A checkpoint of Qwen3.5-0.8B's shape: its text model, ids and file layout to the letter, a small vision tower beside it.

    The vision tower never trains and is not loaded, so its size changes nothing that is measured.
    """
    from safetensors import safe_open

    tiny_hybrid(folder, hidden=1024, layers=24, scale=0.02, real_ids=True, text=QWEN35)
    parameters = 0
    for shard in folder.glob("*.safetensors"):
        with safe_open(shard, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # not a mapping
                if name.startswith("model.language_model."):
                    length = 1
                    for size in tensors.get_slice(name).get_shape():
                        length *= size
                    parameters += length
    return {"folder": str(folder), "parameters": parameters}


def without_stop(folder: Path, source: Path) -> dict[str, Any]:
    """A folder with the weights of `source` (as links) in which no token ends a completion."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix == ".json" and not file.name.endswith(".index.json"):
            (folder / file.name).write_bytes(file.read_bytes())
        else:
            (folder / file.name).symlink_to(file.resolve())
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        remove_keys(folder / name)
    return {"folder": str(folder)}


def remove_keys(path: Path) -> None:
    """Takes what names a stop token out of a JSON file; null where a library would else put its own default."""
    if path.exists():
        content = json.loads(path.read_text("utf-8"))
        for key in STOP_KEYS:
            content.pop(key, None)
        if path.name == "config.json":
            content["eos_token_id"] = None
        write_json(path, content)


if __name__ == "__main__":
    main()
