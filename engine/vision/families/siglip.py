"""Parts that the families with a SigLIP encoder share: plain layers and learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.vision.config import EncoderConfig
from engine.vision.family import Inputs, by_cells, normalised, patches_of
from engine.vision.layers import (
    PATCHES,
    POSITIONS,
    Specs,
    embed_patches,
    layer_norm,
    patch_kernels,
    plain_layer,
    plain_layers,
    square_positions,
)
from engine.vision.positions import antialiased
from engine.vision.rows import Pixels
from engine.vision.stage import EncoderStage

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.tensors import EncoderWeights


def tensors(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    """Return the tensors up to the last norm."""
    specs = patch_kernels(config) | square_positions(config, infos) | plain_layers(config, infos)
    return specs | layer_norm("v.post_ln", config.dim)


def inputs(config: EncoderConfig, weights: EncoderWeights, pixels: Pixels) -> Inputs:
    """Return patches and positions, cell by cell; the table fits any grid."""
    patches = patches_of(normalised(config, pixels), config.patch)
    n_rows, n_columns, _ = patches.shape
    table = antialiased(weights.floats(POSITIONS), n_rows, n_columns)
    start = by_cells(table, config.merge) + weights.floats(PATCHES + ".bias")
    return Inputs(by_cells(patches, config.merge), start)


def compose(stage: EncoderStage) -> None:
    """Write all layers and the last norm."""
    embed_patches(stage)
    for number in range(stage.config.n_layers):
        plain_layer(stage, number)
    stage.norm_into(stage.x, "v.post_ln", stage.encoded)
