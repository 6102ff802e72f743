"""Escape sequences from the terminal: where each one ends, and which ones Textual may see.

Terminals answer queries of other programs, and other programs leave modes on. Such sequences are
dropped. Keys of the Kitty protocol are rewritten in its shortest form, because Textual 8.2 crashes
on sub-parameters and types sequences that it does not know. Remove when Textual handles both.
"""

from __future__ import annotations

import re
from typing import Final

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._keyboard_protocol import FUNCTIONAL_KEYS

ESC: Final = b"\x1b"
MAX_SEQUENCE_BYTES = 4096
"""Limit on the bytes of a sequence that are remembered."""
STRING_STARTS: Final = tuple(ESC + introducer for introducer in (b"]", b"P", b"_", b"^", b"X"))
"""Starts of OSC, DCS, APC, PM and SOS, which contain text up to ESC and a backslash."""
AMBIGUOUS_STARTS: Final = (ESC, ESC + b"[", ESC + b"O", *STRING_STARTS)
"""Starts of sequences that are keys (Esc, or a key with alt) if nothing follows soon."""

_STRING_END = re.compile(rb"\x1b|[\x18\x1a]")
_OSC_END = re.compile(rb"\x1b|[\x07\x18\x1a]")
_REPLY = re.compile(rb"\x1b(?:\[[?>=<][0-9]|\[\?|\][0-9lLI?]|P[0-9:;<=>?!$+]|_[G?]|[X^]\?)")
"""Starts of answers of a terminal, which no key has."""
_NO_NUMBERS = (b"NaN", b"Infinity", b"undefined", b"null")
_MOUSE = re.compile(rb"\x1b\[<(?:[-+.:;0-9]|%s)*" % b"|".join(_NO_NUMBERS))
_UNFINISHED_WORDS = frozenset(word[:n] for word in _NO_NUMBERS for n in range(len(word)))
_OLD_MOUSE = re.compile(rb"\x1b\[M[\x20-\xff]{0,3}")
_CONTROL = re.compile(rb"\x1b\[(?:\[.|(?:23|24|3|7|8)\$|[0-?]*[ -/]*[@-~])", re.DOTALL)
"""Control sequences, including keys of the Linux console and of rxvt."""
_UNFINISHED_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*")

_MAX_CODE = 0x10FFFF
_UNTYPED_CODES = frozenset((*range(32), *range(0x7F, 0xA0), *range(0xD800, 0xF900)))
"""Control characters, surrogates and the private codes of keys without text."""
_SHIFT = 1
_CAPS_LOCK = 64
_NUM_LOCK = 128
_RELEASE_EVENT = 3
_OTHER_KEY = 27
"""Code of a key in xterm's modifyOtherKeys, which has the character in the text parameter."""
_MAX_DIGITS = 8
_HARMLESS = re.compile(
    r"\x1b\[(?:[IO]|\?\d{1,5};\d\$y|<\d{1,4};-?\d{1,5};-?\d{1,5}[Mm]"
    r"|48;[1-9]\d{0,2}(?::\d{0,5})?;(?:1\d{3}|[1-9]\d{0,2})(?::\d{0,5})?(?:;[1-9]\d{0,4}(?::\d{0,5})?){2}t)"
)
"""Reports of focus, modes, the mouse and plausible screen sizes."""
_KEY = re.compile(r"\x1b\[([\d:]*)(?:;([\d:]*))?(?:;([\d:]*))?(?:;[\d:]*)*([u~ABCDEFHPQS])")


def sequence_end(data: bytes, start: int) -> int:
    """Return the end of the escape sequence at a position; 0 if more of it may follow.

    An invalid sequence ends before its first invalid byte.
    """
    next_byte = data[start + 1 : start + 2]
    if not next_byte:
        return 0
    if next_byte == b"[":
        return _control_end(data, start)
    if next_byte == b"O":
        key_byte = data[start + 2 : start + 3]
        if not key_byte:
            return 0
        if key_byte.isalpha():
            return start + 3
        return start + 2
    if data[start : start + 2] in STRING_STARTS:
        return _string_end(data, start)
    n_bytes = 1 + (next_byte >= b"\xc2") + (next_byte >= b"\xe0") + (next_byte >= b"\xf0")
    tail = re.compile(rb"[\x80-\xbf]{0,%d}" % (n_bytes - 1)).match(data, start + 2)
    assert tail is not None
    if tail.end() == len(data) < start + 1 + n_bytes:
        return 0
    if next_byte != ESC:
        return tail.end()
    return start + 1


