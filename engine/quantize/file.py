"""Model files rewritten with smaller types, a slice of a tensor at a time, by all threads."""

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
"""Elements that a thread quantises at a time: 4 MB as float32."""
_ROWS_APART = 8
"""Distance of the rows in which the error is measured."""
QUANTIZATION_VERSION = 2
"""Value of ``general.quantization_version`` for the layouts that today's tools write.

Source: GGML_QNT_VERSION, ggml.h.
"""


@dataclass(frozen=True)
class QuantizeResult:
    """Size, error and types of a quantised file.

    Attributes:
        n_bytes: Bytes of all tensors.
        rmse: Root mean square error of the values that got another type, from a sample of rows; 0
            if none did.
        types: Number of tensors of each type.
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
    """Write a model with other types, its tensors in the order of ``types``.

    Args:
        gguf: Open model; the parts of several files become one.
        types: Type of every tensor, as ``mixtures.mixture`` chooses them.
        metadata: Keys to change or add.
        importance: Mean square of the activations of each column, by tensor: (n_cols,), or
            (n_experts * n_cols,) for experts.
        progress: Called with the bytes of the source that are done.

    Raises:
        UnsupportedQuantError: a tensor has a type that cannot be read, or is to have one that
            cannot be made.
        BrokenModelError: a tensor holds NaN or infinity.
        GGUFError: importance of another shape.
        FileUnwritableError: as ``write.writing``.
    """
    weights = Weights(gguf, gguf.tensors)
    table = [
        TensorToWrite(name, gguf.tensors[name].shape, type_name)
        for name, type_name in types.items()
    ]
    changed = [
        tensor_out
        for tensor_out in table
        if gguf.tensors[tensor_out.name].type_name != tensor_out.type_name
    ]
    for tensor_out in changed:
        _check(gguf, tensor_out)
    all_metadata = (
        typed_metadata(gguf)
        | {"general.quantization_version": np.uint32(QUANTIZATION_VERSION)}
        | dict(metadata)
    )
    done = 0
    square_error = 0.0
    with ThreadPoolExecutor(n_threads) as pool, writing(path, all_metadata, table) as out:
        for tensor_out in table:
            tensor = weights.tensors[tensor_out.name]
            if tensor.quant == tensor_out.type_name:
                for piece in _raw(gguf, tensor_out.name):
                    out.write(piece)
            else:
                slices = _slices(gguf, tensor, (importance or {}).get(tensor_out.name))
                for data, error in _quantised_slices(
                    pool, 2 * n_threads, slices, tensor_out.type_name, gguf.shown_name
                ):
                    out.write(data)
                    square_error += error
            done += tensor.size_bytes
            if progress is not None:
                progress(done)
    n_values = sum(int(np.prod(tensor_out.shape, dtype=object)) for tensor_out in changed)
    if n_values:
        rmse = float(np.sqrt(square_error / n_values))
    else:
        rmse = 0.0
    return QuantizeResult(
        sum(tensor_out.size_bytes for tensor_out in table),
        rmse,
        Counter(tensor_out.type_name for tensor_out in table),
    )


def _check(gguf: GGUFFile, target: TensorToWrite) -> None:
    source = gguf.tensors[target.name].type_name
    if source not in QUANTS or target.type_name not in WRITABLE:
        if source not in QUANTS:
            problem = f"is {source}, which cannot be read"
        else:
            problem = f"cannot be made {target.type_name}"
        raise UnsupportedQuantError(
            f"{gguf.shown_name}: tensor {target.name} {problem} (keep it: --keep)"
        )
    if target.shape[-1] % TYPES_BY_NAME[target.type_name].block_size:
        raise UnsupportedQuantError(
            f"{gguf.shown_name}: tensor {target.name} has rows of {target.shape[-1]}, "
            f"no whole blocks of {target.type_name} (keep it: --keep)"
        )


def _raw(gguf: GGUFFile, name: str) -> Iterator[Bytes]:
    info = gguf.tensors[name]
    data = np.frombuffer(gguf.files[info.part].map, np.uint8, info.size_bytes, info.offset_bytes)
    for start in range(0, info.size_bytes, 4 * _SLICE):
        yield data[start : start + 4 * _SLICE]


def _slices(
    gguf: GGUFFile, tensor: Tensor, importance: Floats | None
) -> Iterator[tuple[Tensor, Floats | None]]:
    """Yield a tensor in slices with the importance of its columns; no slice has rows of two
    experts."""
    if importance is None:
        n_parts = 1
    else:
        n_parts = importance.size // tensor.n_cols
    if importance is not None and (
        importance.size != n_parts * tensor.n_cols or not n_parts or tensor.n_rows % n_parts
    ):
        raise GGUFError(
            f"{gguf.shown_name}: tensor {tensor.name} has {tensor.n_cols} columns, and importance "
            f"of {importance.size} (make it again with this model)"
        )
    n_rows = tensor.n_rows // n_parts
    n_at_once = max(1, _SLICE // tensor.n_cols)
    for expert in range(n_parts):
        if importance is None:
            columns = None
        else:
            columns = importance[expert * tensor.n_cols : (expert + 1) * tensor.n_cols]
        for first in range(0, n_rows, n_at_once):
            n = min(n_at_once, n_rows - first)
            yield tensor.part(expert * n_rows + first, n) if tensor.n_rows > 1 else tensor, columns


def _quantised_slices(
    pool: ThreadPoolExecutor,
    n_ahead: int,
    slices: Iterable[tuple[Tensor, Floats | None]],
    type_name: str,
    file_name: str,
) -> Iterator[tuple[Bytes, float]]:
    """Yield the quantised slices in order, with the sum of their square errors."""
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
        blocks = quantise_rows(values, type_name, importance)
    except BrokenModelError as error:
        raise BrokenModelError(
            f"{file_name}: tensor {rows.name} {error} (download it again)"
        ) from None
    quantised_rows = replace(
        rows,
        quant=type_name,
        row_bytes=blocks.shape[1],
        size_bytes=blocks.size,
        address=blocks.ctypes.data,
    )
    sample = np.arange(0, rows.n_rows, _ROWS_APART)
    errors = values[sample] - dequantised(quantised_rows, sample)
    return blocks, float(np.vdot(errors, errors)) * rows.n_rows / len(sample)
