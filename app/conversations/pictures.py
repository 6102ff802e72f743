"""Pictures in messages: the bytes of their files, and the mark where each is in a text."""

from __future__ import annotations

from pathlib import Path

from app.documents.pictures import PICTURES, digest_of, references_in
from app.program import exit_codes
from app.program.refusals import Refusal
from app.text.record import record

MARK = "\ufffc"
"""Character of a message's text in place of a picture."""
MOST_PICTURES = 32
"""Limit on the pictures of a message."""


@record
class Picture:
    """A picture of a message."""

    data: bytes
    """Content of the file."""
    name: str
    """Name for messages to the user."""
    digest: str
    """Hash of the content."""
    detail: str = ""
    """Size at which the picture is read, as in the setting ``pictures.detail``; "" for that of the
    setting."""

    @classmethod
    def of(cls, data: bytes, name: str, detail: str = "") -> Picture:
        """Return a picture of a file's content."""
        return cls(data, name, digest_of(data), detail)


def with_marks(text: str, n_pictures: int) -> str:
    """Return a text with a mark for each picture: those that it has, if their number is right, else
    all before the text."""
    if text.count(MARK) == n_pictures:
        return text
    return MARK * n_pictures + text.replace(MARK, "")


def with_attached(text: str, pictures: tuple[Picture, ...]) -> tuple[str, tuple[Picture, ...]]:
    """Return text and pictures of a message, those that the text refers to among the pictures."""
    references = list(references_in(text))
    if not references or pictures:
        return text, pictures
    pieces: list[str] = []
    attached: list[Picture] = []
    start = 0
    for reference in references:
        pieces.append(text[start : reference.start].replace(MARK, ""))
        start = reference.end
        content = PICTURES.find(reference.digest)
        if content is None:
            pieces.append(f"[{reference.name}: this picture is no longer here]\n")
            continue
        pieces.append(MARK)
        picture = Picture(content, reference.name, reference.digest, reference.detail)
        attached.append(picture)
    pieces.append(text[start:].replace(MARK, ""))
    return "".join(pieces), tuple(attached)


def read_picture(name: str) -> Picture:
    """Read a picture's file; it is decoded later.

    Raises:
        Refusal: it cannot be read.
    """
    from engine.errors import EngineError
    from engine.vision.pixels import read_bytes

    try:
        return Picture.of(read_bytes(name), Path(name).name)
    except EngineError as error:
        raise Refusal(str(error), exit_codes.UNREADABLE) from None
