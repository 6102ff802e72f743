"""A plan of an encoder: its buffers, the parts that families share, and its runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.kv_cache import KVCache
from engine.cache.kv_types import KV_TYPES
from engine.cache.rotation import Rotation
from engine.cache.states import RecurrentStates, SlotPair
from engine.config import Attention, Layer, ModelConfig
from engine.errors import Cancelled
from engine.kernels import attention_sizes, picture_sizes, records
from engine.kernels.records import MATMUL_SCRATCH_BYTES
from engine.machine.memory import Memory
from engine.plan.buffers import MAX_BLOCK_TOKENS, Activations, Buffers
from engine.plan.compilation import compile_kernels
from engine.plan.operation import float_bits
from engine.plan.plan import BLOCK, ROW_WORDS, Plan
from engine.plan.rows import Lane
from engine.step_records import StepRecords
from engine.vision.config import EncoderConfig
from engine.vision.rows import Rows

if TYPE_CHECKING:
    from engine.plan.crew import Crew
    from engine.vision.tensors import EncoderWeights

CACHE_TYPE = "f32"
LEAST_ROWS = 16
STEP_ROWS = 256
"""Plans are written for a multiple of so many rows, up to a full block."""
PAIRS_BETWEEN_BARRIERS = 1 << 26
"""Pairs of a query and a key that attention computes between two barriers."""
Progress = Callable[[int, int], None]
"""Called with (layers done, layers in all) while a plan runs."""


class Scratch:
    """Scratch memory of the threads, large enough for products and for attention."""

    def __init__(self, config: EncoderConfig, n_threads: int) -> None:
        n_bytes = max(
            MATMUL_SCRATCH_BYTES,
            attention_sizes.scratch_bytes(config.head_dim),
            picture_sizes.scratch_bytes(config.head_dim),
        )
        self.bytes_per_thread = -(-n_bytes // 4096) * 4096
        self.n_threads = n_threads
        self._memory = Memory(self.bytes_per_thread * n_threads)
        self.words = self._memory.address, self.bytes_per_thread


def capacity_for(n_rows: int) -> int:
    """Return the rows that a plan is written for, if it is to compute so many."""
    step = STEP_ROWS if n_rows <= MAX_BLOCK_TOKENS else MAX_BLOCK_TOKENS
    return -(-max(n_rows, LEAST_ROWS) // step) * step


class EncoderStage:
    """A plan for up to ``capacity`` rows, written at once.

    Args:
        compose: Writes the plan.
        capacity: Result of ``capacity_for``.
        has_bf16: Whether attention multiplies bfloat16.

    Attributes:
        config: Shape of the encoder.
        weights: Tensors by name.
        taps: Numbers of the layers whose results are copied.
        plan: Plan, for functions that write it.
        buffers: Vectors of the plan.
    """

    def __init__(
        self,
        compose: Callable[[EncoderStage], None],
        config: EncoderConfig,
        weights: EncoderWeights,
        taps: tuple[int, ...],
        capacity: int,
        crew: Crew,
        scratch: Scratch,
        has_bf16: bool,
    ) -> None:
        self.config = config
        self.weights = weights.tensors
        self._values = weights
        self.taps = taps
        self.capacity = capacity
        self.buffers = Buffers(capacity)
        self._crew = crew
        self._n_threads = scratch.n_threads
        self._steps = StepRecords(capacity)
        self._layer_ends: list[int] = []
        self._attention = _attention(config)
        self._has_bf16 = has_bf16
        self._tiles: Memory | None = None
        """Keys and values of one layer as bfloat16."""
        pieces = range(0)
        if capacity > MAX_BLOCK_TOKENS:
            pieces = self._steps.piece_addresses(capacity // MAX_BLOCK_TOKENS)
        step = self._steps.block.address
        has_cache = config.n_layers > 0 and not self._has_bf16
        cache, states = _memory(config, self._attention, capacity, has_cache)
        self._attention_bytes = cache.n_bytes
        lanes = [Lane(step, cache, states)]
        self.plan = Plan(step, capacity, scratch.words, scratch.n_threads, lanes, pieces)
        self.plan.batch = BLOCK
        compose(self)
        self._table = self.plan.table(compile_kernels(self.plan.kernels()))

    @property
    def n_bytes(self) -> int:
        """Bytes of the vectors, and of the keys and values of a layer."""
        return self.buffers.n_bytes + self._attention_bytes

    # ---- running

    def run(self, n_rows: int, progress: Progress | None = None) -> None:
        """Compute so many rows.

        Raises:
            Cancelled: The crew was told to stop.
        """
        self._steps.set_block([0] * n_rows, 0, 0)
        self._steps.set_pieces(n_rows)
        address, n_operations = self._table
        first = 0
        ends = [*self._layer_ends, n_operations]
        for n_done, end in enumerate(ends, start=1):
            if end == first:
                continue
            table = address + 8 * ROW_WORDS * first, end - first
            if not self._crew.run(table, self._n_threads):
                raise Cancelled("stopped")
            if progress is not None:
                progress(n_done, len(ends))
            first = end

    def array(self, name: str, n: int) -> Rows:
        """Return a view of a vector, (rows that fit, n) float32."""
        rows: Rows = self.vector(name, n).array()
        return rows

    # ---- writing

    def vector(self, name: str, n: int) -> Activations:
        """Return the vector of a name and width."""
        return self.buffers.vector(name, n)

    def scalar(self, name: str) -> float:
        """Return the only element of a tensor."""
        return float(self._values.floats(name)[0, 0])

    @property
    def x(self) -> Activations:
        """Residual stream."""
        return self.vector("x", self.config.dim)

    @property
    def encoded(self) -> Activations:
        """Result of the last layer, normed if the family does so."""
        return self.vector("encoded", self.config.dim)

    def end_layer(self, number: int) -> None:
        """Finish a layer: copy the stream if it is tapped, and let progress be reported here."""
        if number in self.taps:
            tap = self.vector(tap_name(number), self.config.dim)
            self.plan.copy(self.x, (0, 0), tap, (0, 0), self.config.dim)
            self.plan.barrier()
        self._layer_ends.append(len(self.plan.operations))

    def norm(self, x: Activations, name: str, eps: float = 0.0) -> Activations:
        """Norm a vector by the weights of a name; a LayerNorm if they have a bias."""
        out = self.vector(f"normed {x.n}", x.n)
        self.norm_into(x, name, out, eps)
        return out

    def norm_into(self, x: Activations, name: str, out: Activations, eps: float = 0.0) -> None:
        """Norm a vector into another one; without weights of that name, to unit mean square."""
        weight = self.weights.get(f"{name}.weight")
        bias = self.weights.get(f"{name}.bias")
        ones = 0
        if weight is None:
            ones = self.buffers.constant(f"ones {x.n}", np.ones(x.n, np.float32))
        if bias is None:
            norm = self.plan.rmsnorm
        else:
            norm = self.plan.layernorm
        norm(x, weight or ones, out, eps or self.config.eps, bias)
        self.plan.barrier()

    def multiply(self, x: Activations, *products: tuple[str, Activations], first: int = 0) -> None:
        """Multiply x by the matrices of names, each into a vector, plus their biases.

        Args:
            first: Element of the vectors that the products begin with.
        """
        matrices = [self.weights[f"{name}.weight"] for name, _ in products]
        n_operations = len(self.plan.operations)
        self.plan.quantize(x, *matrices)
        if len(self.plan.operations) > n_operations:
            self.plan.barrier()
        for (name, out), matrix in zip(products, matrices, strict=True):
            bias = self.weights.get(f"{name}.bias")
            self.plan.matmul(matrix, x, out, bias, first=first)
        self.plan.barrier()

    def product(self, x: Activations, name: str) -> Activations:
        """Return a matrix times x, plus its bias."""
        out = self.vector(
            f"product {name.rsplit('.', 1)[-1]}", self.weights[f"{name}.weight"].n_rows
        )
        self.multiply(x, (name, out))
        return out

    def add(self, branch: Activations, norm_after: str = "") -> None:
        """Add a branch to the stream, normed first if there is a norm after it."""
        norm = self.weights[f"{norm_after}.weight"] if norm_after else None
        self.plan.add(self.x, branch, norm, self.config.eps)
        self.plan.barrier()

    def attend(self, q: Activations, k: Activations, v: Activations) -> Activations:
        """Return attention of all rows to all rows; q and k are turned already."""
        attended = self.vector("attended", self.config.dim)
        if self._has_bf16:
            self._attend_bf16(q, k, v, attended)
            return attended
        rows = self.plan.attention
        rows.store_kv(0, k, v)
        self.plan.barrier()
        rows.attend(0, self._attention, q, attended)
        self.plan.barrier()
        return attended

    def _attend_bf16(
        self, q: Activations, k: Activations, v: Activations, out: Activations
    ) -> None:
        """Write attention by products of bfloat16, with a barrier after as many heads as take a
        moment."""
        n_heads = self.config.n_heads
        width = picture_sizes.padded(self.config.head_dim)
        n_slots = picture_sizes.padded(self.capacity)
        if self._tiles is None:
            self._tiles = Memory(2 * 2 * n_heads * n_slots * width)
            self._attention_bytes = self._tiles.n_bytes
        scratch, scratch_bytes = self.plan.scratch
        keys = self._tiles.address
        words = {
            "n_heads": n_heads, "head_dim": self.config.head_dim, "n_slots": n_slots,
            "k_cache": keys, "v_cache": keys + self._tiles.n_bytes // 2,
            "scratch": scratch, "scratch_bytes": scratch_bytes,
        }  # fmt: skip
        self.plan.barrier()
        self.plan.add_row("store bf16", records.CACHE, None, x=k.address, v=v.address, **words)
        self.plan.barrier()
        n_together = max(1, PAIRS_BETWEEN_BARRIERS // self.capacity**2)
        for first in range(0, n_heads, n_together):
            self.plan.add_row(
                "attention bf16",
                records.CACHE,
                None,
                x=q.address,
                out=out.address,
                scale=float_bits(self._attention.scale),
                first_kv_head=first,
                end_kv_head=min(first + n_together, n_heads),
                **words,
            )
            self.plan.barrier()  # only a cancel needs this barrier

    def turn(self, x: Activations, rotation: Rotation | None, norm: str = "") -> None:
        """Norm the heads of queries or keys if there is a norm, and turn them if there is a
        rotation; rows share heads alike, so that no barrier is needed."""
        angles = None
        if rotation is not None:
            angles = self.vector("angles", 2 * len(rotation.frequencies))
        self.plan.attention.rope(
            x,
            self.config.head_dim,
            rotation,
            angles,
            self.weights.get(f"{norm}.weight"),
            self.config.eps,
        )


def tap_name(number: int) -> str:
    """Return the name of the copy of a layer's result."""
    return f"tap {number}"


def turned_pairs(n_pairs: int, step: int, distance: int) -> Rotation:
    """Return a rotation whose angles are written before a run; it has no frequencies of its own."""
    return Rotation(np.zeros(n_pairs), step, distance)


def _attention(config: EncoderConfig) -> Attention:
    width = config.head_dim
    scale = width**-0.5
    if config.projector == "gemma4v":
        scale = 1.0
    n = max(1, config.n_heads)
    return Attention(n, n, width, width, None, scale, sees_after=1 << 30)


def _memory(
    config: EncoderConfig, attention: Attention, capacity: int, has_cache: bool
) -> tuple[KVCache, SlotPair]:
    """Return keys and values of one layer, which all layers use in turn."""
    layers: tuple[Layer, ...] = ()
    if has_cache:
        layers = (Layer(attention, None),)
    shape = ModelConfig("clip", config.dim, layers, config.eps, capacity, 1)
    cache = KVCache(shape, KV_TYPES[CACHE_TYPE], capacity, {})
    return cache, RecurrentStates(shape).pair
