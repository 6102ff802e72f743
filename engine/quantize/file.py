"""A model file rewritten with smaller types: a slice of a tensor at a time, by all threads."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.errors import BrokenModelError, GGUFError, UnsupportedQuantError
from engine.gguf.contents import GGUFFile
from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.gguf.read import typed_metadata
from engine.gguf.write import TensorToWrite, writing
from engine.plan.dequantise import dequantised
from engine.quantize.rows import WRITABLE, Bytes, Floats, quantise_rows
from engine.quants import QUANTS
from engine.weights.weights import Tensor, Weights

_SLICE = 1 << 20
"""Elements that a thread works on at a time: 4 MB as float32."""
_ROWS_APART = 8
"""The error is measured in one row of so many."""
QUANTIZATION_VERSION = 2
"""``general.quantization_version`` of the layouts that all tools of today write. Source:
GGML_QNT_VERSION, ggml.h."""


@dataclass(frozen=True)
class QuantizeResult:
    """What a file has become.

    Attributes:
        n_bytes: of all tensors.
        rmse: root of the mean square error of the values that got another type, by a sample of
            rows; 0 where none did.
        types: numbers of tensors by type.
    """

    n_bytes: int
    rmse: float
    types: Mapping[str, int]


def quantise_file(
    gguf: GGUFFile,
    path: str | os.PathLike[str],
    types: Mapping[str, str],
    metadata: Mapping[str, Any],
    importance: Mapping[str, Floats] | None = None,
    n_threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> QuantizeResult:
    """Write a model with other types; its tensors in the order of ``types``.

    Args:
        gguf: the model, open; the parts of several files become one.
        types: every tensor's type, as ``mixtures.mixture`` chooses them.
        metadata: keys that are changed or added.
        importance: by tensor, each column's mean square of activations: (n_cols,), of experts
            (n_experts * n_cols,).
        progress: told of the source's bytes that are done.

    Raises:
        UnsupportedQuantError: a tensor has a type that cannot be read, or is to have one that
            cannot be made.
        BrokenModelError: a tensor holds NaN or infinity.
        GGUFError: importance of another shape.
        FileUnwritableError: as ``write.writing``.
    """
    weights = Weights(gguf, gguf.tensors)
    table = [TensorToWrite(name, gguf.tensors[name].shape, kind) for name, kind in types.items()]
    changed = [one for one in table if gguf.tensors[one.name].type_name != one.type_name]
    for one in changed:
        _check(gguf, one)
    kept = (
        typed_metadata(gguf)
        | {"general.quantization_version": np.uint32(QUANTIZATION_VERSION)}
        | dict(metadata)
    )
    done = 0
    square_error = 0.0
    with ThreadPoolExecutor(n_threads) as pool, writing(path, kept, table) as out:
        for one in table:
            tensor = weights.tensors[one.name]
            if tensor.quant == one.type_name:
                for piece in _raw(gguf, one.name):
                    out.write(piece)
            else:
                slices = _slices(gguf, tensor, (importance or {}).get(one.name))
                for data, error in _made(
                    pool, 2 * n_threads, slices, one.type_name, gguf.shown_name
                ):
                    out.write(data)
                    square_error += error
            done += tensor.size_bytes
            if progress is not None:
                progress(done)
    n_values = sum(int(np.prod(one.shape, dtype=object)) for one in changed)
    if n_values:
        rmse = float(np.sqrt(square_error / n_values))
    else:
        rmse = 0.0
    return QuantizeResult(
        sum(one.size_bytes for one in table), rmse, Counter(one.type_name for one in table)
    )


def _check(gguf: GGUFFile, wanted: TensorToWrite) -> None:
    source = gguf.tensors[wanted.name].type_name
    if source not in QUANTS or wanted.type_name not in WRITABLE:
        if source not in QUANTS:
            what = f"is {source}, which cannot be read"
        else:
            what = f"cannot be made {wanted.type_name}"
        raise UnsupportedQuantError(
            f"{gguf.shown_name}: tensor {wanted.name} {what} (keep it: --keep)"
        )
    if wanted.shape[-1] % TYPES_BY_NAME[wanted.type_name].block_size:
        raise UnsupportedQuantError(
            f"{gguf.shown_name}: tensor {wanted.name} has rows of {wanted.shape[-1]}, no whole blocks of"
            f" {wanted.type_name} (keep it: --keep)"
        )


def _raw(gguf: GGUFFile, name: str) -> Iterator[Bytes]:
    info = gguf.tensors[name]
    data = np.frombuffer(gguf.files[info.part].map, np.uint8, info.size_bytes, info.offset_bytes)
    for at in range(0, info.size_bytes, 4 * _SLICE):
        yield data[at : at + 4 * _SLICE]


def _slices(
    gguf: GGUFFile, tensor: Tensor, importance: Floats | None
) -> Iterator[tuple[Tensor, Floats | None]]:
    """Yield a tensor in slices with the importance of its columns; none has rows of two experts."""
    if importance is None:
        n_parts = 1
    else:
        n_parts = importance.size // tensor.n_cols
    if importance is not None and (
        importance.size != n_parts * tensor.n_cols or not n_parts or tensor.n_rows % n_parts
    ):
        raise GGUFError(f"{gguf.shown_name}: tensor {tensor.name} has {tensor.n_cols} columns, and importance of"
                        f" {importance.size} (make it again with this model)")  # fmt: skip
    n_rows = tensor.n_rows // n_parts
    n_at_once = max(1, _SLICE // tensor.n_cols)
    for part in range(n_parts):
        if importance is None:
            columns = None
        else:
            columns = importance[part * tensor.n_cols : (part + 1) * tensor.n_cols]
        for first in range(0, n_rows, n_at_once):
            n = min(n_at_once, n_rows - first)
            yield tensor.part(part * n_rows + first, n) if tensor.n_rows > 1 else tensor, columns


def _made(
    pool: ThreadPoolExecutor,
    n_ahead: int,
    slices: Iterable[tuple[Tensor, Floats | None]],
    type_name: str,
    file_name: str,
) -> Iterator[tuple[Bytes, float]]:
    """Yield what slices become, in order, with the sum of square errors."""
    waiting: deque[Future[tuple[Bytes, float]]] = deque()
    for rows, columns in slices:
        if len(waiting) == n_ahead:
            yield waiting.popleft().result()
        waiting.append(pool.submit(_quantised, rows, columns, type_name, file_name))
    while waiting:
        yield waiting.popleft().result()


def _quantised(
    rows: Tensor, importance: Floats | None, type_name: str, file_name: str
) -> tuple[Bytes, float]:
    values = dequantised(rows, np.arange(rows.n_rows))
    try:
        made = quantise_rows(values, type_name, importance)
    except BrokenModelError as error:
        raise BrokenModelError(
            f"{file_name}: tensor {rows.name} {error} (download it again)"
        ) from None
    written = replace(
        rows,
        quant=type_name,
        row_bytes=made.shape[1],
        size_bytes=made.size,
        address=made.ctypes.data,
    )
    some = np.arange(0, rows.n_rows, _ROWS_APART)
    errors = values[some] - dequantised(written, some)
    return made, float(np.vdot(errors, errors)) * rows.n_rows / len(some)
