"""The recipes that `pipeline.recipe` names. A recipe is a config class and a method class."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """`config` is `module:class` of the method section, `method` that of the objective; both load on demand."""

    name: str
    summary: str
    config: str
    method: str

    def config_class(self) -> Any:
        """The pydantic class of the `method` section."""
        module, _, name = self.config.partition(":")
        return getattr(import_module(module), name)

    def method_class(self) -> Any:
        """The class with the objective."""
        module, _, name = self.method.partition(":")
        return getattr(import_module(module), name)


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "llm_grpo",
            "Group Relative Policy Optimization: completions above their group's mean are reinforced, the policy ratio is "
            "clipped to 1 +- clip; takes beta, a KL penalty towards the base model.",
            "llmclick.config.methods:GrpoMethod",
            "llmclick.modeling.llm.methods.grpo:Grpo",
        ),
        Recipe(
            "llm_cispo",
            "CISPO: the same groups and rewards, but every token keeps its gradient and only its importance weight is capped, "
            "at 1 + clip; differs from GRPO from iterations 2 on.",
            "llmclick.config.methods:CispoMethod",
            "llmclick.modeling.llm.methods.cispo:Cispo",
        ),
    )
}
