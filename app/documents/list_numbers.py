"""Numbers of list items as written: "3", "c", "iv"."""

from __future__ import annotations

_ROMAN = (
    (1000, "m"),
    (900, "cm"),
    (500, "d"),
    (400, "cd"),
    (100, "c"),
    (90, "xc"),
    (50, "l"),
    (40, "xl"),
    (10, "x"),
    (9, "ix"),
    (5, "v"),
    (4, "iv"),
    (1, "i"),
)
_LARGEST_ROMAN = 4999
_LARGEST_LETTERS = 26 * 30
LARGEST = 1 << 31
"""Limit on a number in a file, as in Word and browsers."""


def written_number(number: int, style: str) -> str:
    """Return a number in a style: "decimal", "two-digit", "letter", "roman", "ordinal" or "greek".

    "LETTER" and "ROMAN" give capitals. Numbers that a style lacks are written as digits.
    """
    small = style.lower()
    text = str(number)
    if small == "roman" and 0 < number <= _LARGEST_ROMAN:
        text = _roman(number)
    elif small == "letter" and 0 < number <= _LARGEST_LETTERS:
        text = _letter(number)
    elif small == "greek" and 0 < number <= 24:
        text = "αβγδεζηθικλμνξοπρστυφχψω"[number - 1]
    elif small == "ordinal":
        text = f"{number}{_ordinal_ending(number)}"
    elif small == "two-digit":
        text = f"{number:02}"
    if style.isupper():
        text = text.upper()
    return text


def _roman(number: int) -> str:
    letters = ""
    for value, sign in _ROMAN:
        letters += sign * (number // value)
        number %= value
    return letters


def _letter(number: int) -> str:
    """Return a to z, then aa, bb and so on."""
    return chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)


def _ordinal_ending(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
