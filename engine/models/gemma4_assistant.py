"""Architecture gemma4-assistant (drafters of Gemma 4): a small model that guesses the next tokens
of a large one.

With h the large model's row of a token after the last norm, and E its embedding of the token
chosen after it::

    x = pre_projection [sqrt(dim) E; h]      then layers of queries alone
    logits of the token after the next = embedding of norm(x)
    h for the next guess = post_projection norm(x)

The layers store nothing: they read the keys and values of the large model's last layers with a
window and without one. The tokens of a row of guesses all have the position of the chosen token,
whose own keys are not there yet. Names of tensors and keys are llama.cpp's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.models import reading, steps
from engine.models.base import rope_factors
from engine.models.decoder import Decoder
from engine.models.gemma4 import FACTORS, head_of_windows, scale_layer, slides_of
from engine.weights.weights import TensorSpec

if TYPE_CHECKING:
    from engine.gguf.hyperparameters import Hyperparameters
    from engine.plan.buffers import Activations
    from engine.weights.weights import Tensor

NAME = "gemma4-assistant"
FAMILY = "gemma4"
"""Architecture of the large models."""
EMBEDDING = "token_embd.weight"
BEFORE = "nextn.pre_projection.weight"
AFTER = "nextn.post_projection.weight"
HANDED_ON = "handed on by assistant"
"""Vector that the next guess reads instead of the model's row."""


def config_of(read: Hyperparameters, model: ModelConfig) -> ModelConfig:
    """Read the configuration of an assistant for a model.

    ``Attention.kv_of`` is the number of the model's layer whose keys and values a layer reads.

    Raises:
        EngineError: A key is missing or wrong, or the assistant is one of another model.
    """
    if model.architecture != FAMILY:
        raise read.fail(f"guesses ahead for Gemma 4, not for {model.architecture}")
    dim = read.integer("embedding_length_out", 1, reading.MAX_DIM)
    if dim != model.dim:
        raise read.fail(f"guesses ahead for a model of width {dim}, this one has {model.dim}")
    slides = slides_of(read)
    window = read.integer("attention.sliding_window", 2, reading.MAX_CONTEXT_LENGTH)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        assert attention.rope is not None
        mixer = replace(attention, head_norms=True, scale=1.0)
        if slides[number]:
            width, rope = head_of_windows(read, attention.rope)
            # The chosen token's own position, which is not stored yet, is one of the window.
            mixer = replace(mixer, window=window - 1, key_dim=width, value_dim=width, rope=rope)
        mixer = replace(mixer, kv_of=_source(read, model, mixer))
        return Layer(mixer, replace(feed_forward, gate="gelu"), norm_after=True)

    config = reading.decoder_config(read, layer, neighbours=False, factors=FACTORS)
    if config.vocab_size != model.vocab_size:
        raise read.fail(
            f"guesses ahead for a vocabulary of {config.vocab_size:,} tokens, this model has "
            f"{model.vocab_size:,}"
        )
    return config


def _source(read: Hyperparameters, model: ModelConfig, mixer: Attention) -> int:
    """Return the last layer of the model that has a window, or none, like the mixer."""
    sources = [
        (number, attention)
        for number, attention in model.attentions.items()
        if (attention.window is None) == (mixer.window is None)
    ]
    if not sources:
        raise read.fail("guesses ahead for another model: this one has no such layers")
    number, source = sources[-1]
    shape = source.n_kv_heads, source.key_dim
    if shape != (mixer.n_kv_heads, mixer.key_dim):
        raise read.fail(
            f"guesses ahead for a model with {mixer.n_kv_heads} key heads of {mixer.key_dim}, this "
            f"one has {shape[0]} of {shape[1]}"
        )
    if mixer.window is not None and source.window is not None and mixer.window >= source.window:
        raise read.fail(
            f"guesses ahead for a model with a window of {mixer.window + 1}, this one has "
            f"{source.window}"
        )
    return number


def tensors(config: ModelConfig, model_dim: int) -> dict[str, TensorSpec]:
    """Return all tensors that a file may contain.

    Args:
        model_dim: Width of the large model.
    """
    dim = config.dim
    specs = {
        EMBEDDING: TensorSpec((config.vocab_size, dim)),
        "output_norm.weight": TensorSpec((dim,)),
        BEFORE: TensorSpec((dim, 2 * model_dim)),
        AFTER: TensorSpec((model_dim, dim)),
        **{name: replace(spec, required=True) for name, spec in rope_factors(config).items()},
    }
    for number, attention in config.attentions.items():
        block = f"blk.{number}."
        form = config.layers[number].feed_forward
        assert isinstance(form, Dense)
        specs[block + "attn_q.weight"] = TensorSpec((attention.q_dim, dim))
        specs[block + "attn_output.weight"] = TensorSpec((dim, attention.q_dim))
        specs[block + "attn_q_norm.weight"] = TensorSpec((attention.key_dim,))
        specs[block + "layer_output_scale.weight"] = TensorSpec((1,))
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            specs[f"{block}{norm}.weight"] = TensorSpec((dim,))
        specs[block + "ffn_gate.weight"] = TensorSpec((form.hidden_dim, dim))
        specs[block + "ffn_up.weight"] = TensorSpec((form.hidden_dim, dim))
        specs[block + "ffn_down.weight"] = TensorSpec((dim, form.hidden_dim))
    return specs


IGNORED = "masked_embd_centroids.weight", "masked_embd_ordering"
"""Tensors that group the rows of the head; they are not used."""


def draft(d: Decoder, embedding: Tensor, hidden: Activations, head: Tensor) -> None:
    """Write the guess after one token: logits in the vector "draft logits".

    The step of the plan has the index before the chosen token's, up to which keys are stored, and
    the position of the chosen token itself (``StepRecords.set_chosen``).

    Args:
        embedding: The model's.
        hidden: The model's row of the token before, or the row handed on by the last guess.
        head: The assistant's embedding, or some of its rows.
    """
    plan = d.plan
    model_dim = hidden.n
    plan.phase = "embedding"
    embedded = d.buffers.vector("embedded for assistant", model_dim, 1)
    plan.embed(embedding, embedded)
    plan.scale(embedded, model_dim**0.5)
    plan.barrier()
    pair = d.buffers.vector("embedding and hidden", 2 * model_dim, 1)
    for first, part in ((0, embedded), (model_dim, hidden)):
        plan.copy(part, (0, 0), pair, (first, 0), model_dim)
    plan.barrier()
    before = d.weights[BEFORE]
    plan.quantize(pair, before)
    plan.barrier()
    plan.matmul(before, pair, d.x)
    for rope in d.config.ropes:
        plan.attention.angles(d.rotations[rope], d.angles(rope), is_index=False)
    plan.barrier()
    steps.each_layer(d, end_layer=lambda layer: scale_layer(d, layer))

    plan.phase = "output head"
    normed = d.buffers.vector("normed of assistant", d.config.dim, 1)
    steps.normed_by(d, d.x, "output_norm", normed)
    plan.barrier()
    after = d.weights[AFTER]
    plan.quantize(normed, head, after)
    plan.barrier()
    plan.matmul(head, normed, d.buffers.vector("draft logits", head.n_rows, 1))
    plan.matmul(after, normed, d.buffers.vector(HANDED_ON, model_dim, 1))
    plan.barrier()
