"""Rotation of keys by position: the frequencies of a rope."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.config import Attention, Layer, ModelConfig, Rope, Yarn, sharpness
from engine.weights.weights import Weights


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotation of a head: each pair of elements is rotated by position times frequency.

    Attributes:
        frequencies: (n_pairs,) float64, radians per position.
        pair_step: distance from the first element of a pair to that of the next, in elements.
        pair_distance: distance from the first element of a pair to its second.
        magnitude: factor of rotated pairs. Cached keys include it already, so ``rotate`` does not
            apply it.
    """

    frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
    pair_step: int
    pair_distance: int
    magnitude: float = 1.0

    def rotate(self, keys: np.ndarray[Any, np.dtype[np.float32]], positions: int) -> None:
        """Rotate every pair of (..., head_dim) by a number of positions, in place."""
        first = np.arange(len(self.frequencies)) * self.pair_step
        second = first + self.pair_distance
        cos, sin = (f(positions * self.frequencies).astype(np.float32) for f in (np.cos, np.sin))
        x = keys[..., first]
        y = keys[..., second]
        keys[..., first], keys[..., second] = x * cos - y * sin, x * sin + y * cos

    def picture_angles(
        self, positions: np.ndarray[Any, np.dtype[np.int64]], sections: tuple[int, ...]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return cos and sin of each pair for rows of a picture, as the kernel ``angles`` writes
        them for tokens: (n, 2 * n_pairs) float32.

        Pair k turns by the time, the row or the column as k % 3 is 0, 1 or 2, while k is below
        three times the section's number of pairs; the others turn by the time, like those of
        tokens.

        Args:
            positions: (n, 3), time, row and column of each row.
        """
        pairs = np.arange(len(self.frequencies))
        axes = pairs % 3
        axes[pairs >= 3 * np.array(sections)[axes]] = 0
        angles = positions[:, axes] * self.frequencies
        both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        return (self.magnitude * both).astype(np.float32)


def rotation_of(rope: Rope, weights: Weights | None = None, n_ctx: int = 0) -> Rotation:
    """Compute a rope's frequencies, with the divisors that the weights may hold (Llama 3.1,
    longrope).

    Args:
        n_ctx: context of the session, which selects longrope's divisors.
    """
    pairs = np.arange(0, rope.dim, 2, dtype=np.float64)
    frequencies = _scaled(rope, rope.theta ** (-pairs / rope.dim))
    if rope.long_factors and n_ctx > rope.original_context:
        factors = rope.long_factors
    else:
        factors = rope.factors
    if weights is not None and weights.get(factors):
        frequencies = frequencies / weights.float32(factors)[0].astype(np.float64)
    if rope.neighbours:
        return Rotation(frequencies, 2, 1, rope.magnitude)
    return Rotation(frequencies, 1, rope.dim // 2, rope.magnitude)


def _scaled(rope: Rope, frequencies: Any) -> Any:
    """Divide frequencies by the scaling factor. YaRN divides only those that rotate too slowly
    within the original context.

    There is a ramp between pairs that rotate at least ``beta_fast`` times and pairs that rotate at
    most ``beta_slow`` times (Peng et al. 2023, arXiv:2309.00071).
    """
    if rope.yarn is None:
        return frequencies / rope.scaling_factor

    def pair_with_rotations(n: float) -> float:
        log_ratio = math.log(rope.original_context / (2 * math.pi * n))
        return rope.dim * log_ratio / (2 * math.log(rope.theta))

    low = max(0, math.floor(pair_with_rotations(rope.yarn.beta_fast)))
    high = min(rope.dim - 1, math.ceil(pair_with_rotations(rope.yarn.beta_slow)))
    ramp = np.clip((np.arange(rope.dim // 2) - low) / max(0.001, high - low), 0, 1)
    return frequencies * (ramp / rope.scaling_factor + 1 - ramp)


def key_weights_of(
    config: ModelConfig, weights: Weights
) -> dict[int, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the weights that keys are multiplied by after their rotation, by the layer's number.

    They must be removed before keys are rotated again.
    """
    return {
        number: weights.float32(f"blk.{number}.attn_k_norm.weight")[0].copy()
        for number, attention in config.attentions.items()
        if attention.norms_turned
    }


def rotations_of(
    config: ModelConfig, weights: Weights | None = None, n_ctx: int = 0
) -> dict[Rope, Rotation]:
    """Return the rotation of every rope of a model, in a context of ``n_ctx`` positions."""
    return {rope: rotation_of(rope, weights, n_ctx) for rope in config.ropes}


def yarn_obstacle(config: ModelConfig, weights: Weights) -> str:
    """Return the reason why YaRN cannot stretch a model's ropes; empty if it can."""
    ropes = {
        attention.rope
        for attention in config.attentions.values()
        if attention.rope is not None and attention.window is None
    }
    if not ropes:
        return "it has no rope"
    for rope in ropes:
        if rope.scaling_factor != 1 or rope.yarn or rope.long_factors or weights.get(rope.factors):
            return "its file stretches its rope already"
    if min(rope.theta for rope in ropes) > 1:
        return ""
    return "the base of its rope is not above 1"


def with_yarn(config: ModelConfig, n_ctx: int) -> ModelConfig:
    """Return a model whose ropes are stretched by YaRN from the trained context to a longer one, as
    in llama.cpp.

    The ropes of sliding layers stay the same, since no query there sees further than the window.
    """
    factor = n_ctx / config.context_length
    if factor <= 1:
        return config

    def stretch(layer: Layer) -> Layer:
        mixer = layer.mixer
        if not isinstance(mixer, Attention) or mixer.rope is None or mixer.window is not None:
            return layer
        rope = replace(
            mixer.rope,
            scaling_factor=factor,
            original_context=config.context_length,
            yarn=Yarn(),
            magnitude=mixer.rope.magnitude * sharpness(factor),
        )
        return replace(layer, mixer=replace(mixer, rope=rope))

    predictor = config.predictor
    if predictor is not None:
        predictor = stretch(predictor)
    return replace(config, layers=tuple(map(stretch, config.layers)), predictor=predictor)
