"""What a GGUF file holds, once it was read and checked."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.gguf.file import ModelFile


@dataclass(frozen=True)
class TensorInfo:
    """Place and layout of one tensor.

    Attributes:
        ggml_type: ggml's number of the type.
        type_name: its name, such as ``"Q4_K"``.
        shape: in NumPy's order, slowest first: (n_rows, n_cols) of a matrix. GGUF stores the
            reverse.
        offset_bytes: from the start of the file.
        size_bytes: length of the data.
        part: index of the model's file that holds it, from 0.
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
        version: 2 or 3.
        metadata: by key. Numbers and bools as Python's own; strings as str (bytes that are not
            UTF-8 as surrogate escapes); arrays of strings as ``StringArray``, or ``StringCount``
            with ``keeps_strings=False``; arrays of numbers and bools as read-only NumPy arrays.
        tensors: by name, in the file's order; each is inside the file, aligned, without overlap.
        data_start: offset of the tensor data in bytes; of the first part for a model in several
            files.
        more_files: the other parts of a model that comes in several files.
    """

    file: ModelFile
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_start: int
    more_files: tuple[ModelFile, ...] = ()

    @property
    def path(self) -> Path:
        """The path the file was opened by."""
        return self.file.path

    @property
    def shown_name(self) -> str:
        """The file's name, escaped for a one-line message."""
        return self.file.shown_name

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """All files of the model; ``TensorInfo.part`` counts them."""
        return (self.file, *self.more_files)

    @property
    def map(self) -> mmap.mmap:
        """The whole file, the first of several, read-only."""
        return self.file.map

    @property
    def file_bytes(self) -> int:
        """Length of all files together."""
        return sum(file.size_bytes for file in self.files)

    def changed(self) -> bool:
        """Tell whether a file was written to or shortened since it was opened; if so, do not read
        the maps."""
        return any(file.changed() for file in self.files)

    def close(self) -> None:
        """Close descriptors and maps; no address into a map may be used afterwards."""
        for file in self.files:
            file.close()
