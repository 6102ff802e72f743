"""Documents of every kind, from anywhere.

Each gives clean text that goes into a message and out of it again, or one line.

An input is the end of a file's name, a newline, and the file. Those that are archives are changed
within their parts.
"""

from __future__ import annotations

import io
import json
import resource
import signal
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType

from app.documents import read
from app.documents.convert import CONVERTERS, MEMORY_BYTES, ConversionTimeoutError, converted
from app.documents.passages import PASSAGE_CHARS, cut, words_of
from app.documents.plain_letters import plain_letters
from app.documents.read import KINDS, Document
from app.documents.text_file import BoundedText, attached, cleaned, files_of, read_text_file
from app.program.refusals import Refusal
from app.text.clean_text import clean_line, screen_text
from tests.app.documents.test_read import docx, pdf
from tests.app.documents.test_word import NUMBERING, STYLES, item, relations, xml_part
from tests.app.documents.test_zipped_formats import book, document, spreadsheet
from tests.programs.fuzz.mutation import mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch, require_clean_line

_TEXT = "<text:h>Title</text:h><text:p>One<text:s text:c='2'/>two<text:tab/>three</text:p>"
_TABLE = (
    "<table:table table:name='Prices'><table:table-row><table:table-cell><text:p>nails</text:p>"
    "</table:table-cell><table:table-cell table:number-columns-repeated='3'/></table:table-row>"
    "</table:table>"
)
_ROWS = (
    '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1" s="1"><v>45992</v></c></row>'
    '<row r="4"><c r="B4" t="b"><v>1</v></c><c t="inlineStr"><is><t>in line</t></is></c></row>'
)
_CONVERTING_S = 15.0
_CPU_S = 25.0
_MEMORY_BYTES = 900 << 20
_PIECES = (
    b"<ol start=3 type=i><li>", b"</ol>", b"<p hidden>", b"<!--", b"<a href='https://a.example'>",
    b"<pre>", b"&shy;", b"&#x202e;", b"<svg>", b"<script>", b"data:image/png;base64," + b"A" * 400,
    b"\\u-10179?\\u-8704?", b"{\\*\\x ", b"\\'93", b"\\bin9999999 ", b"\\fcharset128 ", b"<w:p>",
    b"</w:p>", b"<w:tbl><w:tr><w:tc>", b"<w:del>", b"<m:d>",
    b'<w:numPr><w:ilvl w:val="8"/><w:numId w:val="1"/></w:numPr>',
    b'<w:fldChar w:fldCharType="begin"/>', b"<mc:AlternateContent><mc:Choice>",
    b"<table:table-cell table:number-columns-repeated='99999999'/>", b"<text:s text:c='9999999'/>",
    b'<c r="XFD1048576"><v>1</v></c>', b"<si><t>x</t></si>", b"<itemref idref='two'/>",
    b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b" obj ", b" 0 R", b"/Parent 3 0 R", b"/Kids [2 0 R]",
    b"/Filter /FlateDecode", b"/Encoding /Identity-H", b" Tj ", b"BT ET ", b"/Annots [5 0 R 5 0 R]",
    b'"outputs": [', b'"data": {"image/png": "AAAA"}', b"boundary=b", b"\r\n--b\r\n",
    b"charset=utf-7", b"Content-Transfer-Encoding: base64", b"\x1b[31m", b"\x1b]0;",
    b"\xf3\xa0\x81\xa7", b"\xe2\x80\xae",
    b"\xef\xac\x83",
    b"\xd9\xb0" * 12, b"\xc2\xad", b"\xe2\x80\x8b", b"\xff\xfe", b"\x9b", b"\0", b"`" * 40,
    b"\n```\n", b"[page 7]",
)  # fmt: skip


def pack(suffix: str, raw: bytes) -> bytes:
    """Return a file as an input."""
    return suffix.encode() + b"\n" + raw


