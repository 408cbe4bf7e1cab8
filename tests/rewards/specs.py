"""What the tests of rewards share."""

import textwrap
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Spec:
    name: str
    params: dict = field(default_factory=dict)
    weight: float = 1.0
    timeout: float = 10.0
    on_error: str = "fail"
    pass_at: float = 1.0


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path
