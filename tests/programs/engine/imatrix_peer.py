"""Compare the inputs of llama.cpp's matrices with a file of ``jalopy imatrix`` for the same text.

    PEER_PYTHON -m tests.programs.engine.imatrix_peer MODEL TEXT_FILE IMATRIX

PEER_PYTHON has llama-cpp-python, whose callback sees every node of the graph: sums are made as
``llama-imatrix`` makes them. The file must be made of the same number of tokens a chunk (512).
Prints the largest and the median relative difference of a tensor's means, weighted by their size;
needs nothing of Jalopy but ``gguf``.
"""

import ctypes
import sys
from pathlib import Path

import gguf
import llama_cpp as lib
import numpy as np

N_CHUNK = 512


class Node(ctypes.Structure):
    """ggml_tensor, as of ggml.h of July 2026."""


Node._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Node) * 10), ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64), ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
]  # fmt: skip


def main(model_path: str, text_path: str, imatrix_path: str) -> None:
    """Read as many chunks as the file has, and compare."""
    reader = gguf.GGUFReader(imatrix_path)
    wanted = {one.name: np.asarray(one.data, np.float64) for one in reader.tensors}
    n_chunks = reader.fields["imatrix.chunk_count"].contents()
    sums: dict[str, np.ndarray] = {}

    @lib.ggml_backend_sched_eval_callback
    def look(pointer: int, ask: bool, _: object) -> bool:
        node = ctypes.cast(pointer, ctypes.POINTER(Node)).contents
        if not (node.src[0] and node.src[1]):
            return not ask
        name = node.src[0].contents.name.decode()
        if name + ".in_sum2" not in wanted or wanted[name + ".in_sum2"].shape[0] > 1:
            return not ask
        if not ask:
            x = node.src[1].contents
            flat = np.ctypeslib.as_array(
                (ctypes.c_float * (x.ne[0] * x.ne[1])).from_address(x.data)
            )
            rows = flat.reshape(x.ne[1], x.ne[0]).astype(np.float64)
            sums[name] = sums.get(name, 0.0) + (rows * rows).sum(0)
        return True

    lib.llama_backend_init()
    model = lib.llama_load_model_from_file(model_path.encode(), lib.llama_model_default_params())
    vocab = lib.llama_model_get_vocab(model)
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = N_CHUNK
    params.cb_eval = look
    context = lib.llama_new_context_with_model(model, params)
    text = Path(text_path).read_bytes()
    room = (lib.llama_token * len(text))()
    n = lib.llama_tokenize(
        vocab, text, len(text), room, len(text), lib.llama_vocab_get_add_bos(vocab), False
    )
    for chunk in range(n_chunks):
        ids = list(room[chunk * N_CHUNK : (chunk + 1) * N_CHUNK])
        if lib.llama_vocab_get_add_bos(vocab):
            ids[0] = lib.llama_vocab_bos(vocab)
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        batch = lib.llama_batch_init(N_CHUNK, 0, 1)
        batch.n_tokens = N_CHUNK
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = i
            batch.n_seq_id[i] = 1
            batch.logits[i] = 1
            batch.seq_id[i][0] = 0
        assert lib.llama_decode(context, batch) == 0
    errors = {
        name: float(np.abs(one - wanted[name + ".in_sum2"][0]).sum() / one.sum())
        for name, one in sorted(sums.items())
    }
    worst = max(errors, key=errors.__getitem__)
    print(
        (
            f"{n} tokens, {n_chunks} chunks, {len(errors)} tensors: "
            f"median {np.median(list(errors.values())):.2e}, "
        ),
        end="",
    )
    print(f"largest {errors[worst]:.2e} ({worst})")


if __name__ == "__main__":
    main(*sys.argv[1:])
