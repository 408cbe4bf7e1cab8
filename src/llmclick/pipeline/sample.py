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
    from llmclick.modeling.llm.models.base import LanguageModel
    from llmclick.modeling.llm.sampling.base import Completion
    from llmclick.rewards.scoring import Score
    from llmclick.tracking.console import Console


def sample(config: Config, rows: int, checkpoint: Path | None, greedy: bool, console: Console) -> None:
    """Prints a completion of each of the first `rows` held-out rows, by the untrained model or the one in `checkpoint`."""
    from llmclick.modeling.llm.models.base import load_language_model, load_tokenizer
    from llmclick.modeling.llm.models.source import Source, check_folder
    from llmclick.modeling.llm.process import prepare_process
    from llmclick.modeling.llm.sampling.base import Request
    from llmclick.modeling.llm.sampling.local import LocalSampler
    from llmclick.pipeline.train import make_scorer, score_groups, text_decoder

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
    model = load_language_model(
        source, device=checked.plan.compute.device, dtype="auto", tokenizer=tokenizer, stop=config.method.stop
    )
    text_of = text_decoder(tokenizer, model)
    if greedy:
        prompts, completions = _as_validated(model, checked.dataset.validation, rows, config, console)
    else:
        prompts = checked.dataset.validation[:rows]
        sampler = LocalSampler(
            model,
            seed=config.pipeline.seed,
            temperature=config.method.temperature,
            max_new_tokens=config.method.max_new_tokens,
            rows=config.method.sample_rows,
        )
        requests = [Request(prompt.row.id, prompt.ids) for prompt in prompts]
        with console.progress("sampling", config.method.max_new_tokens, "tokens") as bar:
            completions = [group[0] for group in sampler.sample(requests, 1, "sample", on_tokens=bar.reach)]
    with make_scorer(config, None, console.notice) as scorer:
        scores = score_groups(scorer, prompts, [[completion] for completion in completions], text_of)
    how = "greedy, as validation reads them" if greedy else f"drawn at temperature {config.method.temperature:g}"
    who = f"the checkpoint {checkpoint}" if checkpoint is not None else f"the untrained model {config.model.name}"
    count = len(prompts)
    console.sentence(f"{count} of {len(checked.dataset.validation)} held-out rows, answered by {who}, {how}\n")
    for prompt, completion, score in zip(prompts, completions, scores, strict=True):
        cut = ", cut off by max_new_tokens" if completion.truncated else ""
        console.result(f"{prompt.row.where}  reward {score.total:.4g}{_named(score)}, {len(completion.ids)} tokens{cut}")
        console.quote("prompt", prompt.text.strip("\n"))
        console.quote("answer", text_of(completion.ids))
        console.result("")
    console.result(f"mean reward {sum(score.total for score in scores) / count:.3f} over {count} held-out rows")


def _as_validated(
    model: LanguageModel, held_out: Sequence[Prompt], rows: int, config: Config, console: Console
) -> tuple[list[Prompt], list[Completion]]:
    """The first `rows` greedy answers, decoded in the batches of the validate stage: the very answers that it judged."""
    from llmclick.pipeline.validate import ROWS, greedy_completions

    judged = config.validation.rows
    pool = held_out[:judged] if judged is not None and rows <= judged else held_out
    batches = pool[: -(-rows // ROWS) * ROWS]
    completions = greedy_completions(model, batches, config, console, "held-out rows")
    return list(pool[:rows]), completions[:rows]


def _named(score: Score) -> str:
    """The rewards by name, unless one alone says what the total says already."""
    named = score.by_name
    if [None if value is None else f"{value:.4g}" for value in named.values()] == [f"{score.total:.4g}"]:
        return ""
    shown = (f"{name} {'does not apply' if value is None else f'{value:.4g}'}" for name, value in named.items())
    return f" ({', '.join(shown)})"
