"""Comparison of the kernels with a reference, on this processor and with a model's own weights.

It runs before a benchmark. The reference is NumPy in float64 over rows that the ``embed`` kernel
dequantised; the tests compare that kernel bit for bit with the ``gguf`` package.
"""

import numpy as np

from engine.errors import BrokenModelError
from engine.kernels.records import MATMUL_SCRATCH_BYTES, STEP
from engine.kernels.tiles import INTERLEAVED_TOKENS, TILE_TOKENS
from engine.machine.memory import Memory
from engine.model import Model
from engine.plan.buffers import Activations
from engine.plan.dequantise import dequantised, run_operations
from engine.plan.plan import Plan
from engine.weights.weights import Tensor

N_ROWS = 24
TOKEN_COUNTS = 1, 3, 11
"""Numbers of tokens, one for each of a type's three kernels."""
TOLERANCE = 1e-4
"""Limit on the error relative to the largest result. Another order of float32 sums stays far
below."""


def check_model(model: Model) -> None:
    """Compare the kernels of every type in the model with a float64 product.

    Raises:
        BrokenModelError: a kernel's error exceeds ``TOLERANCE``; the message names the type.
    """
    for tensor in model.sample_tensors():
        for n_tokens in TOKEN_COUNTS:
            error = matmul_error(tensor, n_tokens)
            if not error <= TOLERANCE:
                raise BrokenModelError(
                    f"{model.shown_name}: the {tensor.quant} kernel is off by {error:.1e} on "
                    f"this processor "
                    f"(tensor {tensor.name}; please report it)"
                )


def matmul_error(tensor: Tensor, n_tokens: int) -> float:
    """Return the largest error of a few rows times random vectors, relative to the largest
    result."""
    rows = Tensor(
        tensor.name, tensor.quant, min(N_ROWS, tensor.n_rows), tensor.n_cols, tensor.row_bytes,
        min(N_ROWS, tensor.n_rows) * tensor.row_bytes, tensor.address,
    )  # fmt: skip
    step = Memory(128)
    scratch = Memory(MATMUL_SCRATCH_BYTES)
    step.array(np.int64, (16,))[STEP.n_tokens // 8] = n_tokens
    weights = dequantised(rows, np.arange(rows.n_rows)).astype(np.float64)
    x = Activations("x", rows.n_cols, n_tokens)
    out = Activations("out", rows.n_rows, n_tokens)
    x.array()[:n_tokens] = np.random.default_rng(0).standard_normal(
        (n_tokens, rows.n_cols), np.float32
    )
    plan = Plan(step.address, n_tokens, (scratch.address, MATMUL_SCRATCH_BYTES))
    plan.quantize(x, rows)
    plan.matmul(rows, x, out)
    run_operations(plan)

    inputs = x.values(
        plan.form(rows),
        n_tokens,
        TILE_TOKENS,
        INTERLEAVED_TOKENS,
    )
    expected = inputs @ weights.T
    result = out.array()[:n_tokens]
    return float(np.abs(result - expected).max() / max(np.abs(expected).max(), 1e-30))
