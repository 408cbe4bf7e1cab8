"""Reading numbers in prose the way a careful person does, exactly, in time linear in the text.

A number is kept as sign, digits and power of ten (or as a fraction of two small integers), never as a float and never
written out: 1e400000000 costs nothing.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from llmclick.rewards.answers import INVISIBLE, SPECIAL, after_thinking

#: Beyond this many digits (or powers of ten) a number still equals its own digits, but no arithmetic is done with it.
ARITHMETIC_DIGITS = 4000

_SPACES = "\u00a0\u2009\u202f"
_SEPARATORS = rf",._'’{_SPACES}"
_RUN = rf"\d++(?:[{_SEPARATORS}]\d++)*+"
_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_CURRENCY = r"(?:(?:[A-Z]{1,3})?[$€£¥₹₩₽₺₫₴₦¢]\s?|Rs\.?\s?)"

_TOKEN = re.compile(
    rf"""
    (?P<skip> \^\s?\{{?[-+]?\d++\}}?                                        # a power of something that is no number
            | (?<![^\W_])(?:mm|cm|dm|km|in|ft|yd|mi|m|s)[23](?!\w) )        # cm2, m/s2
  | (?P<sign> (?<![^\W_]) (?<![)\]}}%‰°—–-]) [-+–]{{1,2}}                    # not after a word, a number, a closing bracket
            | (?: (?<=[^—–-]—) | (?<=\A—) ) [-+–] )?                        # a long dash, then a sign
    (?P<currency>{_CURRENCY})?
    (?P<dot> (?<![\w.)\]}}]) \. )?                                           # .75, but not Rs.500
    (?: (?P<run>{_RUN}) (?P<glued>[{_VULGAR}])? | (?P<vulgar>[{_VULGAR}]) )
    (?: [eE] (?P<exp>[-+]?\d{{1,18}}) (?!\d) )?
    (?: \s?[×xX*·⋅]\s?10                                                   # 1.5 x 10^3
        (?: \s?(?:\^|\*\*)\s?\{{?\(?(?P<ten>[-+]?\d{{1,18}})(?!\d) [)}}]{{0,2}} | (?P<ten_raised>⁻?[{_RAISED}]{{1,18}}) ) )?
    (?: \^\s?\{{?\(?(?P<power>[-+]?\d{{1,9}})(?!\d) [)}}]{{0,2}} | (?P<power_raised>⁻?[{_RAISED}]{{1,9}}) )?
    (?: [ ](?P<over>\d{{1,9}})/(?P<under>\d{{1,9}})(?![\d/]) )?                # 1 1/2
    (?P<rest> (?: \s?/\s?{_RUN} )*+ )                                       # 3/4, 36 / 2, 5/17/2024
    """,
    re.VERBOSE,
)
_SUFFIX = re.compile(
    r"""
    [*_`$]{0,3} \s? (?: (?P<part> % | ‰ | per\s?cent\b | per\s?mille\b )
                     | (?P<word> hundred | thousand | lakh | million | crore | billion | trillion ) s?\b )
  | (?-i: (?P<glued> [kKMBT] ) ) (?!\w)                                    # 12k, 3.5M: a unit in capitals is rare
  | \s? (?P<short> mn | bn | tn ) (?!\w)
    """,
    re.IGNORECASE | re.VERBOSE,
)
#: After a currency sign a letter is no unit: $5m, € 2 b. A `$` behind it closes a formula, $5m$.
_MONEY = re.compile(r"\s?(?P<letter>[kmbt])(?!\w|\s?\$)", re.IGNORECASE)
_SCALES = {"hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9, "trillion": 12}
_LETTERS = {"k": 3, "m": 6, "b": 9, "t": 12}
_LOOSE_MINUS = re.compile(
    r"(?:[=≈(]\s{0,3}[-–]{1,2}\s{1,2}|\bnegative\s{1,2}|(?:^|\bis|\bwas|[=:])\s{0,2}minus\s{1,2})[^\W\d]{0,3}[$€£¥]?\Z",
    re.IGNORECASE,
)
_MARKER = re.compile(
    r"(?<!#)####(?!#)[ \t]{0,8}(?:(?:final[ ])?answer(?:[ ]is)?[ ]?:?[ \t]{0,8})?(?=[-+–*_`$€£¥₹(\\\[.A-Z]{0,8}\d)",
    re.IGNORECASE,
)
_HEADING = re.compile(r"[.):][ \t]{1,8}[^\W\d]")
_BOX = re.compile(r"\\f?box(?:ed)?\s{0,3}\{")


