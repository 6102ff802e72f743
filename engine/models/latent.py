"""Latent attention (DeepSeek-V2, arXiv:2405.04434): the cache has one vector of a token for all
heads.

Keys and values of a head are products with that vector, which are never computed: queries are
multiplied by the matrix of keys instead, and the result of attention by that of values. If both are
rows of one tensor, the matrix of keys is transposed (``Buffers.transpose_parts``). So attention has
one head of keys, which are also the values: first the rotated elements, then the latent vector.
"""

from engine.config import Attention, Latent
from engine.models.decoder import Decoder
from engine.plan.buffers import Activations
from engine.weights.weights import Tensor, TensorSpec


def tensors(block: str, attention: Attention, latent: Latent, dim: int) -> dict[str, TensorSpec]:
    """Return the projections of a layer's attention; keys and values have a matrix for each
    head."""
    n = attention.n_heads
    rank = latent.rank
    queries = {"attn_q.weight": TensorSpec((n * latent.key_dim, dim))}
    if latent.query_rank:
        queries = {
            "attn_q_a.weight": TensorSpec((latent.query_rank, dim)),
            "attn_q_a_norm.weight": TensorSpec((latent.query_rank,)),
            "attn_q_b.weight": TensorSpec((n * latent.key_dim, latent.query_rank)),
        }
    tensors = {
        **queries,
        "attn_kv_a_mqa.weight": TensorSpec((attention.key_dim, dim)),
        "attn_kv_a_norm.weight": TensorSpec((rank,)),
        **_made_of(attention, latent),
        "attn_output.weight": TensorSpec((dim, n * latent.value_dim)),
    }
    return {block + name: spec for name, spec in tensors.items()}


def _made_of(attention: Attention, latent: Latent) -> dict[str, TensorSpec]:
    """Return the tensors of keys and values."""
    n = attention.n_heads
    plain = latent.plain_dim(attention)
    if latent.is_joint:
        return {"attn_kv_b.weight": TensorSpec((n * (plain + latent.value_dim), latent.rank))}
    return {
        "attn_k_b.weight": TensorSpec((n, latent.rank, plain)),
        "attn_v_b.weight": TensorSpec((n, latent.value_dim, latent.rank)),
    }


def _of_heads(
    d: Decoder, layer: int, attention: Attention, latent: Latent
) -> tuple[list[Tensor], list[Tensor]]:
    """Return, for each head, the matrix for queries and the matrix of values."""
    heads = range(attention.n_heads)
    plain = latent.plain_dim(attention)
    n_rows = latent.value_dim
    if latent.is_joint:
        fused = d.weight(layer, "attn_kv_b.weight")
        keys = d.buffers.transpose_parts(fused, len(heads), plain)
        values = [fused.part(head * (plain + n_rows) + plain, n_rows) for head in heads]
    else:
        keys = d.weight(layer, "attn_k_b.weight")
        all_values = d.weight(layer, "attn_v_b.weight")
        values = [all_values.part(head * n_rows, n_rows) for head in heads]
    return [keys.part(head * latent.rank, latent.rank) for head in heads], values


