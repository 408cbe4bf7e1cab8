"""Every key of a config: its type, default, bound and meaning. The text of a field is the key's only documentation;
`llmclick explain` and the reference page print it."""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, SerializeAsAny, model_validator

from llmclick.config.checks import (
    STAGES,
    Name,
    Paths,
    Rows,
    Size,
    Stages,
    Targets,
    Text,
    UserPath,
    looks_like_path,
    refuse,
)
from llmclick.config.methods import CispoMethod, GrpoMethod, RewardSpec, Section
from llmclick.config.sources import SourceConfig
from llmclick.data.template import RESERVED


class PipelineConfig(Section):
    """What is built and under which name."""

    recipe: Text = Field(
        description="The method that trains: `llm_grpo` or `llm_cispo` (`llmclick recipes` describes them).",
        json_schema_extra={"hint": "llm_grpo"},
    )
    name: Name = Field(
        description="The experiment's name, the first part of its folder's: letters, digits, `.`, `_` and `-`.",
        json_schema_extra={"hint": "my-run"},
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(
        default=20260920,
        description="Everything random is a function of it: which rows are held out, the order of rows, every sampled token, "
        "the adapter's first weights and the gate's interval.",
    )
    output_dir: UserPath = Field(
        default=Path("output"),
        description="The folder in which the experiment's folder `<name>-<hash>` is made. Not part of the experiment's "
        "identity.",
    )
    stages: Stages = Field(
        default=STAGES,
        description="Which of data, train and validate to run; `all` is all three. A run without validate is not judged.",
        json_schema_extra={"shape": "all, or a list of data, train, validate"},
    )
    imports: Paths = Field(
        default=(),
        description="Your own Python files, loaded before rewards are looked up; they register rewards with "
        "`@REWARDS.register`.",
        json_schema_extra={"shape": "a list of paths"},
    )


def _template(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for name in value:
        if name == "enable_thinking":
            refuse("enable_thinking has a key of its own", "write model.thinking: true or false")
        if name in RESERVED:
            refuse(f"{name} is not a variable of a template: llmclick sets it itself", f"leave {name} out")
        if not str(name).isidentifier():
            refuse(f"a template's variable cannot be named {name!r}", "write a name of letters, digits and _")
    if "date" in value:
        try:
            datetime.datetime.fromisoformat(value["date"])
        except (TypeError, ValueError):
            refuse("date is the day that the template is told", "write date: 2026-01-31, or with a time 2026-01-31T12:00")
    return value


class ModelConfig(Section):
    """The model that training starts from."""

    name: Text = Field(
        description="The model: `owner/name` on the Hugging Face Hub, a local folder (a name that exists or starts with `.`, "
        "`/` or `~`), a `.gguf` file, or `package:<package>/<file>`, a file inside an installed Python package.",
        json_schema_extra={"hint": "Qwen/Qwen3.5-0.8B"},
    )
    revision: Text | None = Field(
        default=None,
        description="The full 40-character commit of a Hub model, so that the weights cannot change under a config. Required "
        "for the Hub, without effect beside a folder, file or package.",
    )
    architecture: Literal["auto", "transformer", "hybrid"] = Field(
        default="auto",
        description="The model's family: `transformer` (attention only), `hybrid` (linear and full attention, as in Qwen3.5) "
        "or `auto`, read from the checkpoint. A named one that the checkpoint contradicts is an error.",
    )
    thinking: bool | None = Field(
        default=None,
        description="Handed to the chat template as enable_thinking. Left out, the template's own default holds.",
        json_schema_extra={"default": "the template's"},
    )

    template: Annotated[dict[str, Any], BeforeValidator(_template)] = Field(
        default_factory=dict,
        description="Variables handed to the chat template by their names: `{date_string: 26 Jul 2024}`, `{tools: [...]}`. A "
        "template that asks for the current date (strftime_now) is told `date`, 2026-01-01 if omitted, so that the same config "
        "has the same prompts on any day.",
        json_schema_extra={"shape": "a mapping of the template's variables"},
    )

    @property
    def kind(self) -> Literal["hub", "folder", "gguf", "package"]:
        """What `name` means."""
        if self.name.startswith("package:"):
            return "package"
        if self.name.endswith(".gguf"):
            return "gguf"
        return "folder" if looks_like_path(self.name) else "hub"


class ValidationSources(Section):
    """`data.validation` as the user's own held-out rows."""

    sources: tuple[SerializeAsAny[SourceConfig], ...] = Field(
        min_length=1,
        description="Where the held-out rows come from, written like data.sources. Then no training row is held out.",
        json_schema_extra={"hint": "[{name: local_jsonl, path: heldout.jsonl}]", "shape": "a list of sources"},
    )


def _validation(value: Any) -> Any:
    if isinstance(value, ValidationSources):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse(
            "held-out rows are a count, a share or sources of their own",
            "write 64 (rows), 0.1 (a tenth), or {sources: [{name: local_jsonl, path: heldout.jsonl}]}",
        )
    if isinstance(value, int) and value < 1:
        refuse("at least one row has to be held out, or nothing could be judged", "write 1 or more, or a share such as 0.1")
    if isinstance(value, float) and not 0 < value < 1:
        refuse(
            "a share lies between 0 and 1; a count has no decimal point",
            f"write {int(value)} for that many rows, or a share such as 0.1"
            if value >= 1 and value == value and value < 1e15
            else "write a share such as 0.1 or a count such as 64",
        )
    return value


class DataConfig(Section):
    """The rows."""

    sources: tuple[SerializeAsAny[SourceConfig], ...] = Field(
        min_length=1,
        description="Where rows come from, in this order: local_jsonl {path}, huggingface {dataset, subset, split, revision}, "
        "reasoning_gym {task, size, seed, config}. All take limit and fields.",
        json_schema_extra={"hint": "[{name: local_jsonl, path: rows.jsonl}]", "shape": "a list of sources"},
    )
    system: Text | None = Field(
        default=None,
        description="A system message put before every prompt that is plain text. Prompts written as messages stay as "
        "they are.",
    )
    validation: Annotated[int | float | ValidationSources, BeforeValidator(_validation)] = Field(
        default=0.1,
        description="The rows held out for validation, which training never sees: a whole number is a count, a number between "
        "0 and 1 a share (at least one row), `{sources: [...]}` names rows of their own. Rows with the same prompt stay on "
        "one side.",
        json_schema_extra={"shape": "a count, a share between 0 and 1, or {sources: [...]}"},
    )


def _dropout(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0:
        refuse(
            "with dropout the probabilities that train differ from those that sampled, so every ratio would be wrong",
            "write dropout: 0 or leave it out",
        )
    return value


class AdapterSpec(Section):
    """`training.adapter`: low-rank weights that train instead of the model's own."""

    name: Literal["lora"] = Field(default="lora", description="The kind of adapter; lora is the only one.")
    r: Annotated[int, Field(ge=1)] = Field(
        default=16, description="The rank: how many directions each adapted layer can move in."
    )
    alpha: Annotated[float, Field(gt=0)] = Field(default=32.0, description="The adapter's output is scaled by alpha / r.")
    targets: Targets = Field(
        default="auto",
        description="Which linear layers get an adapter: `auto` takes all of the model's own in attention and feed-forward "
        "blocks, a list of names takes those.",
        json_schema_extra={"shape": "auto, or a list of layer names"},
    )
    dropout: Annotated[float, BeforeValidator(_dropout)] = Field(
        default=0.0, description="Always 0: dropout is off in reinforcement learning."
    )


class TrainingConfig(Section):
    """How the weights are trained."""

    epochs: Annotated[int, Field(ge=1)] = Field(default=1, description="How often the training rows are gone through.")
    max_steps: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Ends training after so many optimizer steps, if the rows last that long. Left out, the rows and epochs "
        "decide.",
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        default=8,
        description="Prompts in a micro-batch. Lower it when memory is short while training, and raise accumulation to keep "
        "the step's size: the gradient stays the same.",
    )
    accumulation: Annotated[int, Field(ge=1)] = Field(
        default=1,
        description="Micro-batches in an optimizer step. A step samples batch_size x accumulation x method.group_size "
        "completions.",
    )
    lr: Annotated[float, Field(gt=0)] = Field(
        default=1e-6,
        description="The learning rate of AdamW after warmup. Left out, 1e-6 for the whole model and 1e-5 for an adapter.",
        json_schema_extra={"default": "1e-6, with training.adapter 1e-5", "hint": "1.0e-6"},
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="How the learning rate goes on after warmup: it stays (`constant`) or falls to 0 at the last step "
        "(`linear`, `cosine`).",
    )
    warmup: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="The share of the optimizer steps over which the learning rate rises from 0."
    )
    max_length: Annotated[int, Field(ge=2)] = Field(
        default=1024,
        description="The most tokens of a prompt, template included, and method.max_new_tokens together. Every row is checked "
        "before the first step.",
    )
    overflow: Literal["error", "skip"] = Field(
        default="error",
        description="What happens to rows whose prompt leaves no room: `error` refuses and lists them, `skip` leaves them out "
        "and counts them. No prompt is ever cut.",
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="AdamW's decoupled weight decay. It falls on matrices, embeddings included, not on norms and biases.",
    )
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="A gradient whose norm is larger is scaled down to it. The log shows the norm before."
    )
    micro_tokens: Annotated[int, Field(ge=1)] = Field(
        default=8192,
        description="A micro-batch is cut further so that one forward pass holds about this many tokens. It only bounds "
        "memory: the gradient stays the same.",
    )
    patience: Annotated[int, Field(ge=0)] = Field(
        default=10,
        description="Sampled batches in a row in which no group has any spread of rewards before training ends: with success "
        "if all groups of all of them were right, otherwise with exit code 4. 0 never ends it.",
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto",
        description="What forward and backward compute in; weights and optimizer are always fp32. `auto` takes bf16 where the "
        "processor computes in it (AMX, AVX512-BF16, CUDA), else fp32.",
    )
    adapter: AdapterSpec | None = Field(
        default=None,
        description="Trains a LoRA adapter instead of the whole model: `{name: lora, r: 16, alpha: 32, targets: auto}`. Left "
        "out, all weights train.",
        json_schema_extra={"shape": "a mapping {name, r, alpha, targets}"},
    )
    eval_every: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Measures the greedy reward on held-out rows every so many optimizer steps, step 0 included. Left out, "
        "only validate measures it.",
    )
    eval_rows: Annotated[int, Field(ge=1)] = Field(
        default=64, description="How many held-out rows eval_every uses: the first ones in the order of their hash."
    )
    save_every: Annotated[int, Field(ge=1)] = Field(
        default=25,
        description="Writes a snapshot to resume from every so many optimizer steps. A killed run loses at most that much time "
        "and nothing else.",
    )

    @model_validator(mode="before")
    @classmethod
    def _lr(cls, values: Any) -> Any:
        if isinstance(values, dict) and "lr" not in values and values.get("adapter") is not None:
            return {**values, "lr": 1e-5}
        return values


