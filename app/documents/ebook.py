"""Text of e-books in the format EPUB: their chapters in reading order."""

from __future__ import annotations

import posixpath
import zipfile
from typing import BinaryIO
from urllib.parse import unquote

from app.documents.encoding import decoded
from app.documents.text_file import BoundedText
from app.documents.web_page import add_page, without_gaps
from app.documents.xml_part import Attributes, parse_part
from app.documents.zip_parts import ZipParts
from app.program.refusals import Refusal

_CONTAINER = "META-INF/container.xml"
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Methods of encryption that hide fonts alone."""


def epub_text(file: BinaryIO, text: BoundedText | None = None) -> str:
    """Return the text of a book.

    Raises:
        Refusal: the book is encrypted or has no chapters.
    """
    text = text or BoundedText()
    with zipfile.ZipFile(file) as archive:
        parts = ZipParts(archive)
        _refuse_encrypted(parts)
        chapters = _chapters(parts)
        if not chapters:
            raise Refusal("has no chapters (convert it to HTML, PDF or text)")
        for name in chapters:
            add_page(decoded(parts.read(name), "the book"), text)
            text.add("\n\n")
    return without_gaps(text.joined())


def _refuse_encrypted(parts: ZipParts) -> None:
    methods: list[str] = []

    def begin(element: str, attributes: Attributes) -> None:
        if element == "EncryptionMethod":
            methods.append(attributes.get("Algorithm", ""))

    if "META-INF/encryption.xml" in parts:
        parse_part(parts.read("META-INF/encryption.xml"), begin)
    if any(method not in _FONTS for method in methods):
        raise Refusal("is protected against copying (open it in the program it was bought for)")


def _chapters(parts: ZipParts) -> list[str]:
    """Return the names of the chapters in reading order."""
    packages: list[str] = []
    addresses: dict[str, str] = {}
    order: list[str] = []

    def begin_container(element: str, attributes: Attributes) -> None:
        if element == "rootfile":
            packages.append(attributes.get("full-path", ""))

    def begin_package(element: str, attributes: Attributes) -> None:
        if element == "item" and "html" in attributes.get("media-type", ""):
            addresses[attributes.get("id", "")] = unquote(attributes.get("href", ""))
        elif element == "itemref":
            order.append(attributes.get("idref", ""))

    if _CONTAINER in parts:
        parse_part(parts.read(_CONTAINER), begin_container)
    packages = [name for name in packages if name in parts] or parts.named(r".*\.opf")
    if not packages:
        return []
    parse_part(parts.read(packages[0]), begin_package)
    folder = posixpath.dirname(packages[0])
    names = [
        posixpath.normpath(posixpath.join(folder, addresses[chapter].partition("#")[0]))
        for chapter in dict.fromkeys(order)
        if chapter in addresses
    ]
    return [name for name in names if name in parts]
