"""A model's chat template as a pure function of messages and the config: without the day on which it is called.

Templates of Llama 3.1, Granite and others write the current date through `strftime_now`, which transformers answers from the
clock. Rendered here, it is answered from one fixed date, so that the same config has the same prompts on any day.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

DATE = "2026-01-01"
"""What `strftime_now` is answered from unless `model.template` has a `date`."""

_OTHER_DATE = "1987-11-29T13:47:58"
"""A moment that every directive writes otherwise than DATE: for finding out whether a template writes one."""

RESERVED = frozenset(
    {
        "messages",
        "conversation",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "sanitize_control_tokens",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "strftime_now",
        "self",
    }
)
"""Names that `apply_chat_template` gives a meaning of its own, so that a template's variable cannot have them."""

_CALLED = "strftime_now"
_DIRECTIVES = "aAbBcdDeFgGhHIjklmMnprRStTuUVwWxXyYzZ"


def apply_template(
    tokenizer: Any, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any] | None = None, **options: Any
) -> str:
    """The text that the tokenizer's chat template makes of the messages.

    `variables` are the template's own (`model.template`); its `date` is the day that `strftime_now` tells, at midnight unless
    it has a time. `options` are apply_chat_template's.
    """
    given = dict(variables or {})
    template = tokenizer.get_chat_template(None, given.get("tools"))
    if _CALLED in template:
        template = clock(str(given.get("date", DATE))) + template
    text: str = tokenizer.apply_chat_template(list(messages), chat_template=template, tokenize=False, **{**given, **options})
    return text


def clock(date: str) -> str:
    """`strftime_now` as a macro of the template's own language, which answers from `date` (ISO, with or without a time).

    A macro at the top of the template takes the place of transformers' function; a variable could not, because transformers
    makes plain data of all variables.
    """
    moment = datetime.datetime.fromisoformat(date)
    formatted = "format"
    for directive, text in {"%%": "\x00", **_directives(moment)}.items():
        formatted += f" | replace({_quoted(directive)}, {_quoted(text)})"
    # The line break is taken away after a block's end (trim_blocks), and what follows stands at the start of a line as before.
    return f"{{%- macro {_CALLED}(format) -%}}{{{{- {formatted} | replace('\\x00', '%') -}}}}{{%- endmacro %}}\n"


def _directives(moment: datetime.datetime) -> dict[str, str]:
    """Each directive of strftime with what it gives at that moment; `%-d` and its like are without the leading zero."""
    plain = {f"%{letter}": moment.strftime(f"%{letter}") for letter in _DIRECTIVES}
    hour = moment.hour % 12 or 12
    # Not every system's strftime has these.
    own = {"%P": plain["%p"].lower(), "%k": f"{moment.hour:2d}", "%l": f"{hour:2d}", "%f": f"{moment.microsecond:06d}"}
    plain |= own
    bare = {f"%-{letter}": plain[f"%{letter}"].lstrip("0 ") or "0" for letter in "deHIjklmMSUVWy"}
    return {**bare, **plain}


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t") + "'"


def reads_the_clock(tokenizer: Any, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any], **options: Any) -> bool:
    """Whether the text that the template makes of these messages depends on the date that it is told."""
    template = tokenizer.get_chat_template(None, variables.get("tools"))
    if _CALLED not in template:
        return False
    texts = {apply_template(tokenizer, messages, {**variables, "date": date}, **options) for date in (DATE, _OTHER_DATE)}
    return len(texts) > 1
