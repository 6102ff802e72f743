"""Times of llama.cpp's libmtmd: ``PYTHON picture_speed_peer.py MMPROJ MODEL THREADS``.

Runs in an environment with llama-cpp-python (0.3.36 or newer), without this project. Reads lines
``WIDTH HEIGHT``, encodes a picture of that size once, and answers ``rows wall cpu`` in seconds. The
weights are warm: a small picture is encoded first.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

import llama_cpp
import llama_cpp.mtmd_cpp as mtmd
import numpy as np

_MARKER = b"<__media__>"


@llama_cpp.llama_log_callback
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Print nothing."""


def _open(mmproj: str, model: str, n_threads: int) -> Any:
    llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
    mtmd.mtmd_helper_log_set(_quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    options.n_gpu_layers = 0
    text_model = llama_cpp.llama_model_load_from_file(model.encode(), options)
    if not text_model:
        raise SystemExit(f"llama.cpp cannot load {model}")
    settings = mtmd.mtmd_context_params_default()
    settings.use_gpu = settings.print_timings = settings.warmup = False
    settings.n_threads = n_threads
    context = mtmd.mtmd_init_from_file(mmproj.encode(), text_model, settings)
    if not context:
        raise SystemExit(f"libmtmd cannot use {mmproj} with {model}")
    return context


def _time(context: Any, width: int, height: int) -> tuple[int, float, float]:
    """Return rows, seconds and processor seconds of a picture of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    bitmap = mtmd.mtmd_bitmap_init(width, height, data)
    chunks = mtmd.mtmd_input_chunks_init()
    text = mtmd.mtmd_input_text(_MARKER, len(_MARKER), True, True)
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
    start = time.perf_counter()
    start_cpu = time.process_time()
    n_rows = 0
    if code := mtmd.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1):
        raise SystemExit(f"mtmd_tokenize returns {code}")
    for index in range(mtmd.mtmd_input_chunks_size(chunks)):
        chunk = mtmd.mtmd_input_chunks_get(chunks, index)
        if mtmd.mtmd_input_chunk_get_type(chunk) != mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            if code := mtmd.mtmd_encode_chunk(context, chunk):
                raise SystemExit(f"mtmd_encode_chunk returns {code}")
            n_rows += mtmd.mtmd_input_chunk_get_n_tokens(chunk)
    wall = time.perf_counter() - start
    cpu = time.process_time() - start_cpu
    mtmd.mtmd_bitmap_free(bitmap)
    mtmd.mtmd_input_chunks_free(chunks)
    return n_rows, wall, cpu


def main() -> None:
    """Answer until the input ends."""
    mmproj, model, n_threads = sys.argv[1:]
    context = _open(mmproj, model, int(n_threads))
    _time(context, 64, 64)
    print("ready", flush=True)
    for line in sys.stdin:
        width, height = map(int, line.split())
        print(*_time(context, width, height), flush=True)


if __name__ == "__main__":
    main()
