"""Rows: one JSON object per prompt, taken as they are, each identified by its content.

A file is read as bytes and cut at line feeds alone, so U+2028 inside a string is no line break and a carriage return before
the line feed is none of the row's. A byte order mark at the start of a line and blank lines are ignored. Columns have no type:
a number in one row and a text in the next stay what they are, and an absent key stays absent.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmclick.data.fields import conversation, keys_of, missing
from llmclick.data.files import not_utf8, other_format, read_bytes
from llmclick.errors import Problem

ROLES = ("system", "developer", "user", "assistant")

_DEEPEST = 100
_ONE_PER_LINE = 'one JSON object per line, for example {"prompt": "What is 9 plus 2?", "answer": "11"}'


@dataclass(frozen=True)
class Row:
    """One row. `data` is the user's row after `fields` renames, `where` is `file:line`, `id` says what it contains.

    The id is the start of the SHA-256 of the canonical JSON of `data` and, after a dash, the ordinal among equal rows, so two
    equal rows draw different completions and moving a row to another line changes nothing.
    """

    data: dict[str, Any]
    where: str
    id: str


def canonical(value: object) -> str:
    """JSON text that is the same for equal values: sorted keys, no spaces, ASCII only (so lone surrogates survive)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def content_hash(data: Mapping[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(data).encode("ascii")).hexdigest()[:16]


def identify(pairs: Iterable[tuple[dict[str, Any], str]]) -> list[Row]:
    """Rows with their ids, from (data, where) pairs in their order."""
    seen: Counter[str] = Counter()
    rows = []
    for data, where in pairs:
        digest = content_hash(data)
        rows.append(Row(data, where, f"{digest}-{seen[digest]}"))
        seen[digest] += 1
    return rows


def read_jsonl(path: Path, shown_path: str, limit: int | None = None) -> tuple[list[tuple[dict[str, Any], str]], list[Problem]]:
    """The (data, where) pairs of a JSON lines file and everything that is wrong with its lines.

    `limit` stops after that many rows; what follows is not looked at. A compressed file is unpacked.
    """
    raw, problem = read_bytes(path, shown_path)
    if problem is not None:
        return [], [problem]
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return [], [Problem(shown_path, "", "the file is UTF-16; rows are read as UTF-8", "save the file as UTF-8")]
    problem = other_format(raw, path, shown_path) or _spread_over_lines(raw, shown_path)
    if problem is not None:
        return [], [problem]
    pairs: list[tuple[dict[str, Any], str]] = []
    problems: list[Problem] = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if limit is not None and len(pairs) + len(problems) >= limit:
            break
        where = f"{shown_path}:{number}"
        text, problem = _decode(line, where)
        if problem is not None:
            problems.append(problem)
            continue
        if not text:
            continue
        data, problem = parse_object(text, where)
        if problem is not None:
            problems.append(problem)
        elif data is not None:
            pairs.append((data, where))
    return pairs, problems


def _spread_over_lines(raw: bytes, shown_path: str) -> Problem | None:
    """Objects that are JSON, but printed over several lines each: one cause, however many lines there are."""
    head = raw.lstrip(b"\xef\xbb\xbf \t\r\n")
    first = head.partition(b"\n")[0].rstrip()
    if not (first == b"{" or (first.startswith(b"{") and first.endswith((b",", b":", b"[", b"{")))):
        return None
    text = head.decode("utf-8", "replace")
    try:
        value, end = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str).raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "\n" not in text[:end]:
        return None
    lists = [key for key, inside in value.items() if isinstance(inside, list) and inside and isinstance(inside[0], dict)]
    if lists and not text[end:].strip():
        why = f"the file is one object whose {lists[0]!r} is a list of objects; each row must be on a line of its own"
        return Problem(shown_path, "", why, f"the objects of {lists[0]!r}, one on each line", keys_of(value)[:200])
    why = "an object is spread over several lines; each row must be on a line of its own"
    return Problem(shown_path, "", why, "each object on one line (`jq -c . FILE` does that)")


