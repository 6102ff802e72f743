"""llama.cpp's logits of every position, run as a file by whatever Python has llama-cpp-python. Imports nothing of ours.

Arguments: the model, a file of token ids (.npy), the size of the context, and where the logits go (.npy).
"""

from __future__ import annotations

import ctypes
import sys

import llama_cpp
import numpy as np


def main(model_path: str, ids_path: str, n_ctx: str, out_path: str) -> None:
    """Compute all tokens as one block."""
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    wanted = llama_cpp.llama_model_default_params()
    wanted.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(model_path.encode(), wanted)
    if not model:
        raise SystemExit(f"llama.cpp refuses {model_path}")
    ids = np.load(ids_path)
    chosen = llama_cpp.llama_context_default_params()
    chosen.n_ctx = chosen.n_batch = chosen.n_ubatch = int(n_ctx)
    chosen.n_threads = chosen.n_threads_batch = 2
    context = llama_cpp.llama_init_from_model(model, chosen)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids.tolist()):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, True
    if llama_cpp.llama_decode(context, batch):
        raise SystemExit(f"llama.cpp does not compute {model_path}")
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (n_vocab,)) for i in range(len(ids))]
    np.save(out_path, np.stack(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
