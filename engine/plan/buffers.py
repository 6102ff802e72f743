"""Activations that operations pass to each other, allocated once for the widest block of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.kernels.records import SUMS_K_BYTES, WIDEST_TILE_TOKENS
from engine.machine.memory import Memory
from engine.weights.weights import Tensor

SMALL_BATCH_TOKENS = 8
"""Limit on the tokens that pass decode's kernels at once; more are a prefill block."""
MAX_BLOCK_TOKENS = 512
"""Limit on the tokens of one matrix product; a thread's scratch holds the sums of all of them."""


@dataclass(frozen=True)
class Form:
    """Storage form of activations for a kernel.

    Attributes:
        item_bytes: Bytes of an element.
        group: Elements that share a scale, or 0.
        sums_bytes: Bytes of the sums of a group.
        in_rows: Whether it holds up to ``SMALL_BATCH_TOKENS`` tokens one after the other, or many
            tokens as ``interleaved`` does.
        offsets: Offsets of the 256 values of a full chunk in its ``256 * item_bytes`` bytes; None
            if in order.
    """

    item_bytes: int
    group: int = 0
    sums_bytes: int = 0
    in_rows: bool = False
    offsets: np.ndarray[Any, np.dtype[np.intp]] | None = None


def _offsets(group_step: tuple[int, int, int], high: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the offsets of 256 values.

    Args:
        group_step: Steps of the groups of 32 for bits 0, 1 and 2 of a group's number.
        high: Offset of a group's upper sixteen values.
    """
    groups = [sum(step * (g >> bit & 1) for bit, step in enumerate(group_step)) for g in range(8)]
    return np.array(
        [start + high * half + k for start in groups for half in (0, 1) for k in range(16)], np.intp
    )


PAIRED_32 = _offsets((64, 128, 16), 32)
"""Order where blocks of 32 nibbles that are four apart share a register: lower halves, upper
halves."""
FOURS_32 = np.array([32 * (k % 32 // 4) + 4 * (k // 32) + k % 4 for k in range(256)], np.intp)
"""Order where blocks of 32 are lanes of 32 bits: first four values of each block, next four."""
PAIRED_256 = _offsets((16, 128, 256), 32)
"""Order where neighbouring sub-blocks share a register; a value's magnitude is 64 bytes after
it."""
PLANES_8 = np.array([32 * (k % 8) + k // 8 for k in range(256)], np.intp)
"""Order with every eighth value together: those that meet the same bit of 32 bytes."""
PLANES_4 = np.array(
    [128 * (k >> 6 & 1) + 16 * (k >> 7) + 32 * (k % 4) + (k & 63) // 4 for k in range(256)], np.intp
)
"""Order with every fourth value of the first and third 64 together, then those of the second and
fourth."""

FORMS: dict[str, Form] = {
    "f16": Form(4),
    "bf16": Form(4),
    "q8_k": Form(1, 256, SUMS_K_BYTES, in_rows=True),
    "q8_k paired": Form(2, 256, SUMS_K_BYTES, in_rows=True, offsets=PAIRED_256),
    "q8_k bytes": Form(1, 256, SUMS_K_BYTES),
    "q8_k words": Form(2, 256, SUMS_K_BYTES),
    "q8_0": Form(1, 32, 4, in_rows=True),
    "q8_0 paired": Form(1, 32, 4, in_rows=True, offsets=PAIRED_32),
    "q8_0 fours": Form(1, 32, 4, in_rows=True, offsets=FOURS_32),
    "q8_0 planes8": Form(1, 32, 4, in_rows=True, offsets=PLANES_8),
    "q8_0 planes4": Form(1, 32, 4, in_rows=True, offsets=PLANES_4),
    "q8_0 bytes": Form(1, 32, 4),
    "q8_0 words": Form(2, 32, 4),
}
"""Forms by the names that ``QuantType.form`` builds; 16-bit forms are float32 with rounded
values."""


@dataclass(frozen=True)
class Quantized:
    """Addresses of a vector in one form: its elements, the scales of groups (f32) and their
    sums."""

    q: int
    d: int
    sums: int

    def after(self, n_tokens: int, token_bytes: Quantized) -> Quantized:
        """Return the addresses ``n_tokens`` later; ``token_bytes`` has the bytes of one token."""
        return Quantized(
            self.q + n_tokens * token_bytes.q,
            self.d + n_tokens * token_bytes.d,
            self.sums + n_tokens * token_bytes.sums,
        )


def chunk_positions(n: int) -> tuple[int, np.ndarray[Any, np.dtype[np.intp]]]:
    """Return the positions of the n values of one token in a form that decode reads in rows.

    Rows of 256 values and more are padded to full chunks of 256, and the rest of a row is at the
    end of its last chunk: kernels read the row's last 256 weights again, and find scales of zero
    for those that they have read before.

    Returns:
        (padded number of values, position of each of the n values).
    """
    positions = np.arange(n)
    n_in_chunks = n - n % 256
    if n_in_chunks and n_in_chunks < n:
        padded = n_in_chunks + 256
    else:
        padded = n
    positions[n_in_chunks:] += padded - n
    return padded, positions


def in_rows(values: np.ndarray[Any, Any], n: int, group: int = 1) -> np.ndarray[Any, Any]:
    """Return values, scales or sums of several tokens, padded as ``chunk_positions`` says.

    Args:
        values: (n_tokens, n / group, ...).
    """
    padded, positions = chunk_positions(n)
    rows = np.zeros((len(values), padded // group, *values.shape[2:]), values.dtype)
    rows[:, positions[::group] // group] = values
    return rows


def interleaved(
    q: np.ndarray[Any, Any],
    d: np.ndarray[Any, Any],
    sums: np.ndarray[Any, Any],
    tile_tokens: int,
    n_interleaved: int,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return an int8 form of several tokens in the order that prefill kernels read.

    Args:
        q: (n_tokens, n) int8.
        d: (n_tokens, n_groups) float32.
        sums: (n_tokens, n_groups, ...), integers.
        tile_tokens: Tokens that kernels multiply at once.
        n_interleaved: Tokens that are interleaved (``tiles.INTERLEAVED_TOKENS``).

    Returns:
        q as ``[n/256][n_tokens/n_interleaved][256/4][n_interleaved][4]``, d and sums as
        ``[n_groups][n_tokens]``. Tokens are padded with zeros to a multiple of ``tile_tokens``; the
        last of the 256 is shorter if n is no multiple.
    """
    n_missing = -len(q) % tile_tokens
    q, d, sums = (
        np.concatenate([array, np.zeros((n_missing, *array.shape[1:]), array.dtype)])
        for array in (q, d, sums)
    )
    tiles = [
        q[:, start : start + 256]
        .reshape(len(q) // n_interleaved, n_interleaved, -1, 4)
        .swapaxes(1, 2)
        .ravel()
        for start in range(0, q.shape[1], 256)
    ]
    return np.concatenate(tiles), d.swapaxes(0, 1).copy(), sums.swapaxes(0, 1).copy()


def deinterleaved(
    q: np.ndarray[Any, Any], n_tokens: int, n: int, n_interleaved: int
) -> np.ndarray[Any, Any]:
    """Return the values of ``interleaved`` as (n_tokens, n); n_tokens includes padding."""
    tiles = []
    for start in range(0, n, 256):
        width = min(256, n - start)
        tile = q[start * n_tokens : (start + width) * n_tokens].reshape(
            -1, width // 4, n_interleaved, 4
        )
        tiles.append(tile.swapaxes(1, 2).reshape(n_tokens, width))
    return np.concatenate(tiles, axis=1)


def in_pairs(
    q: np.ndarray[Any, np.dtype[np.int8]], form: Form
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return int8 of several tokens (n_tokens, n) in a form with ``offsets``.

    They stay in order if n is below 256.
    """
    assert form.offsets is not None
    q = in_rows(q, q.shape[1])
    n_tokens, n = q.shape
    n_bytes = 256 * form.item_bytes
    n_in_chunks = n // 256 * 256
    chunks = np.zeros((n_tokens, n // 256, n_bytes), np.int8)
    chunks[:, :, form.offsets] = q[:, :n_in_chunks].reshape(n_tokens, -1, 256)
    if form.item_bytes == 2:
        chunks[:, :, form.offsets + 64] = np.abs(q[:, :n_in_chunks]).reshape(n_tokens, -1, 256)
    return np.concatenate([chunks.reshape(n_tokens, -1), q[:, n_in_chunks:]], axis=1)


def out_of_pairs(
    stored: np.ndarray[Any, np.dtype[np.int8]], form: Form, n: int
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return the values of ``in_pairs`` as (n_tokens, n)."""
    assert form.offsets is not None
    padded, positions = chunk_positions(n)
    n_in_chunks = padded // 256 * 256
    chunks = stored[:, : n_in_chunks * form.item_bytes].reshape(
        len(stored), -1, 256 * form.item_bytes
    )[:, :, form.offsets]
    return np.concatenate(
        [chunks.reshape(len(stored), n_in_chunks), stored[:, n_in_chunks * form.item_bytes :]],
        axis=1,
    )[:, positions]


class Activations:
    """Named vector of each token, float32 (n_tokens, n), and its int8 forms, each made on first
    use.

    Args:
        small_batch: Limit on the tokens that are read in rows.

    Attributes:
        n_tokens: Tokens that fit, a multiple of ``WIDEST_TILE_TOKENS``.
    """

    def __init__(
        self, name: str, n: int, n_tokens: int, small_batch: int = SMALL_BATCH_TOKENS
    ) -> None:
        self.name = name
        self.n = n
        self._small_batch = small_batch
        self.n_tokens = -(-n_tokens // WIDEST_TILE_TOKENS) * WIDEST_TILE_TOKENS
        self._memory = Memory(4 * n * self.n_tokens)
        self.address = self._memory.address
        self._forms: dict[str, tuple[Quantized, list[Memory]]] = {}

    def form(self, name: str) -> Quantized:
        """Return the addresses of the vector in a form of ``FORMS`` or as it is ("f32").

        The memory is allocated at the first call.
        """
        if name == "f32":
            return Quantized(self.address, 0, 0)
        if name not in self._forms:
            form = FORMS[name]
            padded, _ = chunk_positions(self.n)
            if form.in_rows:
                n = min(self._small_batch, self.n_tokens) * padded
            else:
                n = self.n_tokens * self.n
            if form.group:
                n_groups = n // form.group
            else:
                n_groups = 0
            memories = [
                Memory(form.item_bytes * n),
                Memory(4 * n_groups),
                Memory(form.sums_bytes * n_groups),
            ]
            self._forms[name] = Quantized(*(memory.address for memory in memories)), memories
        return self._forms[name][0]

    def token_bytes(self, name: str) -> Quantized:
        """Return the bytes from one token to the next of each part of a form.

        For interleaved tokens, they are from one group of tokens to the next, divided by its size.
        """
        if name == "f32":
            return Quantized(4 * self.n, 0, 0)
        form = FORMS[name]
        if form.in_rows:
            n = chunk_positions(self.n)[0]
        else:
            n = self.n
        if form.group:
            n_groups = n // form.group
        else:
            n_groups = 0
        return Quantized(form.item_bytes * n, 4 * n_groups, form.sums_bytes * n_groups)

    def array(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return a view as (n_tokens, n) float32."""
        return self._memory.array(np.float32, (self.n_tokens, self.n))

    def values(
        self, name: str, n_tokens: int, tile_tokens: int, n_interleaved: int
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the values that kernels read in an existing form: (n_tokens, n) float64.

        Args:
            tile_tokens, n_interleaved: As in ``interleaved``.
        """
        if name == "f32":
            return self.array()[:n_tokens].astype(np.float64)
        form = FORMS[name]
        memories = self._forms[name][1]
        if not form.group:
            return memories[0].array(np.float32, (n_tokens, self.n)).astype(np.float64)
        if not form.in_rows:
            return self._deinterleaved(form, memories, n_tokens, tile_tokens, n_interleaved)
        padded, positions = chunk_positions(self.n)
        scales = memories[1].array(np.float32, (n_tokens, padded // form.group)).astype(np.float64)
        stored = memories[0].array(np.int8, (n_tokens, padded * form.item_bytes))
        if form.offsets is None:
            rows = stored[:, positions]
        else:
            rows = out_of_pairs(stored, form, self.n)
        decoded: np.ndarray[Any, np.dtype[np.float64]] = (
            rows.astype(np.float64) * scales[:, positions // form.group]
        )
        return decoded

    def _deinterleaved(
        self,
        form: Form,
        memories: list[Memory],
        n_tokens: int,
        tile_tokens: int,
        n_interleaved: int,
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        padded = -(-n_tokens // tile_tokens) * tile_tokens
        q = (
            memories[0]
            .array(np.int8 if form.item_bytes == 1 else np.int16, (padded * self.n,))
            .astype(np.float64)
        )
        scales = memories[1].array(np.float32, (self.n // form.group, padded)).astype(np.float64)
        decoded: np.ndarray[Any, np.dtype[np.float64]] = deinterleaved(
            q, padded, self.n, n_interleaved
        )
        decoded *= np.repeat(scales.T, form.group, axis=1)
        return decoded[:n_tokens]

    @property
    def n_bytes(self) -> int:
        """Bytes of memory allocated so far, all forms together."""
        return self._memory.n_bytes + sum(
            memory.n_bytes for _, memories in self._forms.values() for memory in memories
        )


@dataclass(frozen=True)
class TransposedParts:
    """Matrices of float32 whose columns are the first rows of each part of a tensor.

    ``dequantise.fill`` computes them.

    Attributes:
        source: Tensor whose parts follow each other.
        n_parts: Number of parts.
        n_first: Rows of each part that are used.
        memory: (n_parts, n_cols of the source, n_first) float32.
    """

    source: Tensor
    n_parts: int
    n_first: int
    memory: Memory

    @property
    def tensor(self) -> Tensor:
        """All matrices as one, each after the previous one."""
        n = self.n_parts * self.source.n_cols
        width = 4 * self.n_first
        return Tensor(
            f"{self.source.name} turned over",
            "F32",
            n,
            self.n_first,
            width,
            n * width,
            self.memory.address,
        )


class Buffers:
    """Vectors that steps pass to each other, each made on first use; all plans share them.

    Args:
        n_tokens: Tokens of the widest block.

    Attributes:
        n_tokens: Tokens of the widest block.
        transposed: Matrices made of weights, by the tensor's name.
    """

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens
        self._vectors: dict[tuple[str, int, int, int], Activations] = {}
        self._constants: dict[str, Memory] = {}
        self._tables: dict[tuple[str, int], Memory] = {}
        self.transposed: dict[str, TransposedParts] = {}

    def vector(
        self, name: str, n: int, n_tokens: int | None = None, small_batch: int = SMALL_BATCH_TOKENS
    ) -> Activations:
        """Return the vector of a name and length; layers that differ get vectors of their own.

        Args:
            n_tokens: Tokens that fit; None for those of the widest block.
            small_batch: As in ``Activations``.
        """
        key = name, n, n_tokens or self.n_tokens, small_batch
        if key not in self._vectors:
            self._vectors[key] = Activations(*key)
        return self._vectors[key]

    @property
    def n_bytes(self) -> int:
        """Bytes of all vectors."""
        return sum(vector.n_bytes for vector in self._vectors.values())

    def constant(self, name: str, values: np.ndarray[Any, np.dtype[np.float32]]) -> int:
        """Return the address of numbers that never change, written at the first call."""
        if name not in self._constants:
            memory = self._constants[name] = Memory(values.nbytes)
            memory.array(np.float32, values.shape)[...] = values
        return self._constants[name].address

    def transpose_parts(self, source: Tensor, n_parts: int, n_first: int) -> Tensor:
        """Return the matrices of ``TransposedParts`` as a tensor; they are computed before the
        first run."""
        if source.name not in self.transposed:
            memory = Memory(4 * n_parts * n_first * source.n_cols)
            self.transposed[source.name] = TransposedParts(source, n_parts, n_first, memory)
        return self.transposed[source.name].tensor

    def table(self, name: str, n_bytes: int) -> Memory:
        """Return memory of a name and size for data that rows pass to each other besides
        vectors."""
        key = name, n_bytes
        if key not in self._tables:
            self._tables[key] = Memory(n_bytes)
        return self._tables[key]