class ValidationConfig(Section):
    """The bounds that a checkpoint has to meet before it is handed over."""

    min: dict[str, float] = Field(
        default_factory=dict,
        description="Lower bounds on the trained model's mean on held-out rows, such as `{reward: 0.8}`. Metrics: reward, "
        "reward/NAME for each reward, pass_rate, length, truncated.",
        json_schema_extra={"shape": "a mapping from metric to number"},
    )
    max: dict[str, float] = Field(
        default_factory=dict,
        description="Upper bounds, such as `{truncated: 0.05}`, on the same metrics.",
        json_schema_extra={"shape": "a mapping from metric to number"},
    )
    gain: dict[str, float] = Field(
        default_factory=dict,
        description="Bounds on the improvement over the base model, paired by row: `{reward: 0.05}` passes when the mean "
        "difference is at least 0.05 and its 95 % interval lies above 0, which takes at least 6 held-out prompts that change. "
        "A negative bound asks for no loss instead (non-inferiority): `{pass_rate: -0.05}` passes when the interval's lower "
        "end is at least -0.05. Where less is better (length, truncated, a reward of negative weight) write `max`.",
        json_schema_extra={"shape": "a mapping from metric to number"},
    )
    rows: Rows = Field(
        default=None,
        description="Judges at most so many held-out rows. Left out (or `all`), all of them.",
        json_schema_extra={"default": "all", "shape": "a whole number, at least 1, or all"},
    )


