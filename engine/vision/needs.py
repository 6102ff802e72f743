"""Memory that an encoder needs, from the header of its file. Imports no numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.vision import layers
from engine.vision.config import CHANNELS
from engine.vision.rows import USUAL

if TYPE_CHECKING:
    from engine.gguf.contents import TensorInfo
    from engine.vision.mmproj import MmprojFile
    from engine.weights.weights import TensorSpec

Q8_0_BLOCK = 32
Q8_0_BYTES = 34
FORM_SHARE = 1.25
"""Bytes of an activation in the form that products read, with its scales and sums."""
STEP_ROWS = 256
"""Plans have room for a multiple of so many rows (``engine.vision.stage``)."""
LARGEST_SIDE = 4096
"""Side of a picture from which the encoder makes as many rows as the detail allows."""


def needed_bytes(file: MmprojFile) -> int:
    """Return about how much memory it takes to read a large picture of the usual detail."""
    return weights_bytes(file) + _buffer_bytes(file)


def weights_bytes(file: MmprojFile) -> int:
    """Return the bytes of the tensors as kernels read them."""
    infos = file.gguf.tensors
    return sum(
        _tensor_bytes(infos[name], spec) for name, spec in file.expected.items() if name in infos
    )


def _tensor_bytes(info: TensorInfo, spec: TensorSpec) -> int:
    n_columns = info.shape[-1]
    if layers.is_product(spec) and n_columns % Q8_0_BLOCK == 0:
        return info.shape[0] * n_columns // Q8_0_BLOCK * Q8_0_BYTES
    return info.size_bytes


def _buffer_bytes(file: MmprojFile) -> int:
    config = file.config
    size = LARGEST_SIDE, LARGEST_SIDE
    frames, _ = file.family.frames(config, size, USUAL)
    n_cells = max(frame.grid.n for frame in frames)
    n_patches = _with_room(n_cells * config.merge**2)
    n_cells = _with_room(n_cells)
    n_hidden = (1 + file.family.has_gates) * config.hidden_dim
    floats = CHANNELS * config.patch**2 + 12 * config.dim + n_hidden
    forms = FORM_SHARE * (2 * config.dim + config.hidden_dim)
    cell_floats = 3 * file.family.cell_width(config) + config.text_width
    return int(n_patches * (4 * floats + forms) + 4 * n_cells * cell_floats)


def _with_room(n_rows: int) -> int:
    return -(-n_rows // STEP_ROWS) * STEP_ROWS
