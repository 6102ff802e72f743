"""Cursor over a GGUF header, and the metadata.

Reads magic, version, counts, keys and values; no tensors. It does not know the meaning of any key.
A hostile file can neither move the cursor out of the file nor exhaust memory.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from engine.errors import EngineError, GGUFError, printable
from engine.gguf.file import ModelFile
from engine.gguf.magic import START_BYTES, refuse_other_formats
from engine.gguf.strings import (
    StringArray,
    StringCount,
    StringsCutError,
    end_of_strings,
    read_strings,
)

MAX_HEADER_BYTES = 64 << 20
MAX_KEYS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1
MAX_STRINGS = 1 << 21
MAX_TENSORS = 1 << 16
_SMALLEST_KEY_BYTES = 8 + 1 + 4 + 1  # key length, key, value type, value
_SMALLEST_TENSOR_BYTES = (
    8 + 1 + 4 + 8 + 4 + 8
)  # name length, name, n_dims, one dimension, type, offset

U32 = Struct("<I")
U64 = Struct("<Q")
_BOOL = 7
_STRING = 8
_ARRAY = 9
_NUMBERS = {
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: U32, 5: Struct("<i"),
    6: Struct("<f"),
    _BOOL: Struct("<B"), 10: U64, 11: Struct("<q"), 12: Struct("<d"),
}  # fmt: skip
_DTYPES = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "<u1", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip


class Header:
    """Cursor over the header; it cannot leave the file.

    Args:
        keeps_strings: Whether to read arrays of strings; False only counts their elements.
        keeps_types: Whether numbers and bools are NumPy scalars of their types in the file.
    """

    def __init__(
        self, file: ModelFile, keeps_strings: bool = True, keeps_types: bool = False
    ) -> None:
        self.map = file.map
        self.file_bytes = file.size_bytes
        self.end = min(file.size_bytes, MAX_HEADER_BYTES)
        self.position = 0
        self.n_strings_allowed = MAX_STRINGS
        self.keeps_strings = keeps_strings
        self.keeps_types = keeps_types
        self._name = file.shown_name

    def fail(self, problem: str, error: type[EngineError] = GGUFError) -> EngineError:
        """Return the exception for a problem: one line that begins with the name of the file."""
        return error(f"{self._name}: {problem}")

    def skip(self, n_bytes: int, field: str) -> int:
        """Advance by ``n_bytes`` and return the previous position."""
        start = self.position
        if n_bytes > self.end - start:
            if self.file_bytes > self.end:
                raise self.fail(
                    f"{field} needs {amount(n_bytes)} but a header may have "
                    f"{MAX_HEADER_BYTES >> 20} MiB"
                )
            raise self.fail(
                f"{field} needs {amount(n_bytes)} but the file has {self.end - start} left "
                f"(truncated? download it again)"
            )
        self.position = start + n_bytes
        return start

    def number(self, layout: Struct, field: str) -> Any:
        """Read one number."""
        return layout.unpack_from(self.map, self.skip(layout.size, field))[0]

    def string(self, field: str) -> bytes:
        """Read a length and as many bytes."""
        length = self.number(U64, field)
        start = self.skip(length, field)
        return self.map[start : start + length]

    def strings(self, count: int, field: str) -> StringArray | StringCount:
        """Read ``count`` strings, or skip them."""
        if count > self.n_strings_allowed:
            raise self.fail(
                f"{field} has {_number(count)} strings: at most {MAX_STRINGS} in a file are "
                f"supported"
            )
        self.n_strings_allowed -= count
        try:
            if not self.keeps_strings:
                self.position = end_of_strings(self.map, self.position, self.end, count)
                return StringCount(count)
            strings = read_strings(self.map, self.position, self.end, count)
        except StringsCutError as cut:
            self.position = cut.offset
            self.string(f"{field}[{cut.index}]")  # raises the common error for it
            raise
        self.position += strings.n_bytes
        return strings

    def read_start(self) -> tuple[int, int, int]:
        """Read magic, version and counts.

        Returns the version, the number of tensors and the number of metadata keys.

        Returns version, number of tensors, number of metadata keys.
        """
        refuse_other_formats(self.map[:START_BYTES], self._name)
        self.position = 4
        version = self.number(U32, "version")
        if version and version & 0xFFFF == 0:
            raise self.fail(
                "is a big-endian GGUF file, which is not supported (get a little-endian one)"
            )
        if version not in (2, 3):
            raise self.fail(f"has GGUF version {version}; supported: 2, 3")
        n_tensors = self.number(U64, "n_tensors")
        n_keys = self.number(U64, "n_kv")
        self._check_count("n_tensors", n_tensors, MAX_TENSORS, _SMALLEST_TENSOR_BYTES)
        self._check_count("n_kv", n_keys, MAX_KEYS, _SMALLEST_KEY_BYTES)
        return version, n_tensors, n_keys

    def _check_count(self, field: str, count: int, most: int, smallest_bytes: int) -> None:
        if count > most:
            raise self.fail(f"{field} is {_number(count)}: at most {most} are supported")
        if count * smallest_bytes > self.end - self.position:
            raise self.fail(
                f"{field} is {count}, more than the {self.file_bytes} bytes of the file can hold"
            )


def _number(value: int) -> str:
    if value < 1 << 64:
        return str(value)
    return "2^64 or more"


def amount(n_bytes: int) -> str:
    """Return a number of bytes as short text, however large it is."""
    return f"{_number(n_bytes)} bytes"


def read_metadata(header: Header, n_keys: int) -> dict[str, Any]:
    """Read ``n_keys`` keys and values; ``engine.gguf.contents.GGUFFile`` describes the values."""
    metadata: dict[str, Any] = {}
    for index in range(n_keys):
        key = checked_name(header, header.string(f"key {index}"), f"key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise header.fail(f"key {printable(key)} is there twice")
        metadata[key] = _read_value(
            header, header.number(U32, f"{printable(key)} (value type)"), printable(key)
        )
    return metadata


def checked_name(header: Header, raw: bytes, field: str, most_bytes: int) -> str:
    """Return the bytes of a key or tensor name as text that is safe to print."""
    if not raw:
        raise header.fail(f"{field} has an empty name")
    if len(raw) > most_bytes:
        raise header.fail(
            f"{field} has a name of {len(raw)} bytes: at most {most_bytes} are allowed"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise header.fail(f"{field} has a name that is not UTF-8: {printable(raw)}") from None
    if not text.isprintable():
        raise header.fail(f"{field} has a name with control characters: {printable(text)}")
    return text


def _read_value(header: Header, type_number: int, field: str) -> Any:
    if type_number == _STRING:
        return header.string(field).decode("utf-8", "surrogateescape")
    if type_number == _ARRAY:
        return _read_array(header, field)
    if type_number not in _NUMBERS:
        raise header.fail(f"{field} has the unknown value type {type_number}")
    value = header.number(_NUMBERS[type_number], field)
    if type_number == _BOOL and value > 1:
        raise header.fail(f"{field} is a bool of value {value}")
    if header.keeps_types:
        if type_number == _BOOL:
            return np.bool_(value)
        return np.dtype(_DTYPES[type_number]).type(value)
    if type_number == _BOOL:
        return bool(value)
    return value


def _read_array(header: Header, field: str) -> StringArray | StringCount | np.ndarray[Any, Any]:
    type_number = header.number(U32, f"{field} (element type)")
    count = header.number(U64, f"{field} (array length)")
    if type_number == _STRING:
        return header.strings(count, field)
    if type_number == _ARRAY:
        raise header.fail(f"{field} is an array of arrays, which is not supported")
    if type_number not in _DTYPES:
        raise header.fail(f"{field} has the unknown element type {type_number}")
    dtype = np.dtype(_DTYPES[type_number])
    start = header.skip(count * dtype.itemsize, field)
    if not count:
        return np.empty(0, bool if type_number == _BOOL else dtype)
    values = np.frombuffer(header.map[start : header.position], dtype)
    if type_number != _BOOL:
        return values
    if values.max() > 1:
        raise header.fail(f"{field} holds a bool of value {values.max()}")
    return values.view(bool)
