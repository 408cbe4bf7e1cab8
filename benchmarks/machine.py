"""On what and when a benchmark ran: the part of every result without which its seconds say nothing."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve", "bf16")
"""The processor features that decide how fast matrix products are, as the kernel names them."""
LIBRARIES = ("llmclick", "torch", "transformers", "peft", "numpy")


def machine() -> dict[str, Any]:
    """Processor, memory, system and library versions of this machine."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "features": [name for name in FEATURES if name in flags()],
        "memory_gb": memory_gb(),
        "system": platform.system(),
        "python": platform.python_version(),
        **versions(LIBRARIES),
    }


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    """The installed version of each of `libraries` that is installed."""
    found = {}
    for name in libraries:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def flags() -> frozenset[str]:
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split())


def memory_gb() -> float | None:
    """Memory of the machine; None where the system does not say."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, OSError, ValueError):
        return None


def commit() -> str | None:
    """The code that was measured, with a + if its files differ from that commit; None outside a checkout."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src"], cwd=ROOT, check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed else "")


def finish(result: dict[str, Any], out: Path | None) -> None:
    """Adds date, commit and machine, writes the result to `out` if asked to, and prints it as the last line."""
    result = {**result, "date": datetime.date.today().isoformat(), "commit": commit(), "machine": machine()}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    sys.stdout.flush()
    print(json.dumps(result), flush=True)


def _cpuinfo(key: str) -> str:
    if sys.platform != "linux":
        return ""
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
