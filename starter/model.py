"""The model in PyTorch: what ``general.architecture = llama`` means, with rope that turns
neighbouring elements."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from starter.format import Shape


def rope_table(shape: Shape) -> Tensor:
    """Return complex numbers of magnitude 1, of shape (context, 1, head_width / 2)."""
    frequencies = shape.rope_base ** (
        -torch.arange(0, shape.head_width, 2, dtype=torch.float64) / shape.head_width
    )
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), frequencies)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)[:, None]


def _turn(x: Tensor, turns: Tensor) -> Tensor:
    """Apply RoPE to x (batch, length, heads, head_width): neighbours form a complex number."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


class Layer(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_width
        self.attn_norm = nn.Parameter(torch.ones(shape.width))
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_v = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(shape.width))
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor, turns: Tensor, positions: Tensor | None = None) -> Tensor:
        """Take and return the residual stream (batch, length, width).

        Args:
            x: Residual stream.
            turns: Rotations, see ``rope_table``.
            positions: Mask (batch, length) of the positions that are computed after the attention;
                the result is then (count, width).
        """
        mixed = self._attention(
            F.rms_norm(x, (x.shape[-1],), self.attn_norm, self.shape.epsilon), turns
        )
        if positions is not None:
            x = x[positions]
            mixed = mixed[positions]
        x = x + self.attn_output(mixed)
        y = F.rms_norm(x, (x.shape[-1],), self.ffn_norm, self.shape.epsilon)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))

    def _attention(self, y: Tensor, turns: Tensor) -> Tensor:
        batch, length, width = y.shape
        heads = self.shape.heads
        kv_heads = self.shape.kv_heads
        head_width = self.shape.head_width
        q = _turn(self.attn_q(y).view(batch, length, heads, head_width), turns)
        k = _turn(self.attn_k(y).view(batch, length, kv_heads, head_width), turns)
        v = self.attn_v(y).view(batch, length, kv_heads, head_width)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class Starter(nn.Module):
    """The whole model; the output head is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        self.register_buffer("turns", rope_table(shape), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.token_embd, std=self.shape.width**-0.5)
        for layer in self.blk:
            for name, weights in layer.named_parameters():
                if weights.ndim == 2:
                    scale = 1.0
                    if name.startswith(("attn_output", "ffn_down")):
                        scale = (2 * self.shape.layers) ** -0.5
                    nn.init.normal_(weights, std=scale * weights.shape[1] ** -0.5)

    def hidden(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the normalised output of all layers for ids (batch, length).

        The shape is (batch, length, width), or (count, width) with a mask of positions. Other
        positions need only keys and values of the last layer, and only a third is learnt.
        """
        x = F.embedding(ids, self.token_embd)
        turns = self.turns[: ids.shape[1]]
        *layers, last = self.blk
        for layer in layers:
            x = layer(x, turns)
        x = last(x, turns, positions)
        return F.rms_norm(x, (x.shape[-1],), self.output_norm, self.shape.epsilon)

    def loss(self, ids: Tensor, is_learnt: Tensor) -> Tensor:
        """Sum the cross entropies of the marked ids (batch, length), each predicted from those
        before it."""
        chosen = is_learnt[:, 1:]
        # The wide product with the vocabulary is computed only for these positions.
        hidden = self.hidden(ids[:, :-1], chosen)
        return F.cross_entropy(hidden @ self.token_embd.T, ids[:, 1:][chosen], reduction="sum")

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (batch, length, vocabulary)."""
        return self.hidden(ids) @ self.token_embd.T
