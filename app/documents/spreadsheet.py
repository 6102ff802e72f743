"""Text of spreadsheets in the format XLSX: the sheets as lines of cells with tabs between them."""

from __future__ import annotations

import re
import zipfile
from datetime import datetime, timedelta
from typing import BinaryIO

from app.documents.text_file import BoundedText
from app.documents.xml_part import Attributes, parse_part
from app.documents.zip_parts import ZipParts
from app.program.refusals import Refusal

_COMPOUND = b"\xd0\xcf\x11\xe0"
"""First bytes of Excel 97 files and of files with a password."""
_DATE_FORMATS = frozenset((*range(14, 23), *range(45, 48)))
"""Numbers of the built-in formats of dates and times (ECMA-376, part 1, 18.8.30)."""
_QUOTED = re.compile(r"\"[^\"]*\"|\[[^\]]*\]|\\.")
_FIRST_DAY = datetime(1899, 12, 30)
_FIRST_DAY_OF_1904 = datetime(1904, 1, 1)
_DAY_S = 86_400
_MOST_COLUMNS = 1 << 14


def xlsx_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of all sheets, each after its name.

    Raises:
        Refusal: the file is no such spreadsheet, or is locked by a password.
    """
    text = text or BoundedText()
    if file.read(len(_COMPOUND)) == _COMPOUND:
        raise Refusal("is an old Excel file or locked by a password (save it as XLSX without one)")
    with zipfile.ZipFile(file) as archive:
        parts = ZipParts(archive)
        books = [name for _, kind, name in parts.related("") if kind == "officeDocument"]
        books = books or parts.named(r"xl/workbook\.xml")
        if not books:
            raise Refusal("is not a spreadsheet")
        _Workbook(parts, books[0], text).read()
    return text.joined()


class _Workbook:
    """Sheets of a spreadsheet, with the texts and formats that they share."""

    def __init__(self, parts: ZipParts, name: str, text: BoundedText) -> None:
        self._parts = parts
        self._text = text
        related = parts.related(name)
        self._paths = {relation: path for relation, _, path in related}
        self._sheets: list[tuple[str, str]] = []
        """Name and relation of each sheet."""
        self._first_day = _FIRST_DAY
        parse_part(parts.read(name), self._begin)
        by_kind = {kind: path for _, kind, path in related}
        self._strings: list[str] = []
        if "sharedStrings" in by_kind:
            self._strings = shared_strings(parts.read(by_kind["sharedStrings"]))
        self._date_styles: set[int] = set()
        if "styles" in by_kind:
            self._date_styles = date_styles(parts.read(by_kind["styles"]))

    def _begin(self, element: str, attributes: Attributes) -> None:
        if element == "sheet":
            # the relation's id has a name space of its own and no other name ends like it
            self._sheets.append((attributes.get("name", ""), attributes.get("id", "")))
        elif element == "workbookPr" and attributes.get("date1904") in ("1", "true"):
            self._first_day = _FIRST_DAY_OF_1904

    def read(self) -> None:
        """Add the text of all sheets."""
        for name, relation in self._sheets:
            path = self._paths.get(relation, "")
            if path:
                self._text.add(f"{name}:\n")
                sheet = _Sheet(self._text, self._strings, self._date_styles, self._first_day)
                sheet.read(self._parts.read(path))
                self._text.add("\n")


class _Sheet:
    """Reads the cells of a sheet in order."""

    def __init__(
        self,
        text: BoundedText,
        strings: list[str],
        date_styles: set[int],
        first_day: datetime,
    ) -> None:
        self._text = text
        self._strings = strings
        self._date_styles = date_styles
        self._first_day = first_day
        self._column = 0
        """Number of cells of the row that are written."""
        self._cell_column = 0
        self._kind = ""
        self._style = 0
        self._is_value = False
        self._value = ""

    def read(self, raw: bytes) -> None:
        """Add the rows that have cells."""
        parse_part(raw, self._begin, self._end, self._letters)

    def _begin(self, element: str, attributes: Attributes) -> None:
        if element == "row":
            self._column = 0
            self._cell_column = -1
        elif element == "c":
            place = column_of(attributes.get("r", ""))
            self._cell_column = self._cell_column + 1 if place is None else place
            self._kind = attributes.get("t", "n")
            style = attributes.get("s", "")
            self._style = int(style) if style.isdecimal() and len(style) < 8 else 0
            self._value = ""
        elif element in ("v", "t"):
            self._is_value = True

    def _letters(self, letters: str) -> None:
        if self._is_value:
            self._value += letters

    def _end(self, element: str) -> None:
        if element in ("v", "t"):
            self._is_value = False
        elif element == "c" and self._value:
            self._text.add("\t" * max(0, self._cell_column - self._column) + self._shown())
            self._column = max(self._column, self._cell_column)
        elif element == "row" and self._cell_column >= 0:
            self._text.add("\n")

    def _shown(self) -> str:
        """Return the value of the cell as text."""
        value = self._value
        if self._kind == "s" and value.isdecimal() and len(value) < 10:
            index = int(value)
            return self._strings[index] if index < len(self._strings) else ""
        if self._kind == "b":
            return "TRUE" if value == "1" else "FALSE"
        if self._kind == "n" and self._style in self._date_styles:
            return date_text(value, self._first_day)
        return " ".join(value.split())


def column_of(place: str) -> int | None:
    """Return the index of the column of a cell such as "AB12"; None if it is not told."""
    letters = re.match(r"[A-Z]{1,3}", place)
    if letters is None:
        return None
    index = 0
    for letter in letters[0]:
        index = 26 * index + ord(letter) - ord("A") + 1
    return min(index, _MOST_COLUMNS) - 1


def date_text(value: str, first_day: datetime) -> str:
    """Return a number of days as a date, or as a time of day below one day."""
    try:
        seconds = round(float(value) * _DAY_S)
        moment = first_day + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return value
    if seconds < 0:
        return value
    if seconds < _DAY_S:
        return moment.strftime("%H:%M:%S")
    if moment.hour or moment.minute or moment.second:
        return moment.isoformat(sep=" ", timespec="minutes")
    return moment.date().isoformat()


def shared_strings(raw: bytes) -> list[str]:
    """Return the texts that cells refer to by number."""
    strings: list[str] = []
    pieces: list[str] = []
    reading = {"t": False, "rPh": False}

    def begin(element: str, _: Attributes) -> None:
        if element == "si":
            pieces.clear()
        elif element in reading:
            reading[element] = True

    def end(element: str) -> None:
        if element == "si":
            strings.append(" ".join("".join(pieces).split()))
        elif element in reading:
            reading[element] = False

    def letters(text: str) -> None:
        if reading["t"] and not reading["rPh"]:  # that is how a Japanese text is read aloud
            pieces.append(text)

    parse_part(raw, begin, end, letters)
    return strings


def date_styles(raw: bytes) -> set[int]:
    """Return the numbers of the styles of cells that show dates or times."""
    date_formats = set(_DATE_FORMATS)
    styles: list[int] = []
    is_inside = {"cellXfs": False}

    def begin(element: str, attributes: Attributes) -> None:
        number = attributes.get("numFmtId", "")
        if element == "numFmt" and number.isdecimal():
            code = _QUOTED.sub("", attributes.get("formatCode", "")).lower()
            if re.search("[ymdhs]", code.replace("general", "")):
                date_formats.add(int(number))
        elif element in is_inside:
            is_inside[element] = True
        elif element == "xf" and is_inside["cellXfs"]:
            styles.append(int(number) if number.isdecimal() else 0)

    def end(element: str) -> None:
        if element in is_inside:
            is_inside[element] = False

    parse_part(raw, begin, end)
    return {index for index, number in enumerate(styles) if number in date_formats}
