"""Filters for foreign text: model output, echoed input, documents, file and model names, metadata.

``clean_text`` makes text for the model and the disk. It takes away what no writing needs:

====================  =============================================
C0, DEL               their picture, U+2400..U+2421: ESC becomes ␛
CR LF, NEL            newline
U+2028, U+2029        newline
CR alone              ␍
other C1, surrogates  U+FFFD
over 8 marks in a row  the surplus is dropped
====================  =============================================

Invisible characters stay, because scripts and emoji are misspelt without them: the gaps between the
words of Khmer, soft hyphens, isolates, variation selectors, the tags in the flag of Wales.

``screen_text`` makes text for a terminal, from text of any origin. It is the same, but nothing in
it reorders or hides text:

==============================  ==================================================================
embeddings, overrides           U+FFFD (U+202A..202E, deprecated 206A..206F)
tags                            stay in a flag: U+1F3F4 and up to 7 of them; elsewhere U+FFFD
variation selectors             one stays after a character (those of U+E0100..E01EF after a
                                Chinese character only); elsewhere U+FFFD
rest of U+E0000..E0FFF, U+2065  U+FFFD
isolates, soft hyphens, BOMs,   dropped (U+00AD, U+180E, U+2060..2064, U+2066..2069, U+FEFF,
word joiners, ...               U+FFF9..FFFB)
==============================  ==================================================================

Every character is judged by itself and a few before it, so escape sequences are broken whatever
token boundaries cut them. Joiners, direction marks and zero-width spaces count as marks.
"""

import re
import unicodedata

MAX_MARKS = 8
REPLACEMENT = "�"
INVISIBLE = "\u00ad\u180e\u200b-\u200f\u2060-\u2064\u2066-\u2069\ufeff\ufff9-\ufffb"
"""Characters without a shape, as part of a regular expression."""

_HARMLESS = re.compile("[\n\t -~]*")
"""Texts that need no cleaning, as most texts on screens."""
_REPLACED = re.compile("[\x80-\x9f\ud800-\udfff]")
_KEPT_MARKS = frozenset("\u061c\u200b\u200c\u200d\u200e\u200f")
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"} | {
    0x7F: "␡"
}
_LINE_BREAKS = re.compile("\r\n|[\x85\u2028\u2029]")
_UNSHOWN = re.compile("[\u00ad\u180e\u2060-\u2064\u2066-\u2069\ufeff\ufff9-\ufffb]")
_DOUBTFUL = re.compile("[\u202a-\u202e\u2065\u206a-\u206f\ufe00-\ufe0f\U000e0000-\U000e0fff]")
_ALL_UNSHOWN = re.compile(f"{_UNSHOWN.pattern}|{_DOUBTFUL.pattern}")
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{0,6}\U000e007f?")
_MOST_FLAG_CHARACTERS = 8
_SELECTOR = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_IDEOGRAPH = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_SPACE_LIKE_CHARACTERS = {
    0xAD: "-",
    **dict.fromkeys((0x180E, 0xFEFF, *range(0x2060, 0x2065)), "\u200b"),
}
_SPACE_LIKE_CHARACTERS |= dict.fromkeys((*range(0x2066, 0x206A), *range(0xFFF9, 0xFFFC)), "\u200b")


class _MarkLimit:
    """Drops marks beyond ``MAX_MARKS`` in a row from a stream of text."""

    def __init__(self) -> None:
        self._marks_in_row = 0

    def push(self, text: str) -> str:
        """Return the next piece without surplus marks."""
        if not text:
            return ""
        if text.isascii() or not any(map(_is_mark, set(text))):
            self._marks_in_row = 0
            return text
        characters = []
        for character in text:
            if _is_mark(character):
                self._marks_in_row = self._marks_in_row + 1
            else:
                self._marks_in_row = 0
            if self._marks_in_row <= MAX_MARKS:
                characters.append(character)
        return "".join(characters)


