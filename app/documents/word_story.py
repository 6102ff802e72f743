"""Text of one part (story) of a Word document.

Names of ECMA-376 elements have no namespaces, since it has two sets of them; those of formulas
begin with ``m:``.
"""

from __future__ import annotations

from collections.abc import Callable

from app.documents.text_file import BoundedText
from app.documents.word_numbers import NextNumber
from app.documents.xml_part import Attributes, parse_part

Numbers = dict[tuple[str, str], int]
"""Numbers of notes by their part and id; 0 if a change removed the mark."""

_CHARACTERS = {
    "tab": "\t",
    "ptab": "\t",
    "br": "\n",
    "cr": "\n",
    "noBreakHyphen": "-",
    "txbxContent": "\n",
    "m:num": "(",
    "m:den": "/(",
    "m:sup": "^(",
    "m:sub": "_(",
    "m:rad": "√",
}
"""Elements that stand for characters. A soft hyphen is only visible at the end of a line."""
_ENDS = {"m:num": ")", "m:den": ")", "m:sup": ")", "m:sub": ")"}
_PROPERTIES = ("pPr", "tblPr", "tcPr", "trPr", "tblGrid", "sectPr", "sdtPr")
_UNSHOWN = frozenset(
    (*_PROPERTIES, "instrText", "delText", "delInstrText", "del", "moveFrom", "rt", "binData")
)
"""Elements whose text is not shown: properties, field codes, deleted text and pronunciations."""
_NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes"}
_LISTED = {"footnote": "footnotes", "endnote": "endnotes", "comment": "comments"}
_UNKNOWN = "\u25a1"
"""Replacement for an unknown symbol."""


def _placed(first: int, characters: str) -> dict[int, str]:
    return {first + index: character for index, character in enumerate(characters)}


_SYMBOL = {
    **_placed(0x41, "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ"),
    **_placed(0x61, "αβχδεφγηιϕκλμνοπθρστυϖωξψζ"),
    **_placed(0xA1, "ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…"),
    **_placed(0xC0, "ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊"),
    **dict(zip(b"\"$'*-@\\^\xe5\xf2", "∀∃∋∗−≅∴⊥∑∫", strict=True)),
}
_WINGDINGS = dict(zip(b"(*JKLlnoquv\x9f\xa7\xa8\xd8", "☎✉☺😐☹●■□❑◆❖•▪◻➢", strict=True))
_WINGDINGS |= {**_placed(0xDF, "←→↑↓"), **_placed(0xFB, "✗✓☒☑"), 0xE8: "➔"}
_WINGDINGS_2 = {0x4F: "✗", 0x50: "✓", 0x51: "☒", 0x52: "☑", 0x53: "☒", 0x54: "☒", 0xA3: "□"}
_FONTS = {"symbol": _SYMBOL, "wingdings": _WINGDINGS, "wingdings 2": _WINGDINGS_2}


