"""The reward for machine-readable replies: json_valid."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from llmclick.rewards import REWARDS
from llmclick.rewards.answers import after_thinking, strip_ends
from llmclick.rewards.params import is_bool, param

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")


def _is_keys(value: object) -> str | None:
    names = list(value) if isinstance(value, (list, tuple, dict)) else None
    if names is None or not all(isinstance(name, str) for name in names):
        return "write a list of texts such as [city, country], or texts with their types such as {city: string}"
    if len(set(names)) != len(names):
        return "write each key once"
    if isinstance(value, dict) and any(kind not in TYPES for kind in value.values()):
        return "write a type that is one of " + ", ".join(TYPES)
    return None


@dataclass(frozen=True)
class JsonValidParams:
    """Parameters of json_valid."""

    keys: Any = param(  # noqa: RUF009  # a field
        None, "keys that the object must have: a list, or each with its type", lambda v: v if v is None else _is_keys(v)
    )
    strict: bool = param(True, "false also accepts one code fence or a reasoning block around an object or array", is_bool)


_TOKEN = re.compile(
    r"""[ \t\n\r]*+(?:
      (?P<string>"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+")
    | (?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?)
    | (?P<word>true|false|null)
    | (?P<mark>[\[\]{},:]) )""",
    re.VERBOSE,
)
_BLANKS = " \t\n\r"
_WORDS = {"true": "boolean", "false": "boolean", "null": "null"}
_FENCE = re.compile(r"```[ \t]*(?:json[c5]?)?[ \t]*\r?\n", re.IGNORECASE)


def _parse(text: str) -> tuple[str, dict[str, str]] | None:
    """The type of the value and, of an object, the type of each of its members; None if the text is not JSON.

    RFC 8259 to the letter, without recursion: nesting costs one list item a level.
    """
    stack: list[str] = []
    members: dict[str, str] = {}
    top = name = ""
    want = "value"  # value, first (a value or ]), key, first_key (a key or }), colon, more (, or a closing bracket)
    at, end = 0, len(text)
    while end and text[end - 1] in _BLANKS:
        end -= 1
    while at < end:
        token = _TOKEN.match(text, at, end)
        if token is None:
            return None
        at = token.end()
        mark = token["mark"]
        if want in ("key", "first_key") and token["string"]:
            if len(stack) == 1:
                name = json.loads(token["string"])
            want = "colon"
        elif want == "colon" and mark == ":":
            want = "value"
        elif want == "more" and stack and mark == ",":
            want = "key" if stack[-1] == "{" else "value"
        elif mark in ("]", "}") and stack and stack[-1] + mark in ("[]", "{}") and want in ("more", "first", "first_key"):
            closes_first = want == "first_key" or want == "first"
            if closes_first and (want == "first_key") != (mark == "}"):
                return None
            stack.pop()
            want = "more"
        elif want in ("value", "first") and (mark in ("[", "{") or mark is None):
            kind = _kind(token)
            if not stack:
                if top:
                    return None
                top = kind
            elif len(stack) == 1 and stack[0] == "{":
                members[name] = kind
            if mark:
                stack.append(mark)
            want = {"[": "first", "{": "first_key"}.get(mark or "", "more")
        else:
            return None
    return (top, members) if top and not stack and want == "more" else None


def _kind(token: re.Match[str]) -> str:
    if token["mark"]:
        return "array" if token["mark"] == "[" else "object"
    if token["string"]:
        return "string"
    if token["word"]:
        return _WORDS[token["word"]]
    return "number" if re.search(r"[.eE]", token["number"]) else "integer"


def _without_fence(text: str) -> str | None:
    """The inside of a text that is one code fence, None if it is not one."""
    opening = _FENCE.match(text)
    if opening is None or not text.endswith("```") or len(text) < opening.end() + 3:
        return None
    return text[opening.end() : -3]


@REWARDS.register("json_valid", in_process=True, params=JsonValidParams)
def json_valid(completion: str, row: dict[str, Any], params: dict[str, Any]) -> float:
    r"""1 if the completion is JSON and nothing else (with `keys`: an object that has them), otherwise 0.

    The grammar of RFC 8259 to the letter; its white space and turn markers around the value make no difference. It reads
    nothing of the row. With `strict: false` one code fence or a finished `<think>` block may stand around an object or an
    array. `keys` may also give types: {"n": "integer"}.

    | completion | row | params | result |
    |---|---|---|---|
    | "{\"name\": \"pen\", \"qty\": 3}" | {} | {} | 1 |
    | "{\"a\": 1}\n<|im_end|>" | {} | {} | 1 |
    | "{\"a\": 1} Hope this helps!" | {} | {} | 0 |
    | "{\"a\": 1}\n{\"b\": 2}" | {} | {} | 0 |
    | "{\"rate\": NaN}" | {} | {} | 0 |
    | "{\"rate\": 1e999}" | {} | {} | 1 |
    | "{\"a\": 1, \"a\": 2}" | {} | {} | 1 |
    | "\"just text\"" | {} | {} | 1 |
    | "{'a': 1}" | {} | {} | 0 |
    | "{\"a\": 1,}" | {} | {} | 0 |
    | "{\"a\": 01}" | {} | {} | 0 |
    | "{\"a\": 1 /* one */}" | {} | {} | 0 |
    | "{\"items\": [1, 2" | {} | {} | 0 |
    | "{\"a\": \"line one\nline two\"}" | {} | {} | 0 |
    | "{\"a\":\u00a01}" | {} | {} | 0 |
    | "" | {} | {} | 0 |
    | "```json\n{\"a\": 1}\n```" | {} | {} | 0 |
    | "```json\n{\"a\": 1}\n```" | {} | {"strict": false} | 1 |
    | "```json\n\"sorry\"\n```" | {} | {"strict": false} | 0 |
    | "Here it is:\n```json\n{\"a\": 1}\n```" | {} | {"strict": false} | 0 |
    | "<think>\n\n</think>\n\n{\"a\": 1}" | {} | {} | 0 |
    | "<think>\n\n</think>\n\n{\"a\": 1}" | {} | {"strict": false} | 1 |
    | "{\"city\": \"Rome\", \"country\": \"Italy\", \"x\": 1}" | {} | {"keys": ["city", "country"]} | 1 |
    | "{\"city\": \"Rome\"}" | {} | {"keys": ["city", "country"]} | 0 |
    | "{\"a\": {\"city\": \"Rome\"}}" | {} | {"keys": ["city"]} | 0 |
    | "[\"city\"]" | {} | {"keys": ["city"]} | 0 |
    | "{\"n\": 3}" | {} | {"keys": {"n": "integer"}} | 1 |
    | "{\"n\": \"3\"}" | {} | {"keys": {"n": "integer"}} | 0 |
    """
    text = strip_ends(completion, _BLANKS)
    wrapped = False
    if params.get("strict") is False:
        answer = strip_ends(after_thinking(text), _BLANKS)
        inside = _without_fence(answer)
        wrapped = inside is not None or answer != text
        text = answer if inside is None else inside
    parsed = _parse(text)
    if parsed is None or (wrapped and parsed[0] not in ("object", "array")):
        return 0.0
    keys = params.get("keys")
    if keys is None:
        return 1.0
    if _is_keys(keys) is not None or parsed[0] != "object":
        return 0.0
    kinds = parsed[1]
    if isinstance(keys, dict):
        return float(all(name in kinds and _is_a(kinds[name], kind) for name, kind in keys.items()))
    return float(all(name in kinds for name in keys))


def _is_a(found: str, wanted: str) -> bool:
    return found == wanted or (wanted == "number" and found == "integer")