def _control_end(data: bytes, start: int) -> int:
    if old_mouse := _OLD_MOUSE.match(data, start):
        if len(old_mouse[0]) == len(b"\x1b[M???"):
            return old_mouse.end()
        if old_mouse.end() == len(data):
            return 0
        return old_mouse.end()
    if mouse := _MOUSE.match(data, start):
        if data[mouse.end() : mouse.end() + 1] in (b"M", b"m"):
            return mouse.end() + 1
        if data[mouse.end() :] in _UNFINISHED_WORDS:
            return 0
    if data[start:] != b"\x1b[[" and (control := _CONTROL.match(data, start)):
        return control.end()
    unfinished = _UNFINISHED_CONTROL.match(data, start)
    assert unfinished is not None
    if unfinished.end() == len(data) or data[start:] == b"\x1b[[":
        return 0
    return unfinished.end()


def _string_end(data: bytes, start: int) -> int:
    pattern = _STRING_END
    if data[start + 1 : start + 2] == b"]":
        pattern = _OSC_END
    end = pattern.search(data, start + 2)
    if end is None or (end[0] == ESC and end.end() == len(data)):
        return 0
    if end[0] != ESC:
        return end.end()
    if data[end.end() : end.end() + 1] == b"\\":
        return end.end() + 1
    return end.start()


def is_reply(sequence_start: bytes) -> bool:
    """Whether the start of a sequence belongs to an answer of the terminal, not to a key."""
    return _REPLY.match(sequence_start) is not None


def textual_sequence(sequence: bytes) -> str:
    """Return a complete sequence as Textual may see it; empty if it must not see it."""
    text = sequence.decode("utf-8", "replace")
    is_key = (
        sequence in AMBIGUOUS_STARTS
        or text in ANSI_SEQUENCES_KEYS
        or not text.startswith(("\x1b[", *_STRINGS))
    )
    if is_key or _HARMLESS.fullmatch(text):
        return text
    key = _KEY.fullmatch(text)
    if key:
        return _key(*key.groups(""))
    return ""


_STRINGS = tuple(beginning.decode("ascii") for beginning in STRING_STARTS)


def _key(codes: str, states: str, text_codes: str, end: str) -> str:
    """Return a key report in its shortest form; empty for released or impossible keys."""
    code, shifted = [*_numbers(codes), 0][:2]
    state, event = [*_numbers(states), 0][:2]
    modifiers = max(0, state - 1) & 0xFF
    if event == _RELEASE_EVENT or max(code, state) > _MAX_CODE:
        return ""
    if end != "u":
        return _named_key(code or 1, modifiers & ~(_CAPS_LOCK | _NUM_LOCK), text_codes, end)
    typed_codes = [number for number in _numbers(text_codes) if _is_typed(number)]
    is_named = f"{code}u" in FUNCTIONAL_KEYS
    if not typed_codes and not is_named and not _is_typed(code):
        return ""
    is_large = bool(modifiers & _SHIFT) != bool(modifiers & _CAPS_LOCK)
    is_shifted = bool(modifiers & _SHIFT)
    modifiers = modifiers & ~(_CAPS_LOCK | _NUM_LOCK)
    if not typed_codes and not is_named and not modifiers & ~_SHIFT:
        typed_codes = _codes_typed_by(code, shifted, is_shifted, is_large)
    parameters = str(code or 1)
    if modifiers or typed_codes:
        parameters += f";{modifiers + 1}"
    if typed_codes:
        parameters += f";{':'.join(map(str, typed_codes))}"
    return f"\x1b[{parameters}u"


def _codes_typed_by(code: int, shifted: int, is_shifted: bool, is_large: bool) -> list[int]:
    """Return the characters that a key without ctrl or alt types if its report has no text."""
    upper = chr(code).upper()
    # The key is no letter, and the keyboard layout decides what shift does to it.
    if upper == chr(code) or len(upper) > 1:
        if is_shifted and _is_typed(shifted):
            return [shifted]
        return []
    if is_large and _is_typed(shifted):
        return [shifted]
    if is_large:
        return [ord(upper)]
    return [code]


def _named_key(code: int, modifiers: int, text_codes: str, end: str) -> str:
    char = _numbers(text_codes)[0]
    if code == _OTHER_KEY and end == "~" and (_is_typed(char) or f"{char}u" in FUNCTIONAL_KEYS):
        if _is_typed(char) and not modifiers & ~_SHIFT:
            return f"\x1b[{char};{modifiers + 1};{char}u"
        return f"\x1b[{ord(chr(char).lower()[0])};{modifiers + 1}u"
    if f"{code}{end}" not in FUNCTIONAL_KEYS:
        return ""
    if modifiers:
        return f"\x1b[{code};{modifiers + 1}{end}"
    if end == "~":
        return f"\x1b[{code}{end}"
    return f"\x1b[{end}"


def _numbers(parameter: str) -> list[int]:
    """Return the sub-parameters of a parameter: 0 if one is missing, an invalid number if one has
    many digits."""
    return [int(digits[:_MAX_DIGITS] or "0") for digits in parameter.split(":")]


def _is_typed(code: int) -> bool:
    return 0 < code <= _MAX_CODE and code not in _UNTYPED_CODES