def _decode(line: bytes, where: str) -> tuple[str, Problem | None]:
    """A line as text without byte order mark and without the whitespace at its end."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8", "replace")) + 1
        return "", not_utf8(where, line[error.start], column)
    return text.lstrip("\ufeff").rstrip(" \t\r"), None


class _BadRowError(ValueError):
    """Why a line that is JSON for Python is none for us, and what to write."""

    def __init__(self, why: str, write: str) -> None:
        super().__init__(why)
        self.why, self.write = why, write


def parse_object(text: str, where: str) -> tuple[dict[str, Any] | None, Problem | None]:
    """A row from one line of JSON text, or why it is none."""
    try:
        value = _DECODER.decode(text)
        if not isinstance(value, dict):
            raise _BadRowError(f"a row is a JSON object, this line is {_kind(value)}", _ONE_PER_LINE)
        _check_depth(value)
    except json.JSONDecodeError as error:
        return None, Problem(where, "", given=_caret(text, error.pos), why=_json_reason(text, error), write=_ONE_PER_LINE)
    except _BadRowError as error:
        return None, Problem(where, "", given=_excerpt(text, 0)[0], why=error.why, write=error.write)
    except RecursionError:
        return None, Problem(where, "", why=f"nested deeper than {_DEEPEST} levels", write="a flatter row")
    except ValueError as error:  # an integer of more than 4300 digits
        return None, Problem(where, "", given=_excerpt(text, 0)[0], why=str(error), write="the number as text, in quotes")
    return value, None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise _BadRowError(
            f"the key {twice[0]!r} occurs twice: which of the two values counts is anybody's guess",
            f"{twice[0]!r} once",
        )
    return data


def _constant(name: str) -> float:
    raise _BadRowError(f"{name} is not a JSON value", "null, a number, or the text in quotes")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _BadRowError(f"{text} is larger than any number a computer's float can hold", "the number as text, in quotes")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float)


def _check_depth(value: object) -> None:
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise RecursionError


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _json_reason(text: str, error: json.JSONDecodeError) -> str:
    reason = error.msg[:1].lower() + error.msg[1:]
    if error.msg == "Extra data" and "\r" in text[: error.pos]:
        return f"column {error.colno}: a second value; the file's line ends are lone carriage returns, save it with line feeds"
    if text[:1] == "{" and error.pos >= len(text):
        return f"the line ends at column {error.pos + 1} inside the object ({reason}); a row must not be spread over lines"
    return f"not valid JSON at column {error.pos + 1}: {reason}"


def _excerpt(text: str, pos: int, width: int = 60) -> tuple[str, int]:
    """About `width` characters around `pos`, printable, and where `pos` is in them."""
    start = max(0, pos - width // 2)
    cut = text[start : start + width]
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)
    head = "..." if start else ""
    tail = "..." if start + width < len(text) else ""
    return head + clean + tail, pos - start + len(head)


def _caret(text: str, pos: int) -> str:
    excerpt, at = _excerpt(text, pos)
    return f"{excerpt}\n{' ' * (len('  given: ') + at)}^"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, (int, float)):
        return "a number"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else type(value).__name__


def check_prompt(data: Mapping[str, Any], where: str) -> Problem | None:
    """What is wrong with the row's `prompt`: absent, empty, of a wrong type, or malformed messages."""
    if "prompt" not in data:
        return Problem(where, "prompt", given=keys_of(data), why="the row has no prompt", write=missing(data, "prompt"))
    prompt = data["prompt"]
    if isinstance(prompt, str):
        if not prompt.strip():
            return Problem(where, "prompt", given=repr(prompt), why="the prompt is empty", write="what the model is asked")
        return _check_not_messages(prompt, where) or _check_text(prompt, where, "prompt")
    if isinstance(prompt, list):
        return _check_messages(prompt, where, conversation(data))
    return Problem(
        where,
        "prompt",
        given=_kind(prompt),
        why="a prompt is a text or a list of chat messages",
        write='"prompt": "..." or "prompt": [{"role": "user", "content": "..."}]',
    )


