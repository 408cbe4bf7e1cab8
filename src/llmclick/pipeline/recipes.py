"""The recipes that `pipeline.recipe` names. A recipe is a config class and the module that holds its method."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """`config` is `module:class` of the method section, `method` the module with the objective; both load on demand."""

    name: str
    summary: str
    config: str
    method: str

    def config_class(self) -> Any:
        """The pydantic class of the `method` section."""
        module, _, name = self.config.partition(":")
        return getattr(import_module(module), name)

    def method_module(self) -> Any:
        """The module that holds the objective."""
        return import_module(self.method)


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "llm_grpo",
            "Group Relative Policy Optimization: completions above their group's mean are reinforced, the policy ratio is "
            "clipped to 1 +- clip; takes beta, a KL penalty towards the base model.",
            "llmclick.config.methods:GrpoMethod",
            "llmclick.modeling.llm.methods.grpo",
        ),
        Recipe(
            "llm_cispo",
            "CISPO: the same groups and rewards, but every token keeps its gradient and only its importance weight is capped, "
            "at 1 + clip; differs from GRPO from iterations 2 on.",
            "llmclick.config.methods:CispoMethod",
            "llmclick.modeling.llm.methods.cispo",
        ),
    )
}
