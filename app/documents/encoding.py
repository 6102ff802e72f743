"""Detection of encodings: by byte order mark, by UTF-8 or UTF-16 structure, by the declared name,
or by statistics.

A result is checked: text in a wrong encoding has letters of two alphabets in one word.
"""

from __future__ import annotations

import codecs
import contextlib
import re
import unicodedata
from collections.abc import Iterator
from itertools import islice, pairwise

from app.program.refusals import Refusal

_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\x84\x31\x95\x33", "gb18030"),
)
_LONGEST_MARK_BYTES = 4
_NAMES = """
cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp874 cp932 cp949 cp437 cp737 cp775
cp850 cp852 cp855 cp857 cp858 cp860 cp861 cp862 cp863 cp865 cp866 cp869 cp1125 iso8859-2 iso8859-3
iso8859-4 iso8859-5 iso8859-6 iso8859-7 iso8859-8 iso8859-10 iso8859-13 iso8859-14 iso8859-15
iso8859-16 koi8-r koi8-u mac-roman mac-cyrillic mac-greek mac-latin2 mac-turkish mac-iceland big5
big5hkscs gb18030 euc_jp euc_jis_2004 euc_kr johab shift_jis_2004 iso2022_jp iso2022_jp_2 iso2022_kr
hz kz1048 ptcp154 tis-620
"""
_OLD = frozenset(_NAMES.split())
"""Python's names of accepted encodings. Other codecs are not for text, or may take long."""
_MEANT = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "ansinew": "cp1252",
    "latin9": "iso8859-15",
    "applemac": "mac-roman",
}
"""Encodings that browsers use for these names."""
_SAID = re.compile(
    rb"(?:charset|encoding|coding)\s*[=:]?\s*\\?[\"']?\s*([A-Za-z][\w.:-]{1,30})"
    rb"|\[([a-z]\w{1,20})\]\{inputenc\}",
    re.I,
)
_SAID_BYTES = 4096
_SAMPLE_BYTES = 1 << 16
_LEAST_CUT_BYTES = 16
"""Shorter texts have whole characters only."""
_HIGH_WORD = re.compile(rb"[^\s\x80-\xff]{0,100}[\x80-\xff]\S{0,200}")
"""A word with a byte outside ASCII."""
_MOST_WORDS = 20_000
_FEW_WORDS = 4
"""Below this number of words, statistics fail: mostly ASCII letters mean a Western encoding."""
_ISO_2022 = re.compile(rb"\x1b\$(?:[@AB]|\([CD]|\)C)")
_CONTROL = re.compile(rb"\0+|[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]")
_SIGNS = frozenset(
    b"\x80\x82\x84\x85\x8b\x91\x92\x93\x94\x95\x96\x97\x99\x9b"
    b"\xa0\xa2\xa3\xa5\xa7\xa9\xab\xae\xb0\xb1\xb7\xbb"
)
"""Quotes, dashes, the euro and other signs of windows-1252 in otherwise English text."""
_WITHIN_WORDS = frozenset(b"\x92\x96\x97\xa0\xb7")
"""Apostrophe, dashes, space and dot, which occur within words."""
_WORD = re.compile("[^\\W\\d_]+(?:[\x80-\u036f\u0e00-\u0e7f\u2000-\u2bff]+[^\\W\\d_]+)*")
"""Letters with other characters between them."""
_MISPLACED = re.compile("[ςךםןףץ](?=[^\\W\\d_])")
"""Letters that only end a word."""
_EAST_ASIA = frozenset(
    ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC")
)


class NotTextError(Refusal):
    """The bytes are not text in any encoding."""


def decoded(raw: bytes, name: str) -> str:
    """Return the text of bytes, with newlines as line ends.

    Raises Refusal: the bytes are not text, or their encoding is unknown.
    """
    text = _marked(raw)
    if text is None:
        text = _unmarked(raw)
    if text is None:
        raise NotTextError(f"{name}: is not a text file")
    if not text and len(raw) > _LONGEST_MARK_BYTES:
        raise Refusal(f"{name}: has an unknown encoding (save it as UTF-8)")
    return re.sub(r"\r\n?|\x85", "\n", text.replace("\0", ""))


def _marked(raw: bytes) -> str | None:
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            text = _mostly(raw, encoding)
            if text is not None:
                return text.removeprefix("\ufeff")
    return None


