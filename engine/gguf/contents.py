"""Contents of a GGUF file, read and checked."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.gguf.file import ModelFile


@dataclass(frozen=True)
class TensorInfo:
    """Location and layout of a tensor.

    Attributes:
        ggml_type: Number of the type in ggml.
        type_name: Name of the type, such as ``"Q4_K"``.
        shape: Shape in the order of NumPy, slowest first: (n_rows, n_cols) for a matrix. GGUF
            stores the reverse.
        offset_bytes: Offset from the start of the file.
        size_bytes: Length of the data.
        part: Index of the file of the model that contains the tensor, from 0.
    """

    name: str
    ggml_type: int
    type_name: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int
    part: int = 0


@dataclass(frozen=True)
class GGUFFile:
    """A checked GGUF file, or a model in several files, still open.

    Attributes:
        version: Format version, 2 or 3.
        metadata: Values by key. Numbers and bools are plain Python values; strings are str
            (bytes that are not UTF-8 become surrogate escapes); arrays of strings are
            ``StringArray``, or ``StringCount`` with ``keeps_strings=False``; arrays of numbers
            and bools are read-only NumPy arrays.
        tensors: Tensors by name, in the order of the file; each lies inside the file, aligned,
            without overlap.
        data_start: Offset of the tensor data in bytes; that of the first file if a model has
            several.
        more_files: Other files of a model in several files.
    """

    file: ModelFile
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_start: int
    more_files: tuple[ModelFile, ...] = ()

    @property
    def path(self) -> Path:
        """Path that the file was opened with."""
        return self.file.path

    @property
    def shown_name(self) -> str:
        """Name of the file, escaped for a one-line message."""
        return self.file.shown_name

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """All files of the model; ``TensorInfo.part`` is an index into them."""
        return (self.file, *self.more_files)

    @property
    def map(self) -> mmap.mmap:
        """Read-only map of the whole file, or of the first of several."""
        return self.file.map

    @property
    def file_bytes(self) -> int:
        """Length of all files together."""
        return sum(file.size_bytes for file in self.files)

    def changed(self) -> bool:
        """Return whether a file was modified or truncated since it was opened.

        If so, reading the maps is not safe.
        """
        return any(file.changed() for file in self.files)

    def close(self) -> None:
        """Close descriptors and maps; addresses into the maps become invalid."""
        for file in self.files:
            file.close()
