"""Rows of attention: rotation and norms of heads, the KV cache, and attention over it.

Threads share the heads in the same way in all rows of heads, so no barrier is needed between these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from engine.cache.hadamard import block_of
from engine.kernels import records
from engine.kernels.records import ATTENTION_CHUNK, PARTIAL_HEADER
from engine.machine.memory import Memory
from engine.plan.operation import address_or_zero, float_bits
from engine.plan.rows import POSITIONS_OFFSET

if TYPE_CHECKING:
    from engine.cache.kv_cache import BorrowedCache, KVCache
    from engine.cache.rotation import Rotation
    from engine.config import Attention
    from engine.plan.buffers import Activations
    from engine.plan.rows import PlanRows
    from engine.weights.weights import Tensor


class AttentionRows:
    """Writer of a plan's rows of attention."""

    def __init__(self, plan: PlanRows) -> None:
        self._plan = plan
        self._partial: Memory | None = None

    def angles(
        self,
        rotation: Rotation,
        out: Activations,
        growth: float = 0.0,
        span: int = 1,
        is_index: bool = True,
    ) -> None:
        """Write cos and sin for the step's positions, times the rotation's magnitude.

        The plan holds the frequencies.

        Args:
            growth, span: Both are also multiplied by 1 + growth * ln(1 + floor(position / span)).
            is_index: Whether positions are indices in the cache. If not, they come from the record
                after the step record (``POSITIONS_OFFSET``).
        """
        plan = self._plan
        memory = Memory(rotation.frequencies.nbytes)
        memory.array(np.float64, rotation.frequencies.shape)[:] = rotation.frequencies
        plan.keep(memory)
        for _ in plan.each_lane():
            angles = plan.add_row(
                "angles",
                records.ANGLES,
                None,
                frequencies=memory.address,
                n_pairs=len(rotation.frequencies),
                out=plan.address_of(out),
                magnitude=float_bits(rotation.magnitude),
                growth=float_bits(growth),
                span=span,
            )
            if not is_index:
                angles.arguments["step"] += POSITIONS_OFFSET

    def rope(
        self,
        x: Activations,
        head_dim: int,
        rotation: Rotation | None,
        angles: Activations | None,
        norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        """Normalise every head if there is a norm, and rotate it if there is a rotation.

        ``angles`` are those of the rotation.
        """
        plan = self._plan
        is_rotated = rotation is not None and angles is not None
        if not is_rotated and norm is None:
            return
        plan.add_row(
            "rope",
            records.ROPE,
            x=x.address,
            out=x.address,
            n_heads=x.n // head_dim,
            head_dim=head_dim,
            n_pairs=angles.n // 2 if is_rotated and angles else 0,
            angles=angles.address if is_rotated and angles else 0,
            pair_step=rotation.pair_step if rotation else 0,
            pair_distance=rotation.pair_distance if rotation else 0,
            weight=address_or_zero(norm),
            eps=float_bits(eps),
        )

    def unit_heads(self, x: Activations, head_dim: int, out: Activations, eps: float) -> None:
        """Compute out = every head of x divided by its root mean square."""
        plan = self._plan
        ones = Memory(4 * head_dim)
        ones.array(np.float32, (head_dim,))[:] = 1.0
        plan.keep(ones)
        plan.add_row(
            "rope",
            records.ROPE,
            x=x.address,
            out=out.address,
            n_heads=x.n // head_dim,
            head_dim=head_dim,
            weight=ones.address,
            eps=float_bits(eps),
        )

    def layernorm_heads(self, x: Activations, head_dim: int, weight: Tensor, eps: float) -> None:
        """Normalise every head by a LayerNorm of its own."""
        plan = self._plan
        plan.add_row(
            "layernorm heads",
            records.ROPE,
            x=x.address,
            n_heads=x.n // head_dim,
            head_dim=head_dim,
            weight=weight.address,
            eps=float_bits(eps),
        )

    def split_heads(
        self, x: Activations, head_dim: int, first_halves: Activations, second_halves: Activations
    ) -> None:
        """Split every head of x into two of ``head_dim``."""
        plan = self._plan
        for k, half in enumerate((first_halves, second_halves)):
            plan.copy(
                x,
                (k * head_dim, 2 * head_dim),
                half,
                (0, head_dim),
                head_dim,
                first_halves.n // head_dim,
            )

    def store_kv(self, layer: int, k: Activations, v: Activations) -> None:
        """Write the step's keys and values after the end of the cache, as ``hadamard`` leaves
        them."""
        plan = self._plan
        width = plan.lanes[0].cache.layers[layer].keys.width
        self.hadamard(width, k)
        if v is not k:
            self.hadamard(width, v)
        for lane in plan.each_lane():
            plan.add_row(
                f"store {lane.cache.kv_type.name}",
                records.CACHE,
                None,
                x=plan.address_of(k),
                v=plan.address_of(v),
                head_dim=width,
                n_kv_heads=k.n // width,
                **_cache_words(lane.cache, layer),
            )

    def hadamard(self, width: int, x: Activations) -> None:
        """Multiply every head of x by a Hadamard matrix, in place, if the cache stores heads so."""
        plan = self._plan
        if plan.lanes[0].cache.kv_type.has_hadamard:
            block = block_of(width)
            plan.add_row(
                "hadamard",
                records.HADAMARD,
                x=x.address,
                n_heads=x.n // width,
                head_dim=width,
                block=block,
                factor=float_bits(block**-0.5),
            )

    def attend(
        self,
        layer: int,
        attention: Attention,
        q: Activations,
        out: Activations,
        sinks: Tensor | None = None,
    ) -> None:
        """Compute softmax attention of q over a layer's cache, including the step's own tokens.

        ``q`` is as ``hadamard`` leaves it.

        q comes here as ``hadamard`` left it.

        Args:
            sinks: One more score for each head.
        """
        plan = self._plan
        n_heads = attention.n_heads
        head_dim = attention.key_dim
        shared_words = {
            "n_heads": n_heads, "n_kv_heads": attention.n_kv_heads, "head_dim": head_dim,
            "scale": float_bits(attention.scale), "window": attention.window or 0,
            "soft_cap": float_bits(attention.soft_cap or 0.0), "scratch": plan.scratch[0],
            "scratch_bytes": plan.scratch[1], "sinks": address_or_zero(sinks),
            "slopes": self._slopes(attention), "n_after": attention.sees_after,
        }  # fmt: skip
        caches = [shared_words | _attended_words(lane.cache, layer) for lane in plan.lanes]
        kv_type = plan.lanes[0].cache.kv_type.name
        if not plan.is_decode and len(caches) == 1:
            for head in range(attention.n_kv_heads):
                plan.add_row(
                    f"attention {kv_type}",
                    records.CACHE,
                    None,
                    x=q.address,
                    out=out.address,
                    first_kv_head=head,
                    end_kv_head=head + 1,
                    **caches[0],
                )
                plan.barrier()  # only a cancel needs this barrier
        else:
            result_bytes = (
                n_heads
                * max(words["max_chunks"] for words in caches)
                * 4
                * (PARTIAL_HEADER + head_dim)
            )
            partial = self._partial_results(result_bytes * len(caches))
            addresses = range(partial, partial + result_bytes * len(caches), result_bytes)
            for _, result, words in zip(plan.each_lane(), addresses, caches, strict=True):
                plan.add_row(
                    f"attention parts {kv_type}",
                    records.CACHE,
                    None,
                    x=plan.address_of(q),
                    out=result,
                    **words,
                )
            plan.barrier()
            for _, result, words in zip(plan.each_lane(), addresses, caches, strict=True):
                plan.add_row(
                    "merge attention",
                    records.CACHE,
                    None,
                    x=result,
                    out=plan.address_of(out),
                    **words,
                )
        self.hadamard(head_dim, out)

    def _slopes(self, attention: Attention) -> int:
        """Return the address of each head's slope; 0 without ALiBi."""
        plan = self._plan
        if not attention.alibi:
            return 0
        memory = Memory(4 * attention.n_heads)
        memory.array(np.float32, (attention.n_heads,))[:] = attention.slopes
        plan.keep(memory)
        return memory.address

    def _partial_results(self, n_bytes: int) -> int:
        """Return the address of memory for partial results."""
        plan = self._plan
        if self._partial is None or self._partial.n_bytes < n_bytes:
            self._partial = Memory(n_bytes)
            plan.keep(self._partial)
        return self._partial.address


def _cache_words(cache: KVCache | BorrowedCache, layer: int) -> dict[str, int]:
    """Return the words of a record that describe a layer's cache."""
    keys = cache.layers[layer].keys
    values = cache.layers[layer].values
    assert keys.width == values.width, "the kernels know one width of heads"
    return {
        "k_cache": keys.address, "v_cache": values.address, "n_slots": keys.n_slots,
        "k_scales": keys.scales_address if keys.scale_bytes else 0,
        "v_scales": values.scales_address if values.scale_bytes else 0,
    }  # fmt: skip


def _attended_words(cache: KVCache | BorrowedCache, layer: int) -> dict[str, int]:
    """Return the words of a record that describe a layer's cache for attention."""
    n_chunks = (cache.max_seq_len + ATTENTION_CHUNK - 1) // ATTENTION_CHUNK
    return {"max_chunks": n_chunks, **_cache_words(cache, layer)}
