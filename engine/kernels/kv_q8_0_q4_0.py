"""The cache with keys of ``kv_q8_0.py`` and values of ``kv_q4_0.py``, in their layouts."""

from engine.jit import kernel
from engine.kernels import kv_q4_0, kv_q8_0
from engine.kernels.attend_parts import attend_parts
from engine.kernels.attend_tokens import attend_tokens
from engine.kernels.store_kv import store_heads

K_BITS, K_BLOCK = kv_q8_0.BITS, kv_q8_0.BLOCK
V_BITS, V_BLOCK = kv_q4_0.BITS, kv_q4_0.BLOCK
load_k, load_v = kv_q8_0.load_k, kv_q4_0.load_v
store_k, store_v = kv_q8_0.store_head, kv_q4_0.store_head


@kernel
def store(op, thread, n_threads):
    """Write k and v of the step's tokens."""
    store_heads(store_k, K_BITS, K_BLOCK, store_v, V_BITS, V_BLOCK, op, thread, n_threads)


@kernel
def attention_parts(op, thread, n_threads):
    """Attention of one token, up to partial results."""
    attend_parts((K_BITS, K_BLOCK, load_k, V_BITS, V_BLOCK, load_v), op, thread, n_threads)


@kernel
def attention(op, thread, n_threads):
    """Attention of a block of tokens."""
    attend_tokens((K_BITS, K_BLOCK, load_k, V_BITS, V_BLOCK, load_v), op, thread, n_threads)
