"""Recipes of architectures that can be converted: differences of their tensors and settings from
the usual ones.

The ``gguf`` package maps the names of tensors. Sources: llama.cpp's converter (ggml-org/llama.cpp,
convert_hf_to_gguf.py) and the models of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.convert.bounded import JsonObject, shown_value
from engine.convert.delta_net import describe_delta_net
from engine.convert.hyperparameters import ConvertedConfig, rope_of

KeyWriter = Callable[[JsonObject, ConvertedConfig], None]
_SILU = ("silu", "swish")
_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")
_RELU2 = ("relu2",)


@dataclass(frozen=True)
class Recipe:
    """Conversion of the models of a transformers class.

    Attributes:
        architecture: Value of ``general.architecture`` in GGUF.
        is_turned: Whether RoPE pairs halves in transformers and neighbours in GGUF: rows of
            queries and keys are then reordered.
        norm_added: Number to add to the weights of norms, which are stored as differences from
            it.
        transposed: Suffixes of the names of matrices that are stored with inputs as rows.
        is_by_head: Whether the fused projection has queries, keys and values of each head
            together.
        is_delta_net: Whether layers with linear attention are delta nets of Qwen 3.5.
        has_rope: Whether the model has RoPE.
        activations: Activation functions that the architecture implies.
        expects: Settings that the architecture implies.
        defaults: Defaults of settings.
        more_keys: Functions that add further keys.
    """

    architecture: str
    is_turned: bool = False
    norm_added: float = 0.0
    transposed: tuple[str, ...] = ()
    is_by_head: bool = False
    is_delta_net: bool = False
    has_rope: bool = True
    activations: tuple[str, ...] = _SILU
    expects: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    more_keys: tuple[KeyWriter, ...] = ()


def _copied(**names: str) -> KeyWriter:
    """Return a function that copies optional numbers: GGUF's key, with ``__`` for a dot, and the
    setting."""

    def add(config: JsonObject, converted: ConvertedConfig) -> None:
        for key, name in names.items():
            if config.get(name) is not None:
                converted.keys[key.replace("__", ".")] = config.number(name)

    return add


def _set(key: str, value: Any) -> KeyWriter:
    def add(config: JsonObject, converted: ConvertedConfig) -> None:
        converted.keys[key] = value

    return add


def _sliding(period: int = 0) -> KeyWriter:
    """Return a function that adds the window, and the layers that have it unless they are all
    except the last of each period."""

    def add(config: JsonObject, converted: ConvertedConfig) -> None:
        if config.get("sliding_window") is None:
            return
        converted.keys["attention.sliding_window"] = config.integer("sliding_window")
        n_layers = converted.keys["block_count"]
        if period:
            default_layers = [number % period != period - 1 for number in range(n_layers)]
        else:
            default_layers = []
        if config.get("layer_types") is not None:
            slides = _sliding_layers(config, n_layers)
            if slides != default_layers:
                converted.keys["attention.sliding_window_pattern"] = np.array(slides)
        elif config.get("sliding_window_pattern") is not None:
            converted.keys["attention.sliding_window_pattern"] = config.integer(
                "sliding_window_pattern"
            )

    return add


def _sliding_layers(config: JsonObject, n_layers: int) -> list[bool]:
    """Return whether each layer has a window, by the layer types in a file.

    The file may list more layers.
    """
    layer_types = config.get("layer_types")
    if not isinstance(layer_types, list) or len(layer_types) < n_layers:
        raise config.fail_value("layer_types", f"a list of {n_layers} kinds")
    for layer_type in layer_types[:n_layers]:
        if layer_type not in ("sliding_attention", "full_attention"):
            raise config.fail(
                f"layer_types has {shown_value(layer_type)}, which a GGUF file cannot say"
            )
    return [layer_type == "sliding_attention" for layer_type in layer_types[:n_layers]]


def _window_rope(config: JsonObject, converted: ConvertedConfig) -> None:
    """Add the RoPE base of layers with a window."""
    rope = rope_of(config, "sliding_attention")
    has_parameters = "sliding_attention" in config.under("rope_parameters").values
    if has_parameters:
        theta = rope.number("rope_theta")
    else:
        theta = config.number("rope_local_base_freq", 10000.0)
    converted.keys["rope.freq_base_swa"] = theta


def _check_query_scale(config: JsonObject, converted: ConvertedConfig) -> None:
    """Check the divisor of queries, which GGUF does not have: the width of a head, or the share of
    a head."""
    dim = converted.keys["embedding_length"]
    n_heads = converted.n_heads
    if converted.keys["block_count"] in (46, 62):
        supported = {converted.head_dim, dim / n_heads}
    else:
        supported = {converted.head_dim}
    if config.number("query_pre_attn_scalar", converted.head_dim) not in supported:
        raise config.fail(
            "query_pre_attn_scalar is not the width of a head, which a GGUF file cannot say"
        )


def _four_times_as_wide(config: JsonObject, converted: ConvertedConfig) -> None:
    converted.keys.setdefault("feed_forward_length", 4 * converted.keys["embedding_length"])


def _encoder(config: JsonObject, converted: ConvertedConfig) -> None:
    """Add the keys of encoders; all tokens see all tokens. The pooling is added with the
    directory."""
    converted.keys["attention.causal"] = False
    converted.vocabulary["token_type_count"] = config.integer("type_vocab_size", 0)


def _one_kv_head(config: JsonObject, converted: ConvertedConfig) -> None:
    if config.flag("multi_query", True):
        converted.keys["attention.head_count_kv"] = 1


def _side_by_side(config: JsonObject, converted: ConvertedConfig) -> None:
    converted.keys["use_parallel_residual"] = config.flag("use_parallel_residual", True)


def _granite_positions(config: JsonObject, converted: ConvertedConfig) -> None:
    converted.keys["rope.scaling.finetuned"] = (
        config.word("position_embedding_type", "rope") != "nope"
    )


_SOFT_CAPS = _copied(
    attn_logit_softcapping="attn_logit_softcapping",
    final_logit_softcapping="final_logit_softcapping",
)
_GRANITE = (
    _copied(
        attention__scale="attention_multiplier",
        embedding_scale="embedding_multiplier",
        residual_scale="residual_multiplier",
        logit_scale="logits_scaling",
    ),
    _granite_positions,
)
_ALL_SPARSE: Mapping[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
_GEMMA3 = Recipe(
    "gemma3",
    norm_added=1.0,
    activations=_GELU,
    defaults={
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "query_pre_attn_scalar": 256,
        "tie_word_embeddings": True,
    },
    more_keys=(_sliding(6), _window_rope, _SOFT_CAPS, _check_query_scale),
)
_LLAMA = Recipe("llama", is_turned=True)
_QWEN35 = Recipe(
    "qwen35",
    norm_added=1.0,
    is_delta_net=True,
    expects={"attn_output_gate": True, "attention_bias": False},
    defaults={"partial_rotary_factor": 0.25, "head_dim": 256},
    more_keys=(describe_delta_net,),
)
_CONV = ("c_attn.weight", "c_proj.weight", "c_fc.weight")

RECIPES: dict[str, Recipe] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": Recipe("qwen2"),
    "Qwen3ForCausalLM": Recipe("qwen3"),
    "Qwen2MoeForCausalLM": Recipe("qwen2moe", expects={"norm_topk_prob": False, **_ALL_SPARSE}),
    "Qwen3_5ForCausalLM": _QWEN35,
    "Qwen3_5ForConditionalGeneration": _QWEN35,
    "Qwen3MoeForCausalLM": Recipe("qwen3moe", expects={"norm_topk_prob": True, **_ALL_SPARSE}),
    "GemmaForCausalLM": Recipe(
        "gemma", norm_added=1.0, activations=_GELU, defaults={"tie_word_embeddings": True}
    ),
    "Gemma2ForCausalLM": Recipe(
        "gemma2",
        norm_added=1.0,
        activations=_GELU,
        defaults={"tie_word_embeddings": True},
        more_keys=(_sliding(2), _SOFT_CAPS, _check_query_scale),
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "PhiForCausalLM": Recipe("phi2", activations=_GELU),
    "Phi3ForCausalLM": Recipe("phi3"),
    "SmolLM3ForCausalLM": Recipe("smollm3", is_turned=True),
    "GraniteForCausalLM": Recipe("granite", is_turned=True, more_keys=_GRANITE),
    "OlmoForCausalLM": Recipe(
        "olmo",
        is_turned=True,
        more_keys=(
            _set("attention.layer_norm_epsilon", 1e-5),
            _copied(attention__clamp_kqv="clip_qkv"),
        ),
    ),
    "Olmo2ForCausalLM": Recipe("olmo2"),
    "Olmo3ForCausalLM": Recipe("olmo2", more_keys=(_sliding(4),)),
    "OlmoeForCausalLM": Recipe("olmoe", expects={"norm_topk_prob": False}),
    "StableLmForCausalLM": Recipe("stablelm"),
    "Starcoder2ForCausalLM": Recipe("starcoder2", activations=_GELU),
    "GPT2LMHeadModel": Recipe(
        "gpt2",
        transposed=_CONV,
        has_rope=False,
        activations=_GELU,
        more_keys=(_four_times_as_wide,),
    ),
    "GPTBigCodeForCausalLM": Recipe(
        "starcoder",
        has_rope=False,
        activations=_GELU,
        more_keys=(_four_times_as_wide, _one_kv_head),
    ),
    "GPTNeoXForCausalLM": Recipe(
        "gptneox", is_by_head=True, activations=_GELU, more_keys=(_side_by_side,)
    ),
    "BloomForCausalLM": Recipe(
        "bloom",
        is_by_head=True,
        has_rope=False,
        activations=_GELU,
        more_keys=(_four_times_as_wide,),
    ),
    "CohereForCausalLM": Recipe("command-r", more_keys=(_copied(logit_scale="logit_scale"),)),
    "Cohere2ForCausalLM": Recipe(
        "cohere2", more_keys=(_copied(logit_scale="logit_scale"), _sliding(4))
    ),
    "NemotronForCausalLM": Recipe("nemotron", norm_added=1.0, activations=_RELU2),
    "ArceeForCausalLM": Recipe("arcee", is_turned=True, activations=_RELU2),
    "SeedOssForCausalLM": Recipe("seed_oss"),
    "Ernie4_5ForCausalLM": Recipe("ernie4_5"),
    "Glm4ForCausalLM": Recipe("glm4"),
    "Exaone4ForCausalLM": Recipe("exaone4", more_keys=(_sliding(4),)),
    "HunYuanDenseV1ForCausalLM": Recipe("hunyuan-dense"),
    "BertModel": Recipe("bert", has_rope=False, activations=_GELU, more_keys=(_encoder,)),
}
