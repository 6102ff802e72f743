"""Gemma 4 12B: no layers, but norms around a product of large patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.vision.config import CHANNELS, EncoderConfig
from engine.vision.families.gemma4v import PROJECTION, frames, two_tables, visibility
from engine.vision.family import EncoderFamily, Inputs, normalised, patches_of
from engine.vision.layers import PATCHES, POSITIONS, Specs, layer_norm, linear
from engine.vision.pixels import BICUBIC
from engine.vision.positions import by_row_and_column
from engine.vision.rows import Pixels, Rows
from engine.vision.stage import EncoderStage

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.tensors import EncoderWeights

NORM = "v.patch_norm."
NORM_EPS = 1e-5
"""Epsilon of the norms around the patches; the value in the file does not count."""


def _patch_width(config: EncoderConfig) -> int:
    return CHANNELS * config.cell**2


def _tensors(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    if config.n_layers:
        raise ValueError(f"clip.vision.block_count is {config.n_layers}: must be 0")
    specs = linear(PATCHES, config.dim, _patch_width(config)) | two_tables(config, infos)
    specs |= layer_norm(NORM + "1", _patch_width(config))
    specs |= layer_norm(NORM + "2", config.dim) | layer_norm(NORM + "3", config.dim)
    return specs | linear(PROJECTION, config.text_width, config.dim, has_bias=False)


def _inputs(config: EncoderConfig, weights: EncoderWeights, pixels: Pixels) -> Inputs:
    patches = patches_of(normalised(config, pixels), config.cell)
    n_rows, n_columns, width = patches.shape
    start = by_row_and_column(weights.floats(POSITIONS), n_rows, n_columns)
    return Inputs(patches.reshape(-1, width), start.reshape(-1, config.dim))


def _compose(stage: EncoderStage) -> None:
    stage.plan.phase = "patches"
    stage.plan.barrier()
    patches = stage.vector("patches", _patch_width(stage.config))
    normed = stage.norm(patches, NORM + "1", NORM_EPS)
    embedded = stage.product(normed, PATCHES)
    stage.add(stage.norm(embedded, NORM + "2", NORM_EPS))
    stage.norm_into(stage.x, NORM + "3", stage.encoded, NORM_EPS)


def _merge_cells(config: EncoderConfig, weights: EncoderWeights, x: Rows) -> Rows:
    return x


def _compose_head(stage: EncoderStage) -> None:
    stage.plan.barrier()
    cells = stage.norm(stage.vector("cells", stage.config.dim), "")
    stage.multiply(cells, (PROJECTION, stage.vector("rows", stage.config.text_width)))


FAMILY = EncoderFamily(
    title="Gemma 4 12B",
    architectures=("gemma4",),
    merge=3,
    resample=BICUBIC,
    frames=frames,
    tensors=_tensors,
    inputs=_inputs,
    compose=_compose,
    merge_cells=_merge_cells,
    compose_head=_compose_head,
    cell_width=lambda config: config.dim,
    visibility=visibility,
)
