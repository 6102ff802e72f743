"""Text of Rich Text files, as a word processor shows it."""

from __future__ import annotations

import codecs
import re
from typing import BinaryIO

from app.documents.text_file import MAX_SOURCE_BYTES, BoundedText, bounded
from app.program.refusals import Refusal
from app.text.figures import counted

_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?[0-9]{1,10})? ?"
    rb"|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|([^\\{}\r\n]+)|[\r\n]+|\\"
)
_UNSHOWN = frozenset(
    (
        *(
            "fonttbl",
            "colortbl",
            "stylesheet",
            "info",
            "pict",
            "object",
            "fldinst",
            "themedata",
            "datastore",
        ),
        *(
            "listtable",
            "listoverridetable",
            "revtbl",
            "rsidtbl",
            "generator",
            "xmlnstbl",
            "filetbl",
            "nonshppict",
        ),
    )
)
"""Groups whose text is not shown."""
_CHARACTERS = {
    **dict.fromkeys(("par", "line", "sect", "page", "row", "nestrow", "column"), "\n"),
    **dict.fromkeys(("tab", "cell", "nestcell"), "\t"),
    "emdash": "—",
    "endash": "–",
    "lquote": "‘",
    "rquote": "’",
    "ldblquote": "“",
    "rdblquote": "”",
    "bullet": "•",
    "emspace": " ",
    "enspace": " ",
    "zwj": "\u200d",
    "zwnj": "\u200c",
    "rtlmark": "\u200f",
    "ltrmark": "\u200e",
}
_SIGNS = {b"~": "\u00a0", b"-": "\u00ad", b"_": "\u2011", b"\\": "\\", b"{": "{", b"}": "}"}
_CHARSETS = {
    77: "mac-roman",
    128: "cp932",
    129: "cp949",
    134: "gb18030",
    136: "big5",
    161: "cp1253",
    162: "cp1254",
    163: "cp1258",
    177: "cp1255",
    178: "cp1256",
    186: "cp1257",
    204: "cp1251",
    222: "cp874",
    238: "cp1250",
}
"""Encodings by charset numbers of fonts."""
_MOST_GROUPS = 10_000


class _Group:
    """State of a group, inherited by the groups in it."""

    def __init__(self, parent: _Group | None = None) -> None:
        self.is_hidden: bool = parent.is_hidden if parent else False
        self.is_font_table: bool = parent.is_font_table if parent else False
        self.font: int = parent.font if parent else -1
        self.n_replaced: int = parent.n_replaced if parent else 1
        """Number of fallback characters after a Unicode character, for old readers."""


class _Reader:
    def __init__(self, raw: bytes, text: BoundedText) -> None:
        self._raw = raw
        self._text = text
        self._groups = [_Group()]
        self._encoding = "cp1252"
        self._encodings: dict[int, str] = {}
        """Encodings of fonts by number."""
        self._bytes = bytearray()
        """Bytes not decoded yet; a character may have several."""
        self._half = 0
        """First half of a surrogate pair; 0 if there is none."""
        self._n_skipped = 0
        self.n_pictures = 0

    def read(self) -> str:
        position = 0
        while position < len(self._raw):
            token = _TOKEN.match(self._raw, position)
            if token is None:
                break
            position = token.end()
            word, number, code, sign, brace, plain = token.groups()
            if word is not None:
                position += self._control(word.decode("ascii"), int(number) if number else None)
            elif code is not None:
                self._add_bytes(bytes([int(code, 16)]))
            elif brace is not None:
                self._brace(brace)
            elif sign is not None:
                self._sign(sign)
            elif plain is not None:
                self._add_bytes(plain)
        self._decode()
        return self._text.joined()

    def _brace(self, brace: bytes) -> None:
        self._decode()
        self._n_skipped = 0
        if brace == b"{":
            if len(self._groups) > _MOST_GROUPS:
                raise Refusal("has too deeply nested groups (save it as DOCX or text)")
            self._groups.append(_Group(self._groups[-1]))
        elif len(self._groups) > 1:
            self._groups.pop()

    def _sign(self, sign: bytes) -> None:
        if sign == b"*":
            self._groups[-1].is_hidden = True
        elif sign in b"\r\n":
            self._add("\n")
        elif sign in _SIGNS:
            self._add(_SIGNS[sign])

    def _control(self, word: str, number: int | None) -> int:
        """Obey a control word and return the number of binary bytes after it."""
        group = self._groups[-1]
        if word == "u" and number is not None:
            self._add_unicode(number % 65536)
            self._n_skipped = group.n_replaced
        elif word == "bin":
            return max(0, number or 0)
        elif word in _UNSHOWN:
            self._decode()
            self.n_pictures += word == "pict" and not group.is_hidden
            group.is_hidden = True
            group.is_font_table = word == "fonttbl"
        elif word == "uc":
            group.n_replaced = min(max(0, number or 0), 16)
        elif word == "f" and number is not None:
            self._decode()
            group.font = number
        elif word == "fcharset" and group.is_font_table:
            self._encodings[group.font] = _CHARSETS.get(number or 0, "")
        elif word == "ansicpg":
            self._encoding = _code_page(number or 0) or self._encoding
        elif word == "mac":
            self._encoding = "mac-roman"
        elif word in _CHARACTERS:
            self._add(_CHARACTERS[word])
        return 0

    def _add_unicode(self, number: int) -> None:
        if 0xD800 <= number < 0xDC00:
            self._half = number
            return
        if 0xDC00 <= number < 0xE000 and self._half:
            number = 0x10000 + ((self._half - 0xD800) << 10) + number - 0xDC00
        self._half = 0
        self._add(chr(number) if not 0xD800 <= number < 0xE000 else "\ufffd")

    def _add_bytes(self, raw: bytes) -> None:
        n_skipped = min(self._n_skipped, len(raw))
        self._n_skipped -= n_skipped
        if not self._groups[-1].is_hidden:
            self._bytes += raw[n_skipped:]

    def _add(self, text: str) -> None:
        self._decode()
        if not self._groups[-1].is_hidden:
            self._text.add(text)

    def _decode(self) -> None:
        if self._bytes:
            encoding = self._encodings.get(self._groups[-1].font) or self._encoding
            self._text.add(self._bytes.decode(encoding, "replace"))
            self._bytes.clear()


def _code_page(number: int) -> str:
    names = {65001: "utf-8", 10000: "mac-roman", 936: "gb18030"}
    name = names.get(number, f"cp{number}")
    try:
        return codecs.lookup(name).name
    except LookupError:
        return ""


def rtf_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of a file; a note counts its pictures.

    Raises:
        Refusal: the file is too large.
    """
    text = text or BoundedText()
    reader = _Reader(bounded(file, MAX_SOURCE_BYTES, "the file"), text)
    words = reader.read()
    if reader.n_pictures:
        text.notes.append(f"not read: {counted(reader.n_pictures, 'picture')}")
    return words
