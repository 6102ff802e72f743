"""Idefics 3 and SmolVLM: pictures are enlarged and cut into tiles; the whole picture follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from engine.vision.config import EncoderConfig
from engine.vision.families import siglip
from engine.vision.family import EncoderFamily, Frame
from engine.vision.layers import Specs, linear
from engine.vision.pixels import LANCZOS, PictureError
from engine.vision.rows import HIGH, LOW, USUAL, RowGrid, Rows
from engine.vision.sizes import Size
from engine.vision.stage import EncoderStage

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.tensors import EncoderWeights

MARKER = "<fake_token_around_image>"
PROJECTION = "mm.model.fc"
LONGEST_TILES = 4
"""Tiles along the longer side if the file does not say."""
SHARES = {LOW: 0, USUAL: 2, HIGH: 1}
"""Divisor of the longer side for each detail; 0 for the whole picture alone."""


def _frames(config: EncoderConfig, size: Size, detail: str) -> tuple[list[Frame], str]:
    tile = config.image_size
    grid = RowGrid(tile // config.cell, tile // config.cell)
    whole = tile, tile
    if not SHARES[detail]:
        return [Frame(MARKER + "<global-img>", whole, grid, is_stretched=True)], MARKER
    longest = max(tile, (config.longest_side or LONGEST_TILES * tile) // SHARES[detail])
    enlarged = _enlarged(size, longest)
    canvas = _in_tiles(enlarged[0], tile), _in_tiles(enlarged[1], tile)
    frames: list[Frame] = []
    for row in range(canvas[1] // tile):
        for column in range(canvas[0] // tile):
            marker = f"{MARKER}<row_{row + 1}_col_{column + 1}>"
            if frames and not column:
                marker = "\n" + marker
            box = column * tile, row * tile, (column + 1) * tile, (row + 1) * tile
            frames.append(Frame(marker, canvas, grid, True, box, before=(enlarged,)))
    text = f"\n\n{MARKER}<global-img>"
    frames.append(Frame(text, whole, grid, is_stretched=True, before=(enlarged, canvas)))
    return frames, MARKER


def _enlarged(size: Size, longest: int) -> Size:
    """Return a size of about the same aspect: ``longest`` for the longer side, an even number for
    the shorter one.

    Raises:
        PictureError: The shorter side would be 0.
    """
    factor = np.float32(longest) / np.float32(max(size))
    width, height = (int(np.float32(side) * factor) for side in size)
    if not width or not height:
        raise PictureError(f"a picture of {size[0]} x {size[1]} is too narrow for this model")
    return width + width % 2, height + height % 2


def _in_tiles(side: int, tile: int) -> int:
    return -(-side // tile) * tile


def _tensors(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    if config.image_size % config.cell:
        raise ValueError(
            f"clip.vision.image_size is {config.image_size}: no multiple of {config.cell}"
        )
    specs = siglip.tensors(config, infos)
    return specs | linear(PROJECTION, config.text_width, _cell_width(config), has_bias=False)


def _cell_width(config: EncoderConfig) -> int:
    return config.dim * config.merge**2


def _merge_cells(config: EncoderConfig, weights: EncoderWeights, x: Rows) -> Rows:
    return x.reshape(-1, _cell_width(config))


def _compose_head(stage: EncoderStage) -> None:
    stage.plan.barrier()
    cells = stage.vector("cells", _cell_width(stage.config))
    stage.multiply(cells, (PROJECTION, stage.vector("rows", stage.config.text_width)))


FAMILY = EncoderFamily(
    title="SmolVLM, Idefics 3",
    architectures=("llama", "smollm3"),
    merge=4,
    resample=LANCZOS,
    frames=_frames,
    tensors=_tensors,
    inputs=siglip.inputs,
    compose=siglip.compose,
    merge_cells=_merge_cells,
    compose_head=_compose_head,
    cell_width=_cell_width,
)
