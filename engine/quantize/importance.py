"""Fit of an importance file to a model, and how much of the model it covers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import GGUFError, printable
from engine.gguf.contents import GGUFFile, TensorInfo
from engine.quantize.rows import UNWEIGHTED, Floats

_ADVICE = "it is of another model: jalopy imatrix makes one"


@dataclass(frozen=True)
class FittedImportance:
    """Importance of the matrices of one model.

    Attributes:
        columns: Mean square of the activations of each column, by tensor: (n_cols,) float32, or
            (n_experts * n_cols,) for experts.
        n_foreign: Number of matrices in the file that the model lacks.
    """

    columns: Mapping[str, Floats]
    n_foreign: int

    @property
    def n_matrices(self) -> int:
        """Number of matrices in the file."""
        return len(self.columns) + self.n_foreign

    def used(self, gguf: GGUFFile, types: Mapping[str, str]) -> list[str]:
        """Return the names of the tensors whose quantisation it changes."""
        return [name for name in _weighted(gguf, types) if name in self.columns]

    def missing(self, gguf: GGUFFile, types: Mapping[str, str]) -> list[str]:
        """Return the names of the layers' tensors that could use importance, but are not
        covered."""
        names = _weighted(gguf, types)
        return [name for name in names if name.startswith("blk.") and name not in self.columns]


def fit_importance(
    gguf: GGUFFile,
    importance: Mapping[str, Floats],
    file_name: str,
) -> FittedImportance:
    """Return the part of an importance file that belongs to this model.

    Args:
        importance: Result of ``read_imatrix``, not empty.
        file_name: Name that each message begins with.

    Raises:
        GGUFError: A matrix has another size, or most matrices are not the model's.
    """
    name = printable(file_name)
    columns = {matrix: values for matrix, values in importance.items() if matrix in gguf.tensors}
    n_foreign = len(importance) - len(columns)
    if n_foreign > len(columns):
        counts = f"{n_foreign} of its {len(importance)} matrices are not in {gguf.shown_name}"
        raise GGUFError(f"{name}: {counts} ({_ADVICE})")
    for matrix, values in columns.items():
        if not _fits(gguf.tensors[matrix], values):
            n_columns = gguf.tensors[matrix].shape[-1]
            sizes = f"{values.size} numbers for {matrix}, which has {n_columns} columns"
            raise GGUFError(f"{name}: has {sizes} in {gguf.shown_name} ({_ADVICE})")
    return FittedImportance(columns, n_foreign)


def _fits(tensor: TensorInfo, values: Floats) -> bool:
    """Return whether there is a number for each column, or for each column of each expert."""
    n_experts = math.prod(tensor.shape[:-2])
    return values.size in (tensor.shape[-1], n_experts * tensor.shape[-1])


def _weighted(gguf: GGUFFile, types: Mapping[str, str]) -> list[str]:
    """Return the names of the tensors that get another type, if that type uses importance."""
    return [
        name
        for name, type_name in types.items()
        if type_name != gguf.tensors[name].type_name and type_name not in UNWEIGHTED
    ]
