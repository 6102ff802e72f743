"""The plan: one table row per operation, built in Python once, walked by compiled code for every
token.

A row holds a kernel's address, its argument record's address and flags. Building it needs no
compiled code: kernels are named here and found later, so a plan can be printed before anything
compiles.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cache.hadamard import block_of
from engine.kernels import attention_sizes, records
from engine.kernels.records import (
    ATTENTION_CHUNK,
    BARRIER,
    COUNTER_BYTES,
    MATMUL_SCRATCH_BYTES,
    PARTIAL_HEADER,
)
from engine.machine.memory import Memory
from engine.plan.buffers import SMALL_BATCH_TOKENS, WIDEST_BLOCK
from engine.quants.base import QUANT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from engine.cache.kv_cache import KVCache
    from engine.cache.rotation import Rotation
    from engine.cache.states import RecurrentStates
    from engine.config import Attention, ModelConfig, Xielu
    from engine.plan.buffers import Activations, Buffers
    from engine.weights.weights import LowRank, Tensor

ROW_WORDS = 3
RECORD_BYTES = 192
GATES = {
    "silu": "swiglu", "gelu": "geglu", "relu": "reglu", "clamped silu": "clamped swiglu",
    "sigmoid": "sigmoid gate",
}  # fmt: skip
"""Kernel of each gate function."""
EACH = "each expert"
"""The kernel that runs a row's own kernel for each expert."""
FUNCTIONS = {"gelu": "gelu", "relu squared": "squared relu"}
"""Kernel of each function of a feed-forward without a gate, but for the one that has parameters."""
DECODE = "decode"
SMALL_BATCH = "small batch"
BLOCK = "block"
"""Tokens that a plan computes together: one, up to ``SMALL_BATCH_TOKENS``, or many."""
PRODUCT_KERNELS = {DECODE: "matvec", SMALL_BATCH: "small_batch", BLOCK: "matmul"}
"""Kernel of the matrix products of each batch. ``small_batch`` gives the same bits as
``matvec``."""
PRODUCTS_PER_OPERATION = 1 << 31
"""A prefill matmul of more products is split by rows: cancelling waits for one operation."""


@dataclass(frozen=True)
class Lane:
    """A sequence of tokens in a walk: the address of its step record, and what layers remember of
    it."""

    step: int
    cache: KVCache
    states: RecurrentStates


@dataclass(frozen=True)
class ConvolutionPlace:
    """Where a convolution's weights are, how many inputs make an output, and whose state it has."""

    weights: int
    taps: int
    layer: int


@dataclass(frozen=True)
class HeadLengths:
    """Lengths that a convolution gives its heads: some get unit length, the first of these another
    one."""

    head_dim: int
    n_normed: int = 0
    n_scaled: int = 0
    scale: float = 1.0
    eps: float = 0.0


@dataclass(frozen=True)
class ScanPlace:
    """Where in a layer's state a scan's matrices begin, and how key heads go with them; see
    ``records.SCAN``."""

    layer: int
    first_float: int
    n_rows: int
    n_key_heads: int
    is_grouped: bool