def attend(
    d: Decoder, layer: int, attention: Attention, latent: Latent, x: Activations
) -> Activations | None:
    """Return the concatenated results of heads, after a barrier.

    Return None if only keys and values of x are needed.
    """
    plan = d.plan
    n = attention.n_heads
    asks = d.computes_queries(layer)
    stores = d.computes_keys(layer, attention)
    queries = d.buffers.vector("queries", n * latent.key_dim)
    if latent.query_rank:
        compressed = d.buffers.vector("compressed queries", latent.query_rank)
    else:
        compressed = queries
    key_projection = d.buffers.vector("latent and turned", attention.key_dim)
    first = d.weight(layer, "attn_q_a.weight" if latent.query_rank else "attn_q.weight")
    if asks:
        products = [(first, compressed)]
    else:
        products = []
    if stores:
        products += [(d.weight(layer, "attn_kv_a_mqa.weight"), key_projection)]
    else:
        products += []
    plan.quantize(x, *(weight for weight, _ in products))
    plan.barrier()
    plan.phase = "qkv"
    for weight, out in products:
        plan.matmul(weight, x, out)
    plan.barrier()
    if asks and latent.query_rank:
        normed = d.buffers.vector("normed queries", latent.query_rank)
        second = d.weight(layer, "attn_q_b.weight")
        plan.rmsnorm(compressed, d.weight(layer, "attn_q_a_norm.weight"), normed, d.config.norm_eps)
        plan.quantize(normed, second)
        plan.barrier()
        plan.matmul(second, normed, queries)
        plan.barrier()
    if stores:
        _store(d, layer, attention, latent, key_projection)
    if not asks:
        return None
    of_keys, of_values = _of_heads(d, layer, attention, latent)
    q = _absorbed(d, of_keys, attention, latent, queries)
    plan.phase = "attention"
    attended = d.buffers.vector("attended", attention.out_dim)
    plan.attention.attend(layer, attention, q, attended)
    plan.barrier()
    out = d.buffers.vector("heads", n * latent.value_dim)
    turned = attention.key_dim - latent.rank
    _each_head(d, of_values, (attended, attention.key_dim, turned), (out, latent.value_dim, 0))
    return out


def _store(
    d: Decoder, layer: int, attention: Attention, latent: Latent, key_projection: Activations
) -> None:
    """Norm the latent vector, rotate the other elements, and store both in the order of the
    cache."""
    plan = d.plan
    rank = latent.rank
    rope = attention.rope
    assert rope is not None
    turned = attention.key_dim - rank
    raw = d.buffers.vector("latent", rank)
    normed = d.buffers.vector("normed latent", rank)
    keys = d.buffers.vector("k", attention.key_dim)
    plan.copy(key_projection, (0, 0), raw, (0, 0), rank)
    plan.copy(key_projection, (rank, 0), keys, (0, 0), turned)
    plan.barrier()
    plan.rmsnorm(raw, d.weight(layer, "attn_kv_a_norm.weight"), normed, d.config.norm_eps)
    plan.barrier()
    plan.copy(normed, (0, 0), keys, (turned, 0), rank)
    plan.barrier()
    plan.attention.rope(
        keys, attention.key_dim, d.rotations[rope], d.angles(rope)
    )  # the threads have the same tokens: no barrier
    plan.attention.store_kv(layer, keys, keys)
    plan.barrier()


def _absorbed(
    d: Decoder, weights: list[Tensor], attention: Attention, latent: Latent, queries: Activations
) -> Activations:
    """Return queries in the form of the cached keys: the rotated elements, and the rest times the
    matrix of keys."""
    plan = d.plan
    n = attention.n_heads
    width = attention.key_dim
    rope = attention.rope
    assert rope is not None
    q = d.buffers.vector("q", n * width)
    plain = latent.plain_dim(attention)
    turned = width - latent.rank
    plan.copy(queries, (plain, latent.key_dim), q, (0, width), turned, n)
    _each_head(d, weights, (queries, latent.key_dim, 0), (q, width, turned))
    plan.attention.rope(q, width, d.rotations[rope], d.query_angles(rope))
    plan.attention.hadamard(width, q)
    plan.barrier()
    return q


def _each_head(
    d: Decoder,
    weights: list[Tensor],
    source: tuple[Activations, int, int],
    target: tuple[Activations, int, int],
) -> None:
    """Multiply some elements of each head by the matrix of the head.

    Args:
        source, target: (vector, offset between heads, offset in a head).
    """
    plan = d.plan
    x, step, first = source
    out, out_step, out_first = target
    inputs = [
        d.buffers.vector(f"head {head}", weight.n_cols) for head, weight in enumerate(weights)
    ]
    for head, head_input in enumerate(inputs):
        plan.copy(x, (head * step + first, 0), head_input, (0, 0), head_input.n)
    plan.barrier()
    n_operations = len(plan.operations)
    for head_input, weight in zip(inputs, weights, strict=True):
        plan.quantize(head_input, weight)
    if len(plan.operations) > n_operations:
        plan.barrier()
    for head, (head_input, weight) in enumerate(zip(inputs, weights, strict=True)):
        plan.matmul(weight, head_input, out, first=head * out_step + out_first)
    plan.barrier()