def _word() -> bytes:
    file = io.BytesIO()
    body = (
        item("a", 1)
        + item("b", 1, 2)
        + item("c", style="Heading1")
        + "<w:tbl><w:tr><w:tc><w:p/></w:tc></w:tr></w:tbl>"
    )
    note = '<w:footnote w:id="2"><w:p><w:r><w:t>note</w:t></w:r></w:p></w:footnote>'
    kinds = {
        "numbering": "numbering.xml",
        "styles": "styles.xml",
        "footnotes": "footnotes.xml",
        "image": "a.png",
    }
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "word/document.xml",
            xml_part("document", f'{body}<w:r><w:footnoteReference w:id="2"/></w:r>'),
        )
        archive.writestr("word/numbering.xml", NUMBERING)
        archive.writestr("word/styles.xml", STYLES)
        archive.writestr("word/footnotes.xml", xml_part("footnotes", note))
        archive.writestr("word/_rels/document.xml.rels", relations(kinds))
    return file.getvalue()


def seeds() -> list[bytes]:
    """Return a document of each kind, and texts in several encodings."""
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "code",
            "source": "1",
            "outputs": [{"data": {"image/png": "AAAA", "text/plain": "1"}}],
        },
    ]
    mail = (
        b"Subject: =?utf-8?B?R3LDvMOfZQ==?=\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; "
        b"boundary=b\r\n\r\n"
        b"--b\r\nContent-Type: text/plain; "
        b"charset=koi8-r\r\n\r\nwords\r\n--b\r\nContent-Type: text/html\r\n"
        b"Content-Transfer-Encoding: base64\r\n\r\nPHA+aGk=\r\n--b--\r\n"
    )
    page = (
        b"<html><ol reversed><li>a<li value=7>b</ol><p>see <a href='https://a.example'>it</a><img "
        b"alt=x>"
    )
    page += b"<pre> a\n b</pre>"
    rich = rb"{\rtf1\ansi{\fonttbl{\f1\fcharset204 A;}}\f1 \'cf\'f0 {\listtext 1.\tab}\u8364?\par}"
    texts = {
        ".txt": (
            b"a\x07b \x1b[31mred\x1b[0m \xe2\x80\xae\xd7\x90 "
            b"\xef\xac\x83 Elek\xc2\xadtro \xf3\xa0\x81\xa7"
        ),
        ".md": b"# Title\n![x](data:image/png;base64,"
        + b"A" * 400
        + b")\n```\ncode\n```\n<svg>"
        + b" " * 1000
        + b"</svg>",
        ".csv": "Name;Betrag\r\nMüller;1.234,50\r\n".encode("cp1252"),
        ".log": "Сегодня хорошая погода, пойдём гулять в парк".encode("koi8-r"),
        ".rst": "wide words".encode("utf-16"),
        ".tex": "今天天气很好，我们去公园散步吧。".encode("gb18030"),
    }
    return [
        pack(".html", page),
        pack(".docx", _word()),
        pack(".docx", docx("<w:p><w:r><w:t>words</w:t></w:r></w:p>").getvalue()),
        pack(".pdf", pdf("Fans hum", "", "instru-").getvalue()),
        pack(".ipynb", json.dumps({"cells": cells}).encode()),
        pack(".eml", mail),
        pack(".mhtml", mail.replace(b"Subject:", b"From: <Saved by Blink>\r\nSubject:")),
        pack(".rtf", rich),
        pack(".doc", page),
        pack(".doc", rich),
        pack(".epub", book().getvalue()),
        pack(".odt", document(_TEXT).getvalue()),
        pack(".ods", document(_TABLE).getvalue()),
        pack(".odp", document(f"<draw:page>{_TEXT}</draw:page>").getvalue()),
        pack(".xlsx", spreadsheet(_ROWS, "<si><t>nails</t></si>").getvalue()),
        *(pack(suffix, raw) for suffix, raw in texts.items()),
    ]


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Change a document; one that is an archive within one of its parts, mostly."""
    suffix, raw = data.split(b"\n", 1)
    files = [donor.split(b"\n", 1)[1] for donor in rng.sample(list(inputs), min(3, len(inputs)))]
    pieces = [*rng.sample(_PIECES, 4), *files]
    if rng.random() < 0.02:
        suffix = rng.choice(sorted(KINDS)).encode()
    if raw.startswith(b"PK") and rng.random() < 0.8:
        with suppress(zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, EOFError, OSError):
            return suffix + b"\n" + _changed_archive(rng, raw, pieces)
    return suffix + b"\n" + _changed(rng, raw, pieces)


def _changed(rng: Random, raw: bytes, pieces: Sequence[bytes]) -> bytes:
    if rng.random() < 0.5:
        return mutate_bytes(rng, raw, pieces)
    position = rng.randrange(len(raw) + 1)
    return (
        raw[:position]
        + rng.choice(pieces[:4]) * rng.choice((1, 1, 1, 2, 40, 3000))
        + raw[position:]
    )


def _changed_archive(rng: Random, raw: bytes, pieces: Sequence[bytes]) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if not members:
        raise ValueError("the archive has no parts")
    chosen = rng.choice(sorted(members))
    members[chosen] = _changed(rng, members[chosen], pieces)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


# ---- what must hold


def _raise_time_is_up(_number: int, _frame: FrameType | None) -> None:
    raise ConversionTimeoutError


@contextmanager
def _converter_limits() -> Iterator[None]:
    """Limit memory and time as the process does that converts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = (
        int(Path("/proc/self/statm").read_text().split()[0])
        if Path("/proc/self/statm").exists()
        else 0
    )
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    old_handler = signal.signal(signal.SIGPROF, _raise_time_is_up)
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    signal.setitimer(signal.ITIMER_PROF, _CONVERTING_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, old_handler)


