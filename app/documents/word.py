"""Text of Word documents: body, notes, headers and comments, with changes accepted.

Parts are found by their relations, as in Word.
"""

from __future__ import annotations

import email
import io
import posixpath
import re
import zipfile
from typing import BinaryIO
from xml.parsers import expat

from app.documents.text_file import MAX_SOURCE_BYTES, BoundedText
from app.documents.web_page import html_text
from app.documents.word_numbers import ParagraphNumbers
from app.documents.word_story import Numbers, Story
from app.documents.xml_part import Attributes, parse_part
from app.documents.zip_parts import ZipParts
from app.program.refusals import Refusal
from app.text.figures import counted

_COMPOUND = b"\xd0\xcf\x11\xe0"
"""First bytes of Word 97 files and of files with a password."""


_PICTURES = frozenset(("image", "chart", "oleObject", "package", "video", "audio"))
"""Kinds of parts without readable text, by the last word of their relation."""


def docx_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of a document, with a line for each paragraph."""
    text = text or BoundedText()
    if file.read(len(_COMPOUND)) == _COMPOUND:
        is_locked = "EncryptedPackage".encode("utf-16-le") in file.read(MAX_SOURCE_BYTES)
        raise Refusal(
            "is locked by a password (save it without one)"
            if is_locked
            else "is an old Word file (save it as DOCX)"
        )
    with zipfile.ZipFile(file) as archive:
        document = _Document(ZipParts(archive), text)
        text.notes += filter(None, [document.left_out()])
        return document.read()


class _Document:
    """All parts of a document that have text."""

    def __init__(self, archive: ZipParts, text: BoundedText) -> None:
        self._archive = archive
        self._main = self._main_part()
        self._related = archive.related(self._main)
        self._addresses = archive.addresses(self._main)
        self._text = text

    def read(self) -> str:
        """Return the text of headers, body, diagrams, notes, comments and footers."""
        numbers: Numbers = {}
        next_number = self._paragraph_numbers().next_number
        self._margins("header")
        story = Story(
            self._text,
            numbers,
            self._chunk,
            next_number=next_number,
            address=lambda relation: self._addresses.get(relation, ""),
        )
        story.read(self._archive.read(self._main))
        for name in self._parts("diagramData"):
            Story(self._text, {}, self._chunk).read(self._archive.read(name))
        for part_type in ("footnotes", "endnotes", "comments"):
            for name in self._parts(part_type):
                Story(self._text, numbers, self._chunk, part_type).read(self._archive.read(name))
        self._margins("footer")
        return self._text.joined()

    def left_out(self) -> str:
        """Return a line about content that is not text; "" if there is none."""
        kinds = [part_type for _, part_type, _ in self._related if part_type in _PICTURES]
        n_pictures = kinds.count("image")
        n_objects = len(kinds) - n_pictures
        if n_pictures:
            names = [counted(n_pictures, "picture")]
        else:
            names = []
        if n_objects == 1:
            names += [counted(n_objects, "chart or other object")]
        else:
            names += []
        if n_objects > 1:
            names += [f"{n_objects} charts and other objects"]
        else:
            names += []
        if names:
            return f"not read: {' and '.join(names)}"
        return ""

    def _paragraph_numbers(self) -> ParagraphNumbers:
        """Return the numbering of lists; none if its parts are damaged."""
        raw = {part_type: self._raw(part_type) for part_type in ("numbering", "styles")}
        try:
            return ParagraphNumbers(raw["numbering"], raw["styles"])
        except expat.ExpatError:
            return ParagraphNumbers()

    def _raw(self, part_type: str) -> bytes:
        names = self._parts(part_type)
        if names:
            return self._archive.read(names[0])
        return b""

    def _main_part(self) -> str:
        names = [
            name
            for _, part_type, name in self._archive.related("")
            if part_type == "officeDocument"
        ]
        if not names and "[Content_Types].xml" in self._archive:
            names = _main_by_type(self._archive)
        names = names or self._archive.named(r"word/document\d*\.xml")
        if not names:
            raise Refusal("is not a Word document")
        return names[0]

    def _parts(self, part_type: str) -> list[str]:
        related = [name for _, relation, name in self._related if relation == part_type]
        folder = re.escape(posixpath.dirname(self._main).lower())
        return list(dict.fromkeys(related)) or self._archive.named(rf"{folder}/{part_type}\d*\.xml")

    def _margins(self, part_type: str) -> None:
        """Add headers or footers, each once, if they have more than a page number."""
        seen = set()
        for name in self._parts(part_type):
            text = BoundedText()
            Story(text, {}, self._chunk).read(self._archive.read(name))
            words = text.joined().strip()
            if words not in seen and any(character.isalpha() for character in words):
                seen.add(words)
                self._text.add(f"{words}\n")

    def _chunk(self, relation: str) -> str:
        """Return the text of an embedded page in another format."""
        name = next((name for relation_id, _, name in self._related if relation_id == relation), "")
        if name:
            raw = self._archive.read(name)
        else:
            raw = b""
        if raw.lstrip()[:13].lower() == b"mime-version:":
            pages = [
                section
                for section in email.message_from_bytes(raw).walk()
                if section.get_content_subtype() == "html"
            ]
            if pages:
                content = pages[0].get_payload(decode=True)
            else:
                content = None
            if isinstance(content, bytes):
                raw = content
            else:
                raw = b""
        if b"<" in raw and not raw.startswith(b"PK"):
            return html_text(io.BytesIO(raw))
        return ""


def _main_by_type(archive: ZipParts) -> list[str]:
    """Return the parts whose content type is that of a main document."""
    names = []

    def begin(element: str, attributes: Attributes) -> None:
        content_type = attributes.get("ContentType", "").lower()
        if element == "Override" and content_type.endswith(
            (
                "document.main+xml",
                "template.main+xml",
                "document.macroenabled.main+xml",
                "template.macroenabledtemplate.main+xml",
            )
        ):
            names.append(attributes.get("PartName", "").lstrip("/"))

    parse_part(archive.read("[Content_Types].xml"), begin)
    return [name for name in names if name in archive]
