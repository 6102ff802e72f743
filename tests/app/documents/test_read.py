import contextlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from app.documents import convert, read, text_file, zip_parts
from app.documents.read import KINDS, ReadingProgress, read_documents, referred, split_wanted
from app.documents.web_page import html_text
from app.documents.word import docx_text
from app.program.refusals import Refusal

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def docx(body: str, prologue: str = "") -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "word/document.xml",
            f"<?xml version='1.0'?>{prologue}<w:document {W}>{body}</w:document>",
        )
    return file


def pdf(*pages: str) -> io.BytesIO:
    """Return a handwritten PDF with one line on each page."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, words in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({words}) Tj ET"
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        box = "/MediaBox [0 0 612 792]"
        objects.append(f"<< /Type /Page /Parent 2 0 R {box} {font} /Contents {5 + 2 * n} 0 R >>")
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    body = b"%PDF-1.4\n"
    offsets = []
    for number, pdf_object in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{pdf_object}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size "
        f"{len(objects) + 1} /Root 1 0 R >>\n"
    )
    return io.BytesIO(body + end.encode() + f"startxref\n{len(body)}\n%%EOF\n".encode())


def test_a_page_becomes_its_visible_text() -> None:
    page = b"""<html><head><title>Fans</title><style>p {}</style>\
<script>if (a < b) x();</script></head>
    <body><h1>A  fan</h1><p>hums &amp; <b>turns</b>.<br>Often.<pre>a\n  b</pre>\