def _text_of(path: Path) -> tuple[str, list[str]]:
    """Return a file's text and notes, as ``read`` does, without another process."""
    suffix = path.suffix.lower()
    if suffix not in CONVERTERS:
        return read_text_file(path), []
    name = clean_line(str(path))
    bounded = BoundedText()
    with path.open("rb") as file:
        head = file.read(read.HEAD_BYTES)
        file.seek(0)
        read.refuse_unsupported(suffix, head)
        with _converter_limits():
            text = converted(suffix, file, bounded)
    raw = text.encode("utf-8", "replace")  # as it goes through a pipe
    return cleaned(raw.decode("utf-8", "replace"), name), bounded.notes


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Read the document, cut it into passages, and find it again in a message."""
    suffix, raw = data.split(b"\n", 1)
    path = folder / f"document{suffix.decode()}"
    path.write_bytes(raw)
    try:
        with watch.bounded("reading a document", _CPU_S, _MEMORY_BYTES):
            text, notes = _text_of(path)
    except Refusal as refusal:
        # What pypdf says of a damaged file is part of no message.
        reason = clean_line(str(refusal), 300).replace(str(folder), "")
        return f"{suffix.decode()} {require_clean_line(reason)}"
    except ConversionTimeoutError:
        return f"{suffix.decode()} takes too long"
    for note in notes:
        require_clean_line(note)
    _require_clean(text)
    with watch.bounded("cutting a document", _CPU_S, _MEMORY_BYTES):
        document = Document(path.name, path, text)
        for passage in cut(document, PASSAGE_CHARS):
            if len(passage.text) > 2 * PASSAGE_CHARS:
                raise Fault(f"a passage has {len(passage.text)} characters")
            words_of(passage.text)
    [(name, again)] = list(files_of(f"{attached(path.name, text)}\n\nWhat does it say?"))
    if (name, again) != (path.name, text):
        raise Fault("a message does not give the document back")
    return f"{suffix.decode()} text{' and notes' if notes else ''}"


def _require_clean(text: str) -> None:
    if not text.strip():
        raise Fault("the text is empty")
    controls = {
        character for character in set(text) if unicodedata.category(character) in ("Cc", "Cs")
    }
    if controls - {"\n", "\t"}:
        raise Fault(f"control characters in the text: {sorted(controls)!r}")
    if "\u00ad" in text or plain_letters(text) != text:
        raise Fault("soft hyphens or ligatures in the text")
    visible = screen_text(text)
    if any(
        "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
        for character in set(visible)
    ):
        raise Fault("the screen would show the text in another order")


TARGET = Target(seeds, mutate, run, ("app/documents", "app/text/clean_text.py"))
