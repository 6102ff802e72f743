"""Plan: one table row per operation, built in Python once and run by compiled code for every token.

A row holds the addresses of a kernel and its argument record, and flags. A plan needs no compiled
code: it names kernels, which are found later, so it can be printed before anything compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.kernels import attention_sizes, records
from engine.kernels.picture_records import CLAMP_BETWEEN
from engine.kernels.records import (
    BARRIER,
    COUNTER_BYTES,
    MATMUL_SCRATCH_BYTES,
)
from engine.machine.memory import Memory
from engine.plan.attention_rows import AttentionRows
from engine.plan.buffers import MAX_BLOCK_TOKENS, SMALL_BATCH_TOKENS
from engine.plan.operation import RECORD_BYTES, Operation, address_or_zero, float_bits
from engine.plan.recurrent_rows import RecurrentRows
from engine.plan.rows import PlanRows
from engine.quants.base import QUANT_TYPES, ProductKernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from engine.config import ModelConfig, Xielu
    from engine.plan.buffers import Activations, Buffers
    from engine.plan.rows import Lane, Trial
    from engine.weights.weights import LowRank, Tensor

ROW_WORDS = 3
GATES = {
    "silu": "swiglu", "gelu": "geglu", "relu": "reglu", "clamped silu": "clamped swiglu",
    "sigmoid": "sigmoid gate", "quick gelu": "quick geglu",
}  # fmt: skip
"""Kernel of each gate function."""
EACH = "each expert"
"""Kernel that runs a row's own kernel for each expert."""
FUNCTIONS = {"gelu": "gelu", "relu squared": "squared relu", "quick gelu": "quick gelu"}
"""Kernel of each function of a feed-forward without a gate, except the one with parameters."""
DECODE = "decode"
SMALL_BATCH = "small batch"
BLOCK = "block"
"""Tokens that a plan computes together: one, up to ``SMALL_BATCH_TOKENS``, or many."""
PRODUCT_KERNELS: dict[str, ProductKernel] = {
    DECODE: "matvec",
    SMALL_BATCH: "small_batch",
    BLOCK: "matmul",
}
"""Kernel of the matrix products of each batch. ``small_batch`` gives the same bits as
``matvec``."""
PRODUCTS_PER_OPERATION = 1 << 31
"""Products above which a prefill matmul is split by rows: cancelling waits for one operation."""


