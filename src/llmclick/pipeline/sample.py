"""`llmclick sample`: what a model answers to held-out rows, and what the rewards say about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llmclick.errors import InputError
from llmclick.pipeline.preflight import preflight

if TYPE_CHECKING:
    from llmclick.config.schema import Config
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
    prepare_process()
    tokenizer = load_tokenizer(checked.source)
    model = load_language_model(source, device=checked.plan.compute.device, dtype="auto", tokenizer=tokenizer)
    prompts = checked.dataset.validation[:rows]
    sampler = LocalSampler(
        model,
        seed=config.pipeline.seed,
        temperature=None if greedy else config.method.temperature,
        max_new_tokens=config.method.max_new_tokens,
        rows=config.method.sample_rows,
    )
    text_of = text_decoder(tokenizer, model)
    with console.progress("sampling", config.method.max_new_tokens) as bar:
        groups = sampler.sample(
            [Request(prompt.row.id, prompt.ids) for prompt in prompts], 1, "sample", on_tokens=lambda _: bar.advance()
        )
    with make_scorer(config, None, console.notice) as scorer:
        scores = score_groups(scorer, prompts, groups, text_of)
    for prompt, [completion], score in zip(prompts, groups, scores, strict=True):
        named = ", ".join(
            f"{name} {'does not apply' if value is None else f'{value:g}'}" for name, value in score.by_name.items()
        )
        console.result(f"{prompt.row.where}\n  {prompt.text}\n  -> {text_of(completion.ids)}")
        console.result(f"  reward {score.total:g} ({named}), {len(completion.ids)} tokens, {completion.stop}\n")
    console.result(f"mean reward {sum(score.total for score in scores) / len(scores):.3f} over {len(scores)} held-out rows")
