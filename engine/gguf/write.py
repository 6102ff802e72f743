"""Writer of GGUF files: metadata first, then the bytes of each tensor.

A file gets its name only when it is complete. The layout is that of the ``gguf`` package, which is
imported when the first file is written.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.errors import FileUnwritableError, printable
from engine.gguf.ggml_types import GGML_TYPES, TYPES_BY_NAME
from engine.gguf.read import DEFAULT_ALIGNMENT
from engine.machine.files import sync_directory
from engine.machine.memory import shown_bytes

_NUMBERS = {name: number for number, (name, *_) in GGML_TYPES.items()}


class TensorToWrite(NamedTuple):
    """Row of the tensor table of a file.

    Attributes:
        shape: Shape in the order of NumPy, slowest first; rows are whole blocks.
        type_name: Name of the type in ggml, such as ``"Q4_K"``.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the data."""
        layout = TYPES_BY_NAME[self.type_name]
        n_blocks, remainder = divmod(self.shape[-1], layout.block_size)
        if remainder:
            raise ValueError(
                f"{self.name}: rows of {self.shape[-1]} are no whole blocks of {self.type_name}"
            )
        return int(np.prod(self.shape[:-1], dtype=object)) * n_blocks * layout.type_size


class TensorWriter:
    """Writer of the bytes of tensors, in the order of the table."""

    def __init__(
        self, file: BufferedWriter, path: Path, tensors: Sequence[TensorToWrite], alignment: int
    ) -> None:
        self._file = file
        self._path = path
        self._alignment = alignment
        self._pending = [tensor.size_bytes for tensor in reversed(tensors)]
        self._remaining_bytes = 0
        self._start_tensor()

    def _start_tensor(self) -> None:
        self._file.write(bytes(-self._file.tell() % self._alignment))
        if self._pending:
            self._remaining_bytes = self._pending.pop()

    def write(self, data: bytes | np.ndarray[Any, Any]) -> None:
        """Write bytes of the current tensor; when it is complete, the following tensor becomes
        current.

        Args:
            data: Contiguous bytes that end no later than the tensor.

        Raises:
            ValueError: The data is longer than the rest of the tensor.
            FileUnwritableError: The disk is full.
        """
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # arrays are buffers
        if view.nbytes > self._remaining_bytes:
            raise ValueError(
                f"{view.nbytes} bytes for {self._remaining_bytes} that are left of a tensor"
            )
        with _refusing(self._path):
            self._file.write(view)
            self._remaining_bytes -= view.nbytes
            if not self._remaining_bytes:
                self._start_tensor()

    def finish(self) -> None:
        """Flush the file to disk; raise ValueError if bytes are missing."""
        if self._pending or self._remaining_bytes:
            raise ValueError(
                f"{len(self._pending)} tensors and {self._remaining_bytes} bytes were not written"
            )
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def writing(
    path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Sequence[TensorToWrite]
) -> Iterator[TensorWriter]:
    """Write a GGUF file under a temporary name in the same directory, and rename it at the end.

    A file of the same name is replaced. After an exception no file remains. A killed process leaves
    a file ``.jalopy-*.part``.

    Args:
        metadata: Keys and values in order. NumPy scalars and arrays keep their types, as
            ``typed_metadata`` reads them; Python numbers become uint32, float32 and bool; other
            sequences are strings. The format has no empty arrays: such keys are omitted.
        tensors: Tensor table; the body writes the bytes in this order.

    Raises:
        FileUnwritableError: The disk has not enough space, or the directory is not writable.
    """
    path = Path(path)
    temporary = path.with_name(f".jalopy-{secrets.token_hex(8)}.part")
    writer = _described(metadata, tensors)
    try:
        with _refusing(path):
            _check_disk_space(path, sum(tensor.size_bytes for tensor in tensors))
            writer.write_header_to_file(temporary)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            out = TensorWriter(writer.fout[0], path, tensors, writer.data_alignment)
        yield out
        with _refusing(path):
            out.finish()
            os.replace(temporary, path)
            sync_directory(path.parent)
    finally:
        with suppress(OSError):
            writer.close()
        with suppress(OSError):
            temporary.unlink()


def _check_disk_space(path: Path, n_bytes: int) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    if n_bytes > free_bytes:
        raise FileUnwritableError(
            f"{printable(path.name)}: needs {shown_bytes(n_bytes)} and its disk has "
            f"{shown_bytes(free_bytes)} left"
            " (make room, or choose another folder)"
        )


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "make room"
        else:
            advice = "choose another folder"
        raise FileUnwritableError(
            f"{printable(path.name)}: cannot be written: {error.strerror} ({advice})"
        ) from None


def _described(metadata: Mapping[str, Any], tensors: Sequence[TensorToWrite]) -> Any:
    """Return a writer of the package that has not opened a file yet."""
    from gguf import GGUFWriter

    writer = GGUFWriter(None, "")
    writer.data_alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    for key, value in metadata.items():
        if np.isscalar(value) or len(value):
            writer.add_key_value(key, *_typed(value))
    for tensor in tensors:
        number: Any = _NUMBERS[
            tensor.type_name
        ]  # the list of types in the package may be shorter than ours
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.int8), tensor.size_bytes, number
        )
    return writer


def _encoded(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    return text


def _typed(value: Any) -> tuple[Any, Any, Any]:
    """Return a value in the form that the package takes, its type, and the type of its elements."""
    from gguf import GGUFValueType as ValueType

    if isinstance(value, (str, bytes)):
        return _encoded(value), ValueType.STRING, None
    if isinstance(value, np.ndarray):
        return value.tolist(), ValueType.ARRAY, _value_type(value.dtype)
    if isinstance(value, Sequence):
        return [_encoded(element) for element in value], ValueType.ARRAY, ValueType.STRING
    if isinstance(value, np.generic):
        return value.item(), _value_type(value.dtype), None
    types = {bool: ValueType.BOOL, int: ValueType.UINT32, float: ValueType.FLOAT32}
    return value, types[type(value)], None


def _value_type(dtype: np.dtype[Any]) -> Any:
    from gguf import GGUFValueType as ValueType

    if dtype.kind == "b":
        return ValueType.BOOL
    return ValueType[dtype.name.upper()]