@dataclass(frozen=True)
class Number:
    """A number as written. `shift` is the power of ten that a percent sign or a magnitude adds, None without one."""

    negative: bool
    digits: str
    exponent: int
    fraction: Fraction | None = None
    shift: int | None = None

    def exact(self, shift: int) -> Fraction | None:
        """The value times 10**shift, None beyond `ARITHMETIC_DIGITS`."""
        power = self.exponent + shift
        if len(self.digits) > ARITHMETIC_DIGITS or abs(power) > ARITHMETIC_DIGITS:
            return None
        value = self.fraction if self.fraction is not None else Fraction(int(self.digits or "0"))
        value *= Fraction(10) ** power
        return -value if self.negative else value


def _same(one: Number, other: Number, shift: int, other_shift: int, tolerance: Fraction) -> bool:
    if one.fraction is None and other.fraction is None:
        power = one.exponent + shift if one.digits else 0
        other_power = other.exponent + other_shift if other.digits else 0
        if (one.negative, one.digits, power) == (other.negative, other.digits, other_power):
            return True
        if not tolerance:
            return False
    left, right = one.exact(shift), other.exact(other_shift)
    return left is not None and right is not None and abs(left - right) <= tolerance


def same_number(one: Number, other: Number, tolerance: Fraction = Fraction(0)) -> bool:
    """Whether two numbers have the same value. 25% is 0.25 and, beside a number without a percent sign, also 25; 2.5 million
    and 2.5M are 2500000 and, beside a number without a magnitude, also 2.5."""
    if _same(one, other, one.shift or 0, other.shift or 0, tolerance):
        return True
    return (one.shift is None) != (other.shift is None) and _same(one, other, 0, 0, tolerance)


def _decimal(whole: str, part: str = "") -> Number:
    digits = whole + part
    exponent = -len(part)
    kept = digits.rstrip("0")
    exponent += len(digits) - len(kept)
    kept = kept.lstrip("0")
    return Number(False, kept, exponent if kept else 0)


def _grouped(groups: list[str]) -> bool:
    """1-3 digits, then groups of three: 1,234,567."""
    return 1 <= len(groups[0]) <= 3 and groups[0][0] != "0" and all(len(group) == 3 for group in groups[1:])


def _indian(groups: list[str]) -> bool:
    """1,50,000: groups of two, the last of three."""
    return (
        len(groups) > 2
        and len(groups[0]) <= 2
        and groups[0][0] != "0"
        and len(groups[-1]) == 3
        and all(len(group) == 2 for group in groups[1:-1])
    )


def _read_run(run: str) -> tuple[Number, bool]:
    """The last number of a run of digits and separators, and whether it is the whole run."""
    groups = re.split(rf"[{_SEPARATORS}]", run)
    signs = re.findall(rf"[{_SEPARATORS}]", run)
    if not signs:
        return _decimal(run), True
    kinds = set(signs)
    last = signs[-1]
    if kinds == {"."}:
        if len(groups) == 2:
            return _decimal(groups[0], groups[1]), True
        return (_decimal("".join(groups)), True) if _grouped(groups) else (_decimal(groups[-1]), False)
    if len(kinds) == 1 and (_grouped(groups) or (last == "," and _indian(groups))):
        return _decimal("".join(groups)), True
    front, front_kinds = groups[:-1], set(signs[:-1])
    if len(front_kinds) == 1 and last not in front_kinds and last in ".,":
        # 1,234.56 and 1.234,56: both signs occur, so the last one is the decimal sign.
        kind = next(iter(front_kinds))
        if _grouped(front) or (kind == "," and _indian(front)):
            return _decimal("".join(front), groups[-1]), True
    return _last_of_list(groups, signs), False


