"""Rope as numbers: how far each pair of a head is turned for each position."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.config import Attention, Layer, ModelConfig, Rope, Yarn, sharpness
from engine.weights.weights import Weights


@dataclass(frozen=True, eq=False)
class Rotation:
    """How the positions of keys are told apart: each pair of elements is turned by position times
    frequency.

    Attributes:
        frequencies: (n_pairs,) float64, radians per position.
        pair_step: from the first element of a pair to that of the next, in elements.
        pair_distance: from the first element of a pair to its second.
        magnitude: what turned pairs are multiplied by. Cached keys carry it, so ``turn`` leaves it
            alone.
    """

    frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
    pair_step: int
    pair_distance: int
    magnitude: float = 1.0

    def turn(self, keys: np.ndarray[Any, np.dtype[np.float32]], positions: int) -> None:
        """Rotate every pair of (..., head_dim) by a number of positions, in place."""
        first = np.arange(len(self.frequencies)) * self.pair_step
        second = first + self.pair_distance
        cos, sin = (f(positions * self.frequencies).astype(np.float32) for f in (np.cos, np.sin))
        x = keys[..., first]
        y = keys[..., second]
        keys[..., first], keys[..., second] = x * cos - y * sin, x * sin + y * cos


def rotation_of(rope: Rope, weights: Weights | None = None, n_ctx: int = 0) -> Rotation:
    """Compute a rope's frequencies, with the divisors that the weights may hold (Llama 3.1,
    longrope).

    Args:
        n_ctx: the session's context, which longrope chooses its divisors by.
    """
    pairs = np.arange(0, rope.dim, 2, dtype=np.float64)
    frequencies = _stretched(rope, rope.theta ** (-pairs / rope.dim))
    if rope.long_factors and n_ctx > rope.original_context:
        factors = rope.long_factors
    else:
        factors = rope.factors
    if weights is not None and weights.get(factors):
        frequencies = frequencies / weights.float32(factors)[0].astype(np.float64)
    return Rotation(
        frequencies, *((2, 1) if rope.neighbours else (1, rope.dim // 2)), rope.magnitude
    )


def _stretched(rope: Rope, frequencies: Any) -> Any:
    """Divide by the scaling factor; with YaRN only those that turn too seldom within the original
    context.

    Between those that turn at least ``beta_fast`` times and those that turn at most ``beta_slow``
    times is a ramp over the pairs (Peng et al. 2023, arXiv:2309.00071).
    """
    if rope.yarn is None:
        return frequencies / rope.scaling_factor

    def pair_that_turns(times: float) -> float:
        turned = math.log(rope.original_context / (2 * math.pi * times))
        return rope.dim * turned / (2 * math.log(rope.theta))

    low = max(0, math.floor(pair_that_turns(rope.yarn.beta_fast)))
    high = min(rope.dim - 1, math.ceil(pair_that_turns(rope.yarn.beta_slow)))
    stretch = np.clip((np.arange(rope.dim // 2) - low) / max(0.001, high - low), 0, 1)
    return frequencies * (stretch / rope.scaling_factor + 1 - stretch)


def key_weights_of(
    config: ModelConfig, weights: Weights
) -> dict[int, np.ndarray[Any, np.dtype[np.float32]]]:
    """By layer, what keys are multiplied by after their rotation: it must come off before they are
    turned again."""
    turned = [number for number, one in config.attentions.items() if one.norms_turned]
    return {
        number: weights.float32(f"blk.{number}.attn_k_norm.weight")[0].copy() for number in turned
    }


def rotations_of(
    config: ModelConfig, weights: Weights | None = None, n_ctx: int = 0
) -> dict[Rope, Rotation]:
    """The rotation of every rope that a model's layers have, in a context of ``n_ctx``
    positions."""
    return {rope: rotation_of(rope, weights, n_ctx) for rope in config.ropes}


def yarn_obstacle(config: ModelConfig, weights: Weights) -> str:
    """Return why ``with_yarn`` is not for a model; "" where it is."""
    ropes = {
        one.rope
        for one in config.attentions.values()
        if one.rope is not None and one.window is None
    }
    if not ropes:
        return "it has no rope"
    if any(
        one.scaling_factor != 1 or one.yarn or one.long_factors or weights.get(one.factors)
        for one in ropes
    ):
        return "its file stretches its rope already"
    if min(one.theta for one in ropes) > 1:
        return ""
    return "the base of its rope is not above 1"


def with_yarn(config: ModelConfig, n_ctx: int) -> ModelConfig:
    """Return a model whose ropes YaRN stretches from the trained context to a longer one, as
    llama.cpp does it.

    Layers with a window keep theirs, since none of their queries sees further than that.
    """
    factor = n_ctx / config.context_length
    if factor <= 1:
        return config

    def longer(layer: Layer) -> Layer:
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

    return replace(config, layers=tuple(map(longer, config.layers)))