class TextCleaner:
    """Cleans a stream of text.

    The pieces joined equal ``clean_text`` of the whole, however it was split.
    """

    def __init__(self) -> None:
        self.is_holding = False
        """Whether a CR waits for the next piece."""
        self._marks = _MarkLimit()

    def push(self, text: str) -> str:
        """Return the next piece cleaned. A CR at the end waits for the following piece."""
        if not text:
            return ""
        if self.is_holding:
            text = "\r" + text
        self.is_holding = text.endswith("\r")
        if self.is_holding:
            text = text[:-1]
        if "\r" in text or not text.isascii():
            text = _REPLACED.sub(REPLACEMENT, _LINE_BREAKS.sub("\n", text))
        return self._marks.push(text.translate(_PICTURES))

    def flush(self) -> str:
        """Return the text still waiting. Call this once, at the end of the text."""
        if self.is_holding:
            waiting_text = "␍"
        else:
            waiting_text = ""
        self.is_holding = False
        self._marks = _MarkLimit()
        return waiting_text


class ScreenCleaner:
    """Cleans a stream of text for a terminal.

    The pieces joined equal ``screen_text`` of the whole.
    """

    def __init__(self) -> None:
        self._cleaner = TextCleaner()
        self._marks = _MarkLimit()
        self._last_characters = ""
        """Last characters of the text so far, which decide about the next ones."""

    def push(self, text: str) -> str:
        """Return the next piece for a terminal. A CR at the end waits for the following piece."""
        return self._for_screen(self._cleaner.push(text))

    def flush(self) -> str:
        """Return the text still waiting. Call this once, at the end of the text."""
        return self._for_screen(self._cleaner.flush())

    def _for_screen(self, text: str) -> str:
        if not text:
            return ""
        last_characters = self._last_characters
        self._last_characters = (last_characters + text[-_MOST_FLAG_CHARACTERS:])[
            -_MOST_FLAG_CHARACTERS:
        ]
        if _ALL_UNSHOWN.search(text):
            text = _signed(last_characters + text, len(last_characters))[len(last_characters) :]
            text = _UNSHOWN.sub("", text)
        return self._marks.push(text)


def clean_text(text: str) -> str:
    """Return text for the model and the disk: without controls, with every character that writing
    needs.
    """
    if _HARMLESS.fullmatch(text):
        return text
    cleaner = TextCleaner()
    return cleaner.push(text) + cleaner.flush()


def screen_text(text: str) -> str:
    """Return text for a terminal, without anything that could control it or deceive a reader."""
    if _HARMLESS.fullmatch(text):
        return text
    cleaner = ScreenCleaner()
    return cleaner.push(text) + cleaner.flush()


def editable_text(text: str) -> str:
    """Return clean text for an editor.

    It is like ``screen_text``, but keeps the number of characters: dropped ones become zero-width
    spaces, and a soft hyphen, which takes a cell, becomes a hyphen.
    """
    if text.isascii() or not _ALL_UNSHOWN.search(text):
        return text
    return _signed(text, 0).translate(_SPACE_LIKE_CHARACTERS)


def clean_line(text: str, limit: int = 120) -> str:
    r"""Return foreign text as one line for the screen.

    Newlines and tabs become `` `` and ``\t``. A line that is cut at the limit ends with ….
    """
    considered = text[: 2 * limit]  # a huge name costs no more than a long one
    line = screen_text(considered).strip("\n").replace("\n", "\\n").replace("\t", "\\t")
    is_whole = len(line) <= limit and len(considered) == len(text)
    if is_whole:
        return line
    return line[: limit - 1] + "…"


def _signed(text: str, start: int) -> str:
    """Return the text with signs for misplaced characters from ``start`` on."""

    def sign(match: re.Match[str]) -> str:
        position = match.start()
        if position < start or _is_in_place(text, position):
            return match[0]
        return REPLACEMENT

    return _DOUBTFUL.sub(sign, text)


def _is_in_place(text: str, position: int) -> bool:
    """Whether a doubtful character belongs where it is: in a flag, or as a variation selector."""
    character = text[position]
    if position:
        previous = text[position - 1 : position]
    else:
        previous = ""
    if "\ufe00" <= character <= "\ufe0f":
        return previous != "" and not previous.isspace() and not _SELECTOR.match(previous)
    if "\U000e0100" <= character <= "\U000e01ef":
        return _IDEOGRAPH.match(previous) is not None
    begin = text.rfind("\U0001f3f4", max(0, position - _MOST_FLAG_CHARACTERS + 1), position)
    return begin >= 0 and _FLAG.fullmatch(text, begin, position + 1) is not None


def _is_mark(character: str) -> bool:
    return character in _KEPT_MARKS or unicodedata.category(character) in ("Mn", "Me")
