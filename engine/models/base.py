"""What the decoder-only architectures have in common: which tensors a file must hold, in which shape.

Knows GGUF tensor names. Knows no file, no types and no arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import ModelConfig


@dataclass(frozen=True)
class TensorSpec:
    """One tensor an architecture asks for.

    Attributes:
        shape: (n_rows, n_cols) of a matrix, (n,) of a vector; the reverse of GGUF's dimensions.
        required: a file without it is refused.
    """

    shape: tuple[int, ...]
    required: bool = True


def decoder_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """List embedding, head and every layer's norms, attention and SwiGLU matrices, by GGUF name.

    Without ``output.weight`` the embedding serves as output head too.
    """
    dim, hidden_dim = config.dim, config.hidden_dim
    tensors = {
        "token_embd.weight": TensorSpec((config.vocab_size, dim)),
        "output_norm.weight": TensorSpec((dim,)),
        "output.weight": TensorSpec((config.vocab_size, dim), required=False),
    }
    for layer in range(config.n_layers):
        block = f"blk.{layer}."
        tensors |= {
            block + "attn_norm.weight": TensorSpec((dim,)),
            block + "attn_q.weight": TensorSpec((config.q_dim, dim)),
            block + "attn_k.weight": TensorSpec((config.kv_dim, dim)),
            block + "attn_v.weight": TensorSpec((config.kv_dim, dim)),
            block + "attn_output.weight": TensorSpec((dim, config.q_dim)),
            block + "ffn_norm.weight": TensorSpec((dim,)),
            block + "ffn_gate.weight": TensorSpec((hidden_dim, dim)),
            block + "ffn_up.weight": TensorSpec((hidden_dim, dim)),
            block + "ffn_down.weight": TensorSpec((dim, hidden_dim)),
        }
    return tensors


def qkv_biases(config: ModelConfig, required: bool) -> dict[str, TensorSpec]:
    """List the biases of every layer's query, key and value projections."""
    tensors = {}
    for layer in range(config.n_layers):
        tensors[f"blk.{layer}.attn_q.bias"] = TensorSpec((config.q_dim,), required)
        tensors[f"blk.{layer}.attn_k.bias"] = TensorSpec((config.kv_dim,), required)
        tensors[f"blk.{layer}.attn_v.bias"] = TensorSpec((config.kv_dim,), required)
    return tensors
