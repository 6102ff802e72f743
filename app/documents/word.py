"""What a reader of a Word document sees: its words, notes, headers and comments, with its changes
accepted.

Parts are found as Word finds them, by the relations between them.
"""

from __future__ import annotations

import email
import io
import posixpath
import re
import zipfile
from typing import BinaryIO
from urllib.parse import unquote
from xml.parsers import expat

from app.documents.text_file import MAX_SOURCE_BYTES, BoundedText
from app.documents.web_page import html_text
from app.documents.word_numbers import ParagraphNumbers
from app.documents.word_story import Numbers, Story
from app.documents.xml_part import Attributes, parse_part
from app.program.refusals import Refusal
from app.text.figures import counted

_COMPOUND = b"\xd0\xcf\x11\xe0"
"""Files of Word 97 begin so, and those with a password."""


_WEB_ADDRESS = re.compile(r"(?:https?://|mailto:)[^\s<>]{1,200}", re.I)
_PICTURES = frozenset(("image", "chart", "oleObject", "package", "video", "audio"))
"""Kinds of parts, by the last words of their relations, that hold no words that are read."""


class _Archive:
    """The parts of a document, by their names; together they unpack to so much at most."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._room = MAX_SOURCE_BYTES
        self._infos = {self._plain(info.filename): info for info in archive.infolist()}

    def __contains__(self, name: str) -> bool:
        return self._plain(name) in self._infos

    def read(self, name: str) -> bytes:
        """Return a part. Raises Refusal: it is too large."""
        with self._archive.open(self._infos[self._plain(name)]) as part:
            raw = part.read(self._room + 1)
        self._room -= len(raw)
        if self._room < 0:
            raise Refusal(f"unpacks to more than {MAX_SOURCE_BYTES >> 20} MiB")
        return raw

    def related(self, name: str) -> list[tuple[str, str, str]]:
        """Return the parts that one refers to; of "" the whole document's: id, last word of the
        relation, name."""
        found = []
        folder = posixpath.dirname(name)
        for attributes in self._relations(name):
            if attributes.get("TargetMode") != "External":
                target = unquote(attributes.get("Target", "")).replace("\\", "/")
                place = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
                found.append(
                    (attributes.get("Id", ""), attributes.get("Type", "").rpartition("/")[2], place)
                )
        return [one for one in found if one[2] in self]

    def addresses(self, name: str) -> dict[str, str]:
        """Return the web addresses that a part refers to, by the ids of their relations."""
        return {
            attributes.get("Id", ""): attributes.get("Target", "")
            for attributes in self._relations(name)
            if attributes.get("TargetMode") == "External"
            and _WEB_ADDRESS.fullmatch(attributes.get("Target", ""))
        }

    def _relations(self, name: str) -> list[Attributes]:
        folder, base = posixpath.split(name)
        rels = posixpath.join(folder, "_rels", f"{base}.rels")
        relations: list[Attributes] = []

        def begin(element: str, attributes: Attributes) -> None:
            if element == "Relationship":
                relations.append(attributes)

        if rels in self:
            parse_part(self.read(rels), begin)
        return relations

    def named(self, pattern: str) -> list[str]:
        """Return the names that fit a pattern."""
        return sorted(name for name in self._infos if re.fullmatch(pattern, name))

    @staticmethod
    def _plain(name: str) -> str:
        return name.replace("\\", "/").lstrip("/").lower()


def docx_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the words of a document, a line for each paragraph.

    ``text`` takes them as they are read.
    """
    text = text or BoundedText()
    if file.read(len(_COMPOUND)) == _COMPOUND:
        is_locked = "EncryptedPackage".encode("utf-16-le") in file.read(MAX_SOURCE_BYTES)
        raise Refusal(
            "is locked by a password (save it without)"
            if is_locked
            else "is an old Word file (save it as DOCX)"
        )
    with zipfile.ZipFile(file) as opened:
        if any(info.flag_bits & 1 for info in opened.infolist()):
            raise Refusal("is locked by a password (save it without)")
        document = _Document(_Archive(opened), text)
        text.notes += filter(None, [document.left_out()])
        return document.read()


