from pathlib import Path

import pytest

from app.documents.read import read_documents
from tests.app.documents.test_read import docx, pdf

ODT = b"PK\x03\x04" + b"\0" * 26 + b"mimetypeapplication/vnd.oasis.opendocument.text"


@pytest.mark.parametrize(
    ("name", "raw", "reason"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0", "is no picture of a known format"),
        ("a.txt", b"\xff\xd8\xff\xe0\0\x10JFIF", "is a picture"),
        ("a.heic", b"\0\0\0\x18ftypheic\0\0", "is a picture"),
        ("a.mp3", b"ID3\x04\0\0\0\xff", "is a sound or video file"),
        ("a.mp4", b"\0\0\0\x18ftypisom\0\0", "is a sound or video file"),
        ("a.zip", b"PK\x03\x04" + b"\0" * 40, "is an archive (unpack it"),
        ("a.log.gz", b"\x1f\x8b\x08\0\0", "is a compressed file (unpack it"),
        (
            "a.xlsb",
            b"PK\x03\x04\0\0[Content_Types].xml\0xl/workbook.bin",
            "is a spreadsheet of another kind (save it as XLSX",
        ),
        (
            "a.xls",
            b"\xd0\xcf\x11\xe0\xa1\xb1\0",
            "is a spreadsheet of another kind (save it as XLSX",
        ),
        (
            "a.pptx",
            b"PK\x03\x04\0\0ppt/presentation.xml",
            "is a presentation (save it as ODP or PDF)",
        ),
        ("a.docx", ODT, "another word processor (save it as ODT"),
        ("a.mobi", b"PK\x03\x04\0\0mimetypeapplication/epub+zip", "is an e-book"),
        ("a.odt", ODT, "is not a sound ODT file"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\0", "is an old Word file (save it as DOCX"),
        ("a.docx", b"{\\rtf1 hello}", "is an RTF file named .docx (rename it to end in .rtf)"),
        ("a.docx", b"hello", "is not really a DOCX file"),
        ("a.pdf", b"hello", "is not really a PDF file"),
        ("a.txt", pdf("words").getvalue(), "is a PDF file named .txt (rename it to end in .pdf)"),
        (
            "a.pdf",
            docx("<w:p/>").getvalue(),
            "is a DOCX file named .pdf (rename it to end in .docx)",
        ),
        ("a.gguf", b"GGUF\3\0\0\0", "is a model"),
        ("a.bin", b"\0\1\2\3" * 9, "is a program"),
        ("a", b"\0\1\2\3" * 9, "is not a text file (save it as text, PDF or DOCX)"),
    ],
)
def test_an_unsupported_file_is_named_with_advice(
    tmp_path: Path, name: str, raw: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(raw)
    [trouble] = read_documents([str(tmp_path / name)]).troubles
    assert trouble.startswith(f"{tmp_path / name}: ")
    assert reason in trouble


@pytest.mark.parametrize(
    "words", ["GIF89a is a format", "BZh and ID3 begin so", "MZ", "GGUF is a format", "BM 7"]
)
def test_text_that_begins_like_a_binary_file_is_text(tmp_path: Path, words: str) -> None:
    (tmp_path / "a.txt").write_text(words)
    assert read_documents([str(tmp_path)]).documents[0].text == words
