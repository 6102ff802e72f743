"""Pictures in messages: a text names a picture by the digest of its file.

A reference such as ``[picture 640 x 360 0123...]`` is the text of a picture's file in a message. So
drafts, queues, forks, exports and the database need to know nothing of pictures. The files
themselves are in memory, and once their message is saved, in a directory of their own.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from app.program import paths
from app.program.refusals import Refusal
from app.program.small_file import replace_file
from app.text.clean_text import clean_line
from app.text.record import record
from engine.errors import EngineError
from engine.machine.files import make_private

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff"))
"""Suffixes of files that are read as pictures."""
MAX_MEMORY_BYTES = 256 << 20
"""Limit on the files in memory."""
MAX_DISK_BYTES = 1 << 30
"""Limit on the files on disk; those used longest ago are deleted."""
REFERENCE_START = "[picture "
"""Beginning of each reference to a picture in the text of a message."""
_REFERENCE = re.compile(
    re.escape(REFERENCE_START)
    + r"(?P<width>[1-9]\d{0,5}) x (?P<height>[1-9]\d{0,5}) "
    + r"(?:(?P<detail>low|usual|high) )?(?P<digest>[0-9a-f]{64})\]"
)
_ATTACHED = re.compile(
    r"(?:^|(?<=\s))(?P<name>[^\n]{1,200}):\n```\n" + _REFERENCE.pattern + r"\n```(?:\s+|$)"
)
_LEAST_TOKENS = 64
_MOST_TOKENS = 1024
_PIXELS_PER_TOKEN = 1024


@record
class PictureReference:
    """Reference to a picture in a message."""

    start: int
    """Index of the first character of the attached file."""
    end: int
    """Index after the last character."""
    name: str
    """Name of the file."""
    digest: str
    """Hash of the file's content."""
    width: int
    """Width of the file in pixels."""
    height: int
    detail: str
    """Size at which the picture is read, as in the setting ``pictures.detail``; "" for that of the
    setting."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the file in pixels."""
        return self.width, self.height


def size_of(text: str) -> tuple[int, int] | None:
    """Return width and height of the picture that a text refers to; None if it is another text."""
    match = _REFERENCE.fullmatch(text)
    if match:
        return int(match["width"]), int(match["height"])
    return None


def with_detail(text: str, detail: str) -> str:
    """Return a text in which all pictures are read at a detail."""
    if REFERENCE_START not in text:
        return text
    return _REFERENCE.sub(
        lambda match: _reference(match["width"], match["height"], detail, match["digest"]), text
    )


def with_names(message: str) -> str:
    """Return the text of a message for people: with names and sizes of its pictures."""
    return _with_words(message, lambda picture: f"*Picture: {picture.name}, {_size(picture)}*\n\n")


def with_short_references(message: str) -> str:
    """Return the text of a message with a few words for each picture."""
    return _with_words(message, lambda picture: f"[{picture.name}: {_size(picture)}] ")


def without_pictures(message: str) -> str:
    """Return the text of a message for a model that cannot see the pictures it refers to."""
    return _with_words(
        message, lambda picture: f"[{picture.name}: a picture, which this model cannot see]\n"
    )


def _with_words(message: str, words_for: Callable[[PictureReference], str]) -> str:
    """Return the text of a message with words in place of each reference to a picture."""
    pieces = []
    start = 0
    for reference in references_in(message):
        pieces.append(message[start : reference.start] + words_for(reference))
        start = reference.end
    return "".join(pieces) + message[start:]


def _size(picture: PictureReference) -> str:
    return f"{picture.width} x {picture.height} pixels"


def _reference(width: int | str, height: int | str, detail: str, digest: str) -> str:
    return f"{REFERENCE_START}{width} x {height} {f'{detail} ' if detail else ''}{digest}]"


