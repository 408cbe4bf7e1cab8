"""Config classes of the data sources. To add a source: one class here, one function of the same name in data/sources.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from llmclick.config.checks import Text, UserPath, looks_like_path, refuse
from llmclick.config.methods import Section

SOURCE_CONFIGS: dict[str, type[SourceConfig]] = {}
"""The config class of each data source, by the name that `data.sources` uses."""


class SourceConfig(Section):
    """What every data source takes. A source's own class adds its keys."""

    name: Text = Field(description="Which source: local_jsonl, huggingface or reasoning_gym.")
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Takes the first so many rows of this source, before rows are held out. Left out, all rows count.",
    )
    fields: dict[str, Text | None] = Field(
        default_factory=dict,
        description="Renames keys of the source's rows: `fields: {prompt: question}` makes `prompt` from the source's "
        "`question`. Dots read inside a value, `{answer: reward_model.ground_truth}` or `{prompt: messages.0.content}`, and "
        "`{image: null}` leaves a column out. All other keys stay as they are.",
    )


C = TypeVar("C", bound=type[SourceConfig])


def source_config(name: str) -> Callable[[C], C]:
    """Registers the decorated class as the config of the data source `name`."""

    def enter(cls: C) -> C:
        SOURCE_CONFIGS[name] = cls
        return cls

    return enter


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    sliced = re.fullmatch(r"\s*([^\[\]]*)\[(.*)\]\s*", value)
    if sliced:
        first = re.fullmatch(r":(\d+)", sliced[2].replace(" ", ""))
        count = first[1] if first and int(first[1]) else "N"
        why = "a split is named as a whole" if first else "a split is named as a whole, and limit takes its first rows"
        refuse(why, f"write split: {sliced[1].strip() or 'train'} with limit: {count} beside it")
    if "+" in value:
        refuse("a source has one split", "write a source for each split, one after the other in data.sources")
    return value


@source_config("local_jsonl")
class LocalJsonl(SourceConfig):
    """Rows of a local file, one JSON object a line."""

    path: UserPath = Field(
        description="The file with the rows, one JSON object a line, in UTF-8, as it is or compressed (gzip, bzip2, xz). A "
        "relative path is relative to the working directory.",
        json_schema_extra={"hint": "samples/llm_grpo.jsonl"},
    )


@source_config("huggingface")
class HuggingFace(SourceConfig):
    """Rows of a data set of the Hugging Face Hub, of a local folder, or of one file: Parquet, CSV, TSV, JSON or JSON lines.

    What stands in the file is what the reward gets. A CSV's cell is text; a column whose every cell is written as a number is
    (`7`, `1.5`, but `007` and `1.50` leave a column text) holds numbers; an empty cell is null. A file of a folder that belongs
    to no split is refused.
    """

    dataset: Text = Field(
        description="The Hub's data set, `owner/name`, or a local folder or file (a name that exists or starts with `.`, `/` "
        "or `~`).",
        json_schema_extra={"hint": "openai/gsm8k"},
    )
    subset: Text | None = Field(
        default=None, description="The data set's configuration, for one that has several (GSM8K: `main`)."
    )
    split: Annotated[Text, BeforeValidator(_split)] = Field(
        default="train",
        description="Which split's rows are read, all of them or the first `limit`. A single file has no splits.",
    )
    revision: Text | None = Field(
        default=None,
        description="The full 40-character commit of the Hub's data set, so that the rows cannot change under a config. "
        "Required for the Hub, without effect beside a folder or file.",
    )

    @property
    def is_folder(self) -> bool:
        """Whether `dataset` means a local folder or file and not the Hub."""
        return looks_like_path(self.dataset)

    @property
    def is_file(self) -> bool:
        """Whether `dataset` is one local data file."""
        from llmclick.data.files import is_data_file

        path = Path(self.dataset).expanduser()
        return is_data_file(path) and path.is_file()


@source_config("reasoning_gym")
class ReasoningGym(SourceConfig):
    """Generated tasks of the reasoning-gym library (the extra `reasoning-gym`)."""

    task: Text = Field(
        description="The name of a reasoning-gym data set, such as chain_sum.", json_schema_extra={"hint": "chain_sum"}
    )
    size: Annotated[int, Field(ge=1)] = Field(default=500, description="How many rows are generated.")
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="The generator's seed: the same seed makes the same rows. Independent of pipeline.seed."
    )
    config: dict[str, Any] = Field(default_factory=dict, description="The task's own settings, handed over as they are.")
