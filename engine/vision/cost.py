"""Costs of a picture before its pixels are read: its size after resizing, tokens, and work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.vision.sizes import Size

if TYPE_CHECKING:
    from engine.vision.config import EncoderConfig
    from engine.vision.family import EncoderFamily


@dataclass(frozen=True)
class PictureCost:
    """Cost of a picture.

    Attributes:
        size: Width and height after resizing; of a picture in tiles, those of all tiles together.
        n_parts: Number of parts: 1, or tiles and a thumbnail.
        n_rows: Embeddings in the prompt, without the tokens of the texts between them.
        products: Approximate number of multiplications of the encoder.
    """

    size: Size
    n_parts: int
    n_rows: int
    products: int


@dataclass(frozen=True)
class CostModel:
    """Function from sizes of pictures to costs. Any thread may use it.

    Attributes:
        config: Shape of the encoder.
        family: Functions of its family.
        n_taps: Number of layers whose results become further embeddings.
    """

    config: EncoderConfig
    family: EncoderFamily
    n_taps: int

    def cost(self, size: Size, detail: str) -> PictureCost:
        """Return the cost of a picture of a width and height, read at a detail."""
        frames, _ = self.family.frames(self.config, size, detail)
        return PictureCost(
            frames[0].canvas,
            len(frames),
            sum(frame.grid.n for frame in frames),
            sum(self.products(frame.grid.n) for frame in frames),
        )

    def products(self, n_cells: int) -> int:
        """Return the approximate number of multiplications that so many cells take."""
        config = self.config
        n = n_cells * config.merge**2
        n_matrices = 2 + self.family.has_gates
        feed_forward = n_matrices * config.dim * config.hidden_dim
        per_patch = 4 * config.dim**2 + feed_forward + 2 * n * config.dim
        patches = 3 * config.patch**2 * config.dim
        cell_width = self.family.cell_width(config)
        head = cell_width * (cell_width + config.text_width) * (1 + self.n_taps)
        return n * (config.n_layers * per_patch + patches) + n_cells * head