def about_tokens(size: tuple[int, int]) -> int:
    """Estimate the tokens that a picture takes; models differ by a factor of two."""
    width, height = size
    return min(max(width * height // _PIXELS_PER_TOKEN, _LEAST_TOKENS), _MOST_TOKENS)


def about_tokens_in(message: str) -> int:
    """Estimate the tokens of the pictures that a message refers to."""
    sizes = ((int(match[1]), int(match[2])) for match in _REFERENCE.finditer(message))
    return sum(map(about_tokens, sizes))


def references_in(message: str) -> Iterator[PictureReference]:
    """Yield the pictures attached to a message, in order."""
    for match in _ATTACHED.finditer(message):
        yield PictureReference(
            match.start(),
            match.end(),
            match["name"],
            match["digest"],
            int(match["width"]),
            int(match["height"]),
            match["detail"] or "",
        )


def digest_of(content: bytes) -> str:
    """Return the hash that names a picture, 64 hexadecimal digits."""
    import hashlib  # the first frame needs none

    return hashlib.sha256(content).hexdigest()


class PictureFiles:
    """Content of pictures by digest. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._protected: frozenset[str] = frozenset()
        """Digests of pictures that stay on disk."""

    def protect(self, digests: Iterable[str]) -> None:
        """Keep the pictures of the open conversation on disk, and no longer those of another."""
        self._protected = frozenset(digests)

    def add(self, content: bytes) -> str:
        """Keep the content of a file in memory; returns its digest."""
        digest = digest_of(content)
        with self._lock:
            self._contents[digest] = content
            self._contents.move_to_end(digest)
            while len(self._contents) > 1 and self._n_bytes() > MAX_MEMORY_BYTES:
                self._contents.popitem(last=False)
        return digest

    def _n_bytes(self) -> int:
        return sum(map(len, self._contents.values()))

    def has(self, digest: str) -> bool:
        """Return whether the content of a picture is in memory or on the disk."""
        directory = paths.pictures_dir()
        with self._lock:
            if digest in self._contents:
                return True
        return directory is not None and (directory / digest).is_file()

    def find(self, digest: str) -> bytes | None:
        """Return the content of a picture, from memory or the disk; None if it is lost."""
        with self._lock:
            content = self._contents.get(digest)
        directory = paths.pictures_dir()
        if content is None and directory is not None:
            with suppress(OSError):
                content = (directory / digest).read_bytes()
                os.utime(directory / digest)
        if content is None or digest_of(content) != digest:
            return None
        return content

    def save(self, message: str) -> None:
        """Save the pictures of a message, in a private directory. A full disk loses them."""
        directory = paths.pictures_dir()
        references = list(references_in(message))
        if directory is None or not references:
            return
        with suppress(OSError):
            make_private(directory)
            for reference in references:
                path = directory / reference.digest
                content = self.find(reference.digest)
                if content is not None and not path.exists():
                    replace_file(path, content, durable=False)
            _delete_oldest(directory, self._protected)


PICTURES = PictureFiles()
"""Pictures of this process."""


def _delete_oldest(directory: Path, protected: Collection[str]) -> None:
    """Delete the pictures used longest ago beyond the limit, except the protected ones."""
    files = [
        (entry.stat().st_mtime, entry.stat().st_size, entry.name, entry.path)
        for entry in os.scandir(directory)
    ]
    excess_bytes = sum(n_bytes for _, n_bytes, _, _ in files) - MAX_DISK_BYTES
    for _, n_bytes, name, path in sorted(files):
        if excess_bytes <= 0:
            break
        if name not in protected:
            os.unlink(path)
            excess_bytes -= n_bytes


def read_picture_text(path: Path) -> str:
    """Read a picture's file and keep it; returns its reference.

    Raises:
        Refusal: it cannot be read.
    """
    from engine.vision.pixels import read_bytes

    try:
        return picture_text(read_bytes(path), path.name)
    except EngineError as error:
        folder = f"{clean_line(str(path.parent), 200)}/" if path.parent.name else ""
        raise Refusal(f"{folder}{error}") from None


def picture_text(content: bytes, name: str) -> str:
    """Keep the content of a picture's file; returns its reference.

    Raises:
        EngineError: it cannot be decoded.
    """
    from engine.vision.pixels import decode

    height, width, _ = decode(content, name).shape
    return _reference(width, height, "", PICTURES.add(content))
