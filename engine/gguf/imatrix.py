"""Importance files: sums of the squared inputs of each matrix, by column, in the format of
llama.cpp.

They are GGUF files with a tensor ``NAME.in_sum2`` and a tensor ``NAME.counts`` for each matrix. The
older format (a count; then name, calls and means of each matrix) can be read, too. Source:
llama.cpp, ``tools/imatrix`` and ``common/imatrix-loader``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import GGUFError
from engine.gguf.file import ModelFile
from engine.gguf.read import read_single
from engine.gguf.write import TensorToWrite, writing

if TYPE_CHECKING:
    from engine.gguf.contents import GGUFFile

Values = np.ndarray[Any, np.dtype[np.float32]]

SUMS = ".in_sum2"
COUNTS = ".counts"
MOST_BYTES = 1 << 30
"""Limit on the size of a file: a model of a trillion parameters needs a tenth of it."""


@dataclass(frozen=True)
class Imatrix:
    """Statistics of a text about the inputs of a model's matrices.

    Attributes:
        sums: Sums of squared inputs by the name of the tensor, (n_experts or 1, n_columns)
            float32.
        counts: Number of summed tokens by the name of the tensor, (n_experts or 1,) float32.
        n_chunks: Number of chunks of the text.
        chunk_size: Tokens of a chunk.
    """

    sums: Mapping[str, Values]
    counts: Mapping[str, Values]
    n_chunks: int
    chunk_size: int

    def means(self) -> dict[str, Values]:
        """Return means, as ``read_imatrix`` does for the written file."""
        return {name: _means(sums, self.counts[name]) for name, sums in self.sums.items()}

    def write(self, path: str | os.PathLike[str], datasets: Sequence[str]) -> None:
        """Write a GGUF file; a file of the same name is replaced.

        Args:
            datasets: Names of the texts.

        Raises:
            FileUnwritableError: As for ``write.writing``.
        """
        pairs = [
            (name, sums.reshape(len(self.counts[name]), -1))
            for name, sums in sorted(self.sums.items())
        ]
        values = {name + SUMS: sums for name, sums in pairs}
        values |= {name + COUNTS: self.counts[name].reshape(-1, 1) for name, _ in pairs}
        values = dict(sorted(values.items()))
        metadata = {
            "general.type": "imatrix",
            "imatrix.datasets": list(datasets),
            "imatrix.chunk_count": self.n_chunks,
            "imatrix.chunk_size": self.chunk_size,
        }
        table = [TensorToWrite(name, array.shape, "F32") for name, array in values.items()]
        with writing(path, metadata, table) as out:
            for array in values.values():
                out.write(np.ascontiguousarray(array, "<f4"))


def read_imatrix(path: str | os.PathLike[str]) -> dict[str, Values]:
    """Read the importance of each column of each matrix: the mean square of its inputs.

    Returns:
        Means by the name of the tensor, (n_columns,) float32. For experts (n_experts * n_columns,);
        all 1 for an expert that no token of the text chose.

    Raises:
        FileUnreadableError: The file is missing, not permitted, or not a regular file.
        GGUFError: The file is damaged, or not an importance file.
    """
    with closing(ModelFile(path)) as file:
        name = file.shown_name
        if file.size_bytes > MOST_BYTES:
            raise GGUFError(
                f"{name}: has {file.size_bytes} bytes, no file of importance has (name another one)"
            )
        if file.map[:4] != b"GGUF":
            return _checked(name, _read_old(file))
    with closing(read_single(path)) as gguf:
        if gguf.metadata.get("general.type") != "imatrix":
            raise GGUFError(
                f"{name}: is GGUF, but no imatrix (jalopy imatrix MODEL TEXT makes one)"
            )
        return _checked(name, _read(gguf))


def _read(gguf: GGUFFile) -> Iterable[tuple[str, Values]]:
    for name in gguf.tensors:
        if name.endswith(SUMS):
            matrix = name.removesuffix(SUMS)
            sums = _floats(gguf, name)
            counts = _floats(gguf, matrix + COUNTS)
            if counts.size != sums.size // sums.shape[-1]:
                raise GGUFError(
                    f"{gguf.shown_name}: {matrix} has {counts.size} counts for {sums.shape} "
                    f"sums (damaged)"
                )
            yield matrix, _means(sums, counts)


def _means(sums: Values, counts: Values) -> Values:
    counts = counts.reshape(-1, 1)
    was_chosen = counts != 0
    means = sums.reshape(len(counts), -1) / np.where(was_chosen, counts, 1)
    return np.where(was_chosen, means, np.float32(1)).ravel()


def _floats(gguf: GGUFFile, name: str) -> Values:
    info = gguf.tensors.get(name)
    if info is None or info.type_name != "F32":
        raise GGUFError(f"{gguf.shown_name}: has no {name} of type F32 (damaged: make it again)")
    values = np.frombuffer(gguf.map, "<f4", info.size_bytes // 4, info.offset_bytes)
    return values.reshape(info.shape).astype(np.float32)


def _read_old(file: ModelFile) -> Iterable[tuple[str, Values]]:
    """Yield the matrices of the older format; its means are sums over chunks."""
    position = 0

    def number(least: int) -> int:
        nonlocal position
        position += 4
        if position <= file.size_bytes:
            value = int(struct.unpack("<i", file.map[position - 4 : position])[0])
        else:
            value = -1
        if not least <= value <= file.size_bytes:
            raise GGUFError(
                f"{file.shown_name}: is no file of importance, or damaged at byte {position - 4} "
                f"(make it again)"
            )
        return value

    for _ in range(number(1)):
        length = number(1)
        name = file.map[position : position + length].decode("utf-8", "replace")
        position += length
        n_calls = number(0)
        n_values = number(1)
        if position + 4 * n_values > file.size_bytes:
            raise GGUFError(
                f"{file.shown_name}: ends within the values of a matrix (cut off: make it again)"
            )
        values = np.frombuffer(file.map[position : position + 4 * n_values], "<f4")
        position += 4 * n_values
        yield name, values / np.float32(max(1, n_calls))


def _checked(file: str, means: Iterable[tuple[str, Values]]) -> dict[str, Values]:
    matrices: dict[str, Values] = {}
    for name, values in means:
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise GGUFError(
                f"{file}: a matrix has values that are no means of squares (damaged: make it again)"
            )
        matrices[name] = values
    if not matrices:
        raise GGUFError(f"{file}: holds no matrix (make it again: jalopy imatrix MODEL TEXT)")
    return matrices
