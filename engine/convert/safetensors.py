"""Safetensors files: a JSON header and the bytes of each tensor, mapped read-only.

The format contains no code. Each length is checked before it is used: tensors are consecutive,
without overlaps or gaps, and each has as many bytes as its shape and type require.

Source: https://github.com/huggingface/safetensors/blob/main/README.md#format
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from engine.convert.bounded import MAX_JSON_BYTES, parse_object, read_object, shown_value
from engine.errors import ConversionError, printable
from engine.gguf.file import ModelFile
from engine.gguf.magic import START_BYTES, other_format

MAX_HEADER_BYTES = 16 << 20
"""Limit on the size of the header: twenty times that of a file with 5,000 tensors."""
MAX_TENSORS = 1 << 17
MAX_DIMS = 8
INDEX = "model.safetensors.index.json"
_SIZES = {
    "F32": 4, "F16": 2, "BF16": 2, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1, "U8": 1,
    "I8": 1, "U16": 2,
    "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8,
}  # fmt: skip
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_PART_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors")
_PICKLES = "*.bin", "*.pt", "*.pth", "*.ckpt"
_SAFE = (
    "open it with transformers and save it with save_pretrained, or look for its safetensors files"
)


class SourceTensor(NamedTuple):
    """Tensor in a safetensors file.

    Attributes:
        dtype: Type in the format; ``F32``, ``F16`` and ``BF16`` can be read.
        shape: Shape, slowest dimension first.
        offset: Offset in the file, in bytes.
    """

    file: ModelFile
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * _SIZES[self.dtype]

    @property
    def is_float(self) -> bool:
        """Whether ``values`` can read the tensor."""
        return self.dtype in _DTYPES

    def values(self) -> np.ndarray[Any, Any]:
        """Return the values without a copy; BF16 as uint16."""
        n = math.prod(self.shape)
        return np.frombuffer(self.file.map, _DTYPES[self.dtype], n, self.offset).reshape(self.shape)


def read_directory(directory: Path) -> dict[str, SourceTensor]:
    """Map the tensors of a model's directory by name: those of a single file, or of the files in an
    index.

    Raises:
        FileUnreadableError: A file is missing or cannot be opened.
        ConversionError: There is no safetensors file, or the index or a header is wrong.
    """
    weight_map = _read_index(directory / INDEX)
    if weight_map is None:
        return read_safetensors(_only_file(directory))
    tensors: dict[str, SourceTensor] = {}
    try:
        for file_name in sorted(set(weight_map.values())):
            read = read_safetensors(directory / file_name)
            tensors |= read
            _check_index(weight_map, file_name, read)
        _check_all_there(weight_map, tensors)
    except BaseException:
        close_files(tensors.values())
        raise
    return tensors


def close_files(tensors: Iterable[SourceTensor]) -> None:
    """Close the files of tensors; nothing may be read afterwards."""
    for file in {id(tensor.file): tensor.file for tensor in tensors}.values():
        file.close()


def _check_index(
    weight_map: Mapping[str, str], file_name: str, tensors: Mapping[str, SourceTensor]
) -> None:
    for name in tensors:
        if weight_map.get(name) != file_name:
            raise ConversionError(
                f"{file_name}: tensor {printable(name)} is not one that {INDEX} has there"
            )


def _check_all_there(weight_map: Mapping[str, str], tensors: Mapping[str, SourceTensor]) -> None:
    if missing := weight_map.keys() - tensors.keys():
        name = min(missing)
        raise ConversionError(
            f"{weight_map[name]}: has no tensor {printable(name)}, which {INDEX} has there"
        )


def read_safetensors(path: Path) -> dict[str, SourceTensor]:
    """Map a file; it stays open while a tensor of it is used.

    Raises:
        FileUnreadableError: The file cannot be opened.
        ConversionError: The file is damaged, or its tensors are misplaced.
    """
    file = ModelFile(path)
    try:
        return _read(file)
    except BaseException:
        file.close()
        raise


def _read(file: ModelFile) -> dict[str, SourceTensor]:
    size_bytes = int.from_bytes(file.map[:8], "little")
    if problem := other_format(file.map[:START_BYTES]):
        raise ConversionError(f"{file.shown_name}: {problem}")
    if file.size_bytes < 8 or size_bytes > min(file.size_bytes - 8, MAX_HEADER_BYTES):
        raise ConversionError(
            f"{file.shown_name}: its header needs {size_bytes} bytes, more than there are or "
            f"may be "
            "(no safetensors file, or truncated: get it again)"
        )
    header = parse_object(
        file.map[8 : 8 + size_bytes], file.shown_name, _without_twins(file.shown_name)
    )
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise ConversionError(
            f"{file.shown_name}: has {len(header)} tensors: at most {MAX_TENSORS} are supported"
        )
    start = 8 + size_bytes
    tensors = {name: _tensor(file, start, name, entry) for name, entry in header.items()}
    _check_layout(file, start, tensors)
    return tensors


def _tensor(file: ModelFile, start: int, name: str, entry: Any) -> SourceTensor:
    """Read an entry of a header; ``_check_layout`` checks its position."""
    settings: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = map(settings.get, ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise ConversionError(
            f"{file.shown_name}: tensor {printable(name)} has the unknown type {shown_value(dtype)}"
        )
    if not (
        _are_sizes(shape) and len(shape) <= MAX_DIMS and _are_sizes(offsets) and len(offsets) == 2
    ):
        raise ConversionError(
            f"{file.shown_name}: tensor {printable(name)} has no sound shape and offsets (damaged?)"
        )
    tensor = SourceTensor(file, dtype, tuple(shape), start + offsets[0])
    if tensor.size_bytes != offsets[1] - offsets[0]:
        sizes = f"{offsets[1] - offsets[0]} bytes, but its shape and type need {tensor.size_bytes}"
        raise ConversionError(
            f"{file.shown_name}: tensor {printable(name)} has {sizes} (damaged? get the file again)"
        )
    return tensor


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        type(size) is int and 0 <= size < 1 << 48 for size in values
    )


def _check_layout(file: ModelFile, start: int, tensors: Mapping[str, SourceTensor]) -> None:
    """Refuse overlaps, gaps, and a file that ends too early or too late."""
    offset = start
    for name, tensor in sorted(
        tensors.items(), key=lambda item: (item[1].offset, item[1].size_bytes)
    ):
        if tensor.offset != offset:
            if tensor.offset < offset:
                problem = "overlaps the one before it"
            else:
                problem = "has a hole before it"
            raise ConversionError(
                f"{file.shown_name}: tensor {printable(name)} {problem} (damaged? get the "
                f"file again)"
            )
        offset += tensor.size_bytes
    if offset != file.size_bytes:
        sizes = f"has {file.size_bytes} bytes, but its tensors end at {offset}"
        raise ConversionError(f"{file.shown_name}: {sizes} (truncated? get it again)")


def _without_twins(name: str) -> Any:
    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ConversionError(f"{name}: names something twice (damaged? get the file again)")
        return values

    return checked


def _read_index(path: Path) -> dict[str, str] | None:
    index = read_object(path, MAX_JSON_BYTES)
    if index is None:
        return None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or len(weight_map) > MAX_TENSORS:
        raise ConversionError(f"{INDEX}: has no sound weight_map (get it again)")
    for file_name in weight_map.values():
        if not isinstance(file_name, str) or not _PART_NAME.fullmatch(file_name):
            raise ConversionError(
                f"{INDEX}: {shown_value(file_name)} is no name of a safetensors file here"
            )
    return weight_map


def _only_file(directory: Path) -> Path:
    """Return the single file of a directory without an index."""
    default_path = directory / "model.safetensors"
    if default_path.exists():
        paths = [default_path]
    else:
        paths = sorted(directory.glob("*.safetensors"))
    if len(paths) == 1:
        return paths[0]
    name = printable(directory.name)
    if paths:
        raise ConversionError(
            f"{name}: has {len(paths)} safetensors files and no {INDEX} (get the index, too)"
        )
    pickle = next(
        (path.name for pattern in _PICKLES for path in sorted(directory.glob(pattern))), None
    )
    if pickle is not None:
        raise ConversionError(
            f"{name}: {printable(pickle)} may run any program when it is read, so it is not "
            f"({_SAFE})"
        )
    raise ConversionError(
        f"{name}: has no safetensors file (name the directory that has model.safetensors)"
    )
