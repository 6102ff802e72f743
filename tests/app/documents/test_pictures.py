"""Pictures as documents of a message: references, files, and what is kept."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.documents import pictures
from app.documents.passages import for_message
from app.documents.pictures import PICTURES, PictureFiles, references_in, size_of
from app.documents.read import read_documents
from app.documents.thumbnails import fitted, thumbnail
from app.program import paths


def draw(path: Path, width: int = 40, height: int = 30, level: int = 90) -> Path:
    Image.fromarray(np.full((height, width, 3), level, np.uint8)).save(path)
    return path


def test_a_named_picture_becomes_a_reference(tmp_path: Path) -> None:
    path = draw(tmp_path / "cat.png", 640, 360)
    reading = read_documents([str(path)])
    document = reading.documents[0]
    assert reading.troubles == ()
    assert document.is_picture
    assert size_of(document.text) == (640, 360)
    assert document.n_tokens == 640 * 360 // 1024

    files = for_message(reading.documents, "", 2048)
    message = " ".join([*(file.in_message for file in files), "What is it?"])
    reference = next(references_in(message))
    assert (reference.name, message[: reference.start]) == ("cat.png", "")
    assert message[reference.end :] == "What is it?"
    assert PICTURES.find(reference.digest) == path.read_bytes()


def test_a_picture_without_pixels_is_no_reference() -> None:
    for size in ("0 x 5", "5 x 0", "00 x 5"):
        text = f"[picture {size} {'a' * 64}]"
        assert size_of(text) is None
        assert not list(references_in(f"cat.png:\n```\n{text}\n```"))


def test_pictures_in_a_folder_are_not_attached(tmp_path: Path) -> None:
    draw(tmp_path / "cat.png")
    (tmp_path / "notes.txt").write_text("a note")
    reading = read_documents([str(tmp_path)])
    assert [document.name for document in reading.documents] == ["notes.txt"]
    assert "is a picture" in reading.troubles[0]


def test_a_broken_picture_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    reading = read_documents([str(tmp_path / "cat.png")])
    assert reading.documents == ()
    assert len(reading.troubles) == 1


def test_pictures_go_whole_next_to_passages(tmp_path: Path) -> None:
    path = draw(tmp_path / "cat.png")
    (tmp_path / "long.txt").write_text("\n".join(f"line {n} of the story" for n in range(900)))
    reading = read_documents([str(path), str(tmp_path / "long.txt")])
    files = for_message(reading.documents, "story", 2048)
    assert [file.name for file in files] == ["cat.png", "passages of 1 file"]


def test_a_saved_message_keeps_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "pictures_dir", lambda: tmp_path / "kept")
    files = PictureFiles()
    monkeypatch.setattr(pictures, "PICTURES", files)
    texts = []
    for level in (1, 2, 3):
        path = draw(tmp_path / f"{level}.png", level=level)
        texts.append(read_documents([str(path)]).documents[0].in_message)
        files.save(texts[-1])
        digest = next(references_in(texts[-1])).digest
        os.utime(tmp_path / "kept" / digest, (level, level))
    assert len(list((tmp_path / "kept").iterdir())) == 3

    later = PictureFiles()  # another start of the program
    assert later.find(digest) == path.read_bytes()
    monkeypatch.setattr(pictures, "MAX_DISK_BYTES", 2 * len(path.read_bytes()) + 1)
    later.save(texts[-1])
    assert later.find(next(references_in(texts[0])).digest) is None
    assert later.find(digest) is not None
    (tmp_path / "kept" / digest).write_bytes(b"other")
    assert later.find(digest) is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_MEMORY_BYTES", 100)
    monkeypatch.setattr(paths, "pictures_dir", lambda: None)
    files = PictureFiles()
    digests = [files.add(bytes([n]) * 60) for n in range(3)]
    assert [files.find(digest) is not None for digest in digests] == [False, False, True]


@pytest.mark.parametrize(
    "text",
    [
        "[picture 4 x 5 abc]",
        "cat.png: [picture 4 x 5 " + 64 * "0" + "]",
        "cat.png:\n```\n[picture 4 x 5 " + 64 * "g" + "]\n```\n",
    ],
)
def test_other_texts_are_no_references(text: str) -> None:
    assert list(references_in(text)) == []


def test_a_reference_has_the_detail_of_its_picture(tmp_path: Path) -> None:
    document = read_documents([str(draw(tmp_path / "cat.png"))]).documents[0]
    for detail in ("low", "high", ""):
        text = pictures.with_detail(document.in_message, detail)
        reference = next(references_in(text))
        assert (reference.detail, reference.size) == (detail, (40, 30))
    assert pictures.with_detail("no picture", "low") == "no picture"


def test_pictures_of_the_open_conversation_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = []
    digests = []
    for level in range(3):
        path = draw(tmp_path / f"{level}.png", level=level)
        document = read_documents([str(path)]).documents[0]
        messages.append(document.in_message)
        digests.append(next(references_in(document.in_message)).digest)
    directory = paths.pictures_dir()
    assert directory is not None
    files = PictureFiles()
    for level in range(3):
        files.add((tmp_path / f"{level}.png").read_bytes())
    files.save(messages[0])
    files.save(messages[1])
    os.utime(directory / digests[0], (1, 1))
    os.utime(directory / digests[1], (2, 2))
    files.protect([digests[0]])
    monkeypatch.setattr(pictures, "MAX_DISK_BYTES", 1)
    files.save(messages[2])
    assert {entry.name for entry in directory.iterdir()} == {digests[0]}


@pytest.mark.parametrize(
    ("size", "cells"), [((640, 360), (20, 6)), ((10, 2000), (1, 6)), ((1, 1), (4, 2))]
)
def test_thumbnails_keep_the_aspect(size: tuple[int, int], cells: tuple[int, int]) -> None:
    assert fitted(size, 20, 6) == cells


def test_a_thumbnail_has_the_colours_of_its_picture(tmp_path: Path) -> None:
    path = draw(tmp_path / "cat.jpg", 400, 300, level=77)
    reference = next(references_in(read_documents([str(path)]).documents[0].in_message))
    small = thumbnail(reference.digest, 8, 3)
    assert small is not None
    assert (small.width, small.height, len(small.pixels)) == (8, 6, 144)
    assert small.colour(7, 5) == (77, 77, 77)
    assert thumbnail("0" * 64, 8, 3) is None


def test_people_read_names_of_pictures(tmp_path: Path) -> None:
    document = read_documents([str(draw(tmp_path / "cat.png"))]).documents[0]
    text = pictures.with_names(f"{document.in_message} Who?")
    assert text == "*Picture: cat.png, 40 x 30 pixels*\n\nWho?"
