"""The shape of a picture encoder as data, read from the keys of an mmproj file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.gguf.hyperparameters import Hyperparameters

MAX_WIDTH = 1 << 16
MAX_LAYERS = 256
MAX_HEADS = 256
MAX_PATCH = 64
MAX_MERGE = 8
MAX_IMAGE = 1 << 13
GELU = "gelu"
QUICK_GELU = "quick gelu"
SILU = "silu"
CHANNELS = 3


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of an encoder.

    Attributes:
        projector: Name of the family in files, a key of ``engine.vision.families.FAMILIES``.
        text_width: Width of the text model's embeddings.
        dim: Width of the encoder.
        hidden_dim: Width of the feed-forwards; 0 for an encoder without layers.
        n_heads: Heads of attention; 0 for an encoder without layers.
        n_layers: Number of layers.
        patch: Side of a patch in pixels.
        merge: Patches along a side of the cell that becomes one embedding.
        image_size: Side of the picture that the encoder was trained with, in pixels.
        longest_side: Side that pictures are enlarged to before they are cut into tiles; 0 if the
            file does not say.
        eps: Term that norms add before the root.
        activation: ``GELU``, ``QUICK_GELU`` or ``SILU``.
        mean, deviation: Subtracted from, and divisor of, each channel of pixels from 0 to 1.
    """

    projector: str
    text_width: int
    dim: int
    hidden_dim: int
    n_heads: int
    n_layers: int
    patch: int
    merge: int
    image_size: int
    longest_side: int
    eps: float
    activation: str
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // max(1, self.n_heads)

    @property
    def cell(self) -> int:
        """Side of the pixels that become one embedding."""
        return self.patch * self.merge


def read_config(projector: str, merge: int, keys: Hyperparameters) -> EncoderConfig:
    """Read the keys of an encoder, each within bounds.

    Args:
        merge: ``EncoderConfig.merge`` if the file does not say.
        keys: Keys that begin with ``clip``.
    """
    vision = keys.under("clip.vision")
    n_layers = vision.integer("block_count", 0, MAX_LAYERS)
    least = min(1, n_layers)
    dim = vision.integer("embedding_length", 8, MAX_WIDTH)
    n_heads = vision.integer("attention.head_count", least, MAX_HEADS)
    for name, divisor in (("8", 8), ("8 times attention.head_count", 8 * max(1, n_heads))):
        if dim % divisor:
            raise keys.fail(f"{vision.key('embedding_length')} is {dim}: no multiple of {name}")
    merge_key = "spatial_merge_size"
    if vision.raw(merge_key) is None:
        merge_key = "projector.scale_factor"
    return EncoderConfig(
        projector=projector,
        text_width=vision.integer("projection_dim", 8, MAX_WIDTH),
        dim=dim,
        hidden_dim=vision.integer("feed_forward_length", 8 * least, MAX_WIDTH),
        n_heads=n_heads,
        n_layers=n_layers,
        patch=vision.integer("patch_size", 1, MAX_PATCH),
        merge=vision.integer(merge_key, 1, MAX_MERGE, default=merge),
        image_size=vision.integer("image_size", 1, MAX_IMAGE),
        longest_side=vision.integer("preproc_image_size", 0, MAX_IMAGE, default=0),
        eps=vision.positive("attention.layer_norm_epsilon"),
        activation=_activation(keys),
        mean=_channels(vision, "image_mean", 0.0),
        deviation=_channels(vision, "image_std", 1.0),
    )


def _activation(keys: Hyperparameters) -> str:
    if keys.flag("use_gelu", default=False):
        return GELU
    if keys.flag("use_silu", default=False):
        return SILU
    return QUICK_GELU


def _channels(vision: Hyperparameters, name: str, default: float) -> tuple[float, ...]:
    """Read a number for each channel; divisors are above zero."""
    value = vision.raw(name)
    if value is None:
        return (default,) * CHANNELS
    if not isinstance(value, np.ndarray) or len(value) != CHANNELS:
        raise vision.fail(f"{vision.key(name)} must be an array of {CHANNELS} numbers")
    numbers = vision.numbers(name, CHANNELS)
    if max(map(abs, numbers)) > 1e3 or (default and min(numbers) < 1e-3):
        raise vision.fail(f"{vision.key(name)} is out of range: {numbers}")
    return tuple(numbers)
