"""What a terminal sends other than text: where each escape sequence ends, and which of them Textual
may see.

Terminals answer what other programs asked, and other programs leave modes on. Such sequences are
dropped whole. Keys of the Kitty protocol come in its shortest form, since Textual 8.2 ends over
sub-parameters, and types what it does not know. Remove when Textual does both.
"""

from __future__ import annotations

import re
from typing import Final

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._keyboard_protocol import FUNCTIONAL_KEYS

ESC: Final = b"\x1b"
MOST_SEQUENCE_BYTES = 4096
"""Of a longer sequence only that it goes on is remembered."""
STRING_BEGINNINGS: Final = tuple(ESC + introducer for introducer in (b"]", b"P", b"_", b"^", b"X"))
"""OSC, DCS, APC, PM and SOS: text follows, up to ESC and a backslash."""
KEYS_TOO: Final = (ESC, ESC + b"[", ESC + b"O", *STRING_BEGINNINGS)
"""Beginnings that are keys as well, Esc or one with alt, if nothing follows soon."""

_STRING_END = re.compile(rb"\x1b|[\x18\x1a]")
_OSC_END = re.compile(rb"\x1b|[\x07\x18\x1a]")
_REPLY = re.compile(rb"\x1b(?:\[[?>=<][0-9]|\[\?|\][0-9lLI?]|P[0-9:;<=>?!$+]|_[G?]|[X^]\?)")
"""How answers begin, and keys do not."""
_NO_NUMBERS = (b"NaN", b"Infinity", b"undefined", b"null")
_MOUSE = re.compile(rb"\x1b\[<(?:[-+.:;0-9]|%s)*" % b"|".join(_NO_NUMBERS))
_BEGUN_WORDS = frozenset(word[:n] for word in _NO_NUMBERS for n in range(len(word)))
_OLD_MOUSE = re.compile(rb"\x1b\[M[\x20-\xff]{0,3}")
_CONTROL = re.compile(rb"\x1b\[(?:\[.|(?:23|24|3|7|8)\$|[0-?]*[ -/]*[@-~])", re.DOTALL)
"""Also keys of Linux's console and of rxvt."""
_BEGUN_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*")

_MOST_CODE = 0x10FFFF
_UNTYPED_CODES = frozenset((*range(32), *range(0x7F, 0xA0), *range(0xD800, 0xF900)))
"""Controls, halves of characters, and the private numbers of keys without text."""
_SHIFT = 1
_CAPS_LOCK = 64
_NUM_LOCK = 128
_RELEASED = 3
_OTHER_KEY = 27
"""Number by which xterm's modifyOtherKeys reports a key; its character is where others have the
text."""
_MOST_DIGITS = 8
_HARMLESS = re.compile(
    r"\x1b\[(?:[IO]|\?\d{1,5};\d\$y|<\d{1,4};-?\d{1,5};-?\d{1,5}[Mm]"
    r"|48;[1-9]\d{0,2}(?::\d{0,5})?;(?:1\d{3}|[1-9]\d{0,2})(?::\d{0,5})?(?:;[1-9]\d{0,4}(?::\d{0,5})?){2}t)"
)
"""Focus, modes, the mouse, and sizes of a screen that there may be."""
_KEY = re.compile(r"\x1b\[([\d:]*)(?:;([\d:]*))?(?:;([\d:]*))?(?:;[\d:]*)*([u~ABCDEFHPQS])")


def sequence_end(data: bytes, at: int) -> int:
    """Return where the sequence ends that begins with the ESC at a place; 0 where more of it may
    follow.

    What cannot be one ends before what it cannot contain.
    """
    rest = data[at + 1 : at + 2]
    if not rest:
        return 0
    if rest == b"[":
        return _control_end(data, at)
    if rest == b"O":
        follows = data[at + 2 : at + 3]
        if not follows:
            return 0
        if follows.isalpha():
            return at + 3
        return at + 2
    if data[at : at + 2] in STRING_BEGINNINGS:
        return _string_end(data, at)
    n_bytes = 1 + (rest >= b"\xc2") + (rest >= b"\xe0") + (rest >= b"\xf0")
    tail = re.compile(rb"[\x80-\xbf]{0,%d}" % (n_bytes - 1)).match(data, at + 2)
    assert tail is not None
    if tail.end() == len(data) < at + 1 + n_bytes:
        return 0
    if rest != ESC:
        return tail.end()
    return at + 1


