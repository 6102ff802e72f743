"""Rope as numbers: how far each pair of a head is turned for each position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from engine.config import ModelConfig, Rope
    from engine.weights.weights import Weights


@dataclass(frozen=True, eq=False)
class Rotation:
    """How the positions of keys are told apart: each pair of elements is turned by position times frequency.

    Attributes:
        frequencies: (n_pairs,) float64, radians per position.
        pair_step: from the first element of a pair to that of the next, in elements.
        pair_distance: from the first element of a pair to its second.
    """

    frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
    pair_step: int
    pair_distance: int

    def turn(self, keys: np.ndarray[Any, np.dtype[np.float32]], positions: int) -> None:
        """Rotate every pair of (..., head_dim) by a number of positions, in place."""
        first = np.arange(len(self.frequencies)) * self.pair_step
        second = first + self.pair_distance
        cos, sin = (f(positions * self.frequencies).astype(np.float32) for f in (np.cos, np.sin))
        x, y = keys[..., first], keys[..., second]
        keys[..., first], keys[..., second] = x * cos - y * sin, x * sin + y * cos


def rotation_of(rope: Rope, weights: Weights | None = None) -> Rotation:
    """Compute a rope's frequencies, with the divisors that the weights may hold (Llama 3.1)."""
    pairs = np.arange(0, rope.dim, 2, dtype=np.float64)
    frequencies = rope.theta ** (-pairs / rope.dim) / rope.scaling_factor
    if weights is not None and weights.get(rope.factors):
        frequencies = frequencies / weights.float32(rope.factors)[0].astype(np.float64)
    return Rotation(frequencies, *((2, 1) if rope.neighbours else (1, rope.dim // 2)))


def rotations_of(config: ModelConfig, weights: Weights | None = None) -> dict[Rope, Rotation]:
    """The rotation of every rope that a model's layers have."""
    return {rope: rotation_of(rope, weights) for rope in config.ropes}
