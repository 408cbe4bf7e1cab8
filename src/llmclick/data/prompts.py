"""From rows to prompts: the model's chat template and tokenizer, once, and the length of every row before any weight is loaded.

Decisions that a reader may look for:

- Text and messages go through the model's chat template with the header of the answer (`add_generation_prompt`). The
  template writes the begin token itself where it wants one; the tokenizer adds none.
- `data.system` is put before every text prompt. Messages are taken as they are: whoever writes messages has decided.
- A template that writes the current date is told a fixed one (`template`).
- A tokenizer without a template belongs to a base model: a text prompt is given as it is, after the special tokens that the
  tokenizer puts before it (said once) and without those that it appends; messages and `data.system` are refused.
- A prompt never ends with an id that ends a completion, unless the template opens the answer with it.
- What people are shown of a prompt is decoded from its ids.
- Special tokens written inside a row's text become those tokens, as everywhere in transformers and in servers; a notice counts
  the rows.
- Nothing is ever cut. A row that does not fit is an error, or, with `training.overflow: skip`, left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmclick.data.problems import SHOWN, fold, named, shorten
from llmclick.data.rows import Row, content_text
from llmclick.data.template import DATE, apply_template, reads_the_clock
from llmclick.errors import Problem

_ABSURD = 10_000_000
"""transformers writes 1e30 where a tokenizer does not know its model's length."""

_THINKING = ("<think>", "<reasoning>", "[THINK]")
_FEW_TOKENS = 64
_LOOKED_AT = 200


@dataclass(frozen=True)
class Prompt:
    """A row as the model sees it: the token ids, and the text that they decode to."""

    row: Row
    ids: tuple[int, ...]
    text: str


@dataclass
class Rendered:
    """Prompts that fit, rows that were left out on purpose, problems, and what is worth saying."""

    prompts: list[Prompt] = field(default_factory=list)
    skipped: list[Prompt] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def messages_of(row: Row, system: str | None) -> list[dict[str, Any]]:
    """The row's prompt as chat messages with text contents; `system` goes before a text prompt only."""
    prompt = row.data["prompt"]
    if isinstance(prompt, str):
        before = [] if system is None else [{"role": "system", "content": system}]
        return [*before, {"role": "user", "content": prompt}]
    return [{**message, "content": content_text(message["content"])} for message in prompt]


def render_chat(
    tokenizer: Any,
    messages: Sequence[dict[str, Any]],
    thinking: bool | None = None,
    variables: Mapping[str, Any] | None = None,
    *,
    header: bool = True,
) -> tuple[str, list[int]]:
    """The text that the chat template makes of the messages, with the header of the answer, and its token ids.

    The ids equal `apply_chat_template(..., tokenize=True)["input_ids"]`; that call returns a mapping since transformers 5,
    whose len() is 2.
    """
    options = {} if thinking is None else {"enable_thinking": thinking}
    text = apply_template(tokenizer, messages, variables, add_generation_prompt=header, **options)
    return text, list(tokenizer(text, add_special_tokens=False)["input_ids"])


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text as a base model gets it: what the tokenizer puts before the text is kept (the begin token), what
    it appends is not, because the model is to go on where the text ends."""
    whole = list(tokenizer(text)["input_ids"])
    alone = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    for end in range(len(alone), len(whole) + 1):
        if whole[end - len(alone) : end] == alone:
            return whole[:end] if alone else []
    return whole


@dataclass(frozen=True)
class _How:
    """What every row of a run is rendered with."""

    tokenizer: Any
    system: str | None
    thinking: bool | None
    variables: Mapping[str, Any]
    stop_ids: Collection[int]

    @property
    def template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def chat(self, row: Row, *, header: bool = True) -> tuple[str, list[int]]:
        messages = messages_of(row, self.system)
        return render_chat(self.tokenizer, messages, self.thinking, self.variables, header=header)

    def text_of(self, ids: Sequence[int]) -> str:
        """Ids as people see them: every special token, and no space tidied away."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def render(
    rows: Iterable[Row],
    tokenizer: Any,
    *,
    system: str | None = None,
    thinking: bool | None = None,
    variables: Mapping[str, Any] | None = None,
    stop_ids: Collection[int] = (),
    max_new_tokens: int,
    max_length: int,
    context: int | None = None,
    overflow: str = "error",
) -> Rendered:
    """Render, tokenise and measure every row. `context` is the model's own limit in tokens, None if it states none; `stop_ids`
    are the ids that end a completion, `variables` the chat template's own."""
    out = Rendered()
    how = _How(tokenizer, system, thinking, variables or {}, frozenset(stop_ids))
    problems: list[Problem] = []
    whole: list[Prompt] = []
    for row in rows:
        result = _render_row(row, how)
        if isinstance(result, Problem):
            problems.append(result)
        else:
            whole.append(result)
    out.problems = shorten(fold(problems), "problems")
    if not how.template:
        out.notices.append("the tokenizer has no chat template (a base model): text prompts are given to the model as they are")
    elif whole:
        out.problems += _never_the_same(whole[0].row, how)
        out.notices += _about_the_date(whole, how)
    out.notices += _about_text(whole, tokenizer, how.template, max_new_tokens)
    limit = max_length if context is None else min(max_length, context)
    long = [prompt for prompt in whole if len(prompt.ids) + max_new_tokens > limit]
    if not long:
        out.prompts = whole
    elif overflow == "skip":
        left_out = {id(prompt) for prompt in long}
        out.prompts = [prompt for prompt in whole if id(prompt) not in left_out]
        out.skipped = long
    else:
        out.problems.append(_too_long(long, len(whole), max_new_tokens, max_length, context))
    return out


