"""The same of llama.cpp, run as a file by whatever Python has llama-cpp-python. Imports nothing of
ours.

Arguments: the model, a file of token ids (.npy), threads, and types of the cache, as ``q8_0`` or
``q8_0/q4_0`` (keys, values). Flash attention is on: values of a quantised type need it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
"""Numbers of GGML's types."""


def log_softmax(row: Any) -> Any:
    """Log probabilities of (n_vocab,) logits, float32."""
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def figures(base: Iterable[Any], rows: Iterable[Any]) -> str:
    """How far the predictions of logits, (n_vocab,) each, are from the log probabilities of the
    first."""
    kl = []
    same = []
    for wanted, row in zip(base, rows):  # noqa: B905 - it may be an old Python
        found = log_softmax(row)
        kl.append((np.exp(wanted) * (wanted - found)).sum(dtype=np.float64))
        same.append(found.argmax() == wanted.argmax())
    shown = (
        f"KL {np.mean(kl):.5f} +- {np.std(kl) / len(kl) ** 0.5:.5f}, 99 % "
        f"{np.quantile(kl, 0.99):.4f}"
    )
    return f"{shown}, same token {100 * np.mean(same):.2f} %"


def main(model_path: str, ids_path: str, n_threads: str, *types: str) -> None:
    import llama_cpp as lib

    lib.llama_backend_init()
    lib.llama_log_set(QUIET := lib.llama_log_callback(lambda *_: None), None)
    wanted = lib.llama_model_default_params()
    wanted.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(model_path.encode(), wanted)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    ids = np.load(ids_path).tolist()
    base = None
    for kv in ("f16", *types):
        chosen = lib.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = chosen.n_ubatch = len(ids)
        chosen.n_threads = chosen.n_threads_batch = int(n_threads)
        chosen.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        keys, _, values = kv.partition("/")
        chosen.type_k = TYPES[keys]
        chosen.type_v = TYPES[values or keys]
        context = lib.llama_init_from_model(model, chosen)
        batch = lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        if lib.llama_decode(context, batch):
            raise SystemExit(f"llama.cpp does not compute these tokens with {kv}")
        found = (lib.llama_get_logits_ith(context, i) for i in range(len(ids)))
        rows = (np.ctypeslib.as_array(row, (n_vocab,)) for row in found)
        if base is None:
            base = np.stack([log_softmax(row) for row in rows])
        else:
            print(
                f"{Path(model_path).name:44} llama.cpp  {kv:10} {figures(base, rows)}", flush=True
            )
        lib.llama_batch_free(batch)
        lib.llama_free(context)
    del QUIET


if __name__ == "__main__":
    main(*sys.argv[1:])
