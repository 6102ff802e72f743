"""The same of llama.cpp, run as a file by whatever Python has llama-cpp-python. Imports nothing of ours.

Arguments: the model, a file of token ids (.npy), and types of the cache, as ``q8_0`` or ``q8_0/q4_0`` (keys, values).
Flash attention is on: values of a quantised type need it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
"""Numbers of GGML's types."""


def log_softmax(logits: Any) -> Any:
    """Log probabilities of (n, n_vocab) logits, float32."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def figures(base: Any, found: Any) -> str:
    """How far log probabilities are from the first, (n, n_vocab) both."""
    kl = np.array([(np.exp(a) * (a - b)).sum(dtype=np.float64) for a, b in zip(base, found, strict=True)])
    same = 100 * (base.argmax(-1) == found.argmax(-1)).mean()
    return f"KL {kl.mean():.5f}, 99 % {np.quantile(kl, 0.99):.4f}, same token {same:.2f} %"


def main(model_path: str, ids_path: str, *types: str) -> None:
    import llama_cpp as lib

    lib.llama_backend_init()
    lib.llama_log_set(QUIET := lib.llama_log_callback(lambda *_: None), None)
    wanted = lib.llama_model_default_params()
    wanted.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(model_path.encode(), wanted)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    ids, base = np.load(ids_path).tolist(), None
    for kv in ("f16", *types):
        chosen = lib.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = chosen.n_ubatch = len(ids)
        chosen.n_threads = chosen.n_threads_batch = 2
        chosen.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        keys, _, values = kv.partition("/")
        chosen.type_k, chosen.type_v = TYPES[keys], TYPES[values or keys]
        context = lib.llama_init_from_model(model, chosen)
        batch = lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, True
        if lib.llama_decode(context, batch):
            raise SystemExit(f"llama.cpp does not compute these tokens with {kv}")
        rows = [lib.llama_get_logits_ith(context, i) for i in range(len(ids))]
        found = log_softmax(np.stack([np.ctypeslib.as_array(row, (n_vocab,)) for row in rows]))
        lib.llama_batch_free(batch)
        lib.llama_free(context)
        if base is None:
            base = found
        else:
            print(f"{Path(model_path).name:44} llama.cpp  {kv:10} {figures(base, found)}", flush=True)
    del QUIET


if __name__ == "__main__":
    main(*sys.argv[1:])