class Story:
    """Reads the text of one part.

    Args:
        numbers: numbers of notes, set by the body and used by the parts of the notes.
        chunk: returns the text of an embedded page in another format, by relation id.
        kind: type of the listed items if the part is a list: footnotes, endnotes or comments.
        next_number: counts a paragraph of a list; None if paragraphs have no numbers.
        address: returns the address of a link, by relation id; None if links have no addresses.
    """

    def __init__(
        self,
        text: BoundedText,
        numbers: Numbers,
        chunk: Callable[[str], str],
        item_type: str = "",
        next_number: NextNumber | None = None,
        address: Callable[[str], str] | None = None,
    ) -> None:
        self._text = text
        self._numbers = numbers
        self._chunk = chunk
        self._item_type = item_type
        self._next_number = next_number
        self._address = address
        self._style = self._list_id = ""
        self._level: int | None = None
        self._paragraph_number = ""
        """Number of the open paragraph whose text has not begun."""
        self._links: list[str] = []
        """Addresses of open links."""
        self._open: list[str] = []
        self._hidden_at = 0
        """Depth of the outermost hidden element; 0 if there is none."""
        self._branches: list[tuple[int, bool]] = []
        """Open alternatives: number of letters before the current branch, and whether an earlier
        one had text.
        """
        self._results: list[bool] = []
        """Open fields: whether the result has begun."""
        self._cells: list[int] = []
        """Numbers of cells in open table rows."""
        self._fences: list[list[str]] = []
        self._n_letters = 0
        self._is_run_hidden = self._is_joined = self._has_gap = False

    def read(self, raw: bytes) -> None:
        """Read the part."""
        parse_part(raw, self._begin, self._end, self._letters)

    def _begin(self, name: str, attributes: Attributes) -> None:
        if self._open:
            parent = self._open[-1]
        else:
            parent = ""
        self._open.append(name)
        if name == "p":
            self._style = self._list_id = self._paragraph_number = ""
            self._level = None
        if name == "del" and self._open[-3:-1] == ["pPr", "rPr"]:
            self._is_joined = True
        elif self._hidden_at:
            self._read_property(name, attributes)
            if name in _NOTES:
                self._numbers.setdefault((_NOTES[name], attributes.get("id", "")), 0)
        elif name in _UNSHOWN or self._is_passed_over(name, attributes):
            self._hidden_at = len(self._open)
        elif name == "vanish" and parent == "rPr":
            self._is_run_hidden = attributes.get("val") not in ("0", "false", "off")
        elif name == "AlternateContent":
            self._branches.append((0, False))
        elif name == "Choice" or name == "Fallback":
            self._branches[-1:] = [
                (self._n_letters, any(has_text for _, has_text in self._branches[-1:]))
            ]
        elif name == "hyperlink":
            self._links.append(self._address(attributes.get("id", "")) if self._address else "")
        elif name == "docPr" and (description := attributes.get("descr", "").strip()):
            self._add(f"[image: {description}]")
        elif name == "fldChar":
            self._field(attributes.get("fldCharType", ""))
        elif name == "tr":
            self._cells.append(0)
        elif name == "tc" and self._cells:
            self._text.add("\t" if self._cells[-1] else "")
            self._cells[-1] += 1
            self._has_gap = False
        else:
            self._add(self._character(name, parent, attributes))

    def _read_property(self, name: str, attributes: Attributes) -> None:
        """Handle the list properties of the open paragraph."""
        value = attributes.get("val", "")
        if self._open[-3:-1] == ["p", "pPr"] and name == "pStyle":
            self._style = value
        elif self._open[-4:-1] == ["p", "pPr", "numPr"] and name == "numId":
            self._list_id = value
        elif self._open[-4:-1] == ["p", "pPr", "numPr"] and name == "ilvl":
            if value in tuple("012345678"):
                self._level = int(value)
            else:
                self._level = None

    def _is_passed_over(self, name: str, attributes: Attributes) -> bool:
        """Whether an element is skipped: another version of text that was read, or not text."""
        if name in ("Choice", "Fallback"):
            return bool(self._branches) and self._branches[-1][1]
        if _LISTED.get(name, "") != self._item_type or not self._item_type:
            return False
        note = self._item_type, attributes.get("id", "")
        number = self._numbers.get(note)
        if (
            number == 0
            or "eparator" in attributes.get("type", "")
            or attributes.get("type") == "continuationNotice"
        ):
            return True
        if self._item_type == "comments":
            self._text.add(f"[comment by {attributes.get('author', '?')}] ")
        else:
            self._text.add(f"[{number}] " if number else "")
        return False

    def _character(self, name: str, parent: str, attributes: Attributes) -> str:
        """Return the text of an element."""
        if name in _NOTES:
            note = _NOTES[name], attributes.get("id", "")
            number = self._numbers.setdefault(note, 1 + max(self._numbers.values(), default=0))
            return f"[{number}]"
        if name == "sym":
            return _symbol(attributes.get("font", ""), attributes.get("char", ""))
        if name == "altChunk":
            return self._chunk(attributes.get("id", ""))
        if name == "m:chr" and parent in ("m:naryPr", "m:accPr"):
            return attributes.get("val", "")
        if name == "m:d":
            self._fences.append(["(", ")"])
        elif name in ("m:begChr", "m:endChr") and self._fences:
            self._fences[-1][name == "m:endChr"] = attributes.get("val", "")
        elif name == "m:e" and parent == "m:d":
            fence = self._fences[-1][0]
            self._fences[-1][0] = "|"
            return fence
        elif name == "m:e" and parent == "m:rad":
            return "("
        return _CHARACTERS.get(name, "")

    def _end(self, name: str) -> None:
        depth = len(self._open)
        self._open.pop()
        if self._hidden_at:
            if depth == self._hidden_at:
                self._hidden_at = 0
            if (
                name == "pPr"
                and not self._hidden_at
                and self._open[-1:] == ["p"]
                and self._next_number
            ):
                self._paragraph_number = self._next_number(self._style, self._list_id, self._level)
        elif name == "hyperlink":
            self._end_link()
        elif name == "p":
            self._end_paragraph()
        elif name in ("r", "m:r"):
            self._is_run_hidden = False
        elif name == "AlternateContent":
            self._branches.pop()
        elif name in ("Choice", "Fallback"):
            self._branches[-1:] = [
                (n_before, self._n_letters > n_before) for n_before, _ in self._branches[-1:]
            ]
        elif name == "tr":
            self._cells.pop()
            self._text.add("\n")
            self._has_gap = False
        elif name == "m:d":
            self._add(self._fences.pop()[1])
        elif name == "m:e" and self._open[-1:] == ["m:rad"]:
            self._add(")")
        else:
            self._add(_ENDS.get(name, ""))

    def _end_link(self) -> None:
        address = self._links.pop()
        if address:
            self._add(f" ({address})")

    def _end_paragraph(self) -> None:
        if self._cells and self._cells[-1]:
            self._has_gap = not self._is_joined
        elif not self._is_joined:
            self._text.add("\n")
        self._is_joined = False

    def _field(self, item_type: str) -> None:
        if item_type == "begin":
            self._results.append(False)
        elif item_type == "separate":
            self._results[-1:] = [True] * len(self._results[-1:])
        elif item_type == "end":
            del self._results[-1:]

    def _letters(self, letters: str) -> None:
        if self._open and self._open[-1] in ("t", "m:t"):
            self._add(letters)

    def _add(self, words: str) -> None:
        if not words or self._hidden_at or self._is_run_hidden or not all(self._results):
            return
        if self._paragraph_number and not words.isspace():
            words = self._paragraph_number + words
            self._paragraph_number = ""
        self._text.add(f" {words}" if self._has_gap else words)
        self._has_gap = False
        self._n_letters += not words.isspace()


def _symbol(font: str, code: str) -> str:
    """Return the symbol with a hexadecimal code in a font."""
    try:
        number = int(code, 16)
    except ValueError:
        return _UNKNOWN
    is_private = 0xF000 <= number <= 0xF0FF
    if font.lower() in _FONTS:
        return _FONTS[font.lower()].get(number & 0xFF if is_private else number, _UNKNOWN)
    if is_private or not 0x20 <= number <= 0xFFFD:
        return _UNKNOWN
    return chr(number)