def _last_of_list(groups: list[str], signs: list[str]) -> Number:
    """The last number of a list written without spaces: 2,5 is 5; 5,1,000 is 1000."""
    end = len(groups)
    part = ""
    if signs[-1] == "." and (len(signs) < 2 or signs[-2] != "."):
        end, part = end - 1, groups[-1]
    start = end - 1
    while len(groups[start]) == 3 and start > 0 and signs[start - 1] == "," and len(groups[start - 1]) <= 3:
        if start > 1 and signs[start - 2] == ".":
            break
        start -= 1
    if groups[start][0] == "0":
        start = end - 1
    return _decimal("".join(groups[start:end]), part)


def _power(base: Number, exponent: int) -> Number | None:
    if base.fraction is None and base.digits in ("1", ""):
        if not base.digits:
            return _decimal("0") if exponent > 0 else None
        return Number(base.negative and exponent % 2 == 1, "1", base.exponent * exponent)
    value = base.exact(0) if base.exponent >= -100 else None
    size = (len(base.digits) + abs(base.exponent)) * abs(exponent)
    if value is None or size > ARITHMETIC_DIGITS:
        return None
    return _of_fraction(value**exponent)


def _of_fraction(value: Fraction) -> Number:
    return Number(value < 0, "", 0, abs(value))


def _vulgar(char: str) -> Fraction:
    over, under = unicodedata.normalize("NFKC", char).split("\u2044")
    return Fraction(int(over), int(under))


def _raised(text: str) -> int:
    return int(unicodedata.normalize("NFKC", text).replace("−", "-"))


def _read(match: re.Match[str]) -> Number | None:
    """The number that a token ends with, None if it has no value (3/0, a power too large)."""
    text = match.string
    negative = bool(match["sign"]) and match["sign"] not in ("+", "++")
    if not match["sign"]:
        negative = bool(_LOOSE_MINUS.search(text[max(0, match.start() - 30) : match.start()]))
    number: Number | None
    if match["vulgar"]:
        number = _of_fraction(_vulgar(match["vulgar"]))
    else:
        run = match["run"]
        number, whole = _read_run("0." + run if match["dot"] and "." not in run else run)
        negative = negative and whole
        if match["glued"]:
            value = number.exact(0)
            number = None if value is None else _of_fraction(value + _vulgar(match["glued"]))
    shift = int(match["exp"] or 0) + int(match["ten"] or 0) + (_raised(match["ten_raised"]) if match["ten_raised"] else 0)
    if number is not None and shift and (number.digits or number.fraction):
        number = Number(False, number.digits, number.exponent + shift, number.fraction)
    if number is not None and (match["power"] or match["power_raised"]):
        number = _power(number, int(match["power"]) if match["power"] else _raised(match["power_raised"]))
    if match["over"]:
        over, under = int(match["over"]), int(match["under"])
        value = None if number is None else number.exact(0)
        if under == 0:
            return None
        if over and over < under and value is not None and value.denominator == 1:
            number = _of_fraction(value + Fraction(over, under))
        else:
            number, negative = _of_fraction(Fraction(over, under)), False
    parts = match["rest"].split("/")[1:]
    if len(parts) == 1:
        number = _divide(number, _read_run(parts[0].strip())[0])
    elif parts:
        number, negative = _read_run(parts[-1].strip())[0], False
    if number is None:
        return None
    scale = _magnitude(text, match.end(), bool(match["currency"]))
    zero = not number.digits and not number.fraction
    return Number(negative and not zero, number.digits, number.exponent, number.fraction, scale)


def _magnitude(text: str, end: int, money: bool) -> int | None:
    """The power of ten that stands behind a number, None without one."""
    suffix = _SUFFIX.match(text, end)
    if suffix and suffix["part"]:
        return -2 if suffix["part"] == "%" or "c" in suffix["part"].lower() else -3
    if suffix and suffix["word"]:
        return _SCALES[suffix["word"].lower()]
    if suffix:
        return _LETTERS[(suffix["glued"] or suffix["short"])[0].lower()]
    letter = _MONEY.match(text, end) if money else None
    return _LETTERS[letter["letter"].lower()] if letter else None


