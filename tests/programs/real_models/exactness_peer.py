"""Compute losses of chunks of tokens with llama.cpp, in a Python that has llama-cpp-python.

Imports nothing of ours.
Arguments: the model, a file of chunks (.npy), the first position that counts, chunks whose logits
are kept, "f16" or "f32" for keys and values, threads, and where the answer goes (.npz): the loss of
each token that counts, and the logits before those of the first chunks. Flash attention is off: it
sums values in half precision.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import llama_cpp
import numpy as np

GGML_TYPES = {"f32": 0, "f16": 1}


def opened(path: str, n_ctx: int, kv: str, n_threads: int) -> Any:
    """A context of the model."""
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        raise SystemExit(f"llama.cpp refuses {path}")
    chosen = llama_cpp.llama_context_default_params()
    chosen.n_ctx = chosen.n_batch = n_ctx
    chosen.n_threads = chosen.n_threads_batch = n_threads
    chosen.type_k = chosen.type_v = GGML_TYPES[kv]
    chosen.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return llama_cpp.llama_init_from_model(model, chosen)


def rows_of(context: Any, ids: list[int], first: int) -> list[Any]:
    """Views of the logits of each token from ``first`` on."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i] = token
        batch.pos[i] = i
        batch.n_seq_id[i] = 1
        batch.logits[i] = i >= first
        batch.seq_id[i][0] = 0
    if llama_cpp.llama_decode(context, batch):
        raise SystemExit("llama.cpp does not compute these tokens")
    llama_cpp.llama_batch_free(batch)
    n_vocab = llama_cpp.llama_vocab_n_tokens(
        llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(context))
    )
    pointers = (llama_cpp.llama_get_logits_ith(context, i) for i in range(first, len(ids)))
    return [np.ctypeslib.as_array(row, (n_vocab,)) for row in pointers]


def main(
    model_path: str,
    chunks_path: str,
    first: str,
    n_kept: str,
    kv: str,
    n_threads: str,
    out_path: str,
) -> None:
    """Read the chunks."""
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    chunks = np.load(chunks_path).tolist()
    context = opened(model_path, len(chunks[0]), kv, int(n_threads))
    losses = []
    kept_rows = []
    for number, chunk in enumerate(chunks):
        rows = rows_of(context, chunk[:-1], int(first))
        for row, target in zip(rows, chunk[int(first) + 1 :]):  # noqa: B905 - it may be an old Python
            exact = row.astype(np.float64) - row.max()
            losses.append(np.log(np.exp(exact).sum()) - exact[target])
            if number < int(n_kept):
                kept_rows.append(row.copy())
    np.savez(out_path, losses=losses, kept=np.stack(kept_rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
