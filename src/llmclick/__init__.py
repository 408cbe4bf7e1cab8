"""llmclick: improve a language model on tasks whose answers can be checked.

`run`, `load_config` and `REWARDS` are loaded when they are first asked for, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["REWARDS", "__version__", "load_config", "run"]

_HOMES = {"run": "llmclick.pipeline.run", "load_config": "llmclick.config.load", "REWARDS": "llmclick.rewards"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'llmclick' has no attribute {name!r}")
