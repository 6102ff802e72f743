"""Text of HTML, DOCX and PDF files. Runs in a process of its own with little memory and time: files are hostile.

``python -m app.documents.convert KIND CPU_S`` reads the file from stdin and writes its text to stdout; where that
fails it writes the reason and ends with ``FAILED``.
"""

from __future__ import annotations

import contextlib
import re
import sys
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any, BinaryIO
from xml.parsers import expat

from app.documents.text_file import FAILED, MAX_FILE_BYTES, MAX_SOURCE_BYTES, MAX_TEXT_CHARS, bounded, decoded
from app.program.refusals import Refusal

MEMORY_BYTES = 768 << 20
_UNSHOWN = frozenset(("script", "style", "template", "noscript", "svg"))
_BLOCKS = re.compile(
    "address|article|aside|blockquote|br|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6]|header|hr|li|main|nav"
    "|[ou]l|p|pre|section|table|tr|title"
)


class _Text:
    """Pieces of text up to a limit."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = MAX_TEXT_CHARS

    def add(self, piece: str) -> None:
        self._room -= len(piece)
        if self._room < 0:
            raise Refusal(f"holds more than {MAX_TEXT_CHARS >> 20} million characters (cut it first)")
        self._pieces.append(piece)

    def joined(self) -> str:
        return "".join(self._pieces)


class _Page(HTMLParser):
    """Text of a page without its tags; white space is as a browser shows it."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = _Text()
        self._unshown, self._pre = "", 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if not self._unshown and tag in _UNSHOWN:
            self._unshown = tag
        self._pre += tag == "pre"
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._unshown:
            self._unshown = ""
        self._pre = max(0, self._pre - (tag == "pre"))
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._unshown:
            self.text.add(data if self._pre else re.sub(r"\s+", " ", data))

    def _break(self, tag: str) -> None:
        if not self._unshown and _BLOCKS.fullmatch(tag):
            self.text.add("\n")
        elif not self._unshown and tag in ("td", "th"):
            self.text.add("\t")


def html_text(file: BinaryIO) -> str:
    """Return what a page shows."""
    page = _Page()
    page.feed(decoded(bounded(file, MAX_FILE_BYTES, "the page"), "the page"))
    page.close()
    lines = (line.strip(" ") for line in page.text.joined().split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def docx_text(file: BinaryIO) -> str:
    """Return the words of a document, a line for each paragraph."""
    with zipfile.ZipFile(file) as archive, archive.open("word/document.xml") as part:
        raw = part.read(MAX_SOURCE_BYTES + 1)
    if len(raw) > MAX_SOURCE_BYTES:
        raise Refusal(f"unpacks to more than {MAX_SOURCE_BYTES >> 20} MiB")
    text, is_text = _Text(), False
    marks = {"tab": "\t", "br": "\n", "cr": "\n"}

    def begin(name: str, attributes: Any) -> None:
        nonlocal is_text
        name = name.rpartition(" ")[2]
        is_text = name == "t"
        text.add(marks.get(name, ""))

    def end(name: str) -> None:
        nonlocal is_text
        is_text = False
        name = name.rpartition(" ")[2]
        text.add("\n" if name == "p" else "\t" if name == "tc" else "")

    def refuse_entity(*_: Any) -> None:
        raise Refusal("declares entities, which no document needs")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler = lambda data: text.add(data if is_text else "")
    parser.EntityDeclHandler = refuse_entity
    parser.Parse(raw, True)
    return text.joined()


def pdf_text(file: BinaryIO) -> str:
    """Return the text of all pages, each behind a line with its number."""
    import logging

    try:
        from pypdf import PdfReader
    except ImportError:
        raise Refusal("needs pypdf (python -m pip install pypdf)") from None
    logging.disable()
    reader = PdfReader(file)
    if reader.is_encrypted and not reader.decrypt(""):
        raise Refusal("is locked by a password (save it without)")
    text, n_empty = _Text(), 0
    for number, page in enumerate(reader.pages, 1):
        words = ""
        with contextlib.suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            words = page.extract_text()
        n_empty += not words.strip()
        text.add(f"[page {number}]\n{words.strip()}\n")
    if n_empty == len(reader.pages):
        raise Refusal("holds no text, perhaps pictures of pages (a scan needs text recognition first)")
    return text.joined()


CONVERTERS: dict[str, Callable[[BinaryIO], str]] = {
    ".html": html_text,
    ".htm": html_text,
    ".xhtml": html_text,
    ".docx": docx_text,
    ".pdf": pdf_text,
}
"""Of each of ``KINDS``."""


def converted(kind: str, file: BinaryIO) -> str:
    """Return the text of a file. Raises Refusal: it has none, or is not sound."""
    try:
        return CONVERTERS[kind](file)
    except (Refusal, MemoryError, RecursionError) as error:
        raise Refusal(str(error) or "needs too much memory") from None
    except Exception as error:  # pypdf alone raises a dozen kinds
        raise Refusal(f"is not a sound {kind[1:].upper()} file ({type(error).__name__})") from None


def main() -> None:
    """Convert stdin to stdout."""
    from engine.prompt.template_sandbox import limit_process

    kind, cpu_s = sys.argv[-2:]
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s)))
    limit_process(MEMORY_BYTES)
    try:
        said, code = converted(kind, sys.stdin.buffer), 0
    except Refusal as refusal:
        said, code = str(refusal), FAILED
    sys.stdout.buffer.write(said.encode("utf-8", "replace"))
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
