"""Gemma 3: a square canvas for every picture, and averages of 4 x 4 patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.config import BOTH_WAYS
from engine.vision.config import EncoderConfig
from engine.vision.families import siglip
from engine.vision.family import EncoderFamily, Frame, whole_picture
from engine.vision.layers import Specs
from engine.vision.pixels import BILINEAR
from engine.vision.rows import Rows
from engine.vision.sizes import Size
from engine.vision.stage import EncoderStage
from engine.weights.weights import TensorSpec

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.tensors import EncoderWeights

PROJECTION = "mm.input_projection"
NORM = "mm.soft_emb_norm"


def _frames(config: EncoderConfig, size: Size, detail: str) -> tuple[list[Frame], str]:
    canvas = config.image_size, config.image_size
    return whole_picture("<start_of_image>", "<end_of_image>", canvas, config.cell)


def _tensors(config: EncoderConfig, infos: Mapping[str, TensorInfo]) -> Specs:
    if config.image_size % config.cell:
        raise ValueError(
            f"clip.vision.image_size is {config.image_size}: no multiple of {config.cell}"
        )
    specs = siglip.tensors(config, infos)
    specs[f"{NORM}.weight"] = TensorSpec((config.dim,))
    specs[f"{PROJECTION}.weight"] = TensorSpec((config.dim, config.text_width))
    return specs


def _prepare(config: EncoderConfig, weights: EncoderWeights) -> None:
    name = f"{PROJECTION}.weight"
    quant = weights.tensors[name].quant
    weights.write(name, weights.floats(name).T, quant)


def _merge_cells(config: EncoderConfig, weights: EncoderWeights, x: Rows) -> Rows:
    averages: Rows = x.reshape(-1, config.merge**2, config.dim).mean(axis=1)
    return averages


def _compose_head(stage: EncoderStage) -> None:
    cells = stage.norm(stage.vector("cells", stage.config.dim), NORM)
    stage.multiply(cells, (PROJECTION, stage.vector("rows", stage.config.text_width)))


FAMILY = EncoderFamily(
    title="Gemma 3",
    architectures=("gemma3",),
    merge=4,
    resample=BILINEAR,
    frames=_frames,
    tensors=_tensors,
    inputs=siglip.inputs,
    compose=siglip.compose,
    merge_cells=_merge_cells,
    compose_head=_compose_head,
    cell_width=lambda config: config.dim,
    visibility=lambda config: BOTH_WAYS,
    prepare=_prepare,
)
