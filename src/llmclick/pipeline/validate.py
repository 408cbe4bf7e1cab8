"""The validate stage: base and trained model on the same held-out rows, and the verdict."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmclick.pipeline.engine import build_answerer, greedy_completions
from llmclick.pipeline.gate import Verdict, judge
from llmclick.pipeline.scores import make_scorer, score_groups
from llmclick.pipeline.stage import checkpoint_source, remove_link
from llmclick.tracking.files import json_line, parse_lines, write_atomic

if TYPE_CHECKING:
    from llmclick.data.prompts import Prompt
    from llmclick.modeling.llm.models.source import Source
    from llmclick.pipeline.stage import Job
    from llmclick.rewards.scoring import Scorer


def validate(job: Job) -> dict[str, Any]:
    """Measures (what was measured before is read again), judges, and links `validate/checkpoint` unless a bound was missed.

    Returns the metrics, the verdict and the checkpoint's path for the stage's manifest.
    """
    from llmclick.pipeline.data import read_dataset

    config = job.config
    folder = job.experiment / "validate"
    folder.mkdir(parents=True, exist_ok=True)
    remove_link(folder / "checkpoint")
    prompts = read_dataset(job.dataset_folder).validation
    if config.validation.rows is not None:
        prompts = prompts[: config.validation.rows]
    with make_scorer(config, job.experiment / "run.log", job.console.notice, job.reward_files) as scorer:
        base_file = job.shared / f"base-{_key(base_inputs(job, prompts))[:12]}" / "answers.jsonl"
        base = _measured(base_file, len(prompts), lambda: answers(job, job.source, prompts, scorer, "base model"))
        checkpoint = checkpoint_source(job.experiment)
        weights = checkpoint.weights_hash()
        trained_file = folder / f"trained-{_key(trained_inputs(job, prompts, weights))[:12]}.jsonl"
        for old in set(folder.glob("trained-*.jsonl")) - {trained_file}:
            old.unlink()
        trained = _measured(trained_file, len(prompts), lambda: answers(job, checkpoint, prompts, scorer, "trained model"))
    names = [spec.name for spec in config.method.reward]
    read = [prompt.ids for prompt in prompts]
    verdict = judge(base, trained, config.validation, names, config.pipeline.seed, read)
    _write_rows(folder / "rows.jsonl", prompts, base, trained)
    write_atomic(folder / "verdict.json", json.dumps(verdict.as_json(), indent=1).encode() + b"\n")
    link = link_checkpoint(folder) if verdict.passed is not False else None
    return {**verdict.as_json(), "checkpoint": str(link) if link else None}


def answers(
    job: Job,
    source: Source,
    prompts: Sequence[Prompt],
    scorer: Scorer,
    label: str,
) -> list[dict[str, Any]]:
    """One record per held-out row: what the model in `source`, loaded as a user would load it, answers greedily."""
    from llmclick.errors import Interrupted
    from llmclick.interfaces import SamplingInterrupted
    from llmclick.modeling.llm.models.base import load_tokenizer
    from llmclick.modeling.llm.process import prepare_process

    prepare_process()
    with job.console.progress(f"loading the {label}", None):
        tokenizer = load_tokenizer(job.source)
        model = build_answerer(job.config, source, job.compute, tokenizer)
    try:
        bar = f"held-out rows, {label}"
        completions = greedy_completions(model.sampler, prompts, job.config, job.console, bar, should_stop=job.should_stop)
    except SamplingInterrupted:
        raise Interrupted(f"stopped while the {label} answered the held-out rows; the same command continues") from None
    scores = score_groups(scorer, prompts, [[completion] for completion in completions], model.text_of)
    return [
        {
            "id": prompt.row.id,
            "text": model.text_of(completion.ids),
            "ids": completion.ids,
            "tokens": len(completion.ids),
            "stop": completion.stop,
            "rewards": score.by_name,
            "reward": score.total,
            "passed": score.passed,
        }
        for prompt, completion, score in zip(prompts, completions, scores, strict=True)
    ]


def base_inputs(job: Job, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Everything that the base model's held-out answers depend on."""
    from llmclick.pipeline.fingerprint import PACKAGES, TEXT_PACKAGES, library_versions, reward_inputs
    from llmclick.semantics import SEMANTICS

    method = job.config.method
    return {
        "rows": [[prompt.row.id, list(prompt.ids)] for prompt in prompts],
        "reward": reward_inputs(job.config),
        "model": job.source.weights_hash(),
        "tokenizer": job.source.tokenizer_hash(),
        "device": job.compute.device,
        "budget": method.max_new_tokens,
        "stop": list(method.stop),
        "answer_after": method.answer_after,
        "truncated": method.truncated,
        "llmclick's validation version": SEMANTICS["validate"],
        "versions": library_versions((*PACKAGES, *TEXT_PACKAGES)),
    }


def trained_inputs(job: Job, prompts: Sequence[Prompt], weights: str) -> dict[str, Any]:
    """Everything that the trained model's held-out answers depend on, `weights` being the hash of the checkpoint's."""
    return base_inputs(job, prompts) | {"model": weights}


def link_checkpoint(folder: Path) -> Path:
    """`validate/checkpoint`, a relative link to `train/checkpoint`; a copy where links are impossible."""
    link = folder / "checkpoint"
    try:
        os.symlink(Path("..") / "train" / "checkpoint", link, target_is_directory=True)
    except OSError:
        import shutil

        shutil.copytree(folder.parent / "train" / "checkpoint", link)
    return link


def _measured(path: Path, rows: int, measure: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The records in `path`, one per row, measured and written whole if they are not all there."""
    if path.exists() and len(found := [record for _, record in parse_lines(path.read_bytes(), path)]) == rows:
        return found
    write_atomic(path, b"".join(json_line(record) for record in measure()))
    return [record for _, record in parse_lines(path.read_bytes(), path)]


def _write_rows(
    path: Path, prompts: Sequence[Prompt], base: Sequence[dict[str, Any]], trained: Sequence[dict[str, Any]]
) -> None:
    """Base and trained side by side, one line per held-out row, in the order of the rows."""
    lines = []
    for prompt, before, after in zip(prompts, base, trained, strict=True):
        pair = {
            side: {key: answer[key] for key in ("text", "tokens", "stop", "rewards", "reward", "passed")}
            for side, answer in (("base", before), ("trained", after))
        }
        lines.append(json_line({"id": prompt.row.id, "where": prompt.row.where, "prompt": prompt.text, **pair}))
    write_atomic(path, b"".join(lines))


def _key(inputs: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


__all__ = ["Verdict", "answers", "validate"]
