"""The `method` section, one class per recipe."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from llmclick.config.checks import Text, refuse


class Section(BaseModel):
    """What all parts of a config share: frozen, strict (`true` is not 1, `4.0` is not 4), unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class RewardSpec(Section):
    """One reward of `method.reward`: its name, what every reward takes, and `params`, the keys that only this one knows."""

    name: Text = Field(
        description="The reward's name: a shipped one (`llmclick rewards` lists them) or one that you registered with "
        "`@REWARDS.register` in modeling/llm/methods/grpo.py or in a file of pipeline.imports.",
        json_schema_extra={"hint": "exact_match"},
    )
    weight: float = Field(
        default=1.0,
        description="The factor of this reward in the weighted sum that is optimised. 0 only logs it, a negative one is a "
        "penalty.",
    )
    timeout: float = Field(
        default=10.0,
        gt=0,
        description="Seconds that one call may take before the completion scores 0. Only rewards that run in a worker are "
        "timed: your own, regex, math and reasoning_gym. More than max(1, 5 %) such calls among the last 100 completions stop "
        "the run. Not part of the experiment's identity.",
    )
    on_error: Literal["fail", "zero"] = Field(
        default="fail",
        description="What happens when the reward raises or returns something that is no number: `fail` stops the run and "
        "shows the row, the completion and the traceback, `zero` scores 0 and counts it. Not part of the experiment's "
        "identity.",
    )
    pass_at: float = Field(
        default=1.0,
        description="The least value with which this reward passes, to within 1e-6. A completion passes when every reward "
        "that has a positive weight and applies to its row does; `pass_rate` and the report count those. A shipped reward "
        "gives 0 to 1, so there it is above 0 and at most 1.",
    )
    params: dict[str, Any] = Field(
        default_factory=dict,
        description="All other keys of the mapping, handed to the reward as its third argument. A shipped reward refuses "
        "one that it does not know.",
    )


def _stop(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            refuse("stop is a list of tokens", f"write [{json.dumps(value, ensure_ascii=False)}]")
        refuse("stop is a list of tokens", 'write a list such as ["<|eot|>", 32007]')
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (int, str)) or item == "":
            refuse("a token is named by its text or its id", 'write a list such as ["<|eot|>", 32007]')
    return tuple(value)


class SharedMethod(Section):
    """What both recipes take. Use GrpoMethod or CispoMethod."""

    group_size: Annotated[int, Field(ge=2, le=4096)] = Field(
        default=8,
        description="Completions sampled for every prompt. Each is compared with the mean of its group, so more of them make "
        "a steadier baseline and cost sampling time in proportion.",
        json_schema_extra={"reason": "a completion is compared with the others of its group, and a group of one has none"},
    )
    max_new_tokens: Annotated[int, Field(ge=1)] = Field(
        default=256,
        description="The most tokens that one completion may have, the stop token included. A completion that reaches it is "
        "cut and counts as truncated.",
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="Divides the logits when training samples, and in every log-probability that training uses. Validation "
        "is greedy and does not use it.",
        json_schema_extra={"reason": "greedy completions of one prompt are all equal, so a group would have no spread"},
    )
    reward: tuple[RewardSpec, ...] = Field(
        description="How completions are scored: one mapping `{name: exact_match}`, or a list of them whose weighted sum "
        "counts. Beside name, a mapping takes weight, timeout, on_error and pass_at; its other keys go to the reward. Two "
        "rewards of one name are refused, because every metric is kept under the reward's name.",
        json_schema_extra={"hint": "{name: exact_match}", "shape": "a mapping or a list of mappings"},
    )
    sample_rows: Annotated[int, Field(ge=1)] = Field(
        default=512,
        description="Completions that are decoded together. A step that has more is sampled in several rounds; lower it when "
        "memory runs out while sampling.",
    )
    correction: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether the policy term is weighted by how much the trainer's probabilities differ from the sampler's, "
        "capped at 2. `auto` turns it on where they can differ: sampling in bf16 from fp32 weights, or another engine.",
    )
    iterations: Annotated[int, Field(ge=1)] = Field(
        default=1,
        description="Optimizer steps taken on each sampled batch before the next one is sampled. From the second one on the "
        "policy differs from the one that sampled, and clip bounds by how much that counts.",
    )
    scale: Literal["group", "batch", "none"] = Field(
        default="group",
        description="What an advantage is divided by: the standard deviation of its `group`'s rewards, that of all rewards of "
        "the step (`batch`), or nothing (`none`).",
    )
    average: Literal["token", "sequence", "constant"] = Field(
        default="token",
        description="How the loss is averaged over an optimizer step: over all its tokens (`token`), over the tokens of each "
        "completion and then over completions (`sequence`), or as a sum divided by completions x max_new_tokens "
        "(`constant`), which takes away the preference for short right and long wrong answers.",
    )
    ratio: Literal["token", "sequence"] = Field(
        default="token",
        description="Whether the policy ratio is taken per `token`, or as one geometric mean per completion (`sequence`, the "
        "GSPO form, which needs average: sequence).",
    )
    truncated: Literal["score", "zero", "mask"] = Field(
        default="score",
        description="What happens to a completion that was cut at max_new_tokens: it is scored as it is (`score`), its total "
        "reward is set to 0, in validation too (`zero`), or it is left out of the loss while its reward stays in the group's "
        "mean (`mask`).",
    )
    answer_after: Text | None = Field(
        default=None,
        description="A marker such as `</think>`: rewards see only the text after its last occurrence, and an empty text if it "
        "never occurs. Holds in training and in validation.",
    )

    stop: Annotated[tuple[int | str, ...], BeforeValidator(_stop)] = Field(
        default=(),
        description='Further tokens that end a completion, by their text or id: `["<|eot|>", 32007]`. A text is exactly one '
        "token of the model. What the model's files call an end, and the token with which its chat template closes the "
        "assistant's turn, end a completion anyway.",
        json_schema_extra={"shape": "a list of texts of single tokens, or ids"},
    )


class GrpoMethod(SharedMethod):
    """How completions are sampled and scored and what is optimised; llm_cispo takes all but clip_high and beta."""

    clip: Annotated[float, Field(gt=0)] = Field(
        default=0.2,
        description="GRPO: the policy ratio counts only between 1 - clip and 1 + clip (PPO's surrogate). CISPO (default 4.0): "
        "the importance weight of a token is capped at 1 + clip and has no lower bound. Without effect while iterations is "
        "1, where every ratio is exactly 1.",
        json_schema_extra={"reason": "with 0 or less no step away from the sampling policy would count"},
    )
    clip_high: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="llm_grpo only: the upper bound becomes 1 + clip_high while the lower one stays 1 - clip (DAPO's clip "
        "higher). Left out, clip holds on both sides.",
    )
    beta: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="llm_grpo only: weight of a KL penalty towards the base model. Above 0 it needs training.adapter, because "
        "the base model is then the same weights with the adapter switched off.",
    )


class CispoMethod(SharedMethod):
    """`method` under llm_cispo."""

    clip: Annotated[float, Field(gt=0)] = Field(
        default=4.0,
        description="The importance weight of each token is capped at 1 + clip: 4.0 caps it at 5. There is no lower bound. "
        "Without effect while iterations is 1, where every weight is exactly 1.",
        json_schema_extra={
            "reason": "CISPO caps each token's weight at 1 + clip; a cap of 1 or less would shrink every weight"
        },
    )

    @property
    def clip_high(self) -> None:
        """CISPO has one cap; the loop need not ask which recipe it runs."""
        return None

    @property
    def beta(self) -> float:
        """CISPO has no KL penalty."""
        return 0.0
