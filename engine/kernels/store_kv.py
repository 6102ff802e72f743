"""Keys and values of new tokens, written to the KV cache; the addresses are the same for every
type."""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.records import CACHE as F
from engine.kernels.records import STEP
from engine.kernels.share import n_tokens_of, share


@inner
def store_heads(store_k, k_bits, k_block, store_v, v_bits, v_block, op, thread, n_threads):
    """Write every (token, KV head) of the step.

    The shares are those of rope on k, so no barrier lies in between.

    Args:
        store_k, store_v: As ``cache_type.CacheLayout.store``.
    """
    step, x, v, n_kv_heads, head_dim, n_slots = vec.load_words(
        op, (F.step, F.x, F.v, F.n_kv_heads, F.head_dim, F.n_slots)
    )
    k_cache, v_cache, k_scales, v_scales = vec.load_words(
        op, (F.k_cache, F.v_cache, F.k_scales, F.v_scales)
    )
    k_row = head_dim * k_bits >> 3
    v_row = head_dim * v_bits >> 3
    k_item_bytes = max(8, k_bits) >> 3
    k_scale_row = 4 * ((head_dim + k_block - 1) // k_block)
    v_scale_row = 4 * ((head_dim + v_block - 1) // v_block)
    first, last = share(n_tokens_of(op) * n_kv_heads, 1, thread, n_threads)
    for i in range(first, last):
        slot = (
            i % n_kv_heads * n_slots
            + (vec.load_i64(step + STEP.start_pos) + i // n_kv_heads) % n_slots
        )
        tile = slot // 8 * 8
        lane = slot % 8
        offset = 4 * i * head_dim
        k_address = k_cache + tile * k_row + lane * k_item_bytes
        k_scale_address = k_scales + tile * k_scale_row + 4 * lane
        store_k(x + offset, head_dim, k_address, 8, k_scale_address, 32)
        store_v(v + offset, head_dim, v_cache + slot * v_row, 1, v_scales + slot * v_scale_row, 4)
