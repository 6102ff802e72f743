"""k and v of new tokens into the cache: where each position lies, whatever the cache's type."""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.records import CACHE as F
from engine.kernels.records import STEP
from engine.kernels.share import share


@inner
def store_heads(store_k, k_bits, k_block, store_v, v_bits, v_block, op, thread, n_threads):
    """Write every (token, KV head) of the step; the shares are those of rope on k, so no barrier lies between.

    Args:
        store_k, store_v: (x, head_dim, at, step, scales, scale_step) -> None, writes one position of one head,
            neighbours ``step`` elements or bytes apart and their scales ``scale_step`` bytes.
    """
    step = vec.load_i64(op + F.step)
    n_kv_heads, head_dim = vec.load_i64(op + F.n_kv_heads), vec.load_i64(op + F.head_dim)
    k_cache, v_cache = vec.load_i64(op + F.k_cache), vec.load_i64(op + F.v_cache)
    k_scales, v_scales = vec.load_i64(op + F.k_scales), vec.load_i64(op + F.v_scales)
    k_row, v_row = head_dim * k_bits >> 3, head_dim * v_bits >> 3
    k_scale_row, v_scale_row = 4 * ((head_dim + k_block - 1) // k_block), 4 * ((head_dim + v_block - 1) // v_block)
    n_slots, k_item_bytes = vec.load_i64(op + F.n_slots), max(8, k_bits) >> 3
    first, last = share(vec.load_i64(step + STEP.n_tokens) * n_kv_heads, 1, thread, n_threads)
    for i in range(first, last):
        slot = i % n_kv_heads * n_slots + (vec.load_i64(step + STEP.start_pos) + i // n_kv_heads) % n_slots
        tile, lane, at = slot // 8 * 8, slot % 8, 4 * i * head_dim
        k_at, k_scale_at = k_cache + tile * k_row + lane * k_item_bytes, k_scales + tile * k_scale_row + 4 * lane
        store_k(vec.load_i64(op + F.x) + at, head_dim, k_at, 8, k_scale_at, 32)
        store_v(vec.load_i64(op + F.v) + at, head_dim, v_cache + slot * v_row, 1, v_scales + slot * v_scale_row, 4)
