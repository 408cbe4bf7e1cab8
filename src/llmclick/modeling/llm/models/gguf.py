"""A `.gguf` file becomes a folder that transformers loads: fp32 safetensors, a repaired tokenizer, the file's chat template.

Done once per file: the folder lies in the user's cache under the file's hash and appears whole.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmclick.errors import InputError, Problem


def convert_gguf(path: Path, folder: Path) -> None:
    """Converts `path` into `folder` unless that is there already; two processes take turns.

    Raises InputError if transformers cannot read the file.
    """
    if (folder / "config.json").exists():
        return
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{folder}.lock")
        lock.acquire()
    except OSError as error:
        raise InputError(_unwritable(folder.parent, error)) from error
    try:
        if (folder / "config.json").exists():
            return
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _write(path, fresh)
            fresh.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            fresh.rename(folder)
        except OSError as error:
            if error.errno is None:
                raise InputError(_unreadable(path, error)) from error
            raise InputError(_unwritable(folder.parent, error)) from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    finally:
        lock.release()


def _write(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    place, file = str(path.parent), path.name
    try:
        with _read_once():
            metadata = _metadata(path)
            tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(
                place,
                gguf_file=file,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
                local_files_only=True,
            )
    except (ValueError, KeyError, NotImplementedError, ImportError) as error:
        raise InputError(_unreadable(path, error)) from error
    tokenizer.save_pretrained(folder)
    _repair_tokenizer(folder, metadata)
    pad = AutoTokenizer.from_pretrained(str(folder), local_files_only=True).pad_token_id
    for config in (model.config, model.generation_config):
        config.pad_token_id = pad
    model.save_pretrained(folder)
    _rewrite(folder / "config.json", drop=("_name_or_path", "_model_name_or_path", "quantization_config"))
    _rewrite(folder / "generation_config.json", drop=("output_attentions", "output_hidden_states"))
    umask = os.umask(0)
    os.umask(umask)
    for written in folder.iterdir():
        written.chmod(0o666 & ~umask)


def _repair_tokenizer(folder: Path, metadata: dict[str, Any]) -> None:
    """Puts back what the conversion loses.

    The file says `pre = smollm`, which splits digits one by one before the byte-level split; the converted tokenizer has the
    second step only, so a number would become other ids than the model was trained on. The padding token becomes
    <|endoftext|>: padding with the turn's end would make the two indistinguishable.
    """
    file = folder / "tokenizer.json"
    backend = json.loads(file.read_text("utf-8"))
    if metadata.get("tokenizer.ggml.pre") == "smollm":
        backend["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        }
        file.write_text(json.dumps(backend, ensure_ascii=False, separators=(",", ":")), "utf-8")
    known = {token["content"] for token in backend.get("added_tokens", ())} | set(backend["model"].get("vocab", ()))
    changes: dict[str, Any] = {"padding_side": "left"}
    if "<|endoftext|>" in known:
        changes["pad_token"] = "<|endoftext|>"
    architecture = metadata.get("general.architecture", "")
    if length := metadata.get(f"{architecture}.context_length"):
        changes["model_max_length"] = int(length)
    _rewrite(
        folder / "tokenizer_config.json", drop=("name_or_path", "_name_or_path", "is_local", "local_files_only"), change=changes
    )


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """transformers reads the file's header three times and builds one name table per module; here each is made once.

    Cuts the conversion of SmolLM2-135M from 40 s to 15 s.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader

    before = gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm
    gguf.GGUFReader, gguf.get_tensor_name_map = (functools.cache(function) for function in before[:2])
    loader.tqdm = lambda tensors, **_: tensors
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map, loader.tqdm = before


def _metadata(path: Path) -> dict[str, Any]:
    """The scalar metadata of a GGUF file that the repair reads."""
    import gguf

    fields = gguf.GGUFReader(str(path)).fields
    found = {name: fields[name].contents() for name in ("general.architecture", "tokenizer.ggml.pre") if name in fields}
    length = f"{found.get('general.architecture', '')}.context_length"
    return found | ({length: fields[length].contents()} if length in fields else {})


def _rewrite(path: Path, drop: tuple[str, ...] = (), change: dict[str, Any] | None = None) -> None:
    content = {key: value for key, value in json.loads(path.read_text("utf-8")).items() if key not in drop}
    path.write_text(json.dumps(content | (change or {}), indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def _unwritable(folder: Path, error: OSError) -> Problem:
    return Problem(
        where=str(folder),
        key="model.name",
        why=f"the converted model cannot be written to the cache folder: {error.strerror or error}",
        write="set LLMCLICK_CACHE to a folder with room for the model in fp32 (4 bytes a parameter)",
    )


def _unreadable(path: Path, error: BaseException) -> Problem:
    return Problem(
        where=str(path),
        key="model.name",
        why=f"transformers cannot convert this file: {[*str(error).strip().splitlines(), type(error).__name__][0]}",
        write="the checkpoint folder or Hub id that the .gguf file was made from",
    )
