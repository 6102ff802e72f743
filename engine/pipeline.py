"""A model's computation, ready to run: buffers, cache and plans, compiled for one session.

Token ids go in and logits come out; nothing here knows text, turns or sampling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cache.hybrid_memory import HybridMemory
from engine.cache.kv_cache import KVCache
from engine.cache.kv_types import KVType
from engine.cache.ring import RING_BLOCK, ring_slots
from engine.cache.rotation import key_weights_of, rotations_of
from engine.cache.states import CHECKPOINT_BYTES, RecurrentStates
from engine.kernels.records import STEP
from engine.machine.memory import Memory
from engine.machine.topology import last_cache_bytes
from engine.models import load_architecture
from engine.models.decoder import Decoder, Part
from engine.models.steps import product
from engine.plan.buffers import SMALL_BATCH_TOKENS, WIDEST_BLOCK, Buffers
from engine.plan.compilation import ProgressCallback, compile_kernels
from engine.plan.dequantise import fill
from engine.plan.lookahead import FROM_MEMORY, Reading, ahead_of
from engine.plan.plan import (
    BLOCK,
    DECODE,
    ROW_WORDS,
    SMALL_BATCH,
    Lane,
    Operation,
    Plan,
    scratch_bytes_per_thread,
)
from engine.plan.profile import ProfileTable
from engine.plan.streaming import stream

if TYPE_CHECKING:
    from engine.cache.hybrid_memory import LayerMemory
    from engine.config import ModelConfig
    from engine.plan.crew import Crew
    from engine.weights.weights import Weights

Logits = np.ndarray[Any, np.dtype[np.float32]]

BLOCK_BYTES = 96 << 20
"""Limit in bytes on the activations of a prefill block; wide models get narrower blocks."""
MIN_BLOCK = 32
ATTENTION_PRODUCTS = 400_000_000
"""Of one operation of prefill attention, about 15 ms on two cores of today and 80 on those of
2014."""
STEP_BYTES = 128
HEAD_TOKENS = 64
"""Tokens whose logits are computed together by the kernels of blocks: of 262,144 tokens they take
64 MiB."""


@dataclass(frozen=True)
class _Kind:
    """A kind of plan: its width, products and part of the results.

    Attributes:
        columns: tokens of a walk; 0 for as many as a block has.
        batch: ``DECODE``, ``SMALL_BATCH`` or ``BLOCK``, which decides the kernels of its matrix
            products; the head of one token has those of decode.
        part: of the layers; None for a head alone.
        n_logits: tokens that get logits.
        embeds: whether every token's vector after the last norm is left, instead of logits.
    """

    columns: int
    batch: str
    part: Part | None
    n_logits: int = 0
    embeds: bool = False


PLANS = {
    "decode": _Kind(1, DECODE, Part.ALL, 1),
    "small batch": _Kind(SMALL_BATCH_TOKENS, SMALL_BATCH, Part.STORED),
    "small batch last": _Kind(1, DECODE, Part.LAST, 1),
    "block": _Kind(0, BLOCK, Part.STORED),
    "block last": _Kind(1, BLOCK, Part.LAST, 1),
}
"""The plans of every session."""
VECTORS = "vectors"
EMBEDDING_PLANS = {VECTORS: _Kind(0, BLOCK, Part.ALL, embeds=True)}
"""The plan of what embeds texts. Of an encoder, which may have a long text at once, it is for
``WIDEST_BLOCK`` tokens; others, ``vectors 2`` and so on, are for as many times more, and written
when they are first asked for."""
MORE_PLANS = {
    "verify": _Kind(SMALL_BATCH_TOKENS, SMALL_BATCH, Part.ALL, SMALL_BATCH_TOKENS),
    "whole block": _Kind(0, BLOCK, Part.ALL),
    "head": _Kind(1, DECODE, None, 1),
    "heads": _Kind(HEAD_TOKENS, BLOCK, None, HEAD_TOKENS),
}
"""Those that few sessions need, for the logits of every token: written and compiled when they are
first asked for."""


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
        checkpoint_bytes: limit on the copies of recurrent states.
        peer: a pipeline of the same model, context and type of cache, whose activations this one
            uses, too: one of them computes at a time.
        embeds: whether it is to leave vectors of tokens instead of logits.

    Attributes:
        config: the model's shape, with the ropes of this context.
        columns: tokens of the widest prefill block.
        logits: (vocab_size,) float32, overwritten by every ``last``, ``head`` and ``decode``.
        every_logits: (``SMALL_BATCH_TOKENS``, vocab_size) float32, overwritten by every ``verify``.
        memory: what the layers remember.
        rotations: how each rope turns keys by their positions; found once, so that asking never
            reads the map.
        profile: plan's name -> table that its walks are timed into; empty, nothing is timed.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kv_type: KVType,
        max_seq_len: int,
        crew: Crew,
        n_threads: int,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        peer: Pipeline | None = None,
        embeds: bool = False,
    ) -> None:
        self._crew = crew
        if embeds:
            self._kinds = EMBEDDING_PLANS
        else:
            self._kinds = PLANS
        self._room: int = n_threads if peer is None else peer._room
        self.config = config
        self._weights = weights
        self._lanes: dict[str, list[Lane]] = {}
        """Of ``decode_together``, by the plan's name."""
        self.columns = max_block_size(config, max_seq_len)
        self.rotations = rotations_of(config, weights, max_seq_len)
        self._cache = KVCache(
            config, kv_type, max_seq_len, self.rotations, key_weights_of(config, weights)
        )
        self._states = RecurrentStates(config, checkpoint_bytes)
        self.memory: LayerMemory = (
            HybridMemory(self._cache, self._states) if config.recurrents else self._cache
        )
        self.kv_type = kv_type
        self._buffers: Buffers = Buffers(self.columns) if peer is None else peer._buffers
        self._step = Memory(STEP_BYTES)
        self._last = Memory(STEP_BYTES)
        self._all = Memory(STEP_BYTES)
        self._next_ids = Memory(4 * SMALL_BATCH_TOKENS)
        n_parts = -(-self.columns // WIDEST_BLOCK)
        self._parts = Memory(STEP_BYTES * n_parts)
        self._part_words = self._parts.array(np.int64, (n_parts, STEP_BYTES // 8))
        self._tokens = Memory(4 * self.columns)
        self._words, self._last_words = (
            one.array(np.int64, (STEP_BYTES // 8,)) for one in (self._step, self._last)
        )
        self._token_ids = self._tokens.array(np.int32, (self.columns,))
        self._words[STEP.tokens // 8] = self._tokens.address
        each = scratch_bytes_per_thread(config)
        self._scratch: Memory = Memory(each * n_threads) if peer is None else peer._scratch
        self._scratch_each = each
        self.logits = self._buffers.vector("logits", config.vocab_size, 1).array()[0]
        self.every_logits = self._buffers.vector(
            "logits", config.vocab_size, SMALL_BATCH_TOKENS
        ).array()
        self._kept: list[_Walkable] = []
        self._reading = FROM_MEMORY
        self.plans = self._compose(weights)
        read_bytes = sum(one.size_bytes for one in next(iter(self.plans.values())).matrices())
        self._read_with(Reading(is_cached=read_bytes <= last_cache_bytes()))
        self._addresses: dict[str, int] = {}
        self._tables: dict[str, tuple[int, int]] = {}
        self.profile: dict[str, ProfileTable] = {}

    def _compose(self, weights: Weights) -> dict[str, Plan]:
        return {name: self._plan(name, weights) for name in self._kinds}

    def _plan(self, name: str, weights: Weights) -> Plan:
        """Write one plan."""
        kind = self._kinds.get(name) or MORE_PLANS.get(name)
        if kind is None:
            if name.startswith(VECTORS):
                kind = EMBEDDING_PLANS[VECTORS]
            else:
                kind = MORE_PLANS["verify"]
        if name in weights.tensors:
            return self._product_plan(weights, name)
        if name in self._lanes:
            step = self._all
        elif kind.part is Part.LAST:
            step = self._last
        else:
            step = self._step
        scratch = self._scratch.address, self._scratch_each
        lanes = self._lanes.get(name, [Lane(step.address, self._cache, self._states)])
        columns = kind.columns or self.columns
        parts = range(0)
        if columns > WIDEST_BLOCK:  # a text of an encoder
            n_parts = int(name.removeprefix(VECTORS) or 1)
            columns = min(columns, n_parts * WIDEST_BLOCK)
            parts = range(
                self._parts.address, self._parts.address + n_parts * STEP_BYTES, STEP_BYTES
            )
        plan = Plan(step.address, columns, scratch, self._room, lanes, parts)
        plan.batch = kind.batch
        plan.adapt(weights.low_ranks, self._buffers)
        d = Decoder(
            plan,
            self.config,
            weights,
            self._buffers,
            self.rotations,
            kind.n_logits,
            kind.part or Part.ALL,
        )
        architecture = load_architecture(self.config.architecture)
        if kind.part is not None:
            architecture.compose(d)
        if kind.n_logits == 1:
            plan.batch = DECODE
        if kind.n_logits or kind.embeds:
            architecture.head(d)
        if weights.streamed:
            stream(plan, weights.streamed)
        plan.look_ahead(self._ahead_of)
        return plan

    def _product_plan(self, weights: Weights, name: str) -> Plan:
        """Write a plan of one matrix."""
        weight = weights[name]
        plan = Plan(self._last.address, 1, (self._scratch.address, self._scratch_each), self._room)
        plan.adapt(weights.low_ranks, self._buffers)
        d = Decoder(plan, self.config, weights, self._buffers, self.rotations)
        x = self._buffers.vector("pooled", weight.n_cols, 1)
        product(d, weight, x, weights.get(name.removesuffix("weight") + "bias"))
        return plan

    def compile(self, progress: ProgressCallback | None) -> None:
        """Make the plans runnable; until then they can only be described."""
        plans = list(self.plans.values())
        if self._kinds is PLANS:
            plans.append(self._plan("verify", self._weights))  # its table is written when asked for
        names = [name for plan in plans for name in plan.kernels()]
        self._addresses = compile_kernels(names, progress)
        self._tables = {name: plan.table(self._addresses) for name, plan in self.plans.items()}
        fill(self._buffers.turned_over.values())

    def look_ahead(self) -> None:
        """Ask memory ahead as it is chosen now (``engine.plan.lookahead``), from the next walk
        on."""
        for plans in (self.plans, *(kept.plans for kept in self._kept)):
            for plan in plans.values():
                plan.look_ahead(self._ahead_of)

    def _ahead_of(self, quant: str) -> int:
        return ahead_of(quant, self._reading)

    def reading(self, n_threads: int) -> Reading:
        """Return how a number of threads reads the weights."""
        return replace(self._reading, is_alone=n_threads == 1)

    def _read_with(self, reading: Reading) -> None:
        self._reading = reading
        self.look_ahead()

    def use_weights(self, weights: Weights, keep_others: bool = False) -> None:
        """Read the same weights at another place from the next walk on.

        Args:
            keep_others: hold on to those used before, so that going back to them costs nothing.
        """
        if weights is not self._weights:
            for name in (
                self.plans.keys() - self._kinds.keys()
            ):  # written again when they are asked for
                self.plans.pop(name, None)
                self._tables.pop(name, None)
            self._kept.append(_Walkable(self._weights, self.plans, self._tables))
            found = next((kept for kept in self._kept if kept.weights is weights), None)
            if found is None:
                plans = self._compose(
                    weights
                )  # the same kernels on other addresses: nothing is compiled
                found = _Walkable(
                    weights,
                    plans,
                    {name: plan.table(self._addresses) for name, plan in plans.items()},
                )
            else:
                self._kept.remove(found)
            self._weights = found.weights
            self.plans = found.plans
            self._tables = found.tables
        if not keep_others:
            self._kept.clear()

    def write_again(self) -> None:
        """Write all plans again, because adapters have changed: what was computed before is of
        another model."""
        self._kept.clear()
        before = self.plans
        self.plans = self._compose(self._weights)
        try:
            self.compile(None)
        except BaseException:
            self.plans = before
            raise

    def decode(self, token: int, pos: int, n_threads: int) -> bool:
        """Compute one token at a position and its logits; False if cancelled."""
        self._set_step([token], pos)
        return self._walk("decode", n_threads)

    def store(self, tokens: Sequence[int], pos: int, n_threads: int, is_small_batch: bool) -> bool:
        """Compute what layers remember of up to ``columns`` tokens from a position on; False if
        cancelled.

        Args:
            is_few: compute up to ``SMALL_BATCH_TOKENS`` tokens, bit for bit as one at a time,
                reading weights once.
        """
        self._set_step(tokens, pos)
        return self._walk("small batch" if is_small_batch else "block", n_threads)

    def last(self, n_threads: int, is_small_batch: bool) -> bool:
        """Compute the logits of the last token of ``store``, which was called in the same way;
        False if cancelled."""
        return self._walk("small batch last" if is_small_batch else "block last", n_threads)

    def verify(self, tokens: Sequence[int], pos: int, n_threads: int) -> bool:
        """Compute a few tokens and the logits of them all in one walk, each to the bit as alone;
        False if cancelled."""
        self._set_step(tokens, pos)
        return self._walk("verify", n_threads)

    def decode_together(
        self, name: str, steps: Mapping[Pipeline, tuple[int, int]], n_threads: int
    ) -> Logits | None:
        """Compute the next token of several pipelines in one walk, each to the bit as alone.

        Args:
            name: of these pipelines in this order, until ``forget_together``.
            steps: pipeline -> (token, position); at most ``SMALL_BATCH_TOKENS``, peers or this one
                itself.

        Returns:
            (n, vocab_size) float32, in their order, overwritten by the next walk; None if
            cancelled.
        """
        ids = self._next_ids.array(np.int32, (SMALL_BATCH_TOKENS,))
        words = self._all.array(np.int64, (STEP_BYTES // 8,))
        for at, (one, (token, pos)) in enumerate(steps.items()):
            one._set_step([token], pos)
            ids[at] = token
        words[STEP.n_tokens // 8], words[STEP.tokens // 8] = len(steps), self._next_ids.address
        if name not in self._lanes:
            self._lanes[name] = [Lane(one._step.address, one._cache, one._states) for one in steps]
        if self._walk(name, n_threads):
            return self.every_logits[: len(steps)]
        return None

    def forget_together(self) -> None:
        """Let go of the memory of other pipelines."""
        for name in self._lanes:
            self.plans.pop(name, None)
            self._tables.pop(name, None)
        self._lanes.clear()

    def whole_block(self, tokens: Sequence[int], pos: int, n_threads: int) -> bool:
        """Compute up to ``columns`` tokens in all layers, for ``head`` to be asked of any; False if
        cancelled."""
        self._set_step(tokens, pos)
        return self._walk("whole block", n_threads)

    def watched_block(
        self, tokens: Sequence[int], pos: int, n_threads: int, look: Callable[[Operation], None]
    ) -> bool:
        """``whole_block``, in pieces: before each matrix product ``look`` may read what is
        multiplied."""
        self._set_step(tokens, pos)
        n_threads = self._prepare("whole block", n_threads)
        operations = self.plans["whole block"].operations
        table = self._tables["whole block"][0]
        begun = ready = 0  # rows that ran, and those up to the last barrier
        for at, operation in enumerate(operations):
            if operation.reads is not None:
                if ready > begun and not self._crew.run(
                    (table + 8 * ROW_WORDS * begun, ready - begun), n_threads
                ):
                    return False
                begun = ready
                look(operation)
            if operation.barrier:
                ready = at + 1
        return self._crew.run((table + 8 * ROW_WORDS * begun, len(operations) - begun), n_threads)

    def vectors(self, tokens: Sequence[int], pos: int, n_threads: int) -> Logits | None:
        """Compute up to ``columns`` tokens in all layers.

        Returns:
            Their vectors after the last norm, (n, dim) float32, overwritten by the next call; None
            if cancelled.
        """
        self._set_step(tokens, pos)
        n_parts = -(-len(tokens) // WIDEST_BLOCK)
        for n in range(n_parts):
            self._part_words[n, STEP.n_tokens // 8] = min(
                WIDEST_BLOCK, len(tokens) - n * WIDEST_BLOCK
            )
        if not self._walk(VECTORS if n_parts == 1 else f"{VECTORS} {n_parts}", n_threads):
            return None
        return self._buffers.vector("vectors", self.config.dim).array()[: len(tokens)]

    @property
    def tensors(self) -> Collection[str]:
        """Names of the weights."""
        return self._weights.tensors

    def product(self, name: str, x: Logits, n_threads: int) -> Logits | None:
        """Return a matrix times a vector, plus its bias: (n_rows,) float32; None if cancelled.

        Args:
            name: of the matrix, (n_rows, n_cols).
            x: (n_cols,) float32.
        """
        self._buffers.vector("pooled", len(x), 1).array()[0] = x
        self._last_words[STEP.n_tokens // 8] = 1
        if not self._walk(name, n_threads):
            return None
        branch = self._buffers.vector("branch", self._weights[name].n_rows).array()
        return branch[0]  # type: ignore[no-any-return]

    def head(self, column: int, n_threads: int) -> bool:
        """Compute the logits of one token of the last ``whole_block``; False if cancelled."""
        self._words[STEP.column // 8] = column
        self._words[STEP.n_tokens // 8] = 1
        return self._walk("head", n_threads)

    def heads(self, first: int, n: int, n_threads: int) -> Logits | None:
        """Compute the logits of tokens ``first`` to ``first`` + n of the last ``whole_block`` by
        the kernels of blocks.

        Those before them cannot be asked for any more.

        Args:
            n: at most ``HEAD_TOKENS``.

        Returns:
            (n, vocab_size) float32, overwritten by the next call; None if cancelled.
        """
        x = self._buffers.vector("x", self.config.dim).array()
        x[:n] = x[first : first + n]
        self._words[STEP.n_tokens // 8] = n
        logits = self._buffers.vector("logits", self.config.vocab_size, HEAD_TOKENS).array()
        if self._walk("heads", n_threads):
            return logits[:n]
        return None

    def _prepare(self, name: str, n_threads: int) -> int:
        """Have a plan's table; returns the number of threads that walk it."""
        n_threads = min(n_threads, self._room)  # scratch and counters were sized for these
        if (n_threads == 1) != self._reading.is_alone:
            self._read_with(self.reading(n_threads))
        if name not in self._tables:
            self.plans[name] = plan = self._plan(name, self._weights)
            self._addresses |= compile_kernels(plan.kernels())
            self._tables[name] = plan.table(self._addresses)
        return n_threads

    def _walk(self, name: str, n_threads: int) -> bool:
        n_threads = self._prepare(name, n_threads)
        timed = self.profile.get(name)
        if timed is None:
            return self._crew.run(self._tables[name], n_threads)
        start = time.perf_counter()
        finished = self._crew.run(self._tables[name], n_threads, timed.address)
        timed.seconds += time.perf_counter() - start
        timed.n_runs += 1
        return finished

    def block_size_at(self, pos: int) -> int:
        """Tokens of a block at a position: fewer the more each must attend to, so that a cancel is
        seen soon."""
        seen = pos + self.columns
        fewest = self.columns
        for one in self.config.attentions.values():
            each = 2 * one.n_heads // one.n_kv_heads * one.key_dim * min(seen, one.window or seen)
            fewest = min(fewest, ATTENTION_PRODUCTS // each // 8 * 8)
        return max(MIN_BLOCK, fewest)

    def _set_step(self, tokens: Sequence[int], pos: int) -> None:
        self._token_ids[: len(tokens)] = tokens
        self._words[STEP.n_tokens // 8] = len(tokens)
        self._words[STEP.start_pos // 8] = pos
        self._words[STEP.column // 8] = 0
        self._words[STEP.slot // 8] = self._states.slot
        last = len(tokens) - 1
        self._last_words[STEP.n_tokens // 8] = 1
        self._last_words[STEP.start_pos // 8] = pos + last
        self._last_words[STEP.tokens // 8] = self._tokens.address + 4 * last
        self._last_words[STEP.column // 8] = last


def max_block_size(config: ModelConfig, max_seq_len: int) -> int:
    """Tokens of a prefill block, a multiple of 32: as many as keep the activations small and rings
    hold; of an encoder a whole text."""
    if config.is_encoder:
        return -(-max_seq_len // 32) * 32
    windows = {one.kept_window for one in config.attentions.values() if one.kept_window is not None}
    has_rings = any(ring_slots(window) < max_seq_len for window in windows)
    if has_rings:
        widest = min(WIDEST_BLOCK, RING_BLOCK)
    else:
        widest = WIDEST_BLOCK
    return max(MIN_BLOCK, min(widest, BLOCK_BYTES // (4 * config.activation_floats)) // 32 * 32)
