"""llama.cpp's matrix products, timed on request by whatever Python has llama-cpp-python. Imports
nothing of ours.

First writes what llama.cpp was built for. Then reads lines ``type rows cols columns repeats``
(type: ggml's number) and answers with the least seconds of one product, or "-" where the type is
not known. Weights lie as its loader would place them: repacked where it repacks.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np

ROUNDS = 12
BUILT_FOR = llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip()
REPACKED = {2, 12, 20, 39} if "AVX2 = 1" in BUILT_FOR else set()
"""Q4_0, Q4_K, IQ4_NL and MXFP4: what AVX2 builds interleave by eight rows. Source:
ggml-cpu/repack.cpp."""
_HOME = Path(llama_cpp.__file__).parent / "lib"
BASE = ctypes.CDLL(str(_HOME / "libggml-base.so"), ctypes.RTLD_GLOBAL)
CPU = ctypes.CDLL(str(_HOME / "libggml-cpu.so"), ctypes.RTLD_GLOBAL)
_REPACK = "_Z35ggml_backend_cpu_repack_buffer_typev"


class _Init(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


def _call(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> object:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = [
        ctypes.c_int64 if isinstance(a, np.int64) else ctypes.c_int if isinstance(a,
                                                                                  int) and abs(a) < 1 << 31
        else type(a) if isinstance(a, ctypes.Structure) else ctypes.c_void_p
        for a in arguments
    ]  # fmt: skip
    return function(*arguments)


def product_s(ggml_type: int, rows: int, cols: int, columns: int, repeats: int) -> float:
    """Seconds of one product of a random matrix with some columns, one thread, the best of
    ``ROUNDS``."""
    p = ctypes.c_void_p
    i64 = np.int64
    weights = _call(BASE, "ggml_init", p, _Init(1 << 20, None, True))
    matrix = _call(BASE, "ggml_new_tensor_2d", p, weights, ggml_type, i64(cols), i64(rows))
    buffers = _call(
        CPU,
        _REPACK if ggml_type in REPACKED and rows % 8 == 0 else "ggml_backend_cpu_buffer_type",
        p,
    )
    weights_buffer = _call(BASE, "ggml_backend_alloc_ctx_tensors_from_buft", p, weights, buffers)
    size = int(_call(BASE, "ggml_nbytes", ctypes.c_size_t, matrix))
    some = np.random.default_rng(1).integers(0, 255, size, np.uint8)
    _call(
        BASE,
        "ggml_backend_tensor_set",
        None,
        matrix,
        some.ctypes.data,
        ctypes.c_size_t(0).value,
        size,
    )
    products = _call(
        BASE, "ggml_init", p, _Init((8 << 20) + repeats * 4 * columns * (rows + 200), None, False)
    )
    x = _call(BASE, "ggml_new_tensor_2d", p, products, 0, i64(cols), i64(columns))
    ctypes.memset(int(_call(BASE, "ggml_get_data", p, x)), 1, 4 * cols * columns)
    graph = _call(BASE, "ggml_new_graph", p, products)
    for _ in range(repeats):
        _call(
            BASE,
            "ggml_build_forward_expand",
            None,
            graph,
            _call(BASE, "ggml_mul_mat", p, products, matrix, x),
        )
    backend = _call(CPU, "ggml_backend_cpu_init", p)
    _call(CPU, "ggml_backend_cpu_set_n_threads", None, backend, 1)
    best_s = float("inf")
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        _call(BASE, "ggml_backend_graph_compute", ctypes.c_int, backend, graph)
        best_s = min(best_s, time.perf_counter() - started_s)
    _call(BASE, "ggml_backend_free", None, backend)
    _call(BASE, "ggml_backend_buffer_free", None, weights_buffer)
    _call(BASE, "ggml_free", None, products)
    _call(BASE, "ggml_free", None, weights)
    return best_s / repeats


if __name__ == "__main__":
    print(BUILT_FOR, flush=True)
    for line in sys.stdin:
        print(product_s(*(int(word) for word in line.split())), flush=True)