def _render_row(row: Row, how: _How) -> Prompt | Problem:
    prompt = row.data["prompt"]
    if not how.template and (how.system is not None or not isinstance(prompt, str)):
        key = "prompt" if not isinstance(prompt, str) else "data.system"
        return Problem(
            row.where,
            key,
            given="chat messages" if key == "prompt" else "a system message",
            why="the model's tokenizer has no chat template (a base model), so nothing says how to write messages",
            write="a text prompt, without data.system, or a model with a chat template (often named -Instruct)",
        )
    try:
        ids = how.chat(row)[1] if how.template else text_ids(how.tokenizer, prompt)
        if ids and ids[-1] in how.stop_ids and not _is_the_answers_header(row, how):
            return _after_the_end(row, ids, how)
    except Exception as error:
        # A template is a program of the model's author: it raises what it likes, jinja's errors and Python's.
        return Problem(
            row.where,
            "prompt",
            given=_roles(messages_of(row, how.system)),
            why=f"the model's chat template refuses it: {_message(error)}",
            write="messages as the template wants them"
            + ("; without data.system, its text at the start of the prompt" if how.system is not None else ""),
        )
    if not ids:
        return Problem(
            row.where, "prompt", "the tokenizer makes no token of the prompt", "a prompt with text", repr(prompt)[:60]
        )
    return Prompt(row, tuple(ids), how.text_of(ids))


def _is_the_answers_header(row: Row, how: _How) -> bool:
    """Whether the template has opened the answer behind the messages: some models count their own header among the ends, to
    stop before they speak for another side (Phi-3's `<|assistant|>`)."""
    if not how.template:
        return False
    with_header, without = how.chat(row)[0], how.chat(row, header=False)[0]
    return with_header.startswith(without) and len(with_header) > len(without)


def _after_the_end(row: Row, ids: Sequence[int], how: _How) -> Problem:
    why = f"the prompt's last token, {how.text_of(ids[-1:])!r} (id {ids[-1]}), ends a completion: nothing can follow it"
    write = "the prompt without this token at its end"
    if how.template:
        write += ", or a chat template that opens the answer (add_generation_prompt)"
    return Problem(row.where, "prompt", why, write, given=repr(how.text_of(ids[-20:])))


def _never_the_same(row: Row, how: _How) -> list[Problem]:
    """A template that draws at random would give other prompts under the same config."""
    texts = [how.chat(row)[0] for _ in range(4)]
    if len(set(texts)) == 1:
        return []
    why = "the model's chat template gives another text each time (it draws at random), so no run could be repeated"
    return [Problem(row.where, "model.name", why, "a model whose chat template depends on the messages alone")]


