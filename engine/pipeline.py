"""A model's computation, ready to run: buffers, cache and the four plans, compiled for one session.

Token ids go in and logits come out; nothing here knows text, turns or sampling.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.buffers import FEW_COLUMNS
from engine.compilation import ProgressCallback, compile_kernels
from engine.kv_cache import KVCache, KVType
from engine.memory import Memory
from engine.models import decoder, load_architecture
from engine.plan import Plan, scratch_bytes_per_thread
from engine.profile import ProfileTable
from engine.records import STEP

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.crew import Crew
    from engine.weights import Weights

WIDEST_BLOCK = 512
BLOCK_BYTES = 96 << 20
"""Activations of a prefill block may take this much; wide models get narrower blocks."""
NARROWEST_BLOCK = 32
ATTENTION_PRODUCTS = 400_000_000
"""Of one operation of prefill attention, about 15 ms on two cores of today and 80 on those of 2014."""
STEP_BYTES = 128


@dataclass(frozen=True, eq=False)
class _Walkable:
    """Plans over weights at one place, and their tables."""

    weights: Weights
    plans: dict[str, Plan]
    tables: dict[str, tuple[int, int]]


class Pipeline:
    """Plans and the memory they point into.

    Args:
        n_threads: the most threads a walk may have.

    Attributes:
        columns: tokens of the widest prefill block.
        logits: (vocab_size,) float32, overwritten by every ``head``.
        rotation: how the plan turns keys by their positions; found once, so that asking for it never reads the map.
        profile: plan's name -> table that its walks are timed into; empty, nothing is timed.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, kv_type: KVType, max_seq_len: int, crew: Crew, n_threads: int
    ) -> None:
        self._crew = crew
        self._room = n_threads
        self._config = config
        self._weights = weights
        self.columns = block_columns(config)
        self.cache = KVCache(config, kv_type, max_seq_len)
        self._buffers = decoder.DecoderBuffers(config, self.columns)
        self._step = Memory(STEP_BYTES)
        self._tokens = Memory(4 * self.columns)
        self._words = self._step.array(np.int64, (STEP_BYTES // 8,))
        self._token_ids = self._tokens.array(np.int32, (self.columns,))
        self._words[STEP.tokens // 8] = self._tokens.address
        each = scratch_bytes_per_thread(config.n_heads // config.n_kv_heads, config.head_dim, self.cache.max_seq_len)
        self._scratch = Memory(each * n_threads)
        self._scratch_each = each
        self.logits = self._buffers.logits.array()[0]
        self.plans = self._compose(weights)
        self.rotation = self._rotation()
        self._addresses: dict[str, int] = {}
        self._tables: dict[str, tuple[int, int]] = {}
        self._kept: list[_Walkable] = []
        self.profile: dict[str, ProfileTable] = {}

    def _compose(self, weights: Weights) -> dict[str, Plan]:
        scratch = self._scratch.address, self._scratch_each
        plans = {name: Plan(self._step.address, width, scratch, self._room) for name, width in self._widths().items()}
        architecture = load_architecture(self._config.architecture)
        for name, plan in plans.items():
            d = decoder.Decoder(plan, self._config, weights, self.cache, self._buffers)
            if name != "head":
                architecture.compose(d)
            if name in ("decode", "head"):
                decoder.output_head(d)
        return plans

    def _widths(self) -> dict[str, int]:
        return {"decode": 1, "few": FEW_COLUMNS, "block": self.columns, "head": 1}

    def compile(self, progress: ProgressCallback | None) -> None:
        """Make the plans runnable; until then they can only be described."""
        names = [name for plan in self.plans.values() for name in plan.kernels()]
        self._addresses = compile_kernels(names, progress)
        self._tables = {name: plan.table(self._addresses) for name, plan in self.plans.items()}

    def use_weights(self, weights: Weights, keep_others: bool = False) -> None:
        """Read the same weights at another place from the next walk on.

        Args:
            keep_others: hold on to those used before, so that going back to them costs nothing.
        """
        if weights is not self._weights:
            self._kept.append(_Walkable(self._weights, self.plans, self._tables))
            found = next((kept for kept in self._kept if kept.weights is weights), None)
            if found is None:
                plans = self._compose(weights)  # the same kernels on other addresses: nothing is compiled
                found = _Walkable(weights, plans, {name: plan.table(self._addresses) for name, plan in plans.items()})
            else:
                self._kept.remove(found)
            self._weights, self.plans, self._tables = found.weights, found.plans, found.tables
        if not keep_others:
            self._kept.clear()

    def decode(self, token: int, pos: int, n_threads: int) -> bool:
        """Compute one token at a position and its logits; False if cancelled."""
        self._set_step([token], pos)
        return self._walk("decode", n_threads)

    def few(self, tokens: Sequence[int], pos: int, n_threads: int) -> bool:
        """Compute up to ``FEW_COLUMNS`` tokens as so many single ones would be, to the bit, reading weights once.

        Leaves no logits; False if cancelled.
        """
        self._set_step(tokens, pos)
        return self._walk("few", n_threads)

    def block(self, tokens: Sequence[int], pos: int, n_threads: int) -> bool:
        """Compute up to ``columns`` tokens from a position on, without logits; False if cancelled."""
        self._set_step(tokens, pos)
        return self._walk("block", n_threads)

    def head(self, column: int, n_threads: int) -> bool:
        """Compute the logits of one token of the last block; False if cancelled."""
        self._words[STEP.column // 8] = column
        self._words[STEP.n_tokens // 8] = 1
        return self._walk("head", n_threads)

    def _walk(self, name: str, n_threads: int) -> bool:
        n_threads = min(n_threads, self._room)  # scratch and counters were sized for so many
        timed = self.profile.get(name)
        if timed is None:
            return self._crew.walk(self._tables[name], n_threads)
        start = time.perf_counter()
        finished = self._crew.walk(self._tables[name], n_threads, timed.address)
        timed.seconds += time.perf_counter() - start
        timed.n_walks += 1
        return finished

    def columns_at(self, pos: int) -> int:
        """Tokens of a block at a position: fewer the more each must attend to, so that a cancel is seen soon."""
        config = self._config
        each = 2 * config.n_heads // config.n_kv_heads * config.head_dim * (pos + self.columns)
        return max(NARROWEST_BLOCK, min(self.columns, ATTENTION_PRODUCTS // each // 8 * 8))

    def _rotation(self) -> decoder.Rotation:
        rope = next(row.arguments for row in self.plans["decode"].operations if row.kernel == "rope")
        frequencies = decoder.rope_frequencies(self._config, self._weights)
        return decoder.Rotation(frequencies, rope["pair_step"], rope["pair_distance"])

    def _set_step(self, tokens: Sequence[int], pos: int) -> None:
        self._token_ids[: len(tokens)] = tokens
        self._words[STEP.n_tokens // 8] = len(tokens)
        self._words[STEP.start_pos // 8] = pos
        self._words[STEP.column // 8] = 0

    def residual(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The residual stream of the last block: (columns, dim) float32."""
        return self._buffers.x.array()


def block_columns(config: ModelConfig) -> int:
    """Tokens of a prefill block: as many as keep the activations small, a multiple of 32."""
    floats = 4 * config.dim + 2 * config.n_heads * config.head_dim + 3 * config.hidden_dim
    return max(NARROWEST_BLOCK, min(WIDEST_BLOCK, BLOCK_BYTES // (4 * floats)) // 32 * 32)