@dataclass
class Operation:
    """One row: what runs, with which arguments, and what a reader of the plan wants to know.

    Attributes:
        each: the words of ``records.EACH`` where the kernel runs once for each expert in use,
            instead of once.
        n_parts: matrices of the weight's size that a walk reads, at most: one, or one for each
            expert in use.
        reads: the vectors that a matrix product multiplies.
    """

    kernel: str
    arguments: dict[str, int]
    record: Any
    phase: str
    weight: Tensor | None = None
    n_rows: int = 0
    barrier: bool = False
    each: dict[str, int] | None = None
    n_parts: int = 1
    reads: Activations | None = None

    def record_bytes(self) -> bytes:
        """The argument record, in the words the kernel reads."""
        words = [0] * (RECORD_BYTES // 8)
        for name, value in self.arguments.items():
            words[getattr(self.record, name) // 8] = value
        for name, value in (self.each or {}).items():
            words[getattr(records.EACH, name) // 8] = value
        return struct.pack(f"<{len(words)}q", *words)

    def describe(self) -> dict[str, Any]:
        """The row for people and scripts; bytes are those of the weights it reads."""
        found: dict[str, Any] = {"phase": self.phase, "op": self.kernel, "barrier": self.barrier}
        if self.weight is not None:
            found |= {
                "weights": self.weight.name,
                "type": self.weight.quant,
                "shape": [self.n_rows, self.weight.n_cols],
                "bytes": self.n_parts * self.n_rows * self.weight.row_bytes,
            }
            if self.n_parts > 1:
                found["experts"] = self.n_parts
        return found


class Plan:
    """Operations in execution order, written by an architecture's ``compose``.

    Args:
        step: address of the step record.
        columns: tokens a walk may hold.
        scratch: (address, bytes per thread) of memory that no operation leaves anything in.
        n_threads: the most that will walk it.
        lanes: whose tokens a walk holds: all those of one sequence, or of each of several its next
            one, in their order.
        parts: addresses of the step records of each ``WIDEST_BLOCK`` of its tokens, where there are
            more than that.

    Attributes:
        phase: what the next operations belong to, for the profile.
        products: kernels of the next matrix products; at first those for as many columns.
        added: rows that follow the next barrier: what adapters add to the products before it.
    """

    def __init__(
        self,
        step: int,
        columns: int,
        scratch: tuple[int, int],
        n_threads: int = 1,
        lanes: Sequence[Lane] = (),
        parts: Sequence[int] = (),
    ) -> None:
        if columns == 1:
            self.batch = DECODE
        elif columns <= SMALL_BATCH_TOKENS:
            self.batch = SMALL_BATCH
        else:
            self.batch = BLOCK
        self.operations: list[Operation] = []
        self.phase = "embedding"
        self._step = step
        self._lanes = lanes
        self._steps_of_parts = parts
        self._column = 0
        """That the next rows begin with."""
        self._columns = columns
        self.scratch = scratch
        self._claim_bytes = COUNTER_BYTES * n_threads
        self._memory: list[Memory] = []
        self._parts: Memory | None = None
        self._records: Memory | None = None
        self._product: tuple[Activations, Activations, list[Operation]] | None = None
        self.added: list[Operation] = []
        self._low_ranks: Mapping[str, LowRank] = {}
        self._buffers: Buffers | None = None
        self._add("reset claims", records.CLAIMS)

    @property
    def is_decode(self) -> bool:
        """Whether this is a plan of decode."""
        return self._columns == 1

    @property
    def columns(self) -> int:
        """Tokens a walk may hold."""
        return self._columns

    @property
    def claim_bytes(self) -> int:
        """Of the counters that one product needs."""
        return self._claim_bytes

    def adapt(self, low_ranks: Mapping[str, LowRank], buffers: Buffers) -> None:
        """Let adapters change the products that are written from now on; ``buffers`` hold what is
        between."""
        self._low_ranks = low_ranks
        self._buffers = buffers

    def _add(
        self, kernel: str, record: Any, matrix: Tensor | None = None, **arguments: int
    ) -> None:
        arguments["step"] = self._step
        if matrix is not None:
            n_rows = arguments.get("n_rows", 1)
        else:
            n_rows = 0
        self.operations.append(Operation(kernel, arguments, record, self.phase, matrix, n_rows))
        self._product = None

    @contextmanager
    def counted_by(self, step: int) -> Iterator[None]:
        """Rows written inside take their number of tokens from another step record.

        A vector that was quantised for one number of tokens is read for the same number only.

        Args:
            step: its address; no more tokens than the plan has columns.
        """
        before = self._step
        self._step = step
        try:
            yield
        finally:
            self._step = before

    def _each_part(self) -> Iterator[int]:
        """Yield the first token of each part of which a product is computed at once; the rows
        written meanwhile are of its tokens alone."""
        if not self._steps_of_parts:
            yield 0
        for n, step in enumerate(self._steps_of_parts):
            with self.counted_by(step):
                yield n * WIDEST_BLOCK

    def row(self, kernel: str, record: Any, **arguments: int) -> Operation:
        """Append a row that another file describes (``plan/expert_rows.py``)."""
        self._add(kernel, record, None, **arguments)
        return self.operations[-1]

    def insert(
        self, at: int, kernel: str, record: Any, arguments: Iterable[dict[str, int]]
    ) -> None:
        """Put rows of one kernel in front of a row of a plan that is written but for these; no
        barrier follows them."""
        phase = self.operations[min(at, len(self.operations) - 1)].phase
        rows = [
            Operation(kernel, {"step": self._step, **words}, record, phase) for words in arguments
        ]
        self.operations[at:at] = rows

    def adds_by_itself(self, read: Activations, written: Activations) -> None:
        """Note that the last row, alone between two barriers, can write a sum as a product does."""
        self._product = read, written, self.operations[-1:]

    def barrier(self) -> None:
        """Let all threads finish the operations before this point before any begins one after
        it."""
        self.operations[-1].barrier = True
        if self.added:
            self.operations += self.added
            self.added = []
            self.operations[-1].barrier = True

    def _each_lane(self) -> Iterator[Lane]:
        """Yield every sequence; the rows written meanwhile are of its tokens alone.

        In rows of one token other threads take its heads than in rows of several: hence the
        barriers.
        """
        if len(self._lanes) == 1:
            yield self._lanes[0]
            return
        step = self._step
        self.barrier()
        for column, lane in enumerate(self._lanes):
            self._step = lane.step
            self._column = column
            yield lane
        self._step = step
        self._column = 0
        self.barrier()

    def _at(self, x: Activations, first: int = 0) -> int:
        """Address of an element of the vector of the first token that the next rows have."""
        return x.address + 4 * (self._column * x.n + first)

    def embed(self, table: Tensor, out: Activations, first: int = 0) -> None:
        """Look the step's tokens up.

        Args:
            first: column of the table that ``out`` begins with; both begin and end with a whole
                block.
        """
        quant = QUANT_TYPES[table.quant]
        self._add(
            f"embed {table.quant}", records.EMBED, table,
            weights=table.address + first // quant.block_size * quant.type_size,
            row_bytes=table.row_bytes,
            n_blocks=out.n // quant.block_size, out=out.address, dim=out.n,
        )  # fmt: skip
        low = self._low_ranks.get(table.name)
        if low is not None and low.back is not None and self._buffers is not None:
            inner = self._buffers.vector("low rank of tokens", low.rank, out.columns)
            self.embed(low.up, inner)
            self.barrier()
            self._multiply(
                low.back.part(first, out.n), inner, "f32", out, out.address, (out.address, out.n)
            )
            self.barrier()

    def add_positions(self, table: int, n_rows: int, x: Activations) -> None:
        """x += rows of a table of float32 by position; tokens are dealt as ``embed`` deals them."""
        for _ in self._each_lane():
            self._add(
                "add positions",
                records.ADD_POSITIONS,
                x=self._at(x),
                dim=x.n,
                table=table,
                n_rows=n_rows,
            )

    def take_token(self, x: Activations, out: Activations) -> None:
        """Pick the step's column of a block."""
        self._add("take token", records.TAKE_TOKEN, x=x.address, out=out.address, dim=x.n)

    def copy(
        self,
        x: Activations,
        first: tuple[int, int],
        out: Activations,
        out_first: tuple[int, int],
        n: int,
        n_heads: int = 1,
    ) -> None:
        """Copy n elements of each head, a multiple of 8.

        Args:
            first, out_first: (element of the first head's part, from one head to the next) in each
            vector.
        """
        self._add(
            "copy", records.COPY, x=x.address + 4 * first[0], x_stride=x.n, x_step=first[1],
            out=out.address + 4 * out_first[0], out_stride=out.n, out_step=out_first[1], n=n,
            n_heads=n_heads,
        )  # fmt: skip

    def rmsnorm(
        self,
        x: Activations,
        weight: Tensor | int,
        out: Activations,
        eps: float,
        bias: Tensor | None = None,
    ) -> None:
        """Scale to unit root mean square, then by weight, which may be an address; plus a bias."""
        if isinstance(weight, int):
            address = weight
        else:
            address = weight.address
        self._add(
            "rmsnorm", records.RMSNORM, x=x.address, weight=address, out=out.address, dim=x.n,
            eps=bits(eps),
            bias=bias.address if bias else 0,
        )  # fmt: skip

    def layernorm(
        self,
        x: Activations,
        weight: Tensor | int,
        out: Activations,
        eps: float,
        bias: Tensor | None = None,
    ) -> None:
        """Take the mean off and scale to unit deviation, then by weight, which may be an address;
        plus a bias."""
        if isinstance(weight, int):
            address = weight
        else:
            address = weight.address
        self._add(
            "layernorm", records.RMSNORM, x=x.address, weight=address, out=out.address, dim=x.n,
            eps=bits(eps),
            bias=bias.address if bias else 0,
        )  # fmt: skip

    def quantize(self, x: Activations, *readers: Tensor) -> None:
        """Make every form of x that the given weights want; each form once."""
        for form in dict.fromkeys(self.form(reader) for reader in readers):
            if form != "f32":
                for column in self._each_part():
                    made = x.form(form).after(column, x.token_bytes(form))
                    address = x.address + 4 * column * x.n
                    self._add(
                        f"quantize {form}", records.QUANTIZE, x=address, n=x.n, q=made.q, d=made.d,
                        sums=made.sums,
                    )  # fmt: skip

    def form(self, reader: Tensor) -> str:
        """Form of activations that a matrix is multiplied with."""
        return QUANT_TYPES[reader.quant].form(self.batch != BLOCK)

    def matmul(
        self,
        weight: Tensor,
        x: Activations,
        out: Activations,
        bias: Tensor | None = None,
        columns: int = 0,
        first: int = 0,
    ) -> None:
        """out = weight @ x, plus a bias.

        Args:
            first: element of ``out`` that the product begins with.
            columns: the most that a walk has of them, where they are not its tokens.
        """
        n_before = len(self.operations)
        begin = out.address + 4 * first
        added = self._low_rank(weight, x, out, begin, columns)
        n_first = len(self.operations)
        self._multiply(
            weight,
            x,
            self.form(weight),
            out,
            begin,
            (0 if bias is None else bias.address, 0),
            columns,
        )
        self.added += added
        if (
            bias is None and self.operations[n_before - 1].barrier
        ):  # nothing next to it may read what it adds to
            self._product = x, out, self.operations[n_first:] + added

    def _multiply(
        self,
        weight: Tensor,
        x: Activations,
        name: str,
        out: Activations,
        begin: int,
        add: tuple[int, int],
        columns: int = 0,
    ) -> None:
        """Write a product's rows.

        Args:
            name: form of ``x`` that is multiplied.
            begin: address in ``out``.
            add: address of what is added to the first column, and elements from there to the next
                one's.
        """
        part = self._rows_at_once(weight, min(columns or self._columns, WIDEST_BLOCK))
        for column in self._each_part():
            form = x.form(name).after(column, x.token_bytes(name))
            for first in range(0, weight.n_rows, part):
                self._add(
                    f"{PRODUCT_KERNELS[self.batch]} {weight.quant}", records.MATMUL, weight,
                    weights=weight.address + first * weight.row_bytes, row_bytes=weight.row_bytes,
                    n_rows=min(part, weight.n_rows - first), n_cols=weight.n_cols, q=form.q,
                    d=form.d, sums=form.sums,
                    out=begin + 4 * (column * out.n + first), out_stride=out.n,
                    add=add[0] and add[0] + 4 * (column * add[1] + first), add_stride=add[1],
                    scratch=self.scratch[0], scratch_bytes=self.scratch[1], ahead=0,
                )  # fmt: skip
                self.operations[-1].reads = x
                if part < weight.n_rows:
                    self.barrier()

    def _low_rank(
        self, weight: Tensor, x: Activations, out: Activations, begin: int, columns: int
    ) -> list[Operation]:
        """Write the first rows of what adapters add to a product, and return those that come after
        it."""
        low = self._low_ranks.get(weight.name)
        if low is None or self._buffers is None:
            return []
        inner = self._buffers.vector(
            f"low rank of {weight.name.split('.', 2)[-1]} {weight.first_row}", low.rank, out.columns
        )
        self._multiply(low.down.part(0, low.rank), x, "f32", inner, inner.address, (0, 0), columns)
        up = low.up.part(weight.first_row, weight.n_rows)
        at = len(self.operations)
        self._multiply(up, inner, "f32", out, begin, (begin, out.n), columns)
        added = self.operations[at:]
        del self.operations[at:]
        return added

    def add(
        self, x: Activations, branch: Activations, norm: Tensor | None = None, eps: float = 0.0
    ) -> None:
        """x += branch, normed if there is a norm; the branch means nothing afterwards.

        A branch that a matrix product between two barriers wrote is added by that product itself:
        no row of its own.
        """
        read, written, rows = self._product or (None, None, [])
        if norm is None and written is branch and read is not x:  # what it reads it must not write
            for operation in rows:
                place = operation.arguments["out"] - branch.address + x.address
                operation.arguments |= {"out": place, "add": place, "add_stride": branch.n}
            self._product = None
            return
        self._add(
            "add" if norm is None else "add normed", records.ADD, x=x.address,
            branch=branch.address, n=x.n,
            weight=norm.address if norm else 0, eps=bits(eps),
        )  # fmt: skip

    def scale(self, x: Activations, factor: float) -> None:
        """x *= factor. Tokens are dealt as ``embed`` deals them."""
        self._add("scale", records.SCALE, x=x.address, n=x.n, factor=bits(factor))

    def soft_cap(self, x: Activations, cap: float) -> None:
        """x = cap * tanh(x / cap)."""
        self._add("soft cap", records.SCALE, x=x.address, n=x.n, factor=bits(cap))

    def clamp(self, x: Activations, bound: float) -> None:
        """x = max(-bound, min(x, bound))."""
        self._add("clamp", records.SCALE, x=x.address, n=x.n, factor=bits(bound))

    def _rows_at_once(self, weight: Tensor, columns: int) -> int:
        if self.is_decode:
            return weight.n_rows
        rows = PRODUCTS_PER_OPERATION // (weight.n_cols * columns)
        return max(256, rows // 256 * 256)

    def angles(
        self, rotation: Rotation, out: Activations, growth: float = 0.0, span: int = 1
    ) -> None:
        """cos and sin for the step's positions, times the rotation's magnitude; its frequencies are
        kept by the plan.

        Args:
            growth, span: both are multiplied by 1 + growth * ln(1 + floor(position / span)), too.
        """
        memory = Memory(rotation.frequencies.nbytes)
        memory.array(np.float64, rotation.frequencies.shape)[:] = rotation.frequencies
        self._memory.append(memory)
        for _ in self._each_lane():
            self._add(
                "angles", records.ANGLES, None, frequencies=memory.address,
                n_pairs=len(rotation.frequencies),
                out=self._at(out), magnitude=bits(rotation.magnitude), growth=bits(growth),
                span=span,
            )  # fmt: skip

    def rope(
        self,
        x: Activations,
        head_dim: int,
        rotation: Rotation | None,
        angles: Activations | None,
        norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        """Norm every head, if there is a norm, and turn it, if there is a rotation; ``angles`` are
        the rotation's."""
        turned = rotation is not None and angles is not None
        if not turned and norm is None:
            return
        self._add(
            "rope", records.ROPE, x=x.address, out=x.address, n_heads=x.n // head_dim,
            head_dim=head_dim,
            n_pairs=angles.n // 2 if turned and angles else 0,
            angles=angles.address if turned and angles else 0,
            pair_step=rotation.pair_step if rotation else 0,
            pair_distance=rotation.pair_distance if rotation else 0,
            weight=norm.address if norm else 0, eps=bits(eps),
        )  # fmt: skip

    def unit_heads(self, x: Activations, head_dim: int, out: Activations, eps: float) -> None:
        """Out = every head of x by its root mean square; heads are dealt to the threads as ``rope``
        deals them."""
        ones = Memory(4 * head_dim)
        ones.array(np.float32, (head_dim,))[:] = 1.0
        self._memory.append(ones)
        self._add(
            "rope", records.ROPE, x=x.address, out=out.address, n_heads=x.n // head_dim,
            head_dim=head_dim,
            weight=ones.address, eps=bits(eps),
        )  # fmt: skip

    def layernorm_heads(self, x: Activations, head_dim: int, weight: Tensor, eps: float) -> None:
        """Norm every head by a LayerNorm of its own; heads are dealt to the threads as ``rope``
        deals them."""
        self._add(
            "layernorm heads", records.ROPE, x=x.address, n_heads=x.n // head_dim,
            head_dim=head_dim,
            weight=weight.address, eps=bits(eps),
        )  # fmt: skip

    def store_kv(self, layer: int, k: Activations, v: Activations) -> None:
        """Write the step's keys and values after the cache's length, as ``hadamard`` leaves
        them."""
        width = self._lanes[0].cache.layers[layer].keys.width
        self.hadamard(width, k)
        if v is not k:
            self.hadamard(width, v)
        for lane in self._each_lane():
            self._add(
                f"store {lane.cache.kv_type.name}", records.CACHE, None, x=self._at(k),
                v=self._at(v),
                head_dim=width, n_kv_heads=k.n // width, **_cache_words(lane.cache, layer),
            )  # fmt: skip

    def hadamard(self, width: int, x: Activations) -> None:
        """Multiply every head of x by a Hadamard matrix, in place, where keys and values are kept
        so.

        Heads are dealt to the threads as ``rope`` deals them.
        """
        if self._lanes[0].cache.kv_type.has_hadamard:
            block = block_of(width)
            self._add(
                "hadamard", records.HADAMARD, x=x.address, n_heads=x.n // width, head_dim=width,
                block=block,
                factor=bits(block**-0.5),
            )  # fmt: skip

    def attention(
        self,
        layer: int,
        attention: Attention,
        q: Activations,
        out: Activations,
        sinks: Tensor | None = None,
    ) -> None:
        """Softmax attention of q over a layer's cache, the step's own tokens included.

        q comes here as ``hadamard`` left it.

        Args:
            sinks: one more score for each head.
        """
        n_heads = attention.n_heads
        head_dim = attention.key_dim
        words = {
            "n_heads": n_heads, "n_kv_heads": attention.n_kv_heads, "head_dim": head_dim,
            "scale": bits(attention.scale), "window": attention.window or 0,
            "soft_cap": bits(attention.soft_cap or 0.0), "scratch": self.scratch[0],
            "scratch_bytes": self.scratch[1], "sinks": sinks.address if sinks else 0,
            "slopes": self._slopes(attention), "n_after": attention.sees_after,
        }  # fmt: skip
        caches = [words | _attended_words(lane.cache, layer) for lane in self._lanes]
        kind = self._lanes[0].cache.kv_type.name
        if not self.is_decode and len(caches) == 1:
            for head in range(attention.n_kv_heads):
                self._add(
                    f"attention {kind}", records.CACHE, None, x=q.address, out=out.address,
                    first_kv_head=head, end_kv_head=head + 1, **caches[0],
                )  # fmt: skip
                self.barrier()  # nothing waits for it but a cancel
        else:
            each_bytes = (
                n_heads * max(one["max_chunks"] for one in caches) * 4 * (PARTIAL_HEADER + head_dim)
            )
            parts = self._partial_results(each_bytes * len(caches))
            places = range(parts, parts + each_bytes * len(caches), each_bytes)
            for _, part, one in zip(self._each_lane(), places, caches, strict=True):
                self._add(
                    f"attention parts {kind}", records.CACHE, None, x=self._at(q), out=part, **one
                )
            self.barrier()
            for _, part, one in zip(self._each_lane(), places, caches, strict=True):
                self._add("merge attention", records.CACHE, None, x=part, out=self._at(out), **one)
        self.hadamard(
            head_dim, out
        )  # the threads have the same heads as in a join of one token: no barrier

    def _slopes(self, attention: Attention) -> int:
        if not attention.alibi:
            return 0
        memory = Memory(4 * attention.n_heads)
        memory.array(np.float32, (attention.n_heads,))[:] = attention.slopes
        self._memory.append(memory)
        return memory.address

    def _partial_results(self, n_bytes: int) -> int:
        if self._parts is None or self._parts.n_bytes < n_bytes:
            self._parts = Memory(n_bytes)
            self._memory.append(self._parts)
        return self._parts.address

    def short_convolution(self, place: ConvolutionPlace, x: Activations, out: Activations) -> None:
        """out = c * convolution(b * x) of the thirds b, c and x of a vector, the first of which is
        overwritten."""
        for lane in self._each_lane():
            self._add(
                "short convolution", records.CONVOLUTION, None, x=self._at(x),
                gate=self._at(x, out.n),
                values=self._at(x, 2 * out.n), stride=x.n, out=self._at(out), n_channels=out.n,
                **_window_words(place, lane),
            )  # fmt: skip

    def convolution(
        self,
        place: ConvolutionPlace,
        x: Activations,
        part: tuple[int, int],
        bias: Tensor | None = None,
        heads: HeadLengths | None = None,
    ) -> None:
        """Part of x = silu(convolution(part of x) + bias), in place.

        Args:
            part: (first element of x, number of elements).
            heads: what is made of the heads that the part consists of; None for nothing.
        """
        heads = heads or HeadLengths(8)
        for lane in self._each_lane():
            self._add(
                "convolution", records.CONVOLUTION, None, x=self._at(x, part[0]), stride=x.n,
                n_channels=part[1],
                bias=bias.address if bias else 0, head_dim=heads.head_dim, n_normed=heads.n_normed,
                n_scaled=heads.n_scaled, scale=bits(heads.scale), eps=bits(heads.eps),
                **_window_words(place, lane),
            )  # fmt: skip

    def rates(
        self,
        time: tuple[Activations, int],
        bias: Tensor,
        factor: Tensor,
        raw: tuple[Activations, int] | None,
        decay: Activations,
        rate: Activations,
        together: tuple[int, int] | None = None,
    ) -> None:
        """How fast each head forgets and learns; see ``records.RATES``.

        Args:
            time, raw: (vector, first element in it), both of vectors of the same length.
            together: (heads whose values are together, elements from those to the next ones'); None
                for all heads.
        """
        n_together, pitch = together or (decay.n, 0)
        self._add(
            "rates", records.RATES, None, time=time[0].address + 4 * time[1], stride=time[0].n,
            bias=bias.address,
            factor=factor.address, raw=raw[0].address + 4 * raw[1] if raw else 0, n_heads=decay.n,
            decay=decay.address, rate=rate.address, n_together=n_together, pitch=pitch,
        )  # fmt: skip

    def scan(
        self,
        kernel: str,
        place: ScanPlace,
        qkv: tuple[Activations, int, int, int],
        decay: Activations,
        rate: Activations,
        out: Activations,
        skip: Tensor | None = None,
    ) -> None:
        """``"delta net"`` or ``"selective scan"``; see ``records.SCAN``.

        Args:
            qkv: (vector, first element of queries, of keys, of values in it).
        """
        x, q, k, v = qkv
        for lane in self._each_lane():
            self._add(
                kernel, records.SCAN, None, q=self._at(x, q), k=self._at(x, k), v=self._at(x, v),
                stride=x.n,
                n_heads=decay.n, head_dim=out.n // decay.n, decay=self._at(decay),
                rate=self._at(rate),
                out=self._at(out), skip=skip.address if skip else 0, n_rows=place.n_rows,
                n_key_heads=place.n_key_heads, is_grouped=place.is_grouped,
                state=lane.states.address(place.layer) + 4 * place.first_float,
                slot_bytes=lane.states.size_bytes,
            )  # fmt: skip

    def gated_norm(
        self,
        x: Activations,
        gate: tuple[Activations, int],
        norm: Tensor | None,
        n_heads: int,
        eps: float,
        gate_first: bool,
    ) -> None:
        """Norm and gate every head of x; see ``records.GATED_NORM``.

        Args:
            gate: (vector, first element in it).
            norm: one row of weights for all heads, or one for each.
        """
        self._add(
            "gated norm", records.GATED_NORM, None, x=x.address, gate=gate[0].address + 4 * gate[1],
            gate_stride=gate[0].n, n_heads=n_heads, head_dim=x.n // n_heads,
            weight=norm.address if norm else 0,
            weight_step=norm.row_bytes if norm and norm.n_rows > 1 else 0, eps=bits(eps),
            gate_first=int(gate_first),
        )  # fmt: skip

    def split_heads(
        self, x: Activations, head_dim: int, left: Activations, right: Activations
    ) -> None:
        """Part every head of x into two of ``head_dim``; dealt to the threads as ``rope`` deals
        heads of ``left``."""
        for k, half in enumerate((left, right)):
            self.copy(
                x, (k * head_dim, 2 * head_dim), half, (0, head_dim), head_dim, left.n // head_dim
            )

    def gate(self, function: str, gate: Activations, up: Activations, first: int = 0) -> None:
        """gate = function(gate) * up, from up's element ``first`` on, with a function of
        ``GATES``."""
        self._add(
            GATES[function],
            records.GATE,
            gate=gate.address,
            up=up.address + 4 * first,
            n=gate.n,
            up_stride=up.n,
        )

    def activate(self, function: str, up: Activations) -> None:
        """up = function(up), with a function of ``FUNCTIONS``."""
        self._add(
            FUNCTIONS[function],
            records.GATE,
            gate=up.address,
            up=up.address,
            n=up.n,
            up_stride=up.n,
        )

    def xielu(self, parameters: Xielu, up: Activations) -> None:
        """up = xielu(up)."""
        words = {name: bits(value) for name, value in asdict(parameters).items()}
        self._add("xielu", records.XIELU, None, up=up.address, n=up.n, **words)

    def kernels(self) -> list[str]:
        """Names of the kernels this plan needs, each once, in order of first use."""
        names = [
            name for one in self.operations for name in ([EACH] if one.each else []) + [one.kernel]
        ]
        return list(dict.fromkeys(names))

    def describe(self) -> list[dict[str, Any]]:
        """All rows, for people and scripts."""
        return [operation.describe() for operation in self.operations]

    def _place_claims(self) -> None:
        """Give every matmul its counters, one per thread, side by side so that one operation clears
        them all."""
        matmuls = [
            one for one in self.operations if one.record is records.MATMUL and one.each is None
        ]
        memory = Memory(self._claim_bytes * len(matmuls))
        self._memory.append(memory)
        for i, operation in enumerate(matmuls):
            operation.arguments["claims"] = memory.address + i * self._claim_bytes
        first = self.operations[0].arguments
        first["address"], first["n_bytes"] = memory.address, self._claim_bytes * len(matmuls)

    def matrices(self) -> list[Tensor]:
        """Return the weights of all products, each once."""
        found = {
            id(one.weight): one.weight
            for one in self.operations
            if one.record is records.MATMUL and one.weight
        }
        return list(found.values())

    def look_ahead(self, ahead_of: Callable[[str], int]) -> None:
        """Ask memory ahead as chosen for each weight type, from the next walk on."""
        for i, operation in enumerate(self.operations):
            if operation.record is records.MATMUL and operation.weight is not None:
                operation.arguments["ahead"] = ahead_of(operation.weight.quant)
                if self._records is not None:
                    at = i * RECORD_BYTES + records.MATMUL.ahead
                    self._records.array(np.int64, (1,), at)[0] = operation.arguments["ahead"]

    def table(self, addresses: dict[str, int]) -> tuple[int, int]:
        """Write the table for the interpreter; the plan keeps it.

        Args:
            addresses: of every kernel in ``kernels()``.

        Returns:
            (address, number of rows).
        """
        n = len(self.operations)
        self._place_claims()
        arguments = Memory(n * RECORD_BYTES)
        rows = np.zeros((n, ROW_WORDS), np.int64)
        for i, operation in enumerate(self.operations):
            kernel = addresses[operation.kernel]
            if operation.each is not None:
                operation.each["kernel"], kernel = kernel, addresses[EACH]
            record = np.frombuffer(operation.record_bytes(), np.uint8)
            arguments.bytes[i * RECORD_BYTES : (i + 1) * RECORD_BYTES] = record
            if operation.barrier:
                flags = BARRIER
            else:
                flags = 0
            rows[i] = kernel, arguments.address + i * RECORD_BYTES, flags
        table = Memory(rows.nbytes)
        table.array(np.int64, rows.shape)[:] = rows
        self._memory.append(table)
        self._records = arguments
        return table.address, n


def scratch_bytes_per_thread(config: ModelConfig) -> int:
    """Scratch of one thread: the larger of a matmul's tile and any layer's attention."""
    attention = [attention_sizes.scratch_bytes(one.key_dim) for one in config.attentions.values()]
    return (max([MATMUL_SCRATCH_BYTES, *attention]) + 4095) // 4096 * 4096


def _cache_words(cache: KVCache, layer: int) -> dict[str, int]:
    keys = cache.layers[layer].keys
    values = cache.layers[layer].values
    assert keys.width == values.width, "the kernels know one width of heads"
    return {
        "k_cache": keys.address, "v_cache": values.address, "n_slots": keys.n_slots,
        "k_scales": keys.scales_address if keys.scale_bytes else 0,
        "v_scales": values.scales_address if values.scale_bytes else 0,
    }  # fmt: skip


def _attended_words(cache: KVCache, layer: int) -> dict[str, int]:
    n_chunks = (cache.max_seq_len + ATTENTION_CHUNK - 1) // ATTENTION_CHUNK
    return {"max_chunks": n_chunks, **_cache_words(cache, layer)}


def _window_words(place: ConvolutionPlace, lane: Lane) -> dict[str, int]:
    states = lane.states
    return {
        "weights": place.weights, "taps": place.taps, "state": states.address(place.layer),
        "slot_bytes": states.size_bytes,
    }  # fmt: skip


def bits(x: float) -> int:
    """A float64's bits as int64."""
    return int(struct.unpack("<q", struct.pack("<d", x))[0])
