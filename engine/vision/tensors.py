"""Weights of an encoder: where they are in the file, and the copies that kernels read instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import BrokenModelError
from engine.gguf.contents import GGUFFile
from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.machine.memory import Memory
from engine.quantize.rows import quantise_rows
from engine.weights.weights import Tensor, TensorSpec, Weights, present_tensors

Floats = np.ndarray[Any, np.dtype[np.float32]]
Q8_0 = "Q8_0"
Q8_0_BLOCK = 32


class EncoderWeights:
    """Tensors of an encoder by GGUF name.

    Args:
        gguf: Open file, which must stay open.
        expected: Specification of each tensor.

    Attributes:
        tensors: name -> tensor.
    """

    def __init__(self, gguf: GGUFFile, expected: Mapping[str, TensorSpec]) -> None:
        infos = present_tensors(gguf, expected)
        self._file = Weights(gguf, infos)
        self._shown_name = gguf.shown_name
        self._copies: dict[str, Memory] = {}
        self.tensors = {name: _as_matrix(self._file[name], expected[name]) for name in infos}
        for name in infos:
            if expected[name].is_plain:
                self._check_finite(name)

    def _check_finite(self, name: str) -> None:
        if not np.isfinite(self._file.float32(name)).all():
            raise BrokenModelError(
                f"{self._shown_name}: tensor {name} holds NaN or infinity: its weights are damaged "
                f"(download it again)"
            )

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copies."""
        return sum(memory.n_bytes for memory in self._copies.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of the tensors that are read where they are in the file."""
        return sum(
            tensor.size_bytes for name, tensor in self.tensors.items() if name not in self._copies
        )

    def floats(self, name: str) -> Floats:
        """Return a tensor as (n_rows, n_cols) float32."""
        tensor = self.tensors[name]
        return _floats(self._bytes(tensor), tensor.quant)

    def _bytes(self, tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return (n_rows, row_bytes) uint8."""
        copy = self._copies.get(tensor.name)
        if copy is not None:
            return copy.array(np.uint8, (tensor.n_rows, tensor.row_bytes))
        whole = self._file.rows(tensor.name)
        return whole.reshape(tensor.n_rows, tensor.row_bytes)

    def write(self, name: str, values: Floats, quant: str = "F32") -> None:
        """Replace a tensor, or add one, by a copy of (n_rows, n_cols) numbers in a type."""
        try:
            rows = quantise_rows(np.ascontiguousarray(values, np.float32), quant)
        except BrokenModelError as error:
            raise BrokenModelError(
                f"{self._shown_name}: tensor {name} {error}: its weights are damaged "
                f"(download it again)"
            ) from None
        self._copy(name, rows, quant, values.shape[1])

    def take_rows(self, name: str, order: np.ndarray[Any, Any]) -> None:
        """Put the rows of a matrix, or the elements of a vector, into another order."""
        tensor = self.tensors[name]
        if tensor.n_rows == 1:
            self.write(name, self.floats(name)[:, order])
        else:
            self._copy(name, self._bytes(tensor)[order], tensor.quant, tensor.n_cols)

    def _copy(
        self, name: str, rows: np.ndarray[Any, np.dtype[np.uint8]], quant: str, n_cols: int
    ) -> None:
        memory = Memory(rows.nbytes)
        memory.array(np.uint8, rows.shape)[...] = rows
        self._copies[name] = memory
        self.tensors[name] = Tensor(
            name, quant, len(rows), n_cols, rows.shape[1], rows.nbytes, memory.address
        )

    def quantise(self, name: str) -> None:
        """Replace a matrix of floats by one of type Q8_0 if its rows are full blocks."""
        tensor = self.tensors[name]
        if tensor.quant != Q8_0 and tensor.n_cols % Q8_0_BLOCK == 0:
            self.write(name, self.floats(name), Q8_0)

    def fill_columns(self, name: str, n_cols: int) -> None:
        """Add columns of zeros to a matrix of floats, up to a number; it becomes F32."""
        values = self.floats(name)
        self.write(name, np.pad(values, ((0, 0), (0, n_cols - values.shape[1]))))

    def fill_rows(self, name: str, n_rows: int) -> None:
        """Add rows of zeros to a matrix, or zeros to a vector, up to a number."""
        tensor = self.tensors[name]
        if tensor.n_rows == 1:
            self.write(name, np.pad(self.floats(name), ((0, 0), (0, n_rows - tensor.n_cols))))
        else:
            rows = self._bytes(tensor)
            filled = np.pad(rows, ((0, n_rows - tensor.n_rows), (0, 0)))
            self._copy(name, filled, tensor.quant, tensor.n_cols)


def _as_matrix(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return the kernel of a convolution as a matrix with a row for each result."""
    if len(spec.shape) != 4:
        return tensor
    n_rows = spec.shape[0]
    row_bytes = tensor.size_bytes // n_rows
    n_cols = tensor.n_rows * tensor.n_cols // n_rows
    return replace(tensor, n_rows=n_rows, n_cols=n_cols, row_bytes=row_bytes)


def _floats(rows: np.ndarray[Any, np.dtype[np.uint8]], quant: str) -> Floats:
    """Return rows of a type as float32."""
    rows = np.ascontiguousarray(rows)
    if quant == "F32":
        return rows.view(np.float32)
    if quant == "F16":
        return rows.view(np.float16).astype(np.float32)
    if quant == "BF16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert quant == Q8_0, quant
    blocks = rows.reshape(len(rows), -1, TYPES_BY_NAME[Q8_0].type_size)
    scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16).astype(np.float32)
    weights = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).astype(np.float32)
    return (weights * scales).reshape(len(rows), -1)
