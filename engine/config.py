"""Hyperparameters of a model, read from GGUF metadata and checked before anything is sized by them.

Knows the table *GGUF key -> field* and each field's bounds. Knows no tensors (``engine.weights``) and no arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import EngineError, GGUFError, UnsupportedArchitectureError, shown
from engine.gguf_strings import StringArray, StringCount
from engine.models import ARCHITECTURES

if TYPE_CHECKING:
    from engine.gguf import GGUFFile

GGUF_KEYS: dict[str, str] = {
    "n_layers": "block_count",
    "dim": "embedding_length",
    "hidden_dim": "feed_forward_length",
    "n_heads": "attention.head_count",
    "n_kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "value_dim": "attention.value_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_dim": "rope.dimension_count",
    "rope_scaling_type": "rope.scaling.type",
    "rope_scaling_factor": "rope.scaling.factor",
    "rope_scale_linear": "rope.scale_linear",
    "context_length": "context_length",
    "vocab_size": "vocab_size",
    "n_experts": "expert_count",
    "causal": "attention.causal",
}
"""Field of the configuration -> key, each behind the architecture's name and a dot."""

MAX_LAYERS = 512
MAX_DIM = 1 << 20
MAX_HEADS = 1 << 10
MAX_HEAD_DIM = 1 << 10
MAX_CONTEXT_LENGTH = 1 << 30
MAX_VOCAB_SIZE = 1 << 21
LEAST_POSITIVE = 2.0**-126
"""What float32 holds in full, as files keep such numbers: no quotient of two of them overflows float64."""
DIM_MULTIPLE = 8
"""Of the width and of a head: kernels take eight floats at a time and have no rest."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of one model.

    Attributes:
        architecture: a key of ``engine.models.ARCHITECTURES``.
        dim: width of the residual stream.
        hidden_dim: width inside the feed-forward block.
        n_heads: query heads; a multiple of ``n_kv_heads``.
        head_dim: width of one head, a multiple of 8. ``n_heads * head_dim`` need not equal ``dim``.
        norm_eps: added to the mean square before the root.
        rope_theta: base of the rotation frequencies.
        rope_dim: how many elements of a head are rotated; even, at most ``head_dim``.
        rope_scaling_factor: positions are divided by it (linear scaling); 1.0 where the model has none.
        context_length: positions the model was trained for; sizes nothing by itself.
        vocab_size: length of the token list, which is also the number of embedding rows.
    """

    architecture: str
    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_dim: int
    rope_scaling_factor: float
    context_length: int
    vocab_size: int

    @property
    def q_dim(self) -> int:
        """Width of all query heads together."""
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key heads, or of all value heads, together."""
        return self.n_kv_heads * self.head_dim

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> ModelConfig:
        """Read and check every hyperparameter.

        Raises:
            UnsupportedArchitectureError: a sound file of an architecture that is not in ``ARCHITECTURES``.
            GGUFError: a key is missing, has the wrong type, or contradicts another or the engine's bounds.
        """
        return cls.from_metadata(gguf.metadata, gguf.shown_name)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], file_name: str) -> ModelConfig:
        """Do what ``from_gguf`` does for bare metadata; ``file_name`` begins each message."""
        architecture = _architecture(metadata, file_name)
        read = _Reader(metadata, architecture, file_name)
        _refuse_what_is_no_whole_model(read)
        n_layers = read.integer("n_layers", 1, MAX_LAYERS)
        dim = read.integer("dim", 1, MAX_DIM)
        if dim % DIM_MULTIPLE:
            raise read.fail(f"{read.key('dim')} is {dim}: must be a multiple of {DIM_MULTIPLE}")
        n_heads = read.per_layer("n_heads", n_layers, 1, MAX_HEADS)
        head_dim = _head_dim(read, dim, n_heads)
        return cls(
            architecture=architecture,
            dim=dim,
            hidden_dim=read.per_layer("hidden_dim", n_layers, 1, MAX_DIM),
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=_n_kv_heads(read, n_layers, n_heads),
            head_dim=head_dim,
            norm_eps=_norm_eps(read),
            rope_theta=read.positive("rope_theta", default=10000.0),
            rope_dim=_rope_dim(read, head_dim),
            rope_scaling_factor=_rope_scaling_factor(read),
            context_length=read.integer("context_length", 1, MAX_CONTEXT_LENGTH),
            vocab_size=_vocab_size(read),
        )


class _Reader:
    """Typed, bounded access to the keys of one architecture."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, file_name: str) -> None:
        self.metadata = metadata
        self._architecture = architecture
        self._file_name = file_name

    def key(self, field: str) -> str:
        """Spell a field's key as it stands in the file."""
        return f"{self._architecture}.{GGUF_KEYS[field]}"

    def fail(self, problem: str) -> EngineError:
        """Make the exception for a problem: one line, beginning with the file's name."""
        return GGUFError(f"{self._file_name}: {problem}")

    def raw(self, field: str) -> Any:
        """Return the value as it stands, or None."""
        return self.metadata.get(self.key(field))

    def integer(self, field: str, least: int, most: int, default: int | None = None) -> int:
        """Read an integer between two bounds; required where there is no default."""
        value = self.raw(field)
        if value is None:
            if default is None:
                raise self.fail(f"{self.key(field)} is missing")
            return default
        return self._bounded(field, value, least, most)

    def per_layer(self, field: str, n_layers: int, least: int, most: int, default: int | None = None) -> int:
        """Read an integer that may be given once, or once per layer with the same value each time."""
        value = self.raw(field)
        if not isinstance(value, np.ndarray):
            return self.integer(field, least, most, default)
        if len(value) != n_layers:
            raise self.fail(f"{self.key(field)} has {len(value)} values for {n_layers} layers")
        if value.dtype.kind not in "iu":
            raise self.fail(f"{self.key(field)} is an array of {value.dtype}: must be integers")
        if (value != value[0]).any():
            raise self.fail(f"{self.key(field)} differs between layers, which is not supported")
        return self._bounded(field, int(value[0]), least, most)

    def number(self, field: str, default: float | None = None) -> float:
        """Read a finite float; required where there is no default."""
        value = self.raw(field)
        if value is None:
            if default is None:
                raise self.fail(f"{self.key(field)} is missing")
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.fail(f"{self.key(field)} is {_kind(value)}: must be a number")
        if not math.isfinite(value):
            raise self.fail(f"{self.key(field)} is {value}: must be finite")
        return float(value)

    def positive(self, field: str, default: float | None = None) -> float:
        """Read a finite float above zero, and not so small that what is divided by it overflows."""
        value = self.number(field, default)
        if value < LEAST_POSITIVE:
            raise self.fail(f"{self.key(field)} is {value}: must be positive, and no smaller than float32 can hold")
        return value

    def _bounded(self, field: str, value: Any, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(f"{self.key(field)} is {_kind(value)}: must be an integer")
        if not least <= value <= most:
            raise self.fail(f"{self.key(field)} is {value}: must be {least} to {most}")
        return value


def _kind(value: Any) -> str:
    """Name the kind of a metadata value, for messages."""
    if isinstance(value, (list, np.ndarray)):
        return "an array"
    return {bool: "a bool", str: "a string", int: "an integer", float: "a float"}.get(type(value), "of an unknown type")


def _architecture(metadata: Mapping[str, Any], file_name: str) -> str:
    value = metadata.get("general.architecture")
    if value is None:
        raise GGUFError(f"{file_name}: general.architecture is missing")
    if not isinstance(value, str):
        raise GGUFError(f"{file_name}: general.architecture is {_kind(value)}: must be a string")
    if value not in ARCHITECTURES:
        raise UnsupportedArchitectureError(
            f"{file_name}: general.architecture '{shown(value)}' is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    return value


def _refuse_what_is_no_whole_model(read: _Reader) -> None:
    """Refuse adapters, parts of split models, embedding models and mixtures of experts, by name."""
    kind = read.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":  # an array compares entry by entry
        what = f"'{shown(kind)}'" if isinstance(kind, str) else _kind(kind)
        raise read.fail(f"general.type is {what}: this is not a language model (get the model itself)")
    n_parts = read.metadata.get("split.count", 0)
    if not isinstance(n_parts, int) or isinstance(n_parts, bool):
        raise read.fail(f"split.count is {_kind(n_parts)}: must be an integer")
    if n_parts > 1:
        raise read.fail(f"split.count is {n_parts}: the model is split into files (open its first part)")
    if read.integer("n_experts", 0, MAX_DIM, default=0):
        raise read.fail(f"{read.key('n_experts')} is {read.raw('n_experts')}: mixtures of experts are not supported")
    causal = read.raw("causal")
    if causal is not None and causal is not True:
        raise read.fail(f"{read.key('causal')} is not true: only models that write text are supported")


def _head_dim(read: _Reader, dim: int, n_heads: int) -> int:
    if read.raw("head_dim") is None and dim % n_heads:
        raise read.fail(f"{read.key('n_heads')} is {n_heads}, which does not divide {read.key('dim')} {dim}")
    head_dim = read.integer("head_dim", 1, MAX_HEAD_DIM, default=dim // n_heads)
    if head_dim > MAX_HEAD_DIM or head_dim < DIM_MULTIPLE or head_dim % DIM_MULTIPLE:
        raise read.fail(
            f"heads of {head_dim} elements are not supported ({read.key('head_dim')}, or {read.key('dim')} / "
            f"{read.key('n_heads')}): must be a multiple of {DIM_MULTIPLE} up to {MAX_HEAD_DIM}"
        )
    value_dim = read.integer("value_dim", 1, MAX_HEAD_DIM, default=head_dim)
    if value_dim != head_dim:
        raise read.fail(f"{read.key('value_dim')} is {value_dim}, keys have {head_dim}: must be equal")
    return head_dim


def _n_kv_heads(read: _Reader, n_layers: int, n_heads: int) -> int:
    n_kv_heads = read.per_layer("n_kv_heads", n_layers, 1, MAX_HEADS, default=n_heads)
    if n_heads % n_kv_heads:
        raise read.fail(f"{read.key('n_kv_heads')} is {n_kv_heads}, which does not divide the {n_heads} heads")
    return n_kv_heads


def _norm_eps(read: _Reader) -> float:
    norm_eps = read.positive("norm_eps")
    if norm_eps >= 1:
        raise read.fail(f"{read.key('norm_eps')} is {norm_eps}: must be below 1")
    return norm_eps


def _rope_dim(read: _Reader, head_dim: int) -> int:
    rope_dim = read.integer("rope_dim", 2, head_dim, default=head_dim)
    if rope_dim % 2:
        raise read.fail(f"{read.key('rope_dim')} is {rope_dim}: must be even")
    return rope_dim


def _rope_scaling_factor(read: _Reader) -> float:
    """Read linear scaling; without a type it is linear, and the older key counts where the newer is missing."""
    kind = read.raw("rope_scaling_type")
    if kind is not None and not isinstance(kind, str):
        raise read.fail(f"{read.key('rope_scaling_type')} is {_kind(kind)}: must be a string")
    if kind not in (None, "none", "linear"):
        raise read.fail(
            f"{read.key('rope_scaling_type')}: rope scaling '{shown(kind)}' is not supported; supported: linear"
        )
    if kind == "none":
        return 1.0
    return read.positive("rope_scaling_factor", default=read.positive("rope_scale_linear", default=1.0))


def _vocab_size(read: _Reader) -> int:
    key = "tokenizer.ggml.tokens"
    tokens = read.metadata.get(key)
    if tokens is None:
        raise read.fail(f"{key} is missing")
    if not isinstance(tokens, (list, StringArray, StringCount)):
        raise read.fail(f"{key} is not an array of strings")
    if not len(tokens):
        raise read.fail(f"{key} is empty")
    declared = read.integer("vocab_size", 1, MAX_VOCAB_SIZE, default=len(tokens))
    if declared != len(tokens):
        raise read.fail(f"{read.key('vocab_size')} is {declared} but {key} has {len(tokens)} entries")
    return len(tokens)
