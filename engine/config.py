"""The shape of a model as data: what every layer is made of.

Who reads it from a file is the architecture (``engine.models``). Knows no file, no tensors and no arithmetic, so that
cache, memory fit, context shift and saved states can loop over layers that need not be alike.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Rope:
    """How a layer tells positions apart: pairs of elements of queries and keys are turned.

    Attributes:
        theta: base of the frequencies.
        dim: how many elements of a head are turned; even.
        neighbours: pairs are elements 2i and 2i + 1, else i and i + dim / 2.
        scaling_factor: positions are divided by it (linear scaling).
        factors: name of a tensor that divides the frequencies, used where the file has it; "" for none.
    """

    theta: float
    dim: int
    neighbours: bool
    scaling_factor: float = 1.0
    factors: str = ""


@dataclass(frozen=True)
class Attention:
    """A mixer: softmax attention with grouped queries.

    Attributes:
        n_heads: query heads; a multiple of ``n_kv_heads``.
        key_dim: width of a head of queries and keys, a multiple of 8; ``n_heads * key_dim`` need not be the model's.
        value_dim: width of a head of values.
        rope: None where positions are not told apart.
        scale: of the products of queries and keys.
        window: positions that a query sees, its own included; None for all.
        soft_cap: scores s become soft_cap * tanh(s / soft_cap); None for no cap.
        head_norms: every head of queries and keys is normalised before it is turned.
    """

    n_heads: int
    n_kv_heads: int
    key_dim: int
    value_dim: int
    rope: Rope | None
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    head_norms: bool = False

    @property
    def q_dim(self) -> int:
        """Width of all query heads together."""
        return self.n_heads * self.key_dim

    @property
    def k_dim(self) -> int:
        """Width of all key heads together."""
        return self.n_kv_heads * self.key_dim

    @property
    def v_dim(self) -> int:
        """Width of all value heads together."""
        return self.n_kv_heads * self.value_dim

    @property
    def out_dim(self) -> int:
        """Width of all heads' results together."""
        return self.n_heads * self.value_dim


@dataclass(frozen=True)
class Dense:
    """A feed-forward: down(gate function(gate(x)) * up(x)).

    Attributes:
        gate: ``"silu"`` or ``"gelu"`` (the approximation by tanh).
    """

    hidden_dim: int
    gate: str = "silu"


Mixer = Attention
"""What mixes tokens; recurrent layers are other members of this union."""
FeedForward = Dense
"""What follows the mixer; experts are another member of this union."""


@dataclass(frozen=True)
class Layer:
    """One layer: a mixer, then a feed-forward, each a branch that is added to the residual stream.

    Attributes:
        norm_before: each branch reads a normed residual stream.
        norm_behind: what each branch adds is normed.
    """

    mixer: Mixer
    feed_forward: FeedForward
    norm_before: bool = True
    norm_behind: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """The shape of one model.

    Attributes:
        architecture: a key of ``engine.models.ARCHITECTURES``.
        dim: width of the residual stream.
        norm_eps: added to the mean square before the root.
        context_length: positions the model was trained for; sizes nothing by itself.
        vocab_size: length of the token list, which is also the number of embedding rows.
        embedding_scale: what the looked-up embedding is multiplied by.
        logit_soft_cap: logits x become logit_soft_cap * tanh(x / logit_soft_cap); None for no cap.
    """

    architecture: str
    dim: int
    layers: tuple[Layer, ...]
    norm_eps: float
    context_length: int
    vocab_size: int
    embedding_scale: float = 1.0
    logit_soft_cap: float | None = None

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def attentions(self) -> dict[int, Attention]:
        """The layers that attend, by their number."""
        return {i: layer.mixer for i, layer in enumerate(self.layers) if isinstance(layer.mixer, Attention)}

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The ways in which layers tell positions apart, each once, in order of first use."""
        return tuple(dict.fromkeys(one.rope for one in self.attentions.values() if one.rope is not None))

    def summary(self) -> dict[str, Any]:
        """Fields by name for people; what differs between layers is a list of each layer's value.

        What a model does without, such as windows, is left out.
        """
        layers: dict[str, list[Any]] = {}
        for number, layer in enumerate(self.layers):
            fields = _flat(asdict(layer))
            for name in [*fields, *(name for name in layers if name not in fields)]:
                layers.setdefault(name, [None] * number).append(fields.get(name))
        own = {name: value for name, value in vars(self).items() if name != "layers"}
        same = {
            name: values[0] if values.count(values[0]) == len(values) else values for name, values in layers.items()
        }
        found = {**own, "n_layers": self.n_layers, **same}
        return {name: value for name, value in found.items() if value not in (None, "", False)}


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Draw nested fields up; those of a rope keep its name in front."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            prefix = "rope_" if name == "rope" else ""
            flat |= {prefix + inner: found for inner, found in _flat(value).items()}
        else:
            flat[name] = value
    return flat
