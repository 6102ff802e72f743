"""Thumbnails of pictures, for previews of a few rows in a terminal."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from app.documents.pictures import PICTURES
from app.text.record import record
from engine.errors import EngineError

MOST_COLUMNS = 48
MOST_ROWS = 24
"""Limits on the characters of a preview; each row has two rows of pixels."""
_LARGEST_SCALE = 4.0
"""Limit on how much a small picture is enlarged."""


@record
class Thumbnail:
    """A small picture."""

    width: int
    height: int
    pixels: bytes
    """Red, green and blue of each pixel, row by row."""

    def colour(self, x: int, y: int) -> tuple[int, int, int]:
        """Return red, green and blue of a pixel; that of the last row below it."""
        index = 3 * (min(y, self.height - 1) * self.width + x)
        red, green, blue = self.pixels[index : index + 3]
        return red, green, blue


def fitted(size: tuple[int, int], columns: int, rows: int) -> tuple[int, int]:
    """Return columns and rows of a preview with the aspect of a picture, where a character is twice
    as high as wide."""
    columns = min(columns, MOST_COLUMNS)
    rows = min(rows, MOST_ROWS)
    width, height = size
    scale = min(columns / width, 2 * rows / height, _LARGEST_SCALE)
    fitted_columns = min(columns, max(1, round(width * scale)))
    fitted_rows = min(rows, max(1, round(height * scale / 2)))
    return fitted_columns, fitted_rows


@lru_cache(maxsize=64)
def thumbnail(digest: str, columns: int, rows: int) -> Thumbnail | None:
    """Return the thumbnail of a picture that was read before, for a preview of a size in
    characters; None if it is lost."""
    return resized(digest, columns, 2 * rows)


def resized(digest: str, width: int, height: int) -> Thumbnail | None:
    """Return a picture that was read before at a size in pixels; None if it is lost."""
    content = PICTURES.find(digest)
    if content is None:
        return None
    from engine.vision.pixels import small

    with suppress(EngineError):
        size = width, height
        return Thumbnail(*size, small(content, size).tobytes())
    return None
