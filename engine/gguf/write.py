"""GGUF files written: metadata first, then each tensor's bytes as they come. A file has its name
only when it is whole.

The layout is the ``gguf`` package's; it is imported with the first file that is written.
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

from engine.errors import FileUnwritableError, shown
from engine.gguf.ggml_types import GGML_TYPES, TYPES_BY_NAME
from engine.gguf.read import DEFAULT_ALIGNMENT
from engine.machine.directories import sync_directory
from engine.machine.memory import shown_bytes

_NUMBERS = {name: number for number, (name, *_) in GGML_TYPES.items()}


class TensorToWrite(NamedTuple):
    """One row of a file's tensor table.

    Attributes:
        shape: in NumPy's order, slowest first; rows are whole blocks.
        type_name: as ggml writes it, ``"Q4_K"``.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str

    @property
    def size_bytes(self) -> int:
        """Bytes of its data."""
        layout = TYPES_BY_NAME[self.type_name]
        n_blocks, left = divmod(self.shape[-1], layout.block_size)
        if left:
            raise ValueError(
                f"{self.name}: rows of {self.shape[-1]} are no whole blocks of {self.type_name}"
            )
        return int(np.prod(self.shape[:-1], dtype=object)) * n_blocks * layout.type_size


class TensorWriter:
    """Takes the tensors' bytes, in the order of the table."""

    def __init__(
        self, file: BufferedWriter, path: Path, tensors: Sequence[TensorToWrite], alignment: int
    ) -> None:
        self._file = file
        self._path = path
        self._alignment = alignment
        self._waiting = [tensor.size_bytes for tensor in reversed(tensors)]
        self._left_bytes = 0
        self._next()

    def _next(self) -> None:
        self._file.write(bytes(-self._file.tell() % self._alignment))
        if self._waiting:
            self._left_bytes = self._waiting.pop()

    def write(self, data: bytes | np.ndarray[Any, Any]) -> None:
        """Write more of the current tensor; the one after it follows when it is whole.

        Args:
            data: contiguous bytes that end no later than the tensor.

        Raises:
            ValueError: the tensor has less room.
            FileUnwritableError: the disk is full.
        """
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # arrays are buffers
        if view.nbytes > self._left_bytes:
            raise ValueError(
                f"{view.nbytes} bytes for {self._left_bytes} that are left of a tensor"
            )
        with _refusing(self._path):
            self._file.write(view)
            self._left_bytes -= view.nbytes
            if not self._left_bytes:
                self._next()

    def finish(self) -> None:
        """Bring all to the disk; ValueError if bytes are missing."""
        if self._waiting or self._left_bytes:
            raise ValueError(
                f"{len(self._waiting)} tensors and {self._left_bytes} bytes were not written"
            )
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def writing(
    path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Sequence[TensorToWrite]
) -> Iterator[TensorWriter]:
    """Write a GGUF file next to its place, and rename it there at the end; a file that has the name
    is replaced.

    On any exception nothing is left. A process that is killed leaves a file ``.jalopy-*.part``.

    Args:
        metadata: in order. NumPy's scalars and arrays keep their types, as ``typed_metadata`` reads
            them; Python's own numbers are uint32, float32 and bool; other sequences are strings.
            The format has no empty arrays: such keys are left out.
        tensors: the table; the body writes their bytes in this order.

    Raises:
        FileUnwritableError: the disk has too little room, or the folder takes no file.
    """
    path = Path(path)
    temporary = path.with_name(f".jalopy-{secrets.token_hex(8)}.part")
    writer = _described(metadata, tensors)
    try:
        with _refusing(path):
            _check_room(path, sum(tensor.size_bytes for tensor in tensors))
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


def _check_room(path: Path, wanted_bytes: int) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    if wanted_bytes > free_bytes:
        raise FileUnwritableError(
            f"{shown(path.name)}: needs {shown_bytes(wanted_bytes)} and its disk has "
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
            f"{shown(path.name)}: cannot be written: {error.strerror} ({advice})"
        ) from None


def _described(metadata: Mapping[str, Any], tensors: Sequence[TensorToWrite]) -> Any:
    """Return the package's writer, which has opened no file yet."""
    from gguf import GGUFWriter

    writer = GGUFWriter(None, "")
    writer.data_alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    for key, value in metadata.items():
        if np.isscalar(value) or len(value):
            writer.add_key_value(key, *_typed(value))
    for tensor in tensors:
        number: Any = _NUMBERS[
            tensor.type_name
        ]  # the package's list of types may be shorter than ours
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.int8), tensor.size_bytes, number
        )
    return writer


def _encoded(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    return text


def _typed(value: Any) -> tuple[Any, Any, Any]:
    """Return a value as the package takes it, its type, and the type of its elements."""
    from gguf import GGUFValueType as Kind

    if isinstance(value, (str, bytes)):
        return _encoded(value), Kind.STRING, None
    if isinstance(value, np.ndarray):
        return value.tolist(), Kind.ARRAY, _kind(value.dtype)
    if isinstance(value, Sequence):
        return [_encoded(element) for element in value], Kind.ARRAY, Kind.STRING
    if isinstance(value, np.generic):
        return value.item(), _kind(value.dtype), None
    return value, {bool: Kind.BOOL, int: Kind.UINT32, float: Kind.FLOAT32}[type(value)], None


def _kind(dtype: np.dtype[Any]) -> Any:
    from gguf import GGUFValueType as Kind

    if dtype.kind == "b":
        return Kind.BOOL
    return Kind[dtype.name.upper()]
