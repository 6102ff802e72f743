"""Files of importance: for each matrix the sums of its inputs' squares, column by column, as
llama.cpp keeps them.

Written as GGUF, a tensor ``NAME.in_sum2`` and a tensor ``NAME.counts`` for each matrix; the older
form (a count; then name, calls and means of each matrix) is read, too. Source: llama.cpp,
``tools/imatrix`` and ``common/imatrix-loader``.
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
"""Limit on a file: a model of a trillion parameters has a tenth."""


@dataclass(frozen=True)
class Imatrix:
    """What a text said of a model's matrices.

    Attributes:
        sums: by the tensor's name, (n_experts or 1, n_columns) float32: squares of the inputs.
        counts: by the same names, (n_experts or 1,) float32: tokens that they are sums of.
        n_chunks: of the text that were read.
        chunk_size: tokens of each.
    """

    sums: Mapping[str, Values]
    counts: Mapping[str, Values]
    n_chunks: int
    chunk_size: int

    def means(self) -> dict[str, Values]:
        """What ``read_imatrix`` returns of such a file."""
        return {name: _means(sums, self.counts[name]) for name, sums in self.sums.items()}

    def write(self, path: str | os.PathLike[str], datasets: Sequence[str]) -> None:
        """Write it as GGUF; a file that has the name is replaced.

        Args:
            datasets: names of the texts.

        Raises:
            FileUnwritableError: as ``write.writing``.
        """
        pairs = [
            (name, one.reshape(len(self.counts[name]), -1))
            for name, one in sorted(self.sums.items())
        ]
        values = {name + SUMS: one for name, one in pairs}
        values |= {name + COUNTS: self.counts[name].reshape(-1, 1) for name, _ in pairs}
        values = dict(sorted(values.items()))
        metadata = {
            "general.type": "imatrix",
            "imatrix.datasets": list(datasets),
            "imatrix.chunk_count": self.n_chunks,
            "imatrix.chunk_size": self.chunk_size,
        }
        table = [TensorToWrite(name, one.shape, "F32") for name, one in values.items()]
        with writing(path, metadata, table) as out:
            for one in values.values():
                out.write(np.ascontiguousarray(one, "<f4"))


def read_imatrix(path: str | os.PathLike[str]) -> dict[str, Values]:
    """Read how much each column of each matrix counts: the mean square of its inputs.

    Returns:
        By the tensor's name, (n_columns,) float32; of experts n_experts times as many, one after
        the other, and all 1 for one that no token of the text chose.

    Raises:
        FileUnreadableError: missing, no permission, or not a regular file.
        GGUFError: no file of importance, or damaged.
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
    """Yield the matrices of the older form; its means are sums over chunks."""
    at = 0

    def number(least: int) -> int:
        nonlocal at
        at += 4
        if at <= file.size_bytes:
            value = int(struct.unpack("<i", file.map[at - 4 : at])[0])
        else:
            value = -1
        if not least <= value <= file.size_bytes:
            raise GGUFError(
                f"{file.shown_name}: is no file of importance, or damaged at byte {at - 4} "
                f"(make it again)"
            )
        return value

    for _ in range(number(1)):
        length = number(1)
        name = file.map[at : at + length].decode("utf-8", "replace")
        at += length
        n_calls = number(0)
        n_values = number(1)
        if at + 4 * n_values > file.size_bytes:
            raise GGUFError(
                f"{file.shown_name}: ends within the values of a matrix (cut off: make it again)"
            )
        values = np.frombuffer(file.map[at : at + 4 * n_values], "<f4")
        at += 4 * n_values
        yield name, values / np.float32(max(1, n_calls))


def _checked(file: str, means: Iterable[tuple[str, Values]]) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for name, values in means:
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise GGUFError(
                f"{file}: a matrix has values that are no means of squares (damaged: make it again)"
            )
        found[name] = values
    if not found:
        raise GGUFError(f"{file}: holds no matrix (make it again: jalopy imatrix MODEL TEXT)")
    return found