<table><tr><td>1<td>2</table>"""
    text = html_text(io.BytesIO(page))
    assert [line for line in text.split("\n") if line] == [
        "Fans",
        "A fan",
        "hums & turns.",
        "Often.",
        "a",
        "b",
        "\t1\t2",
    ]
    assert "x()" not in text


def test_a_word_document_with_a_bomb_or_entities_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = "<!DOCTYPE d [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]>"
    with pytest.raises(Refusal, match="declares XML entities"):
        docx_text(docx("<w:p><w:t>&b;</w:t></w:p>", bomb))
    monkeypatch.setattr(zip_parts, "MAX_SOURCE_BYTES", 1 << 20)
    with pytest.raises(Refusal, match="is larger when unpacked than 1 MiB"):
        docx_text(docx("<w:p/>" * 200_000))


def test_pdf_pages_are_numbered() -> None:
    assert (
        convert.pdf_text(pdf("Fans hum", "They turn"))
        == "[page 1]\nFans hum\n[page 2]\nThey turn\n"
    )
    with pytest.raises(Refusal, match="has no text"):
        convert.pdf_text(pdf(""))


@pytest.mark.parametrize("extension", sorted(KINDS))
def test_random_bytes_are_refused_or_become_text(extension: str) -> None:
    assert set(convert.CONVERTERS) == KINDS
    for raw in (b"", b"\0" * 100, b"PK\x03\x04" + b"x" * 50, b"%PDF-1.7\n" + bytes(range(256))):
        with contextlib.suppress(Refusal):  # and no other exception
            assert isinstance(convert.converted(extension, io.BytesIO(raw)), str)


def test_file_order_does_not_depend_on_how_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    (tmp_path / "docs" / ".hidden").write_text("no")
    for name in ("b.md", "a.md", "sub/a.md"):
        (tmp_path / "docs" / name).write_text(f"text of {name}")
    os.symlink("b.md", tmp_path / "docs" / "link.md")
    monkeypatch.chdir(tmp_path)
    reading = read_documents(["docs"])
    assert [document.name for document in reading.documents] == ["b.md", "docs/a.md", "sub/a.md"]
    [trouble] = reading.troubles
    assert "link.md: is a link in a folder" in trouble
    named_files = read_documents(["docs/sub/a.md", "docs/*.md", str(tmp_path / "docs/b.md")])
    assert named_files.documents == reading.documents
    assert read_documents(["docs/link.md"]).documents[0].name == "b.md"


def test_each_unreadable_file_is_reported_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "good.txt").write_text("good")
    paths = [
        str(tmp_path / name)
        for name in ("pipe", "loop", "picture.png", "absent", "*.no", "good.txt")
    ]
    reading = read_documents([*paths, "/dev/null", "a\0b"])
    assert [document.text for document in reading.documents] == ["good"]
    reasons = (
        "is not a file",
        "links",
        "is no picture",
        "No such file",
        "no file matches",
        "is not a",
    )
    for reason in reasons:
        assert any(reason in trouble for trouble in reading.troubles), reason
    assert not any("\n" in trouble for trouble in reading.troubles)
    assert len(reading.troubles) == 8 - 1


def test_many_troubles_are_counted_and_the_limits_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = read_documents(str(tmp_path / f"absent{n}") for n in range(20))
    assert len(reading.troubles) == 9
    assert reading.troubles[-1] == "... and 12 more cannot be read"
    monkeypatch.setattr(read, "MOST_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_text(name)
    reading = read_documents([str(tmp_path)])
    assert [document.name for document in reading.documents] == ["a", "b"]
    assert "c: left out (the limits are 2 files" in reading.troubles[0]


@pytest.mark.slow
def test_a_pdf_reader_that_hangs_or_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fan.pdf").write_bytes(pdf("It hums").getvalue())
    (tmp_path / "torn.docx").write_bytes(b"PK")
    reading = read_documents([str(tmp_path)])
    assert reading.documents[0].text == "[page 1]\nIt hums"
    assert "torn.docx: is not a sound DOCX file" in reading.troubles[0]
    # The process ends as it does at its limit of processor time.
    monkeypatch.setattr(read, "own_module", lambda name: ["sh", "-c", "kill -XCPU $$"])
    [trouble] = read_documents([str(tmp_path / "fan.pdf")]).troubles
    assert "takes more than 30 s of processor time" in trouble


def test_names_with_spaces_are_quoted_or_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two words.txt").touch()
    assert split_wanted("two words.txt") == ["two words.txt"]
    assert split_wanted("'two words.txt' *.md") == ["two words.txt", "*.md"]
    assert split_wanted("Anna's notes") == ["Anna's notes"]


def test_references_in_a_message_are_read_if_the_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.md").write_text("one")
    (tmp_path / "c.md").write_text("two")
    references = referred('What do @"a b.md" and @c.md, @nobody or me@c.md say?')
    assert references == ["a b.md", "c.md,", "nobody"]
    reading = read_documents(references, only_existing=True)
    assert [document.name for document in reading.documents] == ["a b.md", "c.md"]
    assert reading.troubles == ()


def test_a_small_vocabulary_raises_the_estimated_token_count(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("word " * 99)
    reading = read_documents([str(tmp_path / "a.md")])
    [document] = reading.documents
    assert read.tokens_ratio(str.split, 4096) == 1.0
    assert read.tokens_ratio(list, 128_000) == 1.0
    assert 3 < (ratio := read.tokens_ratio(list, 4096)) < 4  # letters
    assert reading.with_earlier((), ratio)[0].n_tokens == round(ratio * document.n_tokens)


def test_progress_starts_at_the_first_file_and_can_stop(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name)
    seen: list[str] = []

    def follow(progress: ReadingProgress) -> bool:
        seen.append(progress.line)
        return not progress.line.endswith("c.txt")

    reading = read_documents([str(tmp_path)], follow=follow)
    assert seen[-3:] == [
        f"reading documents: {n} of 4, {name}.txt" for n, name in enumerate("abc", 1)
    ]
    assert [document.text for document in reading.documents] == ["a", "b"]
    assert reading.is_stopped
    assert reading.troubles == (f"{tmp_path / 'c.txt'} and 1 more file: left out (stopped)",)


def test_a_search_through_folders_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_FILES_PER_TICK", 1)
    (tmp_path / "a.txt").write_text("a")
    reading = read_documents([str(tmp_path)], follow=lambda progress: False)
    assert reading.troubles == ("no file was read (stopped)",)


def test_no_file_is_started_after_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    moments_s = iter([0.0, 0.0, read.MOST_S, read.MOST_S + 1])
    reading = read_documents([str(tmp_path)], clock=lambda: next(moments_s))
    assert [document.text for document in reading.documents] == ["a", "b"]
    assert reading.troubles == (f"{tmp_path / 'c.txt'}: left out (the reading has taken 10 min)",)


@pytest.mark.smoke
@pytest.mark.slow
def test_a_conversion_is_stopped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fan.html").write_text("It hums")
    monkeypatch.setattr(read, "own_module", lambda name: ["sh", "-c", "sleep 1000"])
    ticks = iter([True, True])
    reading = read_documents([str(tmp_path)], follow=lambda progress: next(ticks, False))
    assert reading.is_stopped
    assert reading.documents == ()


@pytest.mark.slow
def test_a_document_that_takes_too_long_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long.html").write_text("<p>words</p>" * 400_000)
    monkeypatch.setattr(read, "CPU_S", 2)
    reading = read_documents([str(tmp_path)])
    [document] = reading.documents
    assert document.text.startswith("words\n")
    assert document.text.endswith("[the document is cut here: it takes too long]")
    assert "only the first" in reading.troubles[0]


def test_a_text_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "MAX_TEXT_CHARS", 1000)
    text = text_file.BoundedText()
    words = convert.converted(".html", io.BytesIO(b"<p>words</p>" * 1000), text)
    assert len(words) < 1100
    assert words.endswith("[the document is cut here: it is too long]\n")
    assert text.notes[0].startswith("only the first")
