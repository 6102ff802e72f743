"""Safetensors files: a header in JSON, then each tensor's bytes, mapped read-only. Nothing in them
can run.

Every length is checked before anything is made of it: tensors lie one after the other, without
overlap or hole, and each has the bytes that its shape and type need.

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
from engine.errors import ConversionError, shown
from engine.gguf.file import ModelFile
from engine.gguf.magic import START_BYTES, other_format

MAX_HEADER_BYTES = 16 << 20
"""Twenty times that of a file with 5,000 tensors."""
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
    """A tensor in a file.

    Attributes:
        dtype: as the format names it; ``F32``, ``F16`` and ``BF16`` can be read.
        shape: slowest first.
        at: offset in the file, in bytes.
    """

    file: ModelFile
    dtype: str
    shape: tuple[int, ...]
    at: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * _SIZES[self.dtype]

    @property
    def is_float(self) -> bool:
        """Whether ``values`` can read it."""
        return self.dtype in _DTYPES

    def values(self) -> np.ndarray[Any, Any]:
        """Return what the file holds, without a copy; BF16 as uint16."""
        n = math.prod(self.shape)
        return np.frombuffer(self.file.map, _DTYPES[self.dtype], n, self.at).reshape(self.shape)


def read_directory(directory: Path) -> dict[str, SourceTensor]:
    """Map the tensors of a model's directory, by name: those of one file, or of the files that an
    index names.

    Raises:
        FileUnreadableError: a file is missing or cannot be opened.
        ConversionError: there is no such file, or what one says of itself is wrong.
    """
    weight_map = _read_index(directory / INDEX)
    if weight_map is None:
        return read_safetensors(_only_file(directory))
    tensors: dict[str, SourceTensor] = {}
    try:
        for part in sorted(set(weight_map.values())):
            read = read_safetensors(directory / part)
            tensors |= read
            _check_index(weight_map, part, read)
        _check_all_there(weight_map, tensors)
    except BaseException:
        close_files(tensors.values())
        raise
    return tensors


def close_files(tensors: Iterable[SourceTensor]) -> None:
    """Close the files of tensors, of which nothing may be read afterwards."""
    for file in {id(tensor.file): tensor.file for tensor in tensors}.values():
        file.close()


def _check_index(
    weight_map: Mapping[str, str], part: str, tensors: Mapping[str, SourceTensor]
) -> None:
    for name in tensors:
        if weight_map.get(name) != part:
            raise ConversionError(f"{part}: tensor {shown(name)} is not one that {INDEX} has there")


def _check_all_there(weight_map: Mapping[str, str], tensors: Mapping[str, SourceTensor]) -> None:
    if missing := weight_map.keys() - tensors.keys():
        name = min(missing)
        raise ConversionError(
            f"{weight_map[name]}: has no tensor {shown(name)}, which {INDEX} has there"
        )


def read_safetensors(path: Path) -> dict[str, SourceTensor]:
    """Map one file, which stays open as long as a tensor of it is used.

    Raises:
        FileUnreadableError: it cannot be opened.
        ConversionError: it is damaged, or its tensors are not where they should be.
    """
    file = ModelFile(path)
    try:
        return _read(file)
    except BaseException:
        file.close()
        raise


def _read(file: ModelFile) -> dict[str, SourceTensor]:
    size_bytes = int.from_bytes(file.map[:8], "little")
    if wrong := other_format(file.map[:START_BYTES]):
        raise ConversionError(f"{file.shown_name}: {wrong}")
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
    """Read one entry of a header; where it lies is checked with the others."""
    described: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = map(described.get, ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise ConversionError(
            f"{file.shown_name}: tensor {shown(name)} has the unknown type {shown_value(dtype)}"
        )
    if not (
        _are_sizes(shape) and len(shape) <= MAX_DIMS and _are_sizes(offsets) and len(offsets) == 2
    ):
        raise ConversionError(
            f"{file.shown_name}: tensor {shown(name)} has no sound shape and offsets (damaged?)"
        )
    tensor = SourceTensor(file, dtype, tuple(shape), start + offsets[0])
    if tensor.size_bytes != offsets[1] - offsets[0]:
        sizes = f"{offsets[1] - offsets[0]} bytes, but its shape and type need {tensor.size_bytes}"
        raise ConversionError(
            f"{file.shown_name}: tensor {shown(name)} has {sizes} (damaged? get the file again)"
        )
    return tensor


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        type(one) is int and 0 <= one < 1 << 48 for one in values
    )


def _check_layout(file: ModelFile, start: int, tensors: Mapping[str, SourceTensor]) -> None:
    """Refuse overlaps, holes, and a file that ends too early or too late."""
    at = start
    for name, tensor in sorted(tensors.items(), key=lambda one: (one[1].at, one[1].size_bytes)):
        if tensor.at != at:
            if tensor.at < at:
                what = "overlaps the one before it"
            else:
                what = "has a hole before it"
            raise ConversionError(
                f"{file.shown_name}: tensor {shown(name)} {what} (damaged? get the file again)"
            )
        at += tensor.size_bytes
    if at != file.size_bytes:
        sizes = f"has {file.size_bytes} bytes, but its tensors end at {at}"
        raise ConversionError(f"{file.shown_name}: {sizes} (truncated? get it again)")


def _without_twins(name: str) -> Any:
    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ConversionError(f"{name}: names something twice (damaged? get the file again)")
        return found

    return checked


def _read_index(path: Path) -> dict[str, str] | None:
    index = read_object(path, MAX_JSON_BYTES)
    if index is None:
        return None
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found or len(found) > MAX_TENSORS:
        raise ConversionError(f"{INDEX}: has no sound weight_map (get it again)")
    for part in found.values():
        if not isinstance(part, str) or not _PART_NAME.fullmatch(part):
            raise ConversionError(
                f"{INDEX}: {shown_value(part)} is no name of a safetensors file here"
            )
    return found


def _only_file(directory: Path) -> Path:
    """Return the one file of a directory without index."""
    usual = directory / "model.safetensors"
    if usual.exists():
        found = [usual]
    else:
        found = sorted(directory.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    name = shown(directory.name)
    if found:
        raise ConversionError(
            f"{name}: has {len(found)} safetensors files and no {INDEX} (get the index, too)"
        )
    pickle = next(
        (one.name for pattern in _PICKLES for one in sorted(directory.glob(pattern))), None
    )
    if pickle is not None:
        raise ConversionError(
            f"{name}: {shown(pickle)} may run any program when it is read, so it is not ({_SAFE})"
        )
    raise ConversionError(
        f"{name}: has no safetensors file (name the directory that has model.safetensors)"
    )
