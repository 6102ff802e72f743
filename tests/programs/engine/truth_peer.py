"""llama.cpp's logits of every position, run as a file by whatever Python has llama-cpp-python.
Imports nothing of ours.

Arguments: the model, a file of rows of token ids (.npy), the size of the context, and where the
logits go (.npy): of each row as one block, and token by token. Flash attention is off: it sums
values in half precision.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import llama_cpp
import numpy as np

ERROR = 4
"""The level of messages that are shown."""


class Peer:
    """An opened model."""

    def __init__(self, model_path: str, n_ctx: int) -> None:
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(model_path.encode(), parameters)
        if not self.model:
            raise SystemExit(f"llama.cpp refuses {model_path}")
        chosen = llama_cpp.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = chosen.n_ubatch = n_ctx
        chosen.n_threads = chosen.n_threads_batch = 1
        chosen.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, chosen)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def logits(self, ids: list[int], block: int) -> Any:
        """Return the logits of all positions, computed in blocks of this many tokens."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        return np.vstack(
            [self._fed(ids[start : start + block], start) for start in range(0, len(ids), block)]
        )

    def _fed(self, ids: list[int], first: int) -> Any:
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.pos[i] = first + i
            batch.token[i] = token
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        if llama_cpp.llama_decode(self.context, batch):
            raise SystemExit("llama.cpp does not compute these tokens")
        rows = [llama_cpp.llama_get_logits_ith(self.context, i) for i in range(len(ids))]
        logits = np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])
        llama_cpp.llama_batch_free(batch)
        return logits


def main(model_path: str, ids_path: str, n_ctx: str, out_path: str) -> None:
    def tell(level: int, text: bytes, user: Any) -> None:
        if level == ERROR:
            sys.stderr.write(text.decode(errors="replace"))

    quiet = llama_cpp.llama_log_callback(tell)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    peer = Peer(model_path, int(n_ctx))
    rows = np.load(ids_path).tolist()
    np.save(
        out_path,
        np.stack([[peer.logits(ids, block) for ids in rows] for block in (len(rows[0]), 1)]),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