class ReportConfig(Section):
    """What a run leaves to read."""

    keep: Annotated[Size, Field(ge=0)] = Field(
        default=200_000_000,
        description="How much of completions/ stays uncompressed, as a size such as `200 MB`; older files beyond it are "
        "compressed.",
        json_schema_extra={"default": "200 MB", "shape": "a size such as 200 MB"},
    )
    tokens: bool = Field(
        default=False,
        description="Also keeps the token ids and log-probabilities of every completion, which makes completions/ several "
        "times as large.",
    )


class SamplerConfig(Section):
    """What draws the completions."""

    name: Literal["local"] = Field(
        default="local", description="The sampler: `local` samples in the training process from the training weights."
    )


class TrackerConfig(Section):
    """Where metrics are sent beside the experiment's own files."""

    name: Text = Field(description="The tracker's name.", json_schema_extra={"hint": "trackio"})
    params: dict[str, Any] = Field(default_factory=dict, description="All other keys of the mapping, handed to the tracker.")


class ComputeConfig(Section):
    """Where it runs. Not part of an experiment's identity."""

    device: Literal["auto", "cuda", "mps", "cpu"] = Field(
        default="auto",
        description="The device: `auto` takes cuda, then mps, then cpu. One device is used; with several visible GPUs it is "
        "the first, and the run says so.",
    )


