import unicodedata

import pytest

from llmclick.tracking.escape import visible, visible_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 7 \\frac{1}{2}", "plain text, 7 \\frac{1}{2}"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31mred", "\\e[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202edef", "abc\\u202edef"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("a\u00a0b\u3000c", "a\\xa0b\\u3000c"),
        ("\ud83d", "\\ud83d"),
        ("\U000e0041", "\\U000e0041"),
        ("日本 é 😀", "日本 é 😀"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_what_cannot_be_seen_is_spelt_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_no_character_of_unicode_gets_through_that_acts_or_hides() -> None:
    """All code points: no control, format, surrogate, private, unassigned or separator character is printed."""
    bad = [
        code
        for code in range(0x110000)
        for character in visible(chr(code))
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
        or (character != " " and character.isspace())
    ]
    assert bad == []


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 6, 20])
def test_a_limit_is_never_exceeded_and_never_splits_an_escape(limit: int) -> None:
    for text in ("abcdefghijklmnopqrstuvwxyz", "\u202e" * 10, "ab\x00cd"):
        shown = visible(text, limit)
        assert len(shown) <= limit
        assert shown in (visible(text), "") or shown.endswith("…")
        assert "\\u202" not in shown.replace("\\u202e", "")


def test_a_text_that_just_fits_is_not_cut() -> None:
    assert visible("abc", 3) == "abc"
    assert visible("abcd", 3) == "ab…"


def test_blocks_keep_their_line_breaks_only() -> None:
    assert visible_lines("a\nb\x1b[0m\n") == "a\nb\\e[0m\n"
