"""Tiny models with a block that predicts the token after the next (MTP), and their NumPy twins."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine import Model
from tests.engine import architectures, tiny_gguf
from tests.engine.architectures import test_gemma4
from tests.engine.families import family
from tests.engine.reference import Array, Twin

PREDICTING = ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek2", "nemotron_h_moe"]
"""Architectures whose predictors are used."""
LAYER_NORMED = ["nemotron_h_moe"]
"""Architectures with a LayerNorm before the predictor's logits."""
CONTEXT = 512
ASSISTANT = "gemma4-assistant"
SLIDES = [True, True, True, False]
"""Layers of the tiny assistant with a window."""


def described(name: str) -> tiny_gguf.TinyGGUF:
    """Return a tiny model of a few layers and a predictor."""
    if name == "nemotron_h_moe":
        model = _single_branches(name)
    elif name == "deepseek2":
        model = family(name, n_layers=3, context_length=CONTEXT)
    else:
        model = family(name, n_layers=3, context_length=CONTEXT, head_dim=32)
    model.set(f"{name}.nextn_predict_layers", 1)
    block = f"blk.{model.value(f'{name}.block_count') - 1}.nextn."
    rng = np.random.default_rng(11)
    dim = model.value(f"{name}.embedding_length")
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        model.add_vector(f"{block}{norm}.weight", rng.uniform(0.5, 1.5, dim))
    model.add_rows(f"{block}eh_proj.weight", rng.normal(0, 0.1, (dim, 2 * dim)))
    return model


def _single_branches(name: str) -> tiny_gguf.TinyGGUF:
    """Return a model with one branch in each layer, and both in the predictor."""
    model = tiny_gguf.model(name, n_layers=4, order="amf", context_length=CONTEXT, head_dim=32)
    model.set(f"{name}.attention.layer_norm_epsilon", 1e-5)
    widths = [0, 0, 96, 96]
    model.set(f"{name}.feed_forward_length", np.array(widths, "<u4"))
    for tensor in list(model.tensors):
        text = str(tensor.name)
        if text.startswith("blk.2."):
            text = text.replace("blk.2.", "blk.3.").replace("attn_norm", "post_attention_norm")
            model.tensors.append(
                tiny_gguf.TensorEntry(text, tensor.dims, tensor.ggml_type, tensor.data)
            )
    return model


def assisted_model(**arguments: Any) -> tiny_gguf.TinyGGUF:
    """Return a tiny Gemma 4 of six layers, the last two of which store nothing."""
    described = test_gemma4.tiny(n_layers=6, shared=2, seed=3, **arguments)
    described.drop("gemma4.final_logit_softcapping")
    return described


def assistant_of(model: tiny_gguf.TinyGGUF) -> tiny_gguf.TinyGGUF:
    """Return an assistant of a tiny model."""
    dim, width = (
        model.value(f"gemma4.{key}") for key in ("embedding_length", "attention.key_length")
    )
    described = tiny_gguf.decoder(
        ASSISTANT, n_layers=4, dim=32, n_heads=4, n_kv_heads=2, head_dim=width, tied=True,
        norms_after=True, head_norms=True, seed=5,
    )  # fmt: skip
    rng = np.random.default_rng(6)
    for key in ("sliding_window", "key_length_swa", "value_length_swa"):
        described.set(f"{ASSISTANT}.attention.{key}", model.value(f"gemma4.attention.{key}"))
    for key in ("rope.dimension_count_swa", "rope.freq_base", "rope.freq_base_swa"):
        described.set(f"{ASSISTANT}.{key}", model.value(f"gemma4.{key}"))
    described.set(f"{ASSISTANT}.embedding_length_out", dim)
    described.set(f"{ASSISTANT}.nextn_predict_layers", 4)
    described.set(f"{ASSISTANT}.attention.sliding_window_pattern", np.array(SLIDES))
    described.set(f"{ASSISTANT}.attention.head_count_kv", np.array([1, 1, 1, 2], "<u4"))
    described.tensors.append(model.tensor("rope_freqs.weight"))
    described.drop_tensors("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
    for number, slides in enumerate(SLIDES):
        block = f"blk.{number}."
        described.add_vector(block + "layer_output_scale.weight", rng.uniform(0.6, 1.0, 1))
        if slides:
            for name, shape in (("q", (4 * width // 2, 32)), ("output", (32, 4 * width // 2))):
                described.drop_tensor(f"{block}attn_{name}.weight")
                described.add_rows(f"{block}attn_{name}.weight", rng.normal(0, 0.2, shape))
            described.drop_tensor(block + "attn_q_norm.weight")
            described.add_vector(block + "attn_q_norm.weight", rng.uniform(0.5, 1.5, width // 2))
    described.add_rows("nextn.pre_projection.weight", rng.normal(0, 0.1, (32, 2 * dim)))
    described.add_rows("nextn.post_projection.weight", rng.normal(0, 0.2, (dim, 32)))
    return described


class HiddenTwin(Twin):
    """Twin that ends with the rows after the last norm."""

    def unembed(self, normed: Array) -> Array:
        return normed


class PredictorTwin(Twin):
    """Twin whose only layer is the predictor.

    Args:
        hidden: Rows after the last norm of the token before each token.
    """

    def __init__(self, checked: Any, hidden: Array) -> None:
        super().__init__(checked)
        self._hidden = hidden
        self._block = f"blk.{len(super().blocks)}."

    @property
    def blocks(self) -> list[str]:
        return [self._block]

    def heads_of(self, key: str, block: str) -> int:
        value = self.key(key)
        return int(value[-1]) if isinstance(value, np.ndarray) else value

    def embed(self, ids: list[int]) -> Array:
        embedded = self.norm(super().embed(ids), self._block + "nextn.enorm")
        hidden = self.norm(self._hidden, self._block + "nextn.hnorm")
        return self.project(np.hstack([embedded, hidden]), self._block + "nextn.eh_proj")

    def norm(self, x: Array, name: str, suffix: str = ".weight") -> Array:
        if name != "output_norm":
            return super().norm(x, name, suffix)
        name = self._block + "nextn.shared_head_norm"
        if self.metadata["general.architecture"] in LAYER_NORMED:
            return self.layer_norm(x, name)
        return super().norm(x, name, suffix)


class HiddenPredictorTwin(HiddenTwin, PredictorTwin):
    """Twin of the predictor that ends with the rows after its norm."""


def twin_drafts(model: Model, ids: list[int]) -> Array:
    """Return the predictor's logits for each token and the hidden row before it."""
    logits = architectures.load(model.config.architecture).logits
    hidden = logits(HiddenTwin(model._file), ids)
    before = np.vstack([np.zeros(hidden.shape[1]), hidden[:-1]])
    rows: Array = logits(PredictorTwin(model._file, before), ids)
    return rows


def twin_chain(model: Model, ids: list[int], following: list[int]) -> Array:
    """Return the predictor's logits for tokens after ids; all but the first of these read the
    predictor's own row of the token before them."""
    logits = architectures.load(model.config.architecture).logits
    hidden = logits(HiddenTwin(model._file), ids)
    rows = np.vstack([np.zeros(hidden.shape[1]), hidden])
    for n in range(1, len(following)):
        own = logits(HiddenPredictorTwin(model._file, rows), ids + following[:n])
        rows = np.vstack([rows, own[-1]])
    found: Array = logits(PredictorTwin(model._file, rows), ids + following)[len(ids) :]
    return found
