"""Speed of the kernels for each weight type: bytes per second in decode, multiplications per second
in prefill.

The kernels of a model run over a matrix that is larger than the caches. Their time does not depend
on the values of the weights, so no model is needed.
"""

import time
from collections.abc import Iterable

import numpy as np

from engine.kernels.records import MATMUL_SCRATCH_BYTES, STEP
from engine.machine.memory import Memory
from engine.measure.fit import MachineRates
from engine.plan.buffers import Activations
from engine.plan.compilation import ProgressCallback, compile_kernels
from engine.plan.crew import Crew
from engine.plan.lookahead import ahead_of
from engine.plan.plan import Plan
from engine.plan.profile import read_bandwidth_gbps
from engine.quants.base import QUANT_TYPES
from engine.weights.weights import Tensor

MATRIX_BYTES = 96 << 20
"""Size of the decode probe's matrix, far larger than the caches of the target machines."""
PREFILL_ROWS = 512
N_COLS = 2048
PROMPT_TOKENS = 128
ROUNDS = 3
WEIGHT_BYTE = 0x3F
"""Value of every byte of the weights, a normal number in all types."""


def measure_rates(
    crew: Crew,
    quants: Iterable[str],
    threads: int,
    prefill_threads: int,
    progress: ProgressCallback | None = None,
) -> MachineRates:
    """Measure memory and kernels. The best of ``ROUNDS`` rounds counts, to reduce the influence of
    other programs.

    Args:
        quants: keys of ``engine.quants.QUANTS``.
        threads: threads for decode.
        prefill_threads: threads for prefill.
        progress: called while kernels are compiled.

    Raises:
        Cancelled: the crew was cancelled during the measurement.
    """
    crew.clear_cancel()
    weights = Memory(MATRIX_BYTES)
    weights.bytes[:] = WEIGHT_BYTE
    decode = {}
    prefill = {}
    for quant in quants:
        decode[quant] = decode_gbps(crew, quant, weights, threads, progress)
        prefill[quant] = prefill_gops(crew, quant, weights, prefill_threads, progress)
    return MachineRates(read_bandwidth_gbps(crew, threads), decode, prefill)


def decode_gbps(
    crew: Crew, quant: str, weights: Memory, threads: int, progress: ProgressCallback | None = None
) -> float:
    """Return the weights that the decode kernel reads, in GB/s."""
    row_bytes = _row_bytes(quant)
    matrix = _matrix(quant, weights, weights.n_bytes // row_bytes // 8 * 8)
    return matrix.size_bytes / _best_s(crew, matrix, 1, threads, progress) / 1e9


def prefill_gops(
    crew: Crew, quant: str, weights: Memory, threads: int, progress: ProgressCallback | None = None
) -> float:
    """Return the multiplications of the block kernel, in 10^9 per second."""
    matrix = _matrix(
        quant, weights, min(PREFILL_ROWS * threads, weights.n_bytes // _row_bytes(quant) // 8 * 8)
    )
    products = matrix.n_rows * matrix.n_cols * PROMPT_TOKENS
    return products / _best_s(crew, matrix, PROMPT_TOKENS, threads, progress) / 1e9


def _best_s(
    crew: Crew, matrix: Tensor, n_tokens: int, threads: int, progress: ProgressCallback | None
) -> float:
    """Return the seconds of one product: the best of a few rounds after a warm-up."""
    step = Memory(128)
    tokens = Memory(4 * n_tokens)
    scratch = Memory(MATMUL_SCRATCH_BYTES * threads)
    words = step.array(np.int64, (16,))
    words[STEP.tokens // 8] = tokens.address
    words[STEP.n_tokens // 8] = n_tokens
    x = Activations("x", matrix.n_cols, n_tokens)
    out = Activations("out", matrix.n_rows, n_tokens)
    x.array()[:] = 1.0
    plan = Plan(step.address, n_tokens, (scratch.address, MATMUL_SCRATCH_BYTES), threads)
    plan.quantize(x, matrix)
    plan.barrier()
    plan.matmul(matrix, x, out)
    plan.barrier()
    plan.look_ahead(ahead_of)
    table = plan.table(compile_kernels(plan.kernels(), progress))
    seconds = []
    for _ in range(ROUNDS + 1):
        started_s = time.perf_counter()
        crew.run_to_end(table, threads)
        seconds.append(time.perf_counter() - started_s)
    return min(seconds[1:])


def _row_bytes(quant: str) -> int:
    layout = QUANT_TYPES[quant]
    return N_COLS // layout.block_size * layout.type_size


def _matrix(quant: str, weights: Memory, n_rows: int) -> Tensor:
    row_bytes = _row_bytes(quant)
    return Tensor("probe", quant, n_rows, N_COLS, row_bytes, n_rows * row_bytes, weights.address)
