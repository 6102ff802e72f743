"""Costs of pictures before they are sent: size, tokens, and the seconds of the encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.text.record import record

if TYPE_CHECKING:
    from engine.vision.cost import CostModel


@record
class PictureEstimate:
    """Estimated cost of a picture."""

    width: int
    """Width after resizing, in pixels."""
    height: int
    n_parts: int
    """Number of tiles and thumbnails; 1 for a picture that is read as a whole."""
    n_tokens: int
    encode_s: float
    """Seconds of the encoder."""


@record
class PictureCosts:
    """Costs of pictures for the open model."""

    costs: CostModel
    """Sizes, tokens and multiplications, from the shape of the encoder."""
    products_per_s: float
    """Multiplications per second of the encoder: measured, or estimated before its first
    picture."""

    def of(self, size: tuple[int, int], detail: str) -> PictureEstimate:
        """Estimate the cost of a picture of a width and height, read at a detail."""
        cost = self.costs.cost(size, detail)
        width, height = cost.size
        encode_s = cost.products / self.products_per_s
        return PictureEstimate(width, height, cost.n_parts, cost.n_rows, encode_s)


@record
class EncodingProgress:
    """Progress of the encoder with a picture."""

    name: str
    """Name of the picture: clean, one line."""
    share: float
    """Share that is done, 0 to 1."""
    reported_s: float
    """Time of this report, on the clock of the engine thread."""
    left_s: float
    """Seconds left at that time."""

    def seconds_left(self, now_s: float) -> float:
        """Return the estimated seconds left."""
        return max(0.0, self.left_s - (now_s - self.reported_s))
