"""Pictures in messages: the bytes of their files, and the mark where each is in a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.documents.pictures import PICTURES, digest_of, references_in
from app.program import exit_codes
from app.program.refusals import Refusal
from app.text.record import record

if TYPE_CHECKING:
    from app.conversations.conversation import PromptMessage

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


def with_attached(message: PromptMessage) -> tuple[str, tuple[Picture, ...]]:
    """Return the text and the pictures of a message, those that its text refers to among them."""
    references = list(references_in(message.text))
    if not references or message.pictures:
        return message.text, message.pictures
    pieces: list[str] = []
    pictures: list[Picture] = []
    start = 0
    for reference in references:
        pieces.append(message.text[start : reference.start].replace(MARK, ""))
        start = reference.end
        content = PICTURES.find(reference.digest)
        if content is None:
            pieces.append(f"[{reference.name}: this picture is no longer here]\n")
            continue
        pieces.append(MARK)
        pictures.append(Picture(content, reference.name, reference.digest))
    pieces.append(message.text[start:].replace(MARK, ""))
    return "".join(pieces), tuple(pictures)


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
