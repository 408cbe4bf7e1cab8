"""Which ids end a completion: what the model's files say, what its chat template closes a turn with, and `method.stop`.

One list of ids decides for sampling, for the text that rewards see, and for prompts, which must not end with one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmclick.data.template import apply_template
from llmclick.errors import InputError, Problem

if TYPE_CHECKING:
    from llmclick.modeling.llm.models.source import Source

_SAID = "Indeed so"


@dataclass(frozen=True)
class Stops:
    """The ids that end a completion, sorted, and what is worth saying about them."""

    ids: tuple[int, ...]
    notices: tuple[str, ...] = ()


def find_stops(
    source: Source,
    tokenizer: Any,
    vocab_size: int | None = None,
    stop: Sequence[int | str] = (),
    where: Callable[[str], str] = str,
) -> Stops:
    """The stop ids below `vocab_size` (the rows of the head; None takes the config's): the union of tokenizer, generation
    config, model config and its text config, the token that closes an assistant's turn in the chat template, and `stop`.

    Raises InputError with every item of `stop` that is not one token; `where` gives the place of `method.stop.N`.
    """
    size = vocab_size or head_rows(source, tokenizer)
    named = {number for number in named_ids(source, tokenizer) if 0 <= number < size}
    end = turn_end(tokenizer)
    closing = {end.id} if end is not None and end.id is not None and 0 <= end.id < size else set()
    own: set[int] = set()
    problems: list[Problem] = []
    for at, item in enumerate(stop):
        found = _ids_of(item, tokenizer, size)
        if isinstance(found, str):
            key = f"method.stop.{at}"
            write = "the text of one token, or its id; a text of several tokens can be cut off by the reward"
            problems.append(Problem(where(key), key, found, write, given=json.dumps(item, ensure_ascii=False)))
        else:
            own |= found
    if problems:
        raise InputError(problems)
    notices: tuple[str, ...] = ()
    if closing - named:
        assert end is not None
        notices = (
            f"the chat template closes the assistant's turn with {end.text} (id {end.id}), which the model's files do not name "
            "as an end: it ends a completion too",
        )
    elif end is not None and end.id is None and not own:
        shown = json.dumps(end.text[:40], ensure_ascii=False)
        notices = (
            f"the chat template closes the assistant's turn with the text {shown}, which is not one token, so nothing ends a "
            "completion there. method.stop names a token that does",
        )
    return Stops(tuple(sorted(named | closing | own)), notices)


def named_ids(source: Source, tokenizer: Any) -> set[int]:
    """What tokenizer, generation config, model config and its text config call an end."""
    found = {number for config in configs_of(source) for number in numbers(config.get("eos_token_id"))}
    return found | set(numbers(tokenizer.eos_token_id))


@dataclass(frozen=True)
class TurnEnd:
    """What follows an assistant's words in the chat template: a single token, or a text (`id` None)."""

    text: str
    id: int | None


def turn_end(tokenizer: Any) -> TurnEnd | None:
    """Renders a conversation and looks at what closes the assistant's turn; None without a template, or where it cannot be
    seen (a template that refuses such a conversation, or writes nothing behind the turn)."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        text = apply_template(tokenizer, [{"role": "user", "content": "Is it so?"}, {"role": "assistant", "content": _SAID}])
    except Exception:
        # A template is a program of the model's author; if it cannot render this, it may still render the rows.
        return None
    _, found, behind = text.rpartition(_SAID)
    behind = behind.strip()
    if not found or not behind:
        return None
    tokens = {token: number for token, number in tokenizer.get_added_vocab().items() if token and behind.startswith(token)}
    for token in tokenizer.all_special_tokens:
        if token and behind.startswith(token):
            tokens[token] = tokenizer.convert_tokens_to_ids(token)
    if not tokens:
        return TurnEnd(behind, None)
    longest = max(tokens, key=len)
    return TurnEnd(longest, int(tokens[longest]))


def _ids_of(item: int | str, tokenizer: Any, size: int) -> set[int] | str:
    """The ids of the tokens that read as `item`, or why there is none."""
    if isinstance(item, int):
        return {item} if 0 <= item < size else f"the model has the ids 0 to {size - 1}"
    alone = list(tokenizer(item, add_special_tokens=False)["input_ids"])
    ids = set(alone) if len(alone) == 1 else set()
    known = tokenizer.get_vocab().get(item)
    if known is not None:
        ids.add(known)
    # A vocabulary writes a token in its own way (a space as a sign of its own); what it decodes to counts.
    read = {number for number in ids if _text(tokenizer, [number]) == item and 0 <= number < size}
    if read:
        return read
    pieces = ", ".join(json.dumps(_text(tokenizer, [number]), ensure_ascii=False) for number in alone[:8])
    return f"it is not one token of this model but {len(alone)}: {pieces}{' ...' if len(alone) > 8 else ''}"


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def head_rows(source: Source, tokenizer: Any) -> int:
    """The head's rows as the config states them, else the tokenizer's own number of ids."""
    config = source.config()
    for part in (config.get("text_config"), config):
        if isinstance(part, dict) and isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return len(tokenizer)


def configs_of(source: Source) -> list[dict[str, Any]]:
    """Generation config, model config and its text config, as far as there are any."""
    config = source.config()
    found = [config, *(config[key] for key in ("text_config",) if isinstance(config.get(key), dict))]
    file = source.folder / "generation_config.json"
    if file.exists():
        found.insert(0, json.loads(file.read_text("utf-8")))
    return found


def numbers(value: Any) -> list[int]:
    """The whole numbers of a value that is one, a list of them, or nothing."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [number for number in values if isinstance(number, int) and not isinstance(number, bool)]
