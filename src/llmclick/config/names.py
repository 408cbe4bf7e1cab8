"""The dotted names of all keys, and which one was probably meant by a name that is none of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic.fields import FieldInfo

from llmclick.config.methods import RewardSpec, Section
from llmclick.config.schema import SECTIONS, AdapterSpec, ValidationSources
from llmclick.config.sources import SOURCE_CONFIGS, SourceConfig

# What other trainers call a key.
ELSEWHERE = {
    "learning_rate": "training.lr",
    "num_generations": "method.group_size",
    "n": "method.group_size",
    "max_completion_length": "method.max_new_tokens",
    "max_tokens": "method.max_new_tokens",
    "max_prompt_length": "training.max_length",
    "max_seq_length": "training.max_length",
    "gradient_accumulation_steps": "training.accumulation",
    "per_device_train_batch_size": "training.batch_size",
    "num_train_epochs": "training.epochs",
    "num_iterations": "method.iterations",
    "epsilon": "method.clip",
    "epsilon_high": "method.clip_high",
    "kl_coef": "method.beta",
    "reward_funcs": "method.reward",
    "rewards": "method.reward",
    "peft_config": "training.adapter",
    "lora": "training.adapter",
    "lora_r": "training.adapter.r",
    "lora_rank": "training.adapter.r",
    "rank": "training.adapter.r",
    "lora_alpha": "training.adapter.alpha",
    "lr_scheduler_type": "training.schedule",
    "warmup_ratio": "training.warmup",
    "eval_steps": "training.eval_every",
    "save_steps": "training.save_every",
    "bf16": "training.precision",
    "dtype": "training.precision",
    "report_to": "tracker.name",
    "model_name_or_path": "model.name",
    "path": "data.sources.0.path",
}


def sections_of(key: str) -> list[type[Section]]:
    """The classes whose keys may stand below a dotted key (list positions as numbers), [] if there are none."""
    parts = [part for part in key.split(".") if not part.isdigit()]
    if parts in (["data", "sources"], ["data", "validation", "sources"]):
        return list(SOURCE_CONFIGS.values())
    table: dict[str, list[type[Section]]] = {
        "data.validation": [ValidationSources],
        "method.reward": [RewardSpec],
        "training.adapter": [AdapterSpec],
        **{name: [cls] for name, cls in SECTIONS.items()},
    }
    return table.get(".".join(parts), [])


def all_keys() -> Iterator[tuple[str, FieldInfo, type[Section]]]:
    """Every key with a text of its own: dotted name, field and class, in the order of a config."""

    def below(prefix: str, cls: type[Section]) -> Iterator[tuple[str, FieldInfo, type[Section]]]:
        for name, info in cls.model_fields.items():
            if name == "params" or (
                cls is not SourceConfig and issubclass(cls, SourceConfig) and name in SourceConfig.model_fields
            ):
                continue
            dotted = f"{prefix}.{name}"
            yield dotted, info, cls
            for inner in sections_of(dotted) if dotted != "data.validation.sources" else []:
                if inner is not ValidationSources or dotted == "data.validation":
                    yield from below(dotted, inner)
            if dotted == "data.sources":
                yield from below(dotted, SourceConfig)

    for section, cls in SECTIONS.items():
        yield from below(section, cls)


def _alike(one: str, other: str) -> float:
    left, right = (text.lower().replace("-", "_") for text in (one, other))
    return 1.0 if left == right else difflib.SequenceMatcher(None, left, right).ratio()


def closest(name: str, known: Iterable[str]) -> list[str]:
    """All known names, the most similar first."""
    return sorted(known, key=lambda other: -_alike(name, other))


def suggest(name: str, inside: str, own: Iterable[str]) -> str:
    """The remedy for `name`, which is no key of `inside` (a dotted section, "" for the top level) whose keys are `own`."""
    own = list(own)
    prefix = f"{inside}." if inside else ""
    tidy = name.lower().replace("-", "_")
    elsewhere = [dotted for dotted, _, _ in all_keys() if dotted.count(".") == 1 or dotted.startswith("training.adapter.")]
    same = [dotted for dotted in elsewhere if dotted.rpartition(".")[2] == tidy and not dotted.startswith(prefix or "\0")]
    near = [(score, known) for known in own if (score := _alike(name, known)) >= 0.6]
    best = max(near, default=(0.0, ""))
    if best[0] >= 0.8:
        return f"write {prefix}{best[1]}"
    if same:
        return f"write {' or '.join(same)}" + (f": it belongs in {same[0].rpartition('.')[0]}" if len(same) == 1 else "")
    if tidy in ELSEWHERE:
        return f"write {ELSEWHERE[tidy]}, the name of that here"
    if best[1]:
        return f"write {prefix}{best[1]}"
    far = max(((_alike(name, dotted.rpartition(".")[2]), dotted) for dotted in elsewhere), default=(0.0, ""))
    if far[0] >= 0.75:
        return f"write {far[1]}"
    listed = ", ".join(closest(name, own))
    return f"remove it; {inside or 'a config'} takes {listed}" if listed else "remove it"


def show(value: Any, limit: int = 80) -> str:
    """A value on one line as YAML would have it, cut at `limit` characters."""
    import json

    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        text = ".inf" if value > 0 else "-.inf"
    elif isinstance(value, float) and value != value:
        text = ".nan"
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            text = "a value that cannot be shown"
    return text if len(text) <= limit else text[: limit - 3] + "..."
