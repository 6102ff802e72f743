"""A session without a model: its keys and values are made-up bytes that follow from the tokens up
to each position.

So whatever a state file brings back can be checked against its own token ids, bit for bit, without
computing anything.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.cache.cached_tokens import CachedTokens
from engine.cache.kv_cache import KVCache, kv_type_of
from engine.cache.layer_cache import POSITIONS
from engine.cache.rotation import rotations_of
from engine.config import Attention, Dense, Layer, ModelConfig, Rope


def config_with(*ropes: Rope | None) -> ModelConfig:
    """Return a small model with a layer for each rope."""
    layers = tuple(Layer(Attention(4, 2, 32, 32, rope, 32**-0.5), Dense(96)) for rope in ropes)
    return ModelConfig("llama", 64, layers, 1e-5, 4096, 300)


ROPE = Rope(10000.0, 32, neighbours=True)
CONFIG = config_with(ROPE, ROPE)
FINGERPRINT = "ab" * 32


@lru_cache(maxsize=2000)
def made_up(
    seed: int, length: int, shapes: tuple[tuple[int, ...], ...]
) -> list[np.ndarray[Any, Any]]:
    """Return the bytes of one position."""
    rng = np.random.default_rng([seed, length])
    return [rng.integers(0, 256, shape, np.uint8) for shape in shapes]


class ScriptedSession:
    """Part of ``engine.Session`` that saving and restoring need."""

    def __init__(
        self,
        n_ctx: int = 512,
        kv: str = "f16",
        config: ModelConfig = CONFIG,
        fingerprint: str = FINGERPRINT,
    ) -> None:
        self.n_ctx = n_ctx
        self.model: Any = SimpleNamespace(config=config, fingerprint=fingerprint)
        self.config = config
        self.rotations = rotations_of(config)
        self.cache = KVCache(config, kv_type_of(kv, config), n_ctx, self.rotations)
        self.memory = self.cache
        self.kv_type = kv
        self.cached = CachedTokens()

    @property
    def tokens(self) -> list[int]:
        return list(self.cached.ids)

    @property
    def length(self) -> int:
        return len(self.cached.ids)

    def adopt(self, ids: Sequence[int]) -> None:
        self.cached.ids += ids

    def truncate(self, n: int) -> None:
        if n < self.length:
            self.cached.cut(n)

    def feed(self, ids: Sequence[int]) -> None:
        for token in ids:
            tokens = [*self.cached.ids, token]
            for view, content in zip(
                self._places(self.length), self._contents(tokens), strict=True
            ):
                view[...] = content
            self.cached.ids.append(token)

    def wrong_positions(self) -> list[int]:
        """Return the positions whose bytes do not belong to the tokens up to there."""
        return [
            position
            for position in range(self.length)
            if any(
                (view != content).any()
                for view, content in zip(
                    self._places(position),
                    self._contents(self.cached.ids[: position + 1]),
                    strict=True,
                )
            )
        ]

    def _contents(self, tokens: list[int]) -> list[np.ndarray[Any, Any]]:
        crc = zlib.crc32(np.array(tokens, "<i4").tobytes())
        return made_up(crc, len(tokens), tuple(view.shape for view in self._places(0)))

    def _places(self, position: int) -> list[np.ndarray[Any, Any]]:
        """Return views of a position's keys, values and scales, laid out as the kernels write them."""
        tile, lane = divmod(position, POSITIONS)
        views = []
        for layer in self.cache.layers.values():
            for keys, values, item_bytes in (
                (
                    layer.keys.elements,
                    layer.values.elements,
                    np.dtype(self.cache.kv_type.keys.dtype).itemsize,
                ),
                (layer.keys.scales, layer.values.scales, 4),
            ):
                if keys.size:
                    shape = len(keys), layer.n_slots // POSITIONS, -1, POSITIONS, item_bytes
                    views.append(keys.reshape(shape)[:, tile, :, lane])
                    width = values.shape[1] // layer.n_slots
                    views.append(values[:, position * width : (position + 1) * width])
        return views
