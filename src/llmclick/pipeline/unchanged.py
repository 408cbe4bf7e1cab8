"""What a stage reads again is what the plan read: rewards, model, tokenizer, template, the data stage's files.

Between the plan and a stage lie hours. A config, its rows and the prompts made of them are kept in memory and on disk under
their fingerprint; the files below are opened once more, and their new content would stand under the old fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmclick.errors import InputError, Problem
from llmclick.pipeline.stage import check_data_files, read_manifest
from llmclick.rewards.source import changed_files, check_unchanged

if TYPE_CHECKING:
    from llmclick.pipeline.preflight import Plan


def check_stage_inputs(stage: str, plan: Plan) -> None:
    """Raises InputError (RewardError for a reward's file) naming what is no longer what the run was planned with."""
    check_unchanged(changed_files(plan.reward_files))
    problems = model_problems(plan.config, plan.source, plan.inputs)
    if problems:
        raise InputError(problems)
    if stage != "data" and (manifest := read_manifest(plan.dataset_folder)) is not None:
        check_data_files(plan.dataset_folder, manifest)


def model_problems(config: Any, source: Any, inputs: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Whether the model's files still have the hashes that stand in the fingerprints. Weights are hashed again only if their
    size or time of change is another; a Hub model's are named by their commit."""
    changed = []
    if source.tokenizer_hash() != inputs["data"]["tokenizer"]:
        changed.append("its tokenizer, template or configuration")
    if source.kind != "hub" and source.weights_hash() != inputs["train"]["model"]:
        changed.append("its weights")
    if not changed:
        return []
    return [
        Problem(
            where=config.where("model.name"),
            key="model.name",
            given=str(source.gguf or source.folder),
            why=f"{' and '.join(changed)} changed after this run had read them: what comes next would be another model's",
            write="put the files back as they were, and the same command continues; as they are now, the same command begins "
            "another experiment",
        )
    ]