def _divide(number: Number | None, divisor: Number) -> Number | None:
    over, under = (None if number is None else number.exact(0)), divisor.exact(0)
    return None if over is None or not under else _of_fraction(over / under)


def _plain(text: str) -> str:
    """ASCII digits and signs, numbers out of their LaTeX."""
    if not text.isascii():
        text = text.translate({ord(char): _ascii(char) for char in set(text) if not char.isascii()})
    if "\\" in text or "{,}" in text:
        for written, plain in (("{,}", ","), (r"{\,}", "\u2009"), (r",\!", ","), (r"\!", ""), (r"\$", "$"), (r"\%", "%")):
            text = text.replace(written, plain)
        text = re.sub(r"\\[,;:]|\\ ", "\u2009", text)
        text = re.sub(r"\\(?:times|cdot)(?![a-zA-Z])", "×", text)
        text = _FRAC.sub(_slash, text)
    return text


_FRAC = re.compile(
    rf"\\[dtc]?frac\s{{0,2}}(?:\{{\s{{0,2}}([-+]?{_RUN})\s{{0,2}}\}}\s{{0,2}}\{{\s{{0,2}}({_RUN})\s{{0,2}}\}}|(\d)\s?(\d)(?!\d))"
)


def _slash(match: re.Match[str]) -> str:
    over, under = match[1] or match[3], match[2] or match[4]
    before = match.string[match.start() - 1 : match.start()]
    return f"{' ' if before.isalnum() else ''}{over}/{under}"


def _ascii(char: str) -> str | None:
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if char in INVISIBLE:
        return None
    if "\uff01" <= char <= "\uff5e":
        return chr(ord(char) - 0xFEE0)
    return {"−": "-", "﹣": "-", "٫": ".", "٬": ",", "٪": "%", "⁄": "/", "∕": "/"}.get(char, char)


def _last_in(text: str, start: int, end: int) -> Number | None:
    last = None
    for match in _TOKEN.finditer(text, start, end):
        if match["skip"] is None:
            last = match
    return None if last is None else _read(last)


def _boxed(text: str) -> tuple[int, Number] | None:
    """Position and number of the last `\\boxed{...}`, None if it holds none."""
    opening = None
    for opening in _BOX.finditer(text):  # noqa: B007  # the last one is wanted
        pass
    if opening is None:
        return None
    depth, end = 1, len(text)
    for brace in re.finditer(r"[{}]", text[opening.end() :]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            end = opening.end() + brace.start()
            break
    number = _last_in(text, opening.end(), end)
    return None if number is None else (opening.start(), number)


def _marked(text: str) -> tuple[int, Number] | None:
    """Position and number of the last `#### 42`. A heading (`#### 1. Find the total`) is no mark."""
    found = None
    for mark in _MARKER.finditer(text):
        line_end = text.find("\n", mark.end())
        line_end = len(text) if line_end < 0 else line_end
        first = next((m for m in _TOKEN.finditer(text, mark.end(), line_end) if m["skip"] is None), None)
        if first is not None and not _HEADING.match(text, first.end()):
            found = (mark, first, line_end)
    if found is None:
        return None
    mark, first, line_end = found
    equals = text.rfind("=", first.end(), line_end)
    number = _last_in(text, equals + 1, line_end) if equals >= 0 else _read(first)
    return None if number is None else (mark.start(), number)


def final_number(text: str) -> Number | None:
    """The number that a text ends on: the last one marked with `#### ` or `\\boxed{}`, otherwise the last one."""
    text = _plain(SPECIAL.sub(" ", after_thinking(text)))
    marks = [mark for mark in (_boxed(text), _marked(text)) if mark is not None]
    if marks:
        return max(marks, key=lambda mark: mark[0])[1]
    return _last_in(text, 0, len(text))
