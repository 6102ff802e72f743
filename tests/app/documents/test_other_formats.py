"""Rich Text, notebooks, mail and saved pages, and data embedded in a text."""

import base64
import io
import json
import time
from pathlib import Path

import pytest

from app.documents.convert import converted
from app.documents.mail import mail_text
from app.documents.notebook import notebook_text
from app.documents.rich_text import rtf_text
from app.documents.text_file import BoundedText, read_text_file
from app.program.refusals import Refusal

PICTURE = base64.b64encode(bytes(range(256)) * 40).decode()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            (
                rb"{\rtf1\ansi{\fonttbl{\f0 Calibri;}}\pard Dear \b Ms. K\b0 ,\par caf\'e9 "
                rb"\u8364?5\par}"
            ),
            "Dear Ms. K,\ncafé €5\n",
        ),
        (rb"{\rtf1\ansi{\fonttbl{\f1\fcharset204 A;}}\f1 \'cf\'f0\'e8}", "При"),
        (rb"{\rtf1\ansicpg932 \'93\'fa\'96\'7b}", "日本"),
        (
            rb"{\rtf1 {\*\generator X;}a\'7d{\listtext 1.\tab}b\cell c\row\emdash\~\_\{\line}",
            "a}1.\tb\tc\n—\u00a0\u2011{\n",
        ),
        (rb"{\rtf1{\uc2 \u-10179 ab\u-8704 cd}e}", "😀e"),
        (b"{\\rtf1 a\\bin4 {}}{b{\\info{\\title no}}c", "abc"),
        (b"{\\rtf1 a}}}}b\\", "ab"),
    ],
)
def test_rich_text_is_read_as_it_is_shown(source: bytes, text: str) -> None:
    assert rtf_text(io.BytesIO(source)) == text


def test_rich_text_counts_pictures_and_refuses_deep_groups() -> None:
    text = BoundedText()
    assert rtf_text(io.BytesIO(b"{\\rtf1 a{\\pict 0f0f}{\\*\\shppict{\\pict 0f}}b}"), text) == "ab"
    assert text.notes == ["not read: 1 picture"]
    with pytest.raises(Refusal, match="too deeply nested groups"):
        rtf_text(io.BytesIO(b"{" * 100_000))


def notebook(*cells: object) -> io.BytesIO:
    return io.BytesIO(
        json.dumps({"cells": cells, "metadata": {"language_info": {"name": "python"}}}).encode()
    )


def test_a_notebook_is_its_words_code_and_output() -> None:
    outputs = [
        {"output_type": "stream", "text": ["one\n", "two\n"]},
        {"output_type": "display_data", "data": {"image/png": PICTURE, "text/plain": "<Figure>"}},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[0m: v"]},
    ]
    file = notebook(
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {"cell_type": "code", "source": "print(1)", "outputs": outputs},
    )
    text = BoundedText()
    lines = [line for line in notebook_text(file, text).split("\n") if line]
    assert lines[:5] == ["# Title", "words", "```python", "print(1)", "```"]
    assert lines[5:8] == ["Output:", "one", "two"]
    assert lines[8:11] == ["Output:", "<Figure>", "[picture left out: image/png, 10K]"]
    assert text.notes == ["not read: 1 picture"]


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"a"', b"[" * 100_000, b"null", b"\xff"])
def test_an_invalid_notebook_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal, match=r"notebook|nested too deeply"):
        converted(".ipynb", io.BytesIO(raw))


def test_odd_cells_are_skipped() -> None:
    odd = [
        1,
        None,
        {"cell_type": "code", "source": {"a": 1}, "outputs": [1, {"data": 3}, {"text": [1, "x"]}]},
    ]
    assert "x" in notebook_text(notebook(*odd))