def _unmarked(raw: bytes) -> str | None:
    """Return the text; "" if the encoding is unknown, None if the bytes are not text."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    text = _utf_8(raw)
    if text is None and b"\0" in raw:
        text = _wide(raw)
    if text is not None:
        return text
    controls = _CONTROL.findall(raw)
    if 50 * len(controls) > len(raw):
        return None
    return _said(raw) or _detected(raw)


def _utf_8(raw: bytes) -> str | None:
    """Return the text of UTF-8, or None.

    A few wrong bytes are accepted: logs may be cut anywhere or written by several programs.
    """
    if b"\0" in raw and 10 * len(re.findall(rb"\0+", raw)) > len(raw):
        return None
    if _ISO_2022.search(raw):  # ISO 2022 uses ASCII bytes only
        for encoding in ("iso2022_jp_2", "iso2022_kr"):
            text = _strict(raw, encoding)
            if text is not None and not text.isascii():
                return text
    text = raw.decode("utf-8", "replace")
    n_wrong = text.count("\ufffd")
    if n_wrong == 0 or _strict(raw, "utf-8") is not None:
        return text
    n_right = len(re.findall(r"[^\x00-\x7f\ufffd]", text))
    if n_right >= 8 * n_wrong or (n_right and n_wrong == 1 and text[-1] == "\ufffd"):
        return text
    return None


def _wide(raw: bytes) -> str | None:
    """Return the text of UTF-16 or UTF-32 without a byte order mark, or None.

    The encoding with most ASCII characters wins; every text has some.
    """
    best = None
    most = 0
    for encoding in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        if "32" in encoding:
            unit = 4
        else:
            unit = 2
        if len(raw) % unit and len(raw) < _LEAST_CUT_BYTES:
            continue
        sample = raw[: min(len(raw), _SAMPLE_BYTES) // unit * unit]
        # the sample may end in half of a surrogate pair
        text = _strict(sample, encoding) or _strict(sample[:-2], encoding)
        if text is None:
            continue
        n_strange = sum(
            unicodedata.category(character) in ("Cc", "Cn", "Co")
            and character not in "\t\n\r\f\x1b"
            for character in text
        )
        n_usual = len(re.findall(r"[\t\n\r -~\u3000-\u3002]", text))
        if n_usual > most and 50 * n_strange <= len(text):
            best = encoding
            most = n_usual
    if best:
        return _mostly(raw, best)
    return None


def _said(raw: bytes) -> str | None:
    """Return the text in the encoding that the beginning of the file declares, or None."""
    for match in _SAID.finditer(raw[:_SAID_BYTES]):
        encoding = _python_name((match[1] or match[2]).decode("ascii"))
        # declared UTF-8 is wrong: it was tried before
        if encoding in _OLD:
            text = _mostly(raw, encoding)
        else:
            text = None
        if text is not None:
            return text
    return None


def _detected(raw: bytes) -> str:
    """Return the text in the likeliest encoding that makes sense; "" if there is none."""
    high_words = dict.fromkeys(
        islice((match[0] for match in _HIGH_WORD.finditer(raw)), _MOST_WORDS)
    )
    words = b" ".join(high_words)[:_SAMPLE_BYTES]
    if _has_signs_only(words):
        return raw.decode("cp1252", "replace")
    n_letters = len(re.findall(rb"[A-Za-z]", words))
    n_high = len(re.findall(rb"[\x80-\xff]", words))
    western = ("cp1252",) if len(high_words) < _FEW_WORDS and n_letters > n_high else ()
    for encoding in (*western, *_likely(words)):
        text = _mostly(raw, encoding)
        if text is not None and _makes_sense(words.decode(encoding, "replace")):
            return text
    if 5 * n_high <= len(words):
        return raw.decode("cp1252", "replace")
    return ""


def _has_signs_only(words: bytes) -> bool:
    """Whether all bytes outside ASCII are signs of windows-1252 in plausible positions."""
    padded = b" " + words + b" "
    for match in re.finditer(rb"[\x80-\xff]", padded):
        byte = match[0][0]
        position = match.start()
        is_in_word = (
            padded[position - 1 : position].isalpha()
            and padded[position + 1 : position + 2].isalpha()
        )
        if byte not in _SIGNS or (is_in_word and byte not in _WITHIN_WORDS):
            return False
    return True


def _likely(words: bytes) -> Iterator[str]:
    import chardet  # the import takes 0.1 s, which UTF-8 files need not pay

    eras = chardet.EncodingEra.ALL ^ chardet.EncodingEra.MAINFRAME
    for guess in chardet.detect_all(words, encoding_era=eras):
        encoding = _python_name(guess["encoding"] or "")
        if encoding in _OLD:
            yield encoding


def _makes_sense(text: str) -> bool:
    """Whether at most one word in fifty mixes alphabets or has a sign between letters."""
    words = [word for word in _WORD.findall(text) if not word.isascii()]
    n_wrong = sum(not _is_word(word) for word in words)
    return 50 * n_wrong <= len(words) and not re.search("[\x80-\x9f\ufffd]", text)


def _is_word(word: str) -> bool:
    if any(
        not character.isalpha()
        and character not in "’‘'·‐-–—"
        and unicodedata.category(character)[0] != "M"
        for character in word
    ):
        return False
    if _MISPLACED.search(word) or any(a.islower() and b.isupper() for a, b in pairwise(word)):
        return False
    alphabets = {_alphabet(character) for character in word if character.isalpha()}
    return len(alphabets) <= 1 or alphabets <= _EAST_ASIA


def _alphabet(letter: str) -> str:
    return unicodedata.name(letter, "unknown").split(" ")[0]


def _python_name(declared: str) -> str:
    """Return Python's name of a declared encoding; "" if it is unknown."""
    declared = _MEANT.get(declared.lower(), declared)
    for form in (declared, declared.replace("-", "")):
        with contextlib.suppress(LookupError, ValueError):
            name = codecs.lookup(form).name
            return _MEANT.get(name, name)
    return ""


def _strict(raw: bytes, encoding: str) -> str | None:
    try:
        return raw.decode(encoding)
    except UnicodeError:
        return None


def _mostly(raw: bytes, encoding: str) -> str | None:
    """Return the text if at most one character in 200 is wrong; the last one may be cut."""
    text = _strict(raw, encoding)
    if text is None:
        text = raw.decode(encoding, "replace")
        n_wrong = text.count("\ufffd")
        if 200 * n_wrong > len(text) and not (
            n_wrong == 1 and text[-1] == "\ufffd" and len(text) > 1
        ):
            return None
    return text
