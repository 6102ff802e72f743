"""Text of OpenDocument files: texts (ODT), spreadsheets (ODS) and presentations (ODP)."""

from __future__ import annotations

import zipfile
from typing import BinaryIO

from app.documents.text_file import BoundedText
from app.documents.web_page import without_gaps
from app.documents.xml_part import Attributes, parse_part
from app.documents.zip_parts import ZipParts
from app.program.refusals import Refusal

_UNREAD = frozenset(("tracked-changes", "annotation", "forms", "settings", "styles", "scripts"))
"""Elements without text of the document: deleted text, remarks, and what describes the form."""
_LINES = frozenset(("p", "h", "table-row"))
"""Elements that are lines."""
_MOST_REPEATED = 256
"""Limit on repeated spaces and empty cells: empty ends of sheets repeat a million times."""


def open_document_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of a document, with a line for each paragraph and for each row of a table.

    Raises:
        Refusal: the file is no such document, or is locked by a password.
    """
    text = text or BoundedText()
    with zipfile.ZipFile(file) as archive:
        parts = ZipParts(archive)
        if "META-INF/manifest.xml" in parts and _is_encrypted(parts):
            raise Refusal("is locked by a password (save it without one)")
        if "content.xml" not in parts:
            raise Refusal("is not an OpenDocument file")
        _Content(text).read(parts.read("content.xml"))
    return without_gaps(text.joined())


def _is_encrypted(parts: ZipParts) -> bool:
    elements: list[str] = []
    parse_part(parts.read("META-INF/manifest.xml"), lambda element, _: elements.append(element))
    return "encryption-data" in elements


class _Content:
    """Reads the elements of a document in order."""

    def __init__(self, text: BoundedText) -> None:
        self._text = text
        self._unread_depth = 0
        """Number of open elements within one that is not read, that one included."""
        self._n_cells = 0
        """Number of open cells; paragraphs in a cell are in one line."""
        self._n_empty_cells = 0
        """Number of cells to add before the next one that has text."""
        self._has_paragraph = False
        """Whether the open cell has a paragraph."""

    def read(self, raw: bytes) -> None:
        """Add the text of the document."""
        parse_part(raw, self._begin, self._end, self._letters)

    def _begin(self, element: str, attributes: Attributes) -> None:
        if self._unread_depth or element in _UNREAD:
            self._unread_depth += 1
        elif element == "tab":
            self._text.add("\t")
        elif element == "line-break":
            self._text.add("\n" if not self._n_cells else " ")
        elif element == "s":
            self._text.add(" " * _repeated(attributes, "c"))
        elif element == "table" and attributes.get("name"):
            self._text.add(f"\n{attributes['name']}:\n")
        elif element in ("table-cell", "covered-table-cell"):
            self._begin_cell(attributes)
        elif element in ("p", "h") and self._n_cells:
            self._text.add("\t" * self._n_empty_cells + " " * self._has_paragraph)
            self._n_empty_cells = 0
            self._has_paragraph = True

    def _begin_cell(self, attributes: Attributes) -> None:
        self._n_cells += 1
        self._has_paragraph = False
        self._repeats = _repeated(attributes, "number-columns-repeated")

    def _end(self, element: str) -> None:
        if self._unread_depth:
            self._unread_depth -= 1
        elif element in ("table-cell", "covered-table-cell"):
            self._n_cells -= 1
            self._n_empty_cells += self._repeats
        elif element == "table-row":
            self._n_empty_cells = 0
            self._text.add("\n")
        elif element in _LINES and not self._n_cells:
            self._text.add("\n")

    def _letters(self, letters: str) -> None:
        if not self._unread_depth and not letters.isspace():
            self._text.add(letters.replace("\n", " "))
        elif not self._unread_depth and letters == " ":
            self._text.add(letters)


def _repeated(attributes: Attributes, name: str) -> int:
    """Return how often a space or a cell is repeated, within the limit."""
    value = attributes.get(name, "1")
    if not value.isdecimal() or len(value) > 8:
        return 1
    return min(int(value), _MOST_REPEATED)