def test_a_mail_is_its_headers_and_its_text() -> None:
    raw = b"""Subject: =?utf-8?B?R3LDvMOfZQ==?=\r\nFrom: Ann <a@x.example>\r\nMIME-Version: 1.0
Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\
Content-Type: multipart/alternative; boundary=c\r\n
--c\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\nGr\xfc\xdfe\r\n--c\r\n\
Content-Type: text/html\r\n
<p>other</p>\r\n--c--\r\n--b\r\nContent-Type: image/png\r\n\
Content-Disposition: attachment; filename=x.png\r\n
x\r\n--b--\r\n"""
    text = BoundedText()
    assert mail_text(io.BytesIO(raw), text).split() == [
        "From:",
        "Ann",
        "<a@x.example>",
        "Subject:",
        "Grüße",
        "Grüße",
    ]
    assert text.notes == ["not read: 1 attachment"]


def test_saved_pages_are_read_and_old_names_by_their_content() -> None:
    raw = (
        b"From: <Saved by Blink>\r\nMIME-Version: 1.0\r\n"
        b"Content-Type: multipart/related; boundary=b\r\n\r\n"
    )
    raw += b"--b\r\nContent-Type: text/html\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    raw += b"<p>Caf=C3=A9=\r\n s</p>\r\n--b--\r\n"
    assert converted(".mhtml", io.BytesIO(raw)).strip() == "Café s"
    assert converted(".doc", io.BytesIO(raw)).strip() == "Café s"
    assert converted(".doc", io.BytesIO(b"<html><body><p>exported</p>")).strip() == "exported"
    assert converted(".doc", io.BytesIO(b"{\\rtf1 rich}")) == "rich"
    assert converted(".doc", io.BytesIO(b"plain words")) == "plain words"
    with pytest.raises(Refusal, match="has no text"):
        converted(".eml", io.BytesIO(b"\r\n\r\n"))


def test_embedded_data_in_a_text_becomes_a_note(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    drawing = "<svg xmlns='x'>" + "<path d='M0 0'/>" * 200 + "</svg>"
    path.write_text(
        f"a ![shot](data:image/png;base64,{PICTURE}) b\n{drawing} c <svg>small</svg> "
        "data:text/plain,short"
    )
    note = (
        "a ![shot]([image/png, 10K, left out]) b\n"
        "[drawing, 3.1K, left out] c <svg>small</svg> data:text/plain,short"
    )
    assert read_text_file(path) == note


@pytest.mark.parametrize(
    "piece", ["data:", "<svg>", "data:a/b;", "\x1b[", "\x1b]0;", "data:image/png;base64,AAAA "]
)
def test_odd_texts_take_linear_time(tmp_path: Path, piece: str) -> None:
    path = tmp_path / "a.md"
    path.write_text("x" + piece * ((1 << 19) // len(piece)))
    begin_s = time.process_time()
    read_text_file(path)
    assert time.process_time() - begin_s < 8  # quadratic time would be minutes


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[32mINFO\x1b[0m on\x1b]0;title\x07", "INFO on"),
        ("Elek\u00adtro, in\u00ad\nstrument", "Elektro, instrument"),
        ("o\ufb03ce \ufefb\ufee1 \ufb2a", "office \u0644\u0627\u0645 \u05e9\u05c1"),
        ("a\x0bb\x0cc", "a\nb\nc"),
        (
            "ភាសា\u200bខ្មែរ \u2068x\u2069 \U0001f3f4\U000e0067\U000e007f",
            "ភាសា\u200bខ្មែរ \u2068x\u2069 \U0001f3f4\U000e0067\U000e007f",
        ),
    ],
)
def test_ligatures_and_hyphenated_words_become_plain_text(
    tmp_path: Path, raw: str, text: str
) -> None:
    (tmp_path / "a").write_text(raw)
    assert read_text_file(tmp_path / "a") == text


@pytest.mark.parametrize("raw", ["\ufeff", "\ufeff\u200b\u00ad", "\u2060 \n"])
def test_a_text_of_invisible_characters_is_empty(tmp_path: Path, raw: str) -> None:
    (tmp_path / "a").write_text(raw)
    with pytest.raises(Refusal, match="is empty"):
        read_text_file(tmp_path / "a")
