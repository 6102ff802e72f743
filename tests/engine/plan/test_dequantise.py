"""Rows of weights as float32, and transposed matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import Model
from engine.plan.buffers import Buffers
from engine.plan.dequantise import dequantised, fill
from tests.engine import tiny_gguf
from tests.engine.reference import Twin


@pytest.mark.parametrize("quant", ["F32", "Q4_0", "Q4_K"])
def test_rows_and_transposed_matrices_equal_the_file(quant: str, tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", "llama", quant))
    tensor = model._file.weights["blk.0.attn_q.weight"]
    buffers = Buffers(32)
    expected = Twin(model._file).tensor(tensor.name).astype(np.float32)
    assert (dequantised(tensor, np.array([9, 3, 3])) == expected[[9, 3, 3]]).all()
    turned = buffers.transpose_parts(tensor, 4, 8)
    assert (turned.n_rows, turned.n_cols) == (4 * tensor.n_cols, 8)
    assert buffers.transpose_parts(tensor, 4, 8).address == turned.address
    fill(buffers.transposed.values())
    groups = expected.reshape(4, -1, tensor.n_cols)[:, :8].swapaxes(1, 2)
    assert (buffers.transposed[tensor.name].memory.array(np.float32, groups.shape) == groups).all()
    model.close()
