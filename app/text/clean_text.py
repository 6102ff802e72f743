"""The one filter between foreign text and the screen: model output, echoed input, file and model names, metadata.

What comes out holds no control character but newline and tab, nothing that reorders or hides text, no surrogate, and
no tower of combining marks. Every character is judged by itself (only CR LF and runs of marks look at a neighbour), so
escape sequences are broken whatever token boundaries cut them. Nothing vanishes silently except surplus marks:

===========================  =====================================================
C0, DEL                      their picture, U+2400..U+2421: ESC is shown as ␛
CR LF; U+2028, U+2029        newline
CR alone                     ␍
C1, surrogates               U+FFFD
bidi embedding and override  U+FFFD (U+202A..202E, U+2066..2069, deprecated 206A..206F)
zero width space, BOM, ...   U+FFFD (U+00AD, U+180E, U+200B, U+2060..2064, U+FEFF, U+FFF9..FFFB)
U+E0000..U+E0FFF             U+FFFD (tags and the variation selectors that can smuggle text)
more than 8 marks in a row   the surplus is dropped
===========================  =====================================================

The joiners U+200C and U+200D and the direction marks U+200E, U+200F and U+061C stay, because Persian, Indic scripts,
emoji and Hebrew are misspelt without them; they count as marks.
"""

import re
import unicodedata

MAX_MARKS = 8
REPLACEMENT = "�"

_REPLACED_RANGES = (
    (0x80, 0x9F),
    (0xAD, 0xAD),
    (0x180E, 0x180E),
    (0x200B, 0x200B),
    (0x202A, 0x202E),
    (0x2060, 0x2064),
    (0x2065, 0x206F),
    (0xD800, 0xDFFF),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0xE0000, 0xE0FFF),
)
_KEPT_MARKS = frozenset("\u061c\u200c\u200d\u200e\u200f")
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: "␡"}
_LINE_BREAKS = re.compile("\r\n|[\u2028\u2029]")
_REPLACED = re.compile("[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in _REPLACED_RANGES) + "]")


class TextCleaner:
    """Clean a stream of text; the pieces joined equal ``clean_text`` of the whole, however it was split."""

    def __init__(self) -> None:
        self.is_holding = False
        """Whether a CR waits for what follows."""
        self._marks_in_row = 0

    def push(self, text: str) -> str:
        """Take the next piece and return what can be shown; a CR at the end waits for what follows."""
        if not text:
            return ""
        if self.is_holding:
            text = "\r" + text
        self.is_holding = text.endswith("\r")
        if self.is_holding:
            text = text[:-1]
        text = _REPLACED.sub(REPLACEMENT, _LINE_BREAKS.sub("\n", text))
        return self._limit_marks(text.translate(_PICTURES))

    def flush(self) -> str:
        """Return what was held back; call it once at the end of the text."""
        rest = "␍" if self.is_holding else ""
        self.is_holding, self._marks_in_row = False, 0
        return rest

    def _limit_marks(self, text: str) -> str:
        if text.isascii() or not any(map(_is_mark, set(text))):
            self._marks_in_row = 0
            return text
        kept = []
        for character in text:
            self._marks_in_row = self._marks_in_row + 1 if _is_mark(character) else 0
            if self._marks_in_row <= MAX_MARKS:
                kept.append(character)
        return "".join(kept)


def clean_text(text: str) -> str:
    """Return the whole text with everything replaced that could act on a terminal or deceive a reader."""
    cleaner = TextCleaner()
    return cleaner.push(text) + cleaner.flush()


def clean_line(text: str, limit: int = 120) -> str:
    r"""Return foreign text for one line: newlines and tabs shown as ``\n`` and ``\t``, cut off with … at the limit."""
    considered = text[: 2 * limit]  # a huge name costs no more than a long one
    line = clean_text(considered).strip("\n").replace("\n", "\\n").replace("\t", "\\t")
    is_whole = len(line) <= limit and len(considered) == len(text)
    return line if is_whole else line[: limit - 1] + "…"


def _is_mark(character: str) -> bool:
    return character in _KEPT_MARKS or unicodedata.category(character) in ("Mn", "Me")