def _check_not_messages(prompt: str, where: str) -> Problem | None:
    """A list of messages that was saved as text (by a CSV, or by dumping it twice) is not what the model should be asked."""
    text = prompt.strip()
    if not (text.startswith("[") and text.endswith("]") and "{" in text):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    if not (isinstance(value, list) and value and all(isinstance(one, dict) for one in value)):
        return None
    if not all({"role", "content"} <= one.keys() or {"from", "value"} <= one.keys() for one in value):
        return None
    return Problem(
        where,
        "prompt",
        given=_excerpt(text, 0)[0],
        why="the prompt is a text that holds a list of chat messages, and would be asked as one question",
        write=f'the list itself in JSON lines, without quotes around it: "prompt": [{_MESSAGE}]; or the question as text',
    )


def _check_text(text: str, where: str, key: str) -> Problem | None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return Problem(
            where,
            key,
            given=f"\\u{ord(text[error.start]):04x} at character {error.start + 1}",
            why="half of a surrogate pair is no character, so no tokenizer can read it",
            write="the whole character, or leave it out",
        )
    return None


_MESSAGE = '{"role": "user", "content": "..."}'


def _check_messages(messages: list[Any], where: str, turns: dict[str, str] | None) -> Problem | None:
    if not messages:
        return Problem(where, "prompt", given="[]", why="a list of no messages", write=f'"prompt": [{_MESSAGE}]')
    for number, message in enumerate(messages):
        problem = _check_message(message, where, f"prompt[{number}]", turns)
        if problem is not None:
            return problem
    last = messages[-1]["role"]
    if last != "user":
        return Problem(
            where,
            f"prompt[{len(messages) - 1}]",
            given=f"role {last!r} in the last message",
            why="the model answers the last message, so that must be the user's; a started answer is not continued",
            write="a last message of role user, and leave out the answer that the model has to find"
            + (f"; for its question alone: fields: {_flow(turns)}" if turns and len(messages) <= 3 else ""),
        )
    return None


def _flow(fields: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{target}: {source}" for target, source in fields.items()) + "}"


def _check_message(message: Any, where: str, key: str, turns: dict[str, str] | None = None) -> Problem | None:
    if not isinstance(message, dict):
        return Problem(where, key, given=_kind(message), why="a message is an object", write=_MESSAGE)
    if "role" not in message:
        given = f"keys {', '.join(map(repr, message)) or '(none)'}"
        if "from" in message and turns:
            why = "from/value messages of another format are not read; the message has no role"
            write = f"{_MESSAGE}, or for the question alone: fields: {_flow(turns)}"
            return Problem(where, key, given=given, why=why, write=write)
        hint = "from/value messages of another format are not read; " if "from" in message else ""
        return Problem(where, key, given=given, why=f"{hint}the message has no role", write=_MESSAGE)
    if message["role"] not in ROLES:
        return Problem(
            where, key, given=f"role {message['role']!r}", why=f"a role is one of {', '.join(ROLES)}", write=_MESSAGE
        )
    content = message.get("content")
    if isinstance(content, list):
        for at, part in enumerate(content):
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = repr(part.get("type")) if isinstance(part, dict) else _kind(part)
                return Problem(
                    where,
                    f"{key}.content[{at}]",
                    given=f"a part of type {kind}",
                    why="only text parts are read; images, audio and tool results are not",
                    write='{"type": "text", "text": "..."}',
                )
    elif not isinstance(content, str):
        given = _kind(content) if "content" in message else f"keys {', '.join(map(repr, message))}"
        return Problem(where, f"{key}.content", given=given, why="the content must be a text", write=_MESSAGE)
    text = content_text(content)
    if message["role"] == "user" and not text.strip():
        return Problem(where, f"{key}.content", given=repr(text), why="the user's message is empty", write=_MESSAGE)
    return _check_text(text, where, f"{key}.content")


def content_text(content: str | list[dict[str, Any]]) -> str:
    """The content of a message as one text; text parts are joined as they stand."""
    return content if isinstance(content, str) else "".join(str(part["text"]) for part in content)
