"""`llmclick sample`: what a model answers to held-out rows, and what the rewards say about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llmclick.errors import InputError, Problem
from llmclick.pipeline.preflight import preflight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmclick.config.schema import Config
    from llmclick.data.prompts import Prompt
    from llmclick.interfaces import Completion
    from llmclick.pipeline.engine import Answerer
    from llmclick.rewards.scoring import Score
    from llmclick.tracking.console import Console


def sample(config: Config, rows: int, checkpoint: Path | None, greedy: bool, console: Console) -> None:
    """Prints a completion of each of the first `rows` held-out rows, by the untrained model or the one in `checkpoint`."""
    from llmclick.interfaces import Sampling
    from llmclick.modeling.llm.models.base import load_tokenizer
    from llmclick.modeling.llm.models.source import Source, check_folder
    from llmclick.modeling.llm.process import prepare_process
    from llmclick.pipeline.engine import build_answerer, requests_of
    from llmclick.pipeline.scores import make_scorer, score_groups

    checked = preflight(config)
    assert checked.dataset is not None
    source = checked.source
    if checkpoint is not None:
        folder = checkpoint.absolute()
        if problems := check_folder(folder, "--checkpoint"):
            raise InputError(problems)
        source = Source("folder", str(checkpoint), folder)
        if source.tokenizer_hash() != Source("folder", checked.source.name, checked.source.folder).tokenizer_hash():
            raise InputError(
                Problem(
                    "--checkpoint",
                    "",
                    given=str(checkpoint),
                    why="its tokenizer and settings are not those of the config's model, so it is not trained from it",
                    write="a checkpoint of a run of this config, or a config whose model.name is this folder",
                )
            )
    prepare_process()
    tokenizer = load_tokenizer(checked.source)
    model = build_answerer(config, source, checked.plan.compute, tokenizer)
    method = config.method
    if greedy:
        prompts, completions = _as_validated(model, checked.dataset.validation, rows, config, console)
    else:
        prompts = checked.dataset.validation[:rows]
        how = Sampling(1, method.temperature, method.max_new_tokens, "sample", method.sample_rows)
        with console.progress("sampling", method.max_new_tokens, "tokens") as bar:
            completions = [group[0] for group in model.sampler.sample(requests_of(prompts), how, on_tokens=bar.reach)]
    with make_scorer(config, None, console.notice) as scorer:
        scores = score_groups(scorer, prompts, [[completion] for completion in completions], model.text_of)
    drawn = "greedy, as validation reads them" if greedy else f"drawn at temperature {config.method.temperature:g}"
    who = f"the checkpoint {checkpoint}" if checkpoint is not None else f"the untrained model {config.model.name}"
    count = len(prompts)
    console.sentence(f"{count} of {len(checked.dataset.validation)} held-out rows, answered by {who}, {drawn}\n")
    for prompt, completion, score in zip(prompts, completions, scores, strict=True):
        cut = ", cut off by max_new_tokens" if completion.truncated else ""
        console.result(f"{prompt.row.where}  reward {score.total:.4g}{_named(score)}, {len(completion.ids)} tokens{cut}")
        console.quote("prompt", prompt.text.strip("\n"))
        console.quote("answer", model.text_of(completion.ids))
        console.result("")
    console.result(f"mean reward {sum(score.total for score in scores) / count:.3f} over {count} held-out rows")


def _as_validated(
    model: Answerer, held_out: Sequence[Prompt], rows: int, config: Config, console: Console
) -> tuple[list[Prompt], list[Completion]]:
    """The first `rows` greedy answers, decoded in the batches of the validate stage: the very answers that it judged."""
    from llmclick.pipeline.engine import TOGETHER, greedy_completions

    judged = config.validation.rows
    pool = held_out[:judged] if judged is not None and rows <= judged else held_out
    batches = pool[: -(-rows // TOGETHER) * TOGETHER]
    completions = greedy_completions(model.sampler, batches, config, console, "held-out rows")
    return list(pool[:rows]), completions[:rows]


def _named(score: Score) -> str:
    """The rewards by name, unless one alone says what the total says already."""
    named = score.by_name
    if [None if value is None else f"{value:.4g}" for value in named.values()] == [f"{score.total:.4g}"]:
        return ""
    shown = (f"{name} {'does not apply' if value is None else f'{value:.4g}'}" for name, value in named.items())
    return f" ({', '.join(shown)})"
