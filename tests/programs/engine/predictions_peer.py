"""llama.cpp's guesses by a model's own block (MTP), run as a file by a Python that has
llama-cpp-python. Imports nothing of ours.

Arguments: the model, token ids separated by commas, the number of ids that are the prompt, and
where the logits go (.npy): of three guesses in a row after each of the other ids; and the file of
an assistant, if it guesses instead of the model's own block. Keys and values are kept in float32.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

ERROR = 4
"""The level of messages that are shown."""
N_CTX = 512
N_GUESSES = 3


class Context:
    """A context of the layers, or of the block if it reads another context's hidden rows."""

    def __init__(self, model: Any, layers: Context | None = None) -> None:
        chosen = llama_cpp.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = chosen.n_ubatch = N_CTX
        chosen.n_threads = chosen.n_threads_batch = 1
        chosen.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        chosen.type_k = chosen.type_v = llama_cpp.GGML_TYPE_F32
        if layers is not None:
            chosen.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
            chosen.ctx_other = layers.context
        self.context = llama_cpp.llama_init_from_model(model, chosen)
        if not self.context:
            raise SystemExit("llama.cpp opens no context")
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._width = llama_cpp.llama_model_n_embd_out(model)
        llama_cpp_ext.llama_set_embeddings_nextn(self.context, True, layers is not None)

    def compute(self, ids: list[int], first: int, hidden: Any = None) -> tuple[Any, Any]:
        """Return the logits and the hidden rows of tokens from a position on; the block also reads
        a hidden row for each."""
        n = len(ids)
        batch = llama_cpp.llama_batch_init(n, 0 if hidden is None else self._width, 1)
        tokens = (llama_cpp.llama_token * n)(*ids)
        if hidden is not None:  # the batch has no memory for ids
            batch.token = ctypes.cast(tokens, type(batch.token))
            np.ctypeslib.as_array(batch.embd, (n, self._width))[:] = hidden
        batch.n_tokens = n
        for i in range(n):
            batch.token[i] = ids[i]
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        if llama_cpp.llama_decode(self.context, batch):
            raise SystemExit("llama.cpp does not compute these tokens")
        if hidden is not None:
            batch.token = type(batch.token)()
        llama_cpp.llama_batch_free(batch)
        logits = self._rows(llama_cpp.llama_get_logits_ith, n, self._n_vocab)
        rows = self._rows(llama_cpp_ext.llama_get_embeddings_nextn_ith, n, self._width)
        return logits, rows

    def _rows(self, row_of: Any, n: int, width: int) -> Any:
        rows = [np.ctypeslib.as_array(row_of(self.context, i), (width,)) for i in range(n)]
        return np.stack(rows).copy()

    def cut(self, position: int) -> None:
        """Forget the tokens from a position on."""
        memory = llama_cpp.llama_get_memory(self.context)
        if not llama_cpp.llama_memory_seq_rm(memory, 0, position, -1):
            raise SystemExit("llama.cpp cannot forget tokens")


def opened(path: str) -> Any:
    """Open a model with its block for guesses."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.load_mtp = True
    model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        raise SystemExit(f"llama.cpp refuses {path}")
    return model


def main(
    model_path: str, ids_text: str, n_prompt_text: str, out_path: str, assistant_path: str = ""
) -> None:
    def tell(level: int, text: bytes, user: Any) -> None:
        if level == ERROR:
            sys.stderr.write(text.decode(errors="replace"))

    quiet = llama_cpp.llama_log_callback(tell)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = opened(model_path)
    layers = Context(model)
    block = Context(opened(assistant_path) if assistant_path else model, layers)
    ids = [int(text) for text in ids_text.split(",")]
    n_prompt = int(n_prompt_text)

    _, hidden = layers.compute(ids[:n_prompt], 0)
    before = np.vstack([np.zeros_like(hidden[:1]), hidden[:-1]])
    if not assistant_path:  # which stores nothing
        block.compute(ids[:n_prompt], 0, before)
    guesses = []
    for position in range(n_prompt, len(ids)):
        token = ids[position]
        last = hidden[-1:]
        chain = []
        for n in range(N_GUESSES):
            logits, last = block.compute([token], position + (0 if assistant_path else n), last)
            chain.append(logits[0])
            token = int(logits[0].argmax())
        guesses.append(chain)
        if not assistant_path:
            block.cut(position)
            block.compute([ids[position]], position, hidden[-1:])
        _, hidden = layers.compute([ids[position]], position)
    np.save(out_path, np.array(guesses))


if __name__ == "__main__":
    main(*sys.argv[1:])
