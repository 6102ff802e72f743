"""Rows of pictures by llama.cpp's libmtmd.

Use: ``PYTHON pictures_peer.py MMPROJ MODEL OUT.npz IMAGE...``.

Runs in an environment with llama-cpp-python (0.3.36 or newer) and Pillow, without this project. The
file gets, for picture N and part M, ``rows_N_M``, and ``grid_N_M``: rows and columns. Images may be
names of files, or WIDTHxHEIGHT for a black picture whose parts are counted and not encoded; it has
no parts if libmtmd refuses the size.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from typing import Any

import llama_cpp
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
from PIL import Image

_MARKER = b"<__media__>"


class Peer:
    """libmtmd with an encoder and the text model it needs."""

    def __init__(self, mmproj: str, model: str) -> None:
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        mtmd.mtmd_helper_log_set(_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), options)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        self._width = llama_cpp.llama_model_n_embd_inp(self._model)
        settings = mtmd.mtmd_context_params_default()
        settings.use_gpu = settings.print_timings = settings.warmup = False
        settings.n_threads = 1
        settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds keys to f16
        self._context = mtmd.mtmd_init_from_file(mmproj.encode(), self._model, settings)
        if not self._context:
            raise SystemExit(f"libmtmd cannot use {mmproj} with {model}")

    def parts(self, pixels: np.ndarray[Any, Any], encodes: bool) -> Iterator[tuple[Any, Any]]:
        """Yield (rows and columns, embeddings or None) of each part of a picture."""
        raw = np.ascontiguousarray(pixels, np.uint8)
        data = raw.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(raw.shape[1], raw.shape[0], data)
        chunks = mtmd.mtmd_input_chunks_init()
        text = mtmd.mtmd_input_text(_MARKER, len(_MARKER), True, True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        code = mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(text), bitmaps, 1)
        mtmd.mtmd_bitmap_free(bitmap)
        if code and not encodes:  # SmolVLM's sides may round to 0
            return
        if code:
            raise SystemExit(f"mtmd_tokenize returns {code}")
        for index in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, index)
            if mtmd.mtmd_input_chunk_get_type(chunk) != mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
                grid = mtmd.mtmd_image_tokens_get_ny(image), mtmd.mtmd_image_tokens_get_nx(image)
                yield grid, self._rows(chunk) if encodes else None
        mtmd.mtmd_input_chunks_free(chunks)

    def _rows(self, chunk: Any) -> np.ndarray[Any, Any]:
        if code := mtmd.mtmd_encode_chunk(self._context, chunk):
            raise SystemExit(f"mtmd_encode_chunk returns {code}")
        n = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        embeddings = mtmd.mtmd_get_output_embd(self._context)
        return np.ctypeslib.as_array(embeddings, (n, self._width)).copy()


@llama_cpp.llama_log_callback
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Print nothing."""


def main() -> None:
    """Write the rows of all pictures."""
    mmproj, model, out, *images = sys.argv[1:]
    peer = Peer(mmproj, model)
    results = {}
    for number, image in enumerate(images):
        size = re.fullmatch(r"(\d+)x(\d+)", image)
        if size:
            pixels = np.zeros((int(size[2]), int(size[1]), 3), np.uint8)
        else:
            pixels = np.asarray(Image.open(image).convert("RGB"))
        for part, (grid, rows) in enumerate(peer.parts(pixels, encodes=size is None)):
            results[f"grid_{number}_{part}"] = np.array(grid)
            if rows is not None:
                results[f"rows_{number}_{part}"] = rows
    np.savez(out, **results)


if __name__ == "__main__":
    main()
