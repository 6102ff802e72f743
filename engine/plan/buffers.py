"""The activations that operations hand to each other, allocated once for the widest block of
tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.kernels.records import SUMS_K_BYTES, WIDEST_TILE_TOKENS
from engine.machine.memory import Memory
from engine.weights.weights import Tensor

SMALL_BATCH_TOKENS = 8
"""Most tokens that pass decode's kernels at once; more are a prefill block."""
WIDEST_BLOCK = 512
"""Most tokens of one matrix product: it keeps the sums of all of them in a thread's scratch."""


@dataclass(frozen=True)
class Form:
    """Storage form of activations for a kernel.

    Attributes:
        item_bytes: of an element.
        group: elements that share a scale, or 0.
        sums_bytes: of a group's sums.
        in_rows: whether it holds up to ``SMALL_BATCH_TOKENS`` tokens one after the other, or many
            as ``interleaved`` does.
        offsets: where the 256 values of a whole chunk are in its ``256 * item_bytes`` bytes, if not
            in order.
    """

    item_bytes: int
    group: int = 0
    sums_bytes: int = 0
    in_rows: bool = False
    offsets: np.ndarray[Any, np.dtype[np.intp]] | None = None


def _offsets(group_step: tuple[int, int, int], high: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Offsets of 256 values: of their groups of 32 by the number's bits 0, 1 and 2, and of a
    group's upper sixteen."""
    groups = [sum(step * (g >> bit & 1) for bit, step in enumerate(group_step)) for g in range(8)]
    return np.array(
        [at + high * half + k for at in groups for half in (0, 1) for k in range(16)], np.intp
    )


PAIRED_32 = _offsets((64, 128, 16), 32)
"""Blocks of 32 nibbles that are four apart share a register: lower halves of both, upper halves of
both."""
PAIRED_256 = _offsets((16, 128, 256), 32)
"""Sub-blocks next to each other share a register; a value's magnitude is 64 bytes after it."""
PLANES_8 = np.array([32 * (k % 8) + k // 8 for k in range(256)], np.intp)
"""Every eighth value together: those that meet the same bit of 32 bytes."""
PLANES_4 = np.array(
    [128 * (k >> 6 & 1) + 16 * (k >> 7) + 32 * (k % 4) + (k & 63) // 4 for k in range(256)], np.intp
)
"""Every fourth value of the first and third 64 together, those of the second and fourth after
them."""

FORMS: dict[str, Form] = {
    "f16": Form(4),
    "bf16": Form(4),
    "q8_k": Form(1, 256, SUMS_K_BYTES, in_rows=True),
    "q8_k paired": Form(2, 256, SUMS_K_BYTES, in_rows=True, offsets=PAIRED_256),
    "q8_k bytes": Form(1, 256, SUMS_K_BYTES),
    "q8_k words": Form(2, 256, SUMS_K_BYTES),
    "q8_0": Form(1, 32, 4, in_rows=True),
    "q8_0 paired": Form(1, 32, 4, in_rows=True, offsets=PAIRED_32),
    "q8_0 planes8": Form(1, 32, 4, in_rows=True, offsets=PLANES_8),
    "q8_0 planes4": Form(1, 32, 4, in_rows=True, offsets=PLANES_4),
    "q8_0 bytes": Form(1, 32, 4),
    "q8_0 words": Form(2, 32, 4),
}
"""By the names that ``QuantType.form`` builds. The 16-bit forms are float32 with rounded values."""


@dataclass(frozen=True)
class Quantized:
    """Addresses of a vector in one form: its elements, the scales of groups (f32) and their
    sums."""

    q: int
    d: int
    sums: int

    def after(self, columns: int, each: Quantized) -> Quantized:
        """Return the addresses after so many columns, of which ``each`` has the bytes of one."""
        return Quantized(
            self.q + columns * each.q, self.d + columns * each.d, self.sums + columns * each.sums
        )


def row_places(n: int) -> tuple[int, np.ndarray[Any, np.dtype[np.intp]]]:
    """Places of the n values of one token in a form that decode reads in rows.

    Rows of 256 values and more are rounded up to whole chunks of 256, and what is left of a row is
    at the end of its last chunk: kernels read the row's last 256 weights once more, and find scales
    of zero for those they had before.

    Returns:
        (values that a token has room for, place of each of the n values).
    """
    places = np.arange(n)
    whole = n - n % 256
    if whole and whole < n:
        room = whole + 256
    else:
        room = n
    places[whole:] += room - n
    return room, places


def in_rows(part: np.ndarray[Any, Any], n: int, group: int = 1) -> np.ndarray[Any, Any]:
    """Values, scales or sums of several tokens (n_tokens, n / group, ...) with room as
    ``row_places`` says."""
    room, places = row_places(n)
    found = np.zeros((len(part), room // group, *part.shape[2:]), part.dtype)
    found[:, places[::group] // group] = part
    return found


def interleaved(
    q: np.ndarray[Any, Any],
    d: np.ndarray[Any, Any],
    sums: np.ndarray[Any, Any],
    at_once: int,
    n_interleaved: int,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """An int8 form of several tokens in the order that prefill kernels read: columns side by side.

    Args:
        q: (n_tokens, n) int8.
        d: (n_tokens, n_groups) float32.
        sums: (n_tokens, n_groups, ...), integers.
        at_once: columns that kernels multiply at once.
        columns_together: how many of them are side by side (``tiles.INTERLEAVED_TOKENS``).

    Returns:
        q as ``[n/256][n_tokens/n_interleaved][256/4][n_interleaved][4]``, d and sums as
        ``[n_groups][n_tokens]``; tokens padded with zeros to a multiple of ``at_once``, and the
        last of the 256 shorter where n is no multiple.
    """
    room = -len(q) % at_once
    q, d, sums = (
        np.concatenate([part, np.zeros((room, *part.shape[1:]), part.dtype)])
        for part in (q, d, sums)
    )
    tiles = [
        q[:, at : at + 256]
        .reshape(len(q) // n_interleaved, n_interleaved, -1, 4)
        .swapaxes(1, 2)
        .ravel()
        for at in range(0, q.shape[1], 256)
    ]
    return np.concatenate(tiles), d.swapaxes(0, 1).copy(), sums.swapaxes(0, 1).copy()


def deinterleaved(
    q: np.ndarray[Any, Any], n_tokens: int, n: int, n_interleaved: int
) -> np.ndarray[Any, Any]:
    """The values of ``interleaved`` as (n_tokens, n); n_tokens as padded there."""
    tiles = []
    for at in range(0, n, 256):
        width = min(256, n - at)
        tile = q[at * n_tokens : (at + width) * n_tokens].reshape(-1, width // 4, n_interleaved, 4)
        tiles.append(tile.swapaxes(1, 2).reshape(n_tokens, width))
    return np.concatenate(tiles, axis=1)


def in_pairs(
    q: np.ndarray[Any, np.dtype[np.int8]], form: Form
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """int8 of several tokens (n_tokens, n) as a form with ``offsets`` keeps them; in order where n
    is below 256."""
    assert form.offsets is not None
    q = in_rows(q, q.shape[1])
    n_tokens, n = q.shape
    n_bytes = 256 * form.item_bytes
    whole = n // 256 * 256
    chunks = np.zeros((n_tokens, n // 256, n_bytes), np.int8)
    chunks[:, :, form.offsets] = q[:, :whole].reshape(n_tokens, -1, 256)
    if form.item_bytes == 2:
        chunks[:, :, form.offsets + 64] = np.abs(q[:, :whole]).reshape(n_tokens, -1, 256)
    return np.concatenate([chunks.reshape(n_tokens, -1), q[:, whole:]], axis=1)


def out_of_pairs(
    kept: np.ndarray[Any, np.dtype[np.int8]], form: Form, n: int
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """The values of ``in_pairs`` as (n_tokens, n)."""
    assert form.offsets is not None
    room, places = row_places(n)
    whole = room // 256 * 256
    chunks = kept[:, : whole * form.item_bytes].reshape(len(kept), -1, 256 * form.item_bytes)[
        :, :, form.offsets
    ]
    return np.concatenate(
        [chunks.reshape(len(kept), whole), kept[:, whole * form.item_bytes :]], axis=1
    )[:, places]


class Activations:
    """One named vector per token, float32 ``(columns, n)``, and its int8 forms, each made on first
    use.

    Args:
        few: the most columns that are read in rows.

    Attributes:
        columns: it has room for.
    """

    def __init__(
        self, name: str, n: int, columns: int, small_batch: int = SMALL_BATCH_TOKENS
    ) -> None:
        self.name = name
        self.n = n
        self._few = small_batch
        self.columns = -(-columns // WIDEST_TILE_TOKENS) * WIDEST_TILE_TOKENS
        self._memory = Memory(4 * n * self.columns)
        self.address = self._memory.address
        self._forms: dict[str, tuple[Quantized, list[Memory]]] = {}

    def form(self, name: str) -> Quantized:
        """Addresses of the vector in a form of ``FORMS``, or as it is ("f32"); allocated when first
        asked for."""
        if name == "f32":
            return Quantized(self.address, 0, 0)
        if name not in self._forms:
            form = FORMS[name]
            room, _ = row_places(self.n)
            if form.in_rows:
                n = min(self._few, self.columns) * room
            else:
                n = self.columns * self.n
            if form.group:
                n_groups = n // form.group
            else:
                n_groups = 0
            parts = [
                Memory(form.item_bytes * n),
                Memory(4 * n_groups),
                Memory(form.sums_bytes * n_groups),
            ]
            self._forms[name] = Quantized(*(part.address for part in parts)), parts
        return self._forms[name][0]

    def token_bytes(self, name: str) -> Quantized:
        """Bytes from one column to the next of each part of a form; of those in columns, from fours
        to fours."""
        if name == "f32":
            return Quantized(4 * self.n, 0, 0)
        form = FORMS[name]
        if form.in_rows:
            n = row_places(self.n)[0]
        else:
            n = self.n
        if form.group:
            n_groups = n // form.group
        else:
            n_groups = 0
        return Quantized(form.item_bytes * n, 4 * n_groups, form.sums_bytes * n_groups)

    def array(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """View as (columns, n) float32."""
        return self._memory.array(np.float32, (self.columns, self.n))

    def values(
        self, name: str, n_tokens: int, at_once: int, n_interleaved: int
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Values that kernels read in an existing form: (n_tokens, n) float64.

        Args:
            at_once, columns_together: see ``interleaved``.
        """
        if name == "f32":
            return self.array()[:n_tokens].astype(np.float64)
        form = FORMS[name]
        parts = self._forms[name][1]
        if not form.group:
            return parts[0].array(np.float32, (n_tokens, self.n)).astype(np.float64)
        if not form.in_rows:
            return self._deinterleaved(form, parts, n_tokens, at_once, n_interleaved)
        room, places = row_places(self.n)
        scales = parts[1].array(np.float32, (n_tokens, room // form.group)).astype(np.float64)
        kept = parts[0].array(np.int8, (n_tokens, room * form.item_bytes))
        if form.offsets is None:
            rows = kept[:, places]
        else:
            rows = out_of_pairs(kept, form, self.n)
        decoded: np.ndarray[Any, np.dtype[np.float64]] = (
            rows.astype(np.float64) * scales[:, places // form.group]
        )
        return decoded

    def _deinterleaved(
        self, form: Form, parts: list[Memory], n_tokens: int, at_once: int, n_interleaved: int
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        padded = -(-n_tokens // at_once) * at_once
        q = (
            parts[0]
            .array(np.int8 if form.item_bytes == 1 else np.int16, (padded * self.n,))
            .astype(np.float64)
        )
        scales = parts[1].array(np.float32, (self.n // form.group, padded)).astype(np.float64)
        decoded: np.ndarray[Any, np.dtype[np.float64]] = deinterleaved(
            q, padded, self.n, n_interleaved
        )
        decoded *= np.repeat(scales.T, form.group, axis=1)
        return decoded[:n_tokens]

    @property
    def n_bytes(self) -> int:
        """Memory taken so far, all forms together."""
        return self._memory.n_bytes + sum(
            part.n_bytes for _, parts in self._forms.values() for part in parts
        )


@dataclass(frozen=True)
class TransposedParts:
    """Matrices of float32 whose columns are the first rows of each part of a tensor;
    ``dequantise.fill`` makes them.

    Attributes:
        source: its parts follow each other.
        n_parts: of them.
        n_first: rows of each part.
        memory: (n_parts, n_cols of the source, n_first) float32.
    """

    source: Tensor
    n_parts: int
    n_first: int
    memory: Memory

    @property
    def tensor(self) -> Tensor:
        """All of them as one matrix, each after the one before."""
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
    """The vectors that steps hand to each other, each made when it is first asked for; all plans
    share them.

    Args:
        columns: tokens of the widest block.

    Attributes:
        columns: the same.
        turned_over: matrices that are made of weights, by the tensor's name.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._vectors: dict[tuple[str, int, int, int], Activations] = {}
        self._constants: dict[str, Memory] = {}
        self._tables: dict[tuple[str, int], Memory] = {}
        self.turned_over: dict[str, TransposedParts] = {}

    def vector(
        self, name: str, n: int, columns: int | None = None, small_batch: int = SMALL_BATCH_TOKENS
    ) -> Activations:
        """The vector of a name and length; layers that are not alike get vectors of their own.

        Args:
            columns: it has room for; None for the tokens of the widest block.
            few: see ``Activations``.
        """
        key = name, n, columns or self.columns, small_batch
        if key not in self._vectors:
            self._vectors[key] = Activations(*key)
        return self._vectors[key]

    def constant(self, name: str, values: np.ndarray[Any, np.dtype[np.float32]]) -> int:
        """Address of numbers that never change, written when they are first named."""
        if name not in self._constants:
            memory = self._constants[name] = Memory(values.nbytes)
            memory.array(np.float32, values.shape)[...] = values
        return self._constants[name].address

    def turn_over(self, source: Tensor, n_parts: int, n_first: int) -> Tensor:
        """Have the matrices of ``TransposedParts`` made of a tensor before the first walk."""
        if source.name not in self.turned_over:
            memory = Memory(4 * n_parts * n_first * source.n_cols)
            self.turned_over[source.name] = TransposedParts(source, n_parts, n_first, memory)
        return self.turned_over[source.name].tensor

    def table(self, name: str, n_bytes: int) -> Memory:
        """Memory of a name and size for what rows tell each other next to vectors."""
        key = name, n_bytes
        if key not in self._tables:
            self._tables[key] = Memory(n_bytes)
        return self._tables[key]
