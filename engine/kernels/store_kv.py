"""k and v of new tokens into the cache: where each position lies, whatever the cache's type."""

from engine.jit import inner
from engine.kernels.records import CACHE as F
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd import load_i64


@inner
def store_heads(store_head, item_bytes, block, op, thread, n_threads):
    """Write every (token, KV head) of the step; the shares are those of rope on k, so no barrier lies between.

    Args:
        store_head: (k, v, head_dim, k_at, v_at, k_scales, v_scales) -> None, writes one position of one head.
    """
    step = load_i64(op + F.step)
    n_kv_heads, head_dim = load_i64(op + F.n_kv_heads), load_i64(op + F.head_dim)
    k_cache, v_cache, head_bytes = load_i64(op + F.k_cache), load_i64(op + F.v_cache), load_i64(op + F.head_bytes)
    k_scales, v_scales, scale_bytes = load_i64(op + F.k_scales), load_i64(op + F.v_scales), load_i64(op + F.scale_bytes)
    groups = (head_dim + block - 1) // block
    first, last = share(load_i64(step + STEP.n_tokens) * n_kv_heads, 1, thread, n_threads)
    for i in range(first, last):
        slot = (load_i64(step + STEP.start_pos) + i // n_kv_heads) % load_i64(op + F.n_slots)
        head, tile, lane = i % n_kv_heads, slot // 8 * 8, slot % 8
        at = 4 * i * head_dim
        store_head(
            load_i64(op + F.x) + at,
            load_i64(op + F.v) + at,
            head_dim,
            k_cache + head * head_bytes + (tile * head_dim + lane) * item_bytes,
            v_cache + head * head_bytes + slot * head_dim * item_bytes,
            k_scales + head * scale_bytes + 4 * (tile * groups + lane),
            v_scales + head * scale_bytes + 4 * slot * groups,
        )