class _Document:
    """All parts of a document that hold words."""

    def __init__(self, archive: _Archive, text: BoundedText) -> None:
        self._archive = archive
        self._main = self._main_part()
        self._related = archive.related(self._main)
        self._addresses = archive.addresses(self._main)
        self._text = text

    def read(self) -> str:
        """Return what is read: headers, body, diagrams, notes, comments, footers."""
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
        for part in self._parts("diagramData"):
            Story(self._text, {}, self._chunk).read(self._archive.read(part))
        for kind in ("footnotes", "endnotes", "comments"):
            for part in self._parts(kind):
                Story(self._text, numbers, self._chunk, kind).read(self._archive.read(part))
        self._margins("footer")
        return self._text.joined()

    def left_out(self) -> str:
        """Return a line that names what is not text; "" if there is nothing."""
        kinds = [kind for _, kind, _ in self._related if kind in _PICTURES]
        n_pictures = kinds.count("image")
        n_others = len(kinds) - n_pictures
        if n_pictures:
            names = [counted(n_pictures, "picture")]
        else:
            names = []
        if n_others == 1:
            names += [counted(n_others, "chart or other object")]
        else:
            names += []
        if n_others > 1:
            names += [f"{n_others} charts and other objects"]
        else:
            names += []
        if names:
            return f"not read: {' and '.join(names)}"
        return ""

    def _paragraph_numbers(self) -> ParagraphNumbers:
        """Return the numbers of lists; none where their parts are damaged."""
        raw = {kind: self._raw(kind) for kind in ("numbering", "styles")}
        try:
            return ParagraphNumbers(raw["numbering"], raw["styles"])
        except expat.ExpatError:
            return ParagraphNumbers()

    def _raw(self, kind: str) -> bytes:
        parts = self._parts(kind)
        if parts:
            return self._archive.read(parts[0])
        return b""

    def _main_part(self) -> str:
        parts = [place for _, kind, place in self._archive.related("") if kind == "officeDocument"]
        if not parts and "[Content_Types].xml" in self._archive:
            parts = _main_by_type(self._archive)
        parts = parts or self._archive.named(r"word/document\d*\.xml")
        if not parts:
            raise Refusal("is not a Word document")
        return parts[0]

    def _parts(self, kind: str) -> list[str]:
        related = [place for _, relation, place in self._related if relation == kind]
        folder = re.escape(posixpath.dirname(self._main).lower())
        return list(dict.fromkeys(related)) or self._archive.named(rf"{folder}/{kind}\d*\.xml")

    def _margins(self, kind: str) -> None:
        """Add headers or footers, each once, if there is more in them than the number of a page."""
        seen = set()
        for part in self._parts(kind):
            text = BoundedText()
            Story(text, {}, self._chunk).read(self._archive.read(part))
            words = text.joined().strip()
            if words not in seen and any(one.isalpha() for one in words):
                seen.add(words)
                self._text.add(f"{words}\n")

    def _chunk(self, relation: str) -> str:
        """Return the text of a page that is in the document as it was written elsewhere."""
        place = next((place for one, _, place in self._related if one == relation), "")
        if place:
            raw = self._archive.read(place)
        else:
            raw = b""
        if raw.lstrip()[:13].lower() == b"mime-version:":
            pages = [
                part
                for part in email.message_from_bytes(raw).walk()
                if part.get_content_subtype() == "html"
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


def _main_by_type(archive: _Archive) -> list[str]:
    """Return the parts that are said to be a document's main one, whatever that may do."""
    found = []

    def begin(element: str, attributes: Attributes) -> None:
        kind = attributes.get("ContentType", "").lower()
        if element == "Override" and kind.endswith(
            (
                "document.main+xml",
                "template.main+xml",
                "document.macroenabled.main+xml",
                "template.macroenabledtemplate.main+xml",
            )
        ):
            found.append(attributes.get("PartName", "").lstrip("/"))

    parse_part(archive.read("[Content_Types].xml"), begin)
    return [one for one in found if one in archive]
