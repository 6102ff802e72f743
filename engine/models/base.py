"""What an architecture consists of, and the lists of tensors that decoder-only architectures put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.models import decoder
from engine.weights.weights import TensorSpec

if TYPE_CHECKING:
    from engine.config import Attention, Dense, ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters
    from engine.models.decoder import Decoder


@dataclass(frozen=True)
class Architecture:
    """Everything the engine asks of an architecture; each is one file of this package.

    Attributes:
        read: hyperparameters -> configuration; raises what is wrong with them.
        tensors: configuration -> every tensor that a file may hold, by GGUF name.
        compose: writes the layers, from token ids to the residual stream.
        head: writes what makes logits of the residual stream.
    """

    read: Callable[[Hyperparameters], ModelConfig]
    tensors: Callable[[ModelConfig], dict[str, TensorSpec]]
    compose: Callable[[Decoder], None] = decoder.all_layers
    head: Callable[[Decoder], None] = decoder.output_head


def outer_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Embedding, last norm, and the head; without ``output.weight`` the embedding serves as head too."""
    return {
        "token_embd.weight": TensorSpec((config.vocab_size, config.dim), is_table=True),
        "output_norm.weight": TensorSpec((config.dim,)),
        "output.weight": TensorSpec((config.vocab_size, config.dim), required=False, replaces="token_embd.weight"),
    }


def decoder_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Everything that the configuration itself says a file must hold: the outer tensors and those of all layers."""
    tensors = outer_tensors(config)
    for number, layer in enumerate(config.layers):
        block = f"blk.{number}."
        if layer.norm_before:
            tensors |= {block + f"{name}_norm.weight": TensorSpec((config.dim,)) for name in ("attn", "ffn")}
        if layer.norm_behind:
            tensors |= {block + name: TensorSpec((config.dim,)) for name in decoder.NORMS_BEHIND}
        tensors |= attention_tensors(block, layer.mixer, config.dim)
        tensors |= dense_tensors(block, layer.feed_forward, config.dim)
    return tensors


def attention_tensors(block: str, attention: Attention, dim: int) -> dict[str, TensorSpec]:
    """Projections of one layer's attention, and the norms of its heads where it has them."""
    tensors = {
        block + "attn_q.weight": TensorSpec((attention.q_dim, dim)),
        block + "attn_k.weight": TensorSpec((attention.k_dim, dim)),
        block + "attn_v.weight": TensorSpec((attention.v_dim, dim)),
        block + "attn_output.weight": TensorSpec((dim, attention.out_dim)),
    }
    if attention.head_norms:
        tensors |= {block + f"attn_{letter}_norm.weight": TensorSpec((attention.key_dim,)) for letter in "qk"}
    return tensors


def dense_tensors(block: str, feed_forward: Dense, dim: int) -> dict[str, TensorSpec]:
    """Matrices of one layer's gated feed-forward."""
    return {
        block + "ffn_gate.weight": TensorSpec((feed_forward.hidden_dim, dim)),
        block + "ffn_up.weight": TensorSpec((feed_forward.hidden_dim, dim)),
        block + "ffn_down.weight": TensorSpec((dim, feed_forward.hidden_dim)),
    }


def qkv_biases(config: ModelConfig, required: bool) -> dict[str, TensorSpec]:
    """Biases of every layer's query, key and value projections."""
    tensors = {}
    for number, attention in config.attentions.items():
        tensors[f"blk.{number}.attn_q.bias"] = TensorSpec((attention.q_dim,), required)
        tensors[f"blk.{number}.attn_k.bias"] = TensorSpec((attention.k_dim,), required)
        tensors[f"blk.{number}.attn_v.bias"] = TensorSpec((attention.v_dim,), required)
    return tensors


def rope_factors(config: ModelConfig) -> dict[str, TensorSpec]:
    """The divisors of frequencies that the layers' ropes name, one for each rotated pair."""
    return {rope.factors: TensorSpec((rope.dim // 2,), required=False) for rope in config.ropes if rope.factors}
