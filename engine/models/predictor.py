"""Prediction of the token after the next, by a block of its own after the layers (MTP).

With h the hidden row of a token after the last norm, and E the embedding of the token chosen after
it::

    x = eh_proj [norm(E); norm(h)]      then an ordinary layer, with a KV cache of its own
    logits of the token after the next = head of norm(x)

The formulas are those of DeepSeek-V3 (arXiv:2412.19437, section 2.2); the names of tensors are
llama.cpp's.
"""

from dataclasses import replace

from engine.config import ModelConfig
from engine.models import steps
from engine.models.base import Architecture, TensorList
from engine.models.decoder import Decoder, Stage
from engine.models.reading import PREDICTOR_INPUT
from engine.plan.buffers import Activations
from engine.weights.weights import Tensor, TensorSpec, Weights


def tensors(config: ModelConfig, layers: TensorList) -> dict[str, TensorSpec]:
    """Return the tensors of the predictor; empty if the file has none.

    Args:
        layers: Function that returns the tensors of the architecture's layers.
    """
    if config.predictor is None:
        return {}
    dim = config.dim
    block = f"blk.{config.n_layers}."
    extended = layers(config.with_predictor)
    in_layer = {name: spec for name, spec in extended.items() if name.startswith(block)}
    vocabulary = (config.vocab_size, dim)
    own = {
        PREDICTOR_INPUT: TensorSpec((dim, 2 * dim)),
        "nextn.enorm.weight": TensorSpec((dim,)),
        "nextn.hnorm.weight": TensorSpec((dim,)),
        "nextn.shared_head_norm.weight": TensorSpec((dim,), required=False),
        "nextn.shared_head_head.weight": TensorSpec(vocabulary, required=False),
        "nextn.embed_tokens.weight": TensorSpec(vocabulary, required=False, is_table=True),
    }
    all_tensors = in_layer | {block + name: spec for name, spec in own.items()}
    # No decode step reads them: a guess is computed only where that pays.
    return {name: replace(spec, read_share=0.0) for name, spec in all_tensors.items()}


def follow(
    d: Decoder, architecture: Architecture, hidden: Activations, is_batch: bool = False
) -> None:
    """Write what the predictor stores for the tokens of a run, after their layers.

    Args:
        hidden: Row 0 is that of the token before the run; those of the run's tokens are written
            after it.
        is_batch: Whether each token is of a sequence of its own, and each row of ``hidden`` that of
            the token before it; nothing is written there.
    """
    plan = d.plan
    dim = d.config.dim
    normed = d.buffers.vector("after the last norm", dim)
    steps.normed_by(d, d.x, "output_norm", normed)
    plan.barrier()
    if not is_batch:
        plan.copy(normed, (0, 0), hidden, (dim, 0), dim)
        plan.barrier()
    extended = d.config.with_predictor
    architecture.compose(replace(d, config=extended, stage=Stage.STORED, hidden=hidden))


def output_matrix(config: ModelConfig, weights: Weights) -> Tensor:
    """Return the matrix of the predictor's logits: its own, or the model's."""
    own = weights.get(f"blk.{config.n_layers}.nextn.shared_head_head.weight")
    return own or weights.get("output.weight") or weights["token_embd.weight"]


def draft(d: Decoder, architecture: Architecture, hidden: Activations, head: Tensor) -> None:
    """Write the prediction for one token: logits in the vector "draft logits".

    Args:
        head: Output matrix, or some of its rows.
    """
    plan = d.plan
    extended = replace(d, config=d.config.with_predictor, stage=Stage.ALL, hidden=hidden)
    architecture.compose(extended)
    layer = d.config.n_layers
    dim = d.config.dim
    norm = d.optional(layer, "nextn.shared_head_norm.weight") or d.weights["output_norm.weight"]
    normed = d.buffers.vector("last_normed", dim, 1)
    plan.phase = "output head"
    norm_of = plan.layernorm if architecture.predictor_layer_norm else plan.rmsnorm
    norm_of(extended.x, norm, normed, d.config.norm_eps)
    plan.barrier()
    plan.quantize(normed, head)
    plan.barrier()
    plan.matmul(head, normed, d.buffers.vector("draft logits", head.n_rows, 1))
    plan.barrier()