class Plan(PlanRows):
    """Operations in the order of execution, written by an architecture's ``compose``.

    Args:
        step: Address of the step record.
        max_tokens: Limit on the tokens of a run.
        scratch: (address, bytes per thread) of memory that no operation leaves anything in.
        n_threads: Limit on the threads that run it.
        lanes: Sequences whose tokens a run holds: all tokens of one, or the next token of each of
            several, in their order.
        part_steps: Addresses of the step records of each ``MAX_BLOCK_TOKENS`` of its tokens, if
            there are more than that.
        trial: Description of a run that keeps the state after each token; None for other runs.

    Attributes:
        batch: ``DECODE``, ``SMALL_BATCH`` or ``BLOCK``: decides the kernels of the next products.
        attention: Writer of rows of attention.
        recurrence: Writer of rows of recurrent layers.
    """

    def __init__(
        self,
        step: int,
        max_tokens: int,
        scratch: tuple[int, int],
        n_threads: int = 1,
        lanes: Sequence[Lane] = (),
        part_steps: Sequence[int] = (),
        trial: Trial | None = None,
    ) -> None:
        if max_tokens == 1:
            self.batch = DECODE
        elif max_tokens <= SMALL_BATCH_TOKENS:
            self.batch = SMALL_BATCH
        else:
            self.batch = BLOCK
        super().__init__(step, max_tokens, scratch, lanes, trial)
        self._steps_of_parts = part_steps
        self._claim_bytes = COUNTER_BYTES * n_threads
        self._records: Memory | None = None
        self.attention = AttentionRows(self)
        self.recurrence = RecurrentRows(self)
        self._low_ranks: Mapping[str, LowRank] = {}
        self._buffers: Buffers | None = None
        self.add_row("reset claims", records.CLAIMS)

    @property
    def claim_bytes(self) -> int:
        """Bytes of the counters that one product needs."""
        return self._claim_bytes

    def adapt(self, low_ranks: Mapping[str, LowRank], buffers: Buffers) -> None:
        """Make adapters change the products that are written from now on.

        ``buffers`` hold the vectors in between.
        """
        self._low_ranks = low_ranks
        self._buffers = buffers

    @contextmanager
    def counted_by(self, step: int) -> Iterator[None]:
        """Write the rows inside for the number of tokens in another step record.

        A vector that is quantised for one number of tokens must be read for the same number.

        Args:
            step: Address of the record, which has at most ``max_tokens`` tokens.
        """
        old_step = self._step
        self._step = step
        try:
            yield
        finally:
            self._step = old_step

    def _each_part(self) -> Iterator[int]:
        """Yield the first token of each part that one product computes.

        Rows that are written meanwhile are for the tokens of that part.
        """
        if not self._steps_of_parts:
            yield 0
        for n, step in enumerate(self._steps_of_parts):
            with self.counted_by(step):
                yield n * MAX_BLOCK_TOKENS

    def insert(
        self, index: int, kernel: str, record: Any, arguments: Iterable[dict[str, int]]
    ) -> None:
        """Insert rows of one kernel before a row of a finished plan; no barrier follows them."""
        phase = self.operations[min(index, len(self.operations) - 1)].phase
        rows = [
            Operation(kernel, {"step": self._step, **words}, record, phase) for words in arguments
        ]
        self.operations[index:index] = rows

    def adds_by_itself(self, source: Activations, result: Activations) -> None:
        """Mark the last row, alone between two barriers, as able to add its result like a
        product."""
        self._product = source, result, self.operations[-1:]

    def embed(self, table: Tensor, out: Activations, first: int = 0) -> None:
        """Write the embeddings of the step's tokens.

        Args:
            first: Column of the table that ``out`` begins with; both begin and end with a full
                block.
        """
        quant = QUANT_TYPES[table.quant]
        self.add_row(
            f"embed {table.quant}", records.EMBED, table,
            weights=table.address + first // quant.block_size * quant.type_size,
            row_bytes=table.row_bytes,
            n_blocks=out.n // quant.block_size, out=out.address, dim=out.n,
        )  # fmt: skip
        low = self._low_ranks.get(table.name)
        if low is not None and low.back is not None and self._buffers is not None:
            inner = self._buffers.vector("low rank of tokens", low.rank, out.n_tokens)
            self.embed(low.up, inner)
            self.barrier()
            self._multiply(
                low.back.part(first, out.n), inner, "f32", out, out.address, (out.address, out.n)
            )
            self.barrier()

    def add_positions(self, table: int, n_rows: int, x: Activations) -> None:
        """Add rows of a table of float32 to x, by position; threads share the tokens as in
        ``embed``."""
        for _ in self.each_lane():
            self.add_row(
                "add positions",
                records.ADD_POSITIONS,
                x=self.address_of(x),
                dim=x.n,
                table=table,
                n_rows=n_rows,
            )

    def take_token(self, x: Activations, out: Activations) -> None:
        """Copy the step's ``index``-th token of a block."""
        self.add_row("take token", records.TAKE_TOKEN, x=x.address, out=out.address, dim=x.n)

    def rmsnorm(
        self,
        x: Activations,
        weight: Tensor | int,
        out: Activations,
        eps: float,
        bias: Tensor | None = None,
    ) -> None:
        """Scale x to unit root mean square, then by ``weight``, which may be an address; add a
        bias."""
        if isinstance(weight, int):
            address = weight
        else:
            address = weight.address
        self.add_row(
            "rmsnorm", records.RMSNORM, x=x.address, weight=address, out=out.address, dim=x.n,
            eps=float_bits(eps),
            bias=address_or_zero(bias),
        )  # fmt: skip

    def layernorm(
        self,
        x: Activations,
        weight: Tensor | int,
        out: Activations,
        eps: float,
        bias: Tensor | None = None,
    ) -> None:
        """Subtract the mean and scale x to unit deviation, then by ``weight``; add a bias.

        ``weight`` may be an address.
        """
        if isinstance(weight, int):
            address = weight
        else:
            address = weight.address
        self.add_row(
            "layernorm", records.RMSNORM, x=x.address, weight=address, out=out.address, dim=x.n,
            eps=float_bits(eps),
            bias=address_or_zero(bias),
        )  # fmt: skip

    def quantize(self, x: Activations, *readers: Tensor) -> None:
        """Write x in every form that the given weights read, each form once."""
        for form in dict.fromkeys(self.form(reader) for reader in readers):
            if form != "f32":
                for token in self._each_part():
                    quantized = x.form(form).after(token, x.token_bytes(form))
                    address = x.address + 4 * token * x.n
                    self.add_row(
                        f"quantize {form}", records.QUANTIZE, x=address, n=x.n, q=quantized.q,
                        d=quantized.d,
                        sums=quantized.sums,
                    )  # fmt: skip

    def form(self, reader: Tensor) -> str:
        """Return the form of activations that a matrix is multiplied by."""
        return QUANT_TYPES[reader.quant].form(PRODUCT_KERNELS[self.batch])

    def matmul(
        self,
        weight: Tensor,
        x: Activations,
        out: Activations,
        bias: Tensor | None = None,
        n_tokens: int = 0,
        first: int = 0,
    ) -> None:
        """Compute out = weight @ x, plus a bias.

        Args:
            first: Element of ``out`` that the product begins with.
            n_tokens: Limit on the tokens of a run, if they are not its own tokens.
        """
        n_before = len(self.operations)
        begin = out.address + 4 * first
        added = self._low_rank(weight, x, out, begin, n_tokens)
        n_first = len(self.operations)
        self._multiply(
            weight,
            x,
            self.form(weight),
            out,
            begin,
            (0 if bias is None else bias.address, 0),
            n_tokens,
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
        address: int,
        add: tuple[int, int],
        n_tokens: int = 0,
    ) -> None:
        """Write the rows of a product.

        Args:
            name: Form of ``x`` that is multiplied.
            address: Address in ``out``.
            add: Address of what is added to the first token's result, and elements from there to
                the next token's.
        """
        n_rows = self._rows_at_once(weight, min(n_tokens or self._max_tokens, MAX_BLOCK_TOKENS))
        for token in self._each_part():
            form = x.form(name).after(token, x.token_bytes(name))
            for first in range(0, weight.n_rows, n_rows):
                self.add_row(
                    f"{PRODUCT_KERNELS[self.batch]} {weight.quant}", records.MATMUL, weight,
                    weights=weight.address + first * weight.row_bytes, row_bytes=weight.row_bytes,
                    n_rows=min(n_rows, weight.n_rows - first), n_cols=weight.n_cols, q=form.q,
                    d=form.d, sums=form.sums,
                    out=address + 4 * (token * out.n + first), out_stride=out.n,
                    add=add[0] and add[0] + 4 * (token * add[1] + first), add_stride=add[1],
                    scratch=self.scratch[0], scratch_bytes=self.scratch[1], ahead=0,
                )  # fmt: skip
                self.operations[-1].reads = x
                if n_rows < weight.n_rows:
                    self.barrier()

    def _low_rank(
        self, weight: Tensor, x: Activations, out: Activations, address: int, n_tokens: int
    ) -> list[Operation]:
        """Write the first rows of what adapters add to a product, and return the rows that follow
        the product."""
        low_rank = self._low_ranks.get(weight.name)
        if low_rank is None or self._buffers is None:
            return []
        inner_vector = self._buffers.vector(
            f"low rank of {weight.name.split('.', 2)[-1]} {weight.first_row}",
            low_rank.rank,
            out.n_tokens,
        )
        self._multiply(
            low_rank.down.part(0, low_rank.rank),
            x,
            "f32",
            inner_vector,
            inner_vector.address,
            (0, 0),
            n_tokens,
        )
        up = low_rank.up.part(weight.first_row, weight.n_rows)
        n_before = len(self.operations)
        self._multiply(up, inner_vector, "f32", out, address, (address, out.n), n_tokens)
        added = self.operations[n_before:]
        del self.operations[n_before:]
        return added

    def add(
        self, x: Activations, branch: Activations, norm: Tensor | None = None, eps: float = 0.0
    ) -> None:
        """Compute x += branch, normalised if there is a norm; the branch is invalid afterwards.

        A branch that a matrix product between two barriers wrote is added by that product itself,
        without a row of its own.
        """
        source, result, rows = self._product or (None, None, [])
        if norm is None and result is branch and source is not x:  # what it reads it must not write
            for operation in rows:
                address = operation.arguments["out"] - branch.address + x.address
                operation.arguments |= {"out": address, "add": address, "add_stride": branch.n}
            self._product = None
            return
        self.add_row(
            "add" if norm is None else "add normed", records.ADD, x=x.address,
            branch=branch.address, n=x.n,
            weight=address_or_zero(norm), eps=float_bits(eps),
        )  # fmt: skip

    def scale(self, x: Activations, factor: float) -> None:
        """Compute x *= factor; threads share the tokens as in ``embed``."""
        self.add_row("scale", records.SCALE, x=x.address, n=x.n, factor=float_bits(factor))

    def soft_cap(self, x: Activations, cap: float) -> None:
        """Compute x = cap * tanh(x / cap)."""
        self.add_row("soft cap", records.SCALE, x=x.address, n=x.n, factor=float_bits(cap))

    def clamp(self, x: Activations, bound: float) -> None:
        """Compute x = max(-bound, min(x, bound))."""
        self.add_row("clamp", records.SCALE, x=x.address, n=x.n, factor=float_bits(bound))

    def clamp_between(self, x: Activations, bounds: tuple[float, float], out: Activations) -> None:
        """Compute out = x, limited to the range between two bounds; out may be x."""
        low, high = bounds
        self.add_row(
            "clamp between",
            CLAMP_BETWEEN,
            x=x.address,
            out=out.address,
            n=x.n,
            low=float_bits(low),
            high=float_bits(high),
        )

    def _rows_at_once(self, weight: Tensor, n_tokens: int) -> int:
        if self.is_decode:
            return weight.n_rows
        rows = PRODUCTS_PER_OPERATION // (weight.n_cols * n_tokens)
        return max(256, rows // 256 * 256)

    def gate(self, function: str, gate: Activations, up: Activations, first: int = 0) -> None:
        """Compute gate = function(gate) * up, from up's element ``first`` on; a function of
        ``GATES``."""
        self.add_row(
            GATES[function],
            records.GATE,
            gate=gate.address,
            up=up.address + 4 * first,
            n=gate.n,
            up_stride=up.n,
        )

    def activate(self, function: str, up: Activations) -> None:
        """Compute up = function(up), with a function of ``FUNCTIONS``."""
        self.add_row(
            FUNCTIONS[function],
            records.GATE,
            gate=up.address,
            up=up.address,
            n=up.n,
            up_stride=up.n,
        )

    def xielu(self, parameters: Xielu, up: Activations) -> None:
        """Compute up = xielu(up)."""
        words = {name: float_bits(value) for name, value in asdict(parameters).items()}
        self.add_row("xielu", records.XIELU, None, up=up.address, n=up.n, **words)

    def kernels(self) -> list[str]:
        """Return the names of the plan's kernels, each once, in order of first use."""
        names = [
            name
            for operation in self.operations
            for name in ([EACH] if operation.each else []) + [operation.kernel]
        ]
        return list(dict.fromkeys(names))

    def describe(self) -> list[dict[str, Any]]:
        """Return all rows, for people and scripts."""
        return [operation.describe() for operation in self.operations]

    def _allocate_claims(self) -> None:
        """Give every matmul its claim counters, one per thread.

        They are side by side, so one operation clears them all.
        """
        matmuls = [
            operation
            for operation in self.operations
            if operation.record is records.MATMUL and operation.each is None
        ]
        memory = Memory(self._claim_bytes * len(matmuls))
        self.keep(memory)
        for i, operation in enumerate(matmuls):
            operation.arguments["claims"] = memory.address + i * self._claim_bytes
        first = self.operations[0].arguments
        first["address"], first["n_bytes"] = memory.address, self._claim_bytes * len(matmuls)

    def matrices(self) -> list[Tensor]:
        """Return the weights of all products, each once."""
        matrices = {
            id(operation.weight): operation.weight
            for operation in self.operations
            if operation.record is records.MATMUL and operation.weight
        }
        return list(matrices.values())

    def look_ahead(self, ahead_of: Callable[[str], int]) -> None:
        """Prefetch as chosen for each weight type, from the next run on."""
        for i, operation in enumerate(self.operations):
            if operation.record is records.MATMUL and operation.weight is not None:
                operation.arguments["ahead"] = ahead_of(operation.weight.quant)
                if self._records is not None:
                    offset = i * RECORD_BYTES + records.MATMUL.ahead
                    self._records.array(np.int64, (1,), offset)[0] = operation.arguments["ahead"]

    def table(self, addresses: dict[str, int]) -> tuple[int, int]:
        """Write the table for the interpreter; the plan holds it.

        Args:
            addresses: Address of every kernel in ``kernels()``.

        Returns:
            (address, number of rows).
        """
        n = len(self.operations)
        self._allocate_claims()
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
        self.keep(table)
        self._records = arguments
        return table.address, n


def scratch_bytes_per_thread(config: ModelConfig) -> int:
    """Return the scratch of one thread: the larger of a matmul's tile and any layer's attention."""
    scratch_bytes = [
        attention_sizes.scratch_bytes(attention.key_dim) for attention in config.attentions.values()
    ]
    return (max([MATMUL_SCRATCH_BYTES, *scratch_bytes]) + 4095) // 4096 * 4096