def _about_the_date(prompts: Sequence[Prompt], how: _How) -> list[str]:
    options = {} if how.thinking is None else {"enable_thinking": how.thinking}
    for prompt in prompts[:_LOOKED_AT]:
        messages = messages_of(prompt.row, how.system)
        if reads_the_clock(how.tokenizer, messages, how.variables, add_generation_prompt=True, **options):
            date = how.variables.get("date", DATE)
            return [
                f"the chat template writes the current date into the prompt: it is told {date}, so that the same config has "
                "the same prompts on any day. Write model.template: {date: 2026-07-31} for another one"
            ]
    return []


def _roles(messages: Sequence[dict[str, Any]]) -> str:
    return "messages of the roles " + ", ".join(str(message["role"]) for message in messages)


def _message(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _too_long(long: Sequence[Prompt], rows: int, max_new_tokens: int, max_length: int, context: int | None) -> Problem:
    """One problem for all rows that do not fit: rows, lengths, both limits, and the number that would do."""
    longest = max(len(prompt.ids) for prompt in long)
    needed = longest + max_new_tokens
    rows_named = named([f"{prompt.row.where} ({len(prompt.ids)} tokens)" for prompt in long], SHOWN)
    limits = f"training.max_length {max_length}"
    if context is not None:
        limits += f", and the model's own limit is {context}"
    remedies = []
    if context is None or needed <= context:
        remedies.append(f"training.max_length: {needed}")
    if longest < (max_length if context is None else min(max_length, context)):
        remedies.append(f"method.max_new_tokens: {(max_length if context is None else min(max_length, context)) - longest}")
    remedies.append("training.overflow: skip, which leaves these rows out and counts them")
    return Problem(
        long[0].row.where,
        "training.max_length",
        given=rows_named,
        why=f"{len(long)} of {rows} rows do not fit: the prompt and method.max_new_tokens {max_new_tokens} "
        f"together are up to {needed} tokens; {limits}. Nothing is cut",
        write=", or ".join(remedies),
    )


def _about_text(prompts: Sequence[Prompt], tokenizer: Any, template: bool, max_new_tokens: int) -> list[str]:
    notices = []
    special = [token for token in getattr(tokenizer, "all_special_tokens", []) if token]
    inside = [p for p in prompts if any(token in text for text in _texts(p.row) for token in special)]
    if inside:
        rows = named([prompt.row.where for prompt in inside])
        notices.append(f"{len(inside)} rows hold the text of a special token, which becomes that token: {rows}")
    if template and prompts and max_new_tokens < _FEW_TOKENS and _thinks(prompts[0].text, tokenizer):
        notices.append(
            f"the chat template opens a thinking block and method.max_new_tokens is {max_new_tokens}: the budget will be spent "
            "before an answer. Write model.thinking: false, or a larger method.max_new_tokens"
        )
    return notices


def _texts(row: Row) -> list[str]:
    prompt = row.data["prompt"]
    return [prompt] if isinstance(prompt, str) else [content_text(message["content"]) for message in prompt]


def _thinks(text: str, tokenizer: Any) -> bool:
    """Whether the model will think first: the prompt ends inside a thinking block, or the template knows one and the prompt
    does not close it (Qwen3 writes an empty block to switch thinking off)."""
    tail = text[-200:]
    for opening in _THINKING:
        closing = opening.replace("<", "</").replace("[", "[/")
        if opening in tail:
            return closing not in tail[tail.rindex(opening) :]
    template = tokenizer.chat_template
    return isinstance(template, str) and "enable_thinking" in template


def context_length(folder: Path, tokenizer: Any = None) -> int | None:
    """How many tokens the model can see: `max_position_embeddings` of its config.json, else the tokenizer's
    `model_max_length` where that is a sane number, else None. Reads JSON only."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    for part in (config.get("text_config"), config):
        if isinstance(part, dict):
            for key in ("max_position_embeddings", "n_positions", "n_ctx"):
                value = part.get(key)
                if isinstance(value, int) and value > 0:
                    return value
    stated = getattr(tokenizer, "model_max_length", None)
    return int(stated) if isinstance(stated, (int, float)) and 0 < stated < _ABSURD else None