class Origin(BaseModel):
    """Where a config came from: its file, who wrote each key, and what was noticed."""

    path: Path
    where: Callable[[str], str]
    notices: tuple[str, ...] = ()


class Config(Section):
    """A config, complete and checked. Read one with `load_config`."""

    pipeline: PipelineConfig
    model: ModelConfig
    data: DataConfig
    method: GrpoMethod | CispoMethod
    training: TrainingConfig = TrainingConfig()
    validation: ValidationConfig = ValidationConfig()
    report: ReportConfig = ReportConfig()
    sampler: SamplerConfig = Field(
        default=SamplerConfig(),
        description="What draws the completions; only `local` exists. Another sampler would be part of the experiment's "
        "identity.",
    )
    tracker: TrackerConfig | None = Field(
        default=None,
        description="A tracker that also receives every metric, by name or as `{name: ..., <settings>}`. Left out, metrics are "
        "kept in the experiment's folder only. Not part of the experiment's identity.",
        json_schema_extra={"shape": "none, a name, or a mapping {name, ...}"},
    )
    compute: ComputeConfig = ComputeConfig()

    _origin: Origin | None = PrivateAttr(default=None)

    @property
    def path(self) -> Path:
        """The YAML file."""
        return self._origin.path if self._origin else Path("config.yaml")

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences about settings that work but may not mean what they seem to, to be shown once at the start."""
        return self._origin.notices if self._origin else ()

    def where(self, key: str) -> str:
        """`file:line` of a dotted key, `--set key=value` if it was set there, the file alone if it is a default."""
        return self._origin.where(key) if self._origin else str(self.path)

    def as_dict(self) -> dict[str, Any]:
        """The resolved config as plain JSON-able values, in the shape of the YAML."""
        return {name: plain(getattr(self, name)) for name in type(self).model_fields}

    def changed(self) -> dict[str, Any]:
        """Dotted keys whose value is not the default (required keys always), in the order of the schema."""
        found: dict[str, Any] = {}
        for section, value in self:
            if not isinstance(value, Section):
                if value is not None:
                    found[section] = plain(value)
                continue
            if isinstance(value, TrackerConfig):
                found[section] = plain(value)
                continue
            for name, info in type(value).model_fields.items():
                now = getattr(value, name)
                default = None if info.is_required() else info.get_default(call_default_factory=True)
                if name == "lr" and self.training.adapter is not None:
                    default = 1e-5
                if info.is_required() or now != default:
                    found[f"{section}.{name}"] = plain(now)
        return found

    def dump_yaml(self) -> str:
        """The resolved config as YAML; `load_config` reads it back to an equal config."""
        from ruamel.yaml import YAML

        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        yaml.width = 120
        out = io.StringIO()
        yaml.dump(self.as_dict(), out)
        return out.getvalue()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]


def plain(value: Any) -> Any:
    """Models, tuples and paths as dicts, lists and text, in the shape of the YAML (a reward's params beside its name)."""
    if isinstance(value, (RewardSpec, TrackerConfig)):
        own = {name: plain(getattr(value, name)) for name in type(value).model_fields if name != "params"}
        return {**own, **{key: plain(item) for key, item in value.params.items()}}
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


SECTIONS: dict[str, type[Section]] = {
    "pipeline": PipelineConfig,
    "model": ModelConfig,
    "data": DataConfig,
    "method": GrpoMethod,
    "training": TrainingConfig,
    "validation": ValidationConfig,
    "report": ReportConfig,
    "sampler": SamplerConfig,
    "tracker": TrackerConfig,
    "compute": ComputeConfig,
}
"""The sections in the order of a config. `method` stands for the recipe's own class; GrpoMethod knows every key."""

__all__ = ["SECTIONS", "AdapterSpec", "CispoMethod", "Config", "GrpoMethod", "RewardSpec", "ValidationSources", "plain"]
