"""Errors of llama.cpp's quantisers on our test rows, measured with its library.

The figures are saved in ``errors.json``.

    JALOPY_LIBLLAMA=.../libllama.so python -m tests.programs.engine.errors_peer

prints a table of errors and of processor time for a value, ours and its, and writes the file.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.quantize.rows import KERNELS, quantise_rows

GOLDEN = Path(__file__).parents[2] / "engine" / "quantize" / "errors.json"
N_ROWS = 24
N_COLS = 768


def values(n_rows: int = N_ROWS) -> np.ndarray[Any, Any]:
    """Rows as weights have them: a bell with heavier ends, some columns larger than others."""
    random = np.random.default_rng(7)
    columns = random.lognormal(-4, 0.3, N_COLS)
    return (random.standard_t(6, (n_rows, N_COLS)) * columns).astype(np.float32)


def importance() -> np.ndarray[Any, Any]:
    """Mean squares of activations: a few columns have most."""
    return np.random.default_rng(8).gamma(0.5, 1, N_COLS).astype(np.float32)


def error(
    quantised: np.ndarray[Any, Any], name: str, rows: np.ndarray[Any, Any], weights: Any = 1.0
) -> float:
    """Root of the mean square error, weighted."""
    back = gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType[name]).astype(np.float64)
    return float(np.sqrt(np.mean(weights * (back - rows) ** 2)))


def theirs(
    library: ctypes.CDLL, name: str, rows: np.ndarray[Any, Any], weights: Any = None
) -> np.ndarray[Any, Any]:
    """The same rows by llama.cpp."""
    layout = TYPES_BY_NAME[name]
    quantised = np.zeros((len(rows), N_COLS // layout.block_size * layout.type_size), np.uint8)
    function = getattr(library, f"quantize_{name.lower().replace('_k', '_K')}")
    function.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    function.restype = ctypes.c_size_t
    function(
        rows.ctypes.data,
        quantised.ctypes.data,
        *rows.shape,
        None if weights is None else weights.ctypes.data,
    )
    return quantised


def main() -> None:
    """Print the table, and write the file."""
    library = ctypes.CDLL(str(Path(os.environ["JALOPY_LIBLLAMA"]).with_name("libggml-base.so")))
    errors: dict[str, list[float]] = {}
    many = values(1000)
    for name in KERNELS:
        row = []
        for weights in (None, importance()):
            (ours, our_ns), (other, other_ns) = (
                _timed(make, many.size)
                for make in (
                    lambda name=name, weights=weights: quantise_rows(many, name, weights),
                    lambda name=name, weights=weights: theirs(library, name, many, weights),
                )
            )
            cost = 1.0 if weights is None else weights
            our_error = error(ours, name, many, cost)
            other_error = error(other, name, many, cost)
            row.append(f"{our_error / other_error:.4f} {our_ns:6.1f} {other_ns:6.1f} ns")
            few = values()
            errors.setdefault(name, []).append(
                error(theirs(library, name, few, weights), name, few, cost)
            )
        print(f"{name:7} plain {row[0]}   with importance {row[1]}")
    GOLDEN.write_text(json.dumps(errors, indent=0) + "\n", encoding="utf-8")


def _timed(
    make: Callable[[], np.ndarray[Any, Any]], n_values: int
) -> tuple[np.ndarray[Any, Any], float]:
    make()
    started_s = time.thread_time()
    result = make()
    return result, (time.thread_time() - started_s) / n_values * 1e9


if __name__ == "__main__":
    main()
