"""Text from a model or a user, made safe to print: nothing in it can move the cursor, colour, reorder or hide."""

from __future__ import annotations

import unicodedata

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e", "\\": "\\"}
# Letters and symbols by category, but nothing to see: Hangul fillers and the blank Braille cell.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")
# Control, format (bidi marks, zero width), surrogate, private, unassigned, line and paragraph separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str, limit: int | None = None) -> str:
    """One line in which every character can be seen.

    Control characters, ANSI sequences, bidi and zero-width marks, unusual spaces and lone surrogates are written as escapes
    (`\\n`, `\\e`, `\\u202e`); a backslash stays one, so that formulas read as written. With `limit` the result has at most that
    many characters and ends in `…` if something was cut. The result is plain text: whoever prints it with Rich passes it as
    `Text` (as `Console` does), where `[red]` means nothing.
    """
    out: list[str] = []
    length = 0
    # One character more than fits tells that something is cut; the rest of a long text is never looked at.
    for character in text if limit is None else text[: limit + 1]:
        shown = _shown(character)
        out.append(shown)
        length += len(shown)
    if limit is None or length <= limit:
        return "".join(out)
    while out and length > limit - 1:
        length -= len(out.pop())
    return "".join(out) + "…" if limit > 0 else ""


def visible_lines(text: str) -> str:
    """Like `visible`, but line breaks stay line breaks (for blocks: errors, whole completions)."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _shown(character: str) -> str:
    if " " <= character <= "~":
        return character
    if character in _NAMED:
        return _NAMED[character]
    category = unicodedata.category(character)
    if category in _UNSEEN or category == "Zs" or character in _BLANK:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character
