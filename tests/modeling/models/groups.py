"""Groups of packed tokens, as tests name them: by their lengths."""

from __future__ import annotations

from collections.abc import Sequence

from llmclick.modeling.llm.models.layout import Group, Span

Lengths = Sequence[tuple[int, Sequence[int]]]
"""(tokens of a prompt, tokens of its rows)."""


def groups_of(lengths: Lengths, prompts_first: bool) -> list[Group]:
    """Tokens without gaps: all prompts and then all rows, or each prompt with its rows behind it."""
    at = 0

    def span(length: int) -> Span:
        nonlocal at
        at += length
        return Span(at - length, length)

    if prompts_first:
        prompts = [span(length) for length, _ in lengths]
        return [Group(prompt, [span(row) for row in rows]) for prompt, (_, rows) in zip(prompts, lengths, strict=True)]
    return [Group(span(length), [span(row) for row in rows]) for length, rows in lengths]