def _control_end(data: bytes, at: int) -> int:
    if old := _OLD_MOUSE.match(data, at):
        if len(old[0]) == len(b"\x1b[M???"):
            return old.end()
        if old.end() == len(data):
            return 0
        return old.end()
    if mouse := _MOUSE.match(data, at):
        if data[mouse.end() : mouse.end() + 1] in (b"M", b"m"):
            return mouse.end() + 1
        if data[mouse.end() :] in _BEGUN_WORDS:
            return 0
    if data[at:] != b"\x1b[[":
        whole = _CONTROL.match(data, at)
    else:
        whole = None
    if whole:
        return whole.end()
    begun = _BEGUN_CONTROL.match(data, at)
    assert begun is not None
    if begun.end() == len(data) or data[at:] == b"\x1b[[":
        return 0
    return begun.end()


def _string_end(data: bytes, at: int) -> int:
    end = (_OSC_END if data[at + 1 : at + 2] == b"]" else _STRING_END).search(data, at + 2)
    if end is None or (end[0] == ESC and end.end() == len(data)):
        return 0
    if end[0] != ESC:
        return end.end()
    if data[end.end() : end.end() + 1] == b"\\":
        return end.end() + 1
    return end.start()


def is_reply(begun: bytes) -> bool:
    """Whether a sequence that has begun is the answer of a terminal: no one types such."""
    return _REPLY.match(begun) is not None


def harmless(sequence: bytes) -> str:
    """Return a whole sequence as Textual may see it; "" for one that no one asked for, and that is
    no key."""
    text = sequence.decode("utf-8", "replace")
    is_key = (
        sequence in KEYS_TOO
        or text in ANSI_SEQUENCES_KEYS
        or not text.startswith(("\x1b[", *_STRINGS))
    )
    if is_key or _HARMLESS.fullmatch(text):
        return text
    key = _KEY.fullmatch(text)
    if key:
        return _key(*key.groups(""))
    return ""


_STRINGS = tuple(beginning.decode("ascii") for beginning in STRING_BEGINNINGS)


def _key(codes: str, states: str, texts: str, end: str) -> str:
    """Write a key report again; "" for a key that is released, or that no keyboard has."""
    code, shifted = [*_numbers(codes), 0][:2]
    state, event = [*_numbers(states), 0][:2]
    held = max(0, state - 1) & 0xFF
    if event == _RELEASED or max(code, state) > _MOST_CODE:
        return ""
    if end != "u":
        return _named_key(code or 1, held & ~(_CAPS_LOCK | _NUM_LOCK), texts, end)
    typed = [number for number in _numbers(texts) if _is_typed(number)]
    is_named = f"{code}u" in FUNCTIONAL_KEYS
    if not typed and not is_named and not _is_typed(code):
        return ""
    is_large = bool(held & _SHIFT) != bool(held & _CAPS_LOCK)
    is_shifted = bool(held & _SHIFT)
    held = held & ~(_CAPS_LOCK | _NUM_LOCK)
    if not typed and not is_named and not held & ~_SHIFT:
        typed = _typed_by(code, shifted, is_shifted, is_large)
    text = ":".join(map(str, typed))
    return f"\x1b[{code or 1}{f';{held + 1}' if held or text else ''}{f';{text}' if text else ''}u"


def _typed_by(code: int, shifted: int, is_shifted: bool, is_large: bool) -> list[int]:
    """Return what a key without ctrl or alt types, where its report does not say that."""
    large = chr(code).upper()
    # no letter: what shift makes of it depends on the keyboard
    if large == chr(code) or len(large) > 1:
        if is_shifted and _is_typed(shifted):
            return [shifted]
        return []
    if is_large:
        return [shifted if _is_typed(shifted) else ord(large)]
    return [code]


def _named_key(code: int, held: int, texts: str, end: str) -> str:
    char = _numbers(texts)[0]
    if code == _OTHER_KEY and end == "~" and (_is_typed(char) or f"{char}u" in FUNCTIONAL_KEYS):
        if _is_typed(char) and not held & ~_SHIFT:
            return f"\x1b[{char};{held + 1};{char}u"
        return f"\x1b[{ord(chr(char).lower()[0])};{held + 1}u"
    if f"{code}{end}" not in FUNCTIONAL_KEYS:
        return ""
    number = code if end == "~" or held else ""
    return f"\x1b[{number}{f';{held + 1}' if held else ''}{end}"


def _numbers(parameter: str) -> list[int]:
    """Return the sub-parameters of a parameter: 0 for a missing one, too large a number for one of
    many digits."""
    return [int(digits[:_MOST_DIGITS] or "0") for digits in parameter.split(":")]


def _is_typed(code: int) -> bool:
    return 0 < code <= _MOST_CODE and code not in _UNTYPED_CODES
