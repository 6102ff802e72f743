"""Pictures that prompts may contain: their ids in lists of tokens, and their rows.

A prompt names the rows of a picture by ids (``engine.cache.picture_ids``). A session that finds
these ids in its cache or in a saved state needs no rows, so a picture is read by the encoder when
its rows are first computed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from engine.cache.picture_ids import part_ids
from engine.errors import EngineError
from engine.vision.rows import PictureRows, PreparedPicture, Rows

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer
    from engine.vision.encoder import PictureEncoder

MAX_ROWS_BYTES = 64 << 20
"""Limit in bytes on the rows that are kept for further sessions and prompts."""
PictureProgress = Callable[[PreparedPicture, float], None]
"""Called with a picture and the share of it that the encoder has read, 0 to 1."""


class RowsBlock(NamedTuple):
    """Rows of a picture that are computed in one block.

    Attributes:
        rows: (n, dim * (1 + n_deepstack)) float32.
        positions: (n, 3) int64, the time, row and column of each row.
        visibility: how the rows see each other, one of ``engine.config.VISIBILITIES``.
    """

    rows: Rows
    positions: np.ndarray[Any, np.dtype[np.int64]]
    visibility: str


@dataclass(frozen=True, eq=False)
class PartRows:
    """Rows of one part of a picture.

    Attributes:
        rows: (n, dim * (1 + n_deepstack)) float32.
        visibility: how the rows see each other, one of ``engine.config.VISIBILITIES``.
    """

    rows: Rows
    visibility: str

    def block(self, chosen: slice, positions: np.ndarray[Any, np.dtype[np.int64]]) -> RowsBlock:
        """Return some of the rows, with their positions."""
        return RowsBlock(self.rows[chosen], positions, self.visibility)


def ids_of_parts(picture: PreparedPicture) -> list[list[int]]:
    """Return the ids of the rows of each part."""
    return [
        part_ids(
            picture.digest,
            number,
            part.grid.n_rows,
            part.grid.n_columns,
            picture.has_grid_positions,
        )
        for number, part in enumerate(picture.parts)
    ]


class KnownPictures:
    """Pictures that prompts of one model may contain.

    A picture is known as long as its caller holds it; some rows are kept longer.

    Args:
        tokenizer: tokenizer of the text model.

    Attributes:
        row_width: width of the rows that the text model reads.
        encoder: encoder of the model; None if it has none.
        on_progress: called while the encoder reads a picture: before the first layer and after
            every layer. It may raise ``Cancelled``; nothing of this picture is kept then.
    """

    def __init__(self, tokenizer: Tokenizer, row_width: int) -> None:
        self._tokenizer = tokenizer
        self.row_width = row_width
        self.encoder: PictureEncoder | None = None
        self.on_progress: PictureProgress | None = None
        self._pictures: WeakValueDictionary[tuple[int, ...], PreparedPicture] = (
            WeakValueDictionary()
        )
        """Pictures by the ids of each of their parts."""
        self._rows: OrderedDict[str, PictureRows] = OrderedDict()
        """Rows by the picture's digest, those used longest ago first."""

    def prompt_ids(self, picture: PreparedPicture) -> tuple[int, ...]:
        """Make a picture known; returns its tokens in a prompt: its marker tokens, and the ids of
        its rows."""
        self.add(picture)
        ids: list[int] = []
        for part, rows in zip(picture.parts, ids_of_parts(picture), strict=True):
            ids += self._tokenizer.encode(part.text_before, bos=False)
            ids += rows
        return (*ids, *self._tokenizer.encode(picture.text_after, bos=False))

    def close(self) -> None:
        """Close the encoder and forget all rows. Closing twice is harmless."""
        self._rows.clear()
        if self.encoder is not None:
            self.encoder.close()

    @property
    def unused_bytes(self) -> int:
        """Memory that the encoder does not use now and will need for the next picture."""
        if self.encoder is None:
            return 0
        return max(0, self.encoder.needed_bytes - self.encoder.used_bytes)

    def add(self, picture: PreparedPicture) -> None:
        """Make a picture known."""
        for ids in ids_of_parts(picture):
            self._pictures[tuple(ids)] = picture

    def add_rows(self, picture: PictureRows) -> None:
        """Make a picture known that was read already."""
        self.add(picture.picture)
        self._keep(picture)

    def part(self, ids: Sequence[int]) -> PartRows:
        """Return the rows of one part of a picture; the encoder reads the picture if necessary.

        Args:
            ids: ids of all rows of the part.

        Raises:
            EngineError: the picture is not known, or the rows do not suit the text model.
        """
        picture = self._pictures.get(tuple(ids))
        if picture is None:
            raise EngineError("a picture of this conversation is no longer there (add it again)")
        number = ids_of_parts(picture).index(list(ids))
        rows = self._rows_of(picture).rows[number]
        if rows.shape != (len(ids), self.row_width):
            raise EngineError(
                f"the picture's rows are {rows.shape[-1]} wide and the text model reads "
                f"{self.row_width}: the mmproj file belongs to another model"
            )
        if not np.isfinite(rows).all():
            raise EngineError("the encoder computed NaN or infinity: the mmproj file is damaged")
        return PartRows(rows, picture.visibility)

    def _rows_of(self, picture: PreparedPicture) -> PictureRows:
        known = self._rows.get(picture.digest)
        if known is None:
            if self.encoder is None:
                raise EngineError("this model has no encoder for pictures (mmproj file)")
            report = None
            if self.on_progress is not None:
                report = partial(self.on_progress, picture)
            known = self.encoder.encode(picture, report)
        self._keep(known)
        return known

    def _keep(self, picture: PictureRows) -> None:
        """Keep the rows of a picture, and forget those used longest ago if there are too many."""
        self._rows[picture.picture.digest] = picture
        self._rows.move_to_end(picture.picture.digest)
        while len(self._rows) > 1 and _n_bytes(self._rows.values()) > MAX_ROWS_BYTES:
            self._rows.popitem(last=False)


def _n_bytes(pictures: Iterable[PictureRows]) -> int:
    return sum(rows.nbytes for picture in pictures for rows in picture.rows)
