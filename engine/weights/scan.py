"""Search of a model's weights for NaN and infinity, without computing a token.

In quantised types only scales and minima can be NaN or infinite. The file is read once, in order,
and a few bytes of each block are examined. Imports no kernel and no numba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.gguf.ggml_types import TYPES_BY_NAME

if TYPE_CHECKING:
    from engine.weights.weights import Tensor, Weights

_PLAIN: dict[str, tuple[str, int]] = {
    "F32": ("<u4", 0x7F800000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""Types without blocks: the dtype of their bits, and the exponent bits that are all set only in NaN
and infinity."""
_F16_EXPONENT = 0x7C00
_STEP_BYTES = 8 << 20

_Blocks = np.ndarray[Any, np.dtype[np.uint8]]
_Found = np.ndarray[Any, np.dtype[np.bool_]]
ScanProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class DamagedTensor:
    """Tensor that holds NaN or infinity.

    Attributes:
        name: Name of the tensor.
        quant: Type of the tensor.
        n_bad: Number of scales or elements that are NaN or infinite.
        first_row: Index of the first row with such a value.
    """

    name: str
    quant: str
    n_bad: int
    first_row: int


def damaged_tensors(
    weights: Weights, progress: ScanProgress | None = None
) -> Iterator[DamagedTensor]:
    """Yield every tensor that holds NaN or infinity, in the file's order.

    Args:
        progress: called with (bytes done, bytes in all, the tensor's name) after every few
            megabytes; may raise to end the scan.
    """
    done_bytes = 0
    for tensor in sorted(weights.tensors.values(), key=lambda tensor: tensor.address):
        rows = weights.rows(tensor.name)  # (n_rows, row_bytes) uint8
        step = max(1, _STEP_BYTES // tensor.row_bytes)
        n_bad = 0
        first_row = -1
        for start in range(0, tensor.n_rows, step):
            some_rows = rows[start : start + step]
            bad = _bad_by_row(some_rows, tensor)
            if first_row < 0 and bad.any():
                first_row = start + int(np.flatnonzero(bad)[0])
            n_bad += int(bad.sum())
            done_bytes += some_rows.nbytes
            if progress is not None:
                progress(done_bytes, weights.total_bytes, tensor.name)
        if n_bad:
            yield DamagedTensor(tensor.name, tensor.quant, n_bad, first_row)


def _bad_exponents(blocks: _Blocks) -> _Found:
    """Return where the power of two that scales a block of MXFP4 is NaN."""
    return np.equal(blocks[:, :, 0], 0xFF)


def _bad_nibbles(blocks: _Blocks) -> _Found:
    """Return where the f16 in the upper nibbles of a block's last four words is NaN or infinite
    (IQ1_M)."""
    high = (blocks[:, :, 53] >> 4) | (blocks[:, :, 55] & 0xF0)
    exponent = _F16_EXPONENT >> 8
    is_bad: _Found = np.equal(np.bitwise_and(high, exponent), exponent)
    return is_bad


def _nothing_bad(blocks: _Blocks) -> _Found:
    """Return False for each block: scales of NVFP4 are never NaN or infinity."""
    return np.zeros(blocks.shape[:2], np.bool_)


_WITHOUT_HALVES: dict[str, Callable[[_Blocks], _Found]] = {
    "MXFP4": _bad_exponents,
    "IQ1_M": _bad_nibbles,
    "NVFP4": _nothing_bad,
}
"""Functions that find bad blocks (n_rows, n_blocks, type_size), for types whose scales are not
f16."""


def _bad_by_row(
    rows: np.ndarray[Any, np.dtype[np.uint8]], tensor: Tensor
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Count the NaN and infinite values of each row: (n_rows,) int64."""
    if tensor.quant in _PLAIN:
        dtype, exponent = _PLAIN[tensor.quant]
        bits = np.ascontiguousarray(rows).view(dtype)
        return np.asarray(np.count_nonzero((bits & exponent) == exponent, axis=1), np.int64)
    layout = TYPES_BY_NAME[tensor.quant]
    blocks = rows.reshape(len(rows), -1, layout.type_size)  # (n_rows, n_blocks, type_size)
    if tensor.quant in _WITHOUT_HALVES:
        return np.asarray(np.count_nonzero(_WITHOUT_HALVES[tensor.quant](blocks), axis=1), np.int64)
    counts = np.zeros(len(rows), np.int64)
    for offset in layout.f16_offsets:
        bits = np.ascontiguousarray(blocks[:, :, offset : offset + 2]).view("<u2")[:, :, 0]
        counts += np.count_nonzero((bits & _F16_EXPONENT) == _F16_EXPONENT, axis=1)
    return counts
