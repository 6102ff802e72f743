"""GGUF files as metadata and a table of tensors, bounded and validated.

The header is read once, front to back, in Python integers. Each length is checked against the
remaining bytes before it is used, so a hostile file costs no more memory or time than its header.
``engine.config`` interprets the metadata, ``engine.weights.weights`` checks which tensors are
present.

Source: GGUF specification,
https://github.com/ggml-org/ggml/blob/9c2adc4962a3a5d259f10db2171e0df5c83e4b05/docs/gguf.md
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from engine.errors import EngineError, UnsupportedQuantError
from engine.gguf.contents import GGUFFile, TensorInfo
from engine.gguf.file import ModelFile
from engine.gguf.ggml_types import GGML_TYPES, GGMLType
from engine.gguf.header import U32, U64, Header, amount, checked_name, read_metadata
from engine.gguf.parts import read_parts

__all__ = [
    "GGML_TYPES",
    "GGMLType",
    "GGUFFile",
    "TensorInfo",
    "read_gguf",
    "read_single",
    "typed_metadata",
]

MAX_TENSOR_NAME_BYTES = 63
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
_MOST_ELEMENTS_PER_BYTE = 8  # no type packs tighter than one bit per element


def read_gguf(path: str | os.PathLike[str], keeps_strings: bool = True) -> GGUFFile:
    """Open a GGUF file of version 2 or 3 and check its structure.

    The first file of a model in several files opens all of them as one. A file without tensors is
    accepted.

    Args:
        keeps_strings: Whether to read arrays of strings. False is ten times as fast, and enough
            if no tokenizer is needed.

    Raises:
        FileUnreadableError: The file is missing, not permitted, or not a regular file.
        GGUFError: The file is not GGUF, truncated, or inconsistent; the message names the
            field.
        UnsupportedQuantError: A tensor has a type of unknown layout.
    """
    gguf = read_single(path, keeps_strings)
    n_parts = gguf.metadata.get("split.count")
    if type(n_parts) is int and n_parts > 1:
        return read_parts(gguf, n_parts, partial(read_single, keeps_strings=keeps_strings))
    return gguf


def read_single(path: str | os.PathLike[str], keeps_strings: bool = True) -> GGUFFile:
    """Open a single file, also a part of a model; arguments and errors are those of
    ``read_gguf``."""
    file = ModelFile(path)
    try:
        header = Header(file, keeps_strings)
        version, n_tensors, n_keys = header.read_start()
        metadata = read_metadata(header, n_keys)
        alignment = _alignment(metadata, header.fail)
        table = _read_tensor_table(header, n_tensors)
        data_start = -(-header.position // alignment) * alignment
        tensors = {
            name: _place(info, data_start, alignment, header) for name, info in table.items()
        }
        if tensors:
            _check_layout(header, list(tensors.values()), data_start)
            _check_file_ends_with_tensors(header, tensors, metadata)
    except BaseException:
        file.close()
        raise
    return GGUFFile(file, version, metadata, tensors, data_start)


def typed_metadata(gguf: GGUFFile) -> dict[str, Any]:
    """Return the metadata of a file, with numbers and bools as NumPy scalars of their types in the
    file, without ``split.*``."""
    header = Header(gguf.file, keeps_types=True)
    _, _, n_keys = header.read_start()
    return {
        key: value
        for key, value in read_metadata(header, n_keys).items()
        if not key.startswith("split.")
    }


def _alignment(metadata: dict[str, Any], fail: Callable[[str], EngineError]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool):
        raise fail("general.alignment is not an integer")
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise fail(
            f"general.alignment is {value}: must be a power of two from 8 to {MAX_ALIGNMENT}"
        )
    return value


def _read_tensor_table(header: Header, n_tensors: int) -> dict[str, TensorInfo]:
    """Read the table of tensors; its offsets are relative to the start of the data."""
    table: dict[str, TensorInfo] = {}
    for index in range(n_tensors):
        field = f"tensor {index}"
        name = checked_name(header, header.string(f"{field} (name)"), field, MAX_TENSOR_NAME_BYTES)
        if name in table:
            raise header.fail(f"tensor {name} is there twice")
        table[name] = _read_tensor(header, name)
    return table


def _read_tensor(header: Header, name: str) -> TensorInfo:
    field = f"tensor {name}"
    n_dims = header.number(U32, f"{field} (n_dims)")
    if not 1 <= n_dims <= MAX_DIMS:
        raise header.fail(f"{field} has n_dims {n_dims}: must be 1 to {MAX_DIMS}")
    dims = [header.number(U64, f"{field} (dimension {axis})") for axis in range(n_dims)]
    type_number = header.number(U32, f"{field} (type)")
    offset = header.number(U64, f"{field} (offset)")
    for axis, dim in enumerate(dims):
        if not 1 <= dim <= _MOST_ELEMENTS_PER_BYTE * header.file_bytes:
            raise header.fail(
                f"{field} has dimension {axis} of {dim}: a file of {header.file_bytes} bytes "
                f"cannot be so"
            )
    if type_number not in GGML_TYPES:
        raise header.fail(
            f"{field} has ggml type {type_number}, which is unknown or was removed",
            UnsupportedQuantError,
        )
    layout = GGML_TYPES[type_number]
    if dims[0] % layout.block_size:
        raise header.fail(
            f"{field} has rows of {dims[0]} elements, not a multiple of {layout.name}'s block "
            f"of {layout.block_size}"
        )
    size_bytes = dims[0] // layout.block_size * layout.type_size
    for dim in dims[1:]:
        size_bytes *= dim
    return TensorInfo(name, type_number, layout.name, tuple(reversed(dims)), offset, size_bytes)


def _place(info: TensorInfo, data_start: int, alignment: int, header: Header) -> TensorInfo:
    """Check the position of a tensor and make its offset relative to the start of the file."""
    field = f"tensor {info.name}"
    if info.offset_bytes % alignment:
        raise header.fail(
            f"{field} has offset {info.offset_bytes}, not a multiple of the alignment {alignment}"
        )
    start = data_start + info.offset_bytes
    if start + info.size_bytes > header.file_bytes:
        raise header.fail(
            f"{field} has {amount(info.size_bytes)} at offset {info.offset_bytes}, past the "
            f"end of the file "
            f"(truncated? download it again)"
        )
    return TensorInfo(info.name, info.ggml_type, info.type_name, info.shape, start, info.size_bytes)


def _check_layout(header: Header, tensors: list[TensorInfo], data_start: int) -> None:
    """Refuse tensors that overlap, and data that begin before the end of the header."""
    if any(header.map[header.position : data_start]):
        raise header.fail(
            "n_tensors or general.alignment is wrong: the header goes on where its padding "
            "should be"
        )
    tensors = sorted(tensors, key=lambda tensor: tensor.offset_bytes)
    for tensor, following in pairwise(tensors):
        if tensor.offset_bytes + tensor.size_bytes > following.offset_bytes:
            raise header.fail(
                f"tensor {following.name} overlaps tensor {tensor.name}: their offsets or types "
                f"are wrong"
            )


def _check_file_ends_with_tensors(
    header: Header, tensors: dict[str, TensorInfo], metadata: dict[str, Any]
) -> None:
    """Refuse a declared alignment that leaves data after the last tensor: it is not the alignment
    that the file was written with."""
    alignment = metadata.get("general.alignment")
    end = max(tensor.offset_bytes + tensor.size_bytes for tensor in tensors.values())
    if alignment is not None and header.file_bytes - end >= alignment:
        raise header.fail(
            f"general.alignment is {alignment} but {header.file_bytes - end} bytes are left "
            f"over after the last tensor"
        )
