"""Architectures that can be converted, a row for each: what of its tensors and settings is not what
all share.

Names of tensors are mapped by the ``gguf`` package. Facts are those of llama.cpp's converter
(ggml-org/llama.cpp, convert_hf_to_gguf.py) and of transformers' models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.convert.bounded import JsonObject, shown_value
from engine.convert.hyperparameters import ConvertedConfig, rope_of

More = Callable[[JsonObject, ConvertedConfig], None]
_SILU = ("silu", "swish")
_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")
_RELU2 = ("relu2",)


@dataclass(frozen=True)
class Recipe:
    """How models of one class of transformers are converted.

    Attributes:
        architecture: as GGUF names it.
        is_turned: rope pairs halves in transformers and neighbours in GGUF: rows of queries and
            keys are reordered.
        norm_added: to the weights of norms, which are kept as their distance from it.
        transposed: ends of names of matrices that are kept with inputs as rows.
        is_by_head: the fused projection has queries, keys and values of each head together.
        has_rope: positions are told apart by rotation.
        activations: functions that the architecture means.
        expects: settings that the architecture cannot say otherwise.
        defaults: settings that a file may leave out.
        more: add further keys.
    """

    architecture: str
    is_turned: bool = False
    norm_added: float = 0.0
    transposed: tuple[str, ...] = ()
    is_by_head: bool = False
    has_rope: bool = True
    activations: tuple[str, ...] = _SILU
    expects: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[More, ...] = ()


def _copied(**names: str) -> More:
    """Return what takes over numbers where they are there: GGUF's key, with ``__`` for a dot, and
    the setting."""

    def add(config: JsonObject, described: ConvertedConfig) -> None:
        for key, name in names.items():
            if config.get(name) is not None:
                described.keys[key.replace("__", ".")] = config.number(name)

    return add


def _set(key: str, value: Any) -> More:
    def add(config: JsonObject, described: ConvertedConfig) -> None:
        described.keys[key] = value

    return add


def _sliding(period: int = 0) -> More:
    """Return what adds the window, and which layers have it unless it is all but the last of each
    period."""

    def add(config: JsonObject, described: ConvertedConfig) -> None:
        if config.get("sliding_window") is None:
            return
        described.keys["attention.sliding_window"] = config.integer("sliding_window")
        n_layers = described.keys["block_count"]
        if period:
            usual = [number % period != period - 1 for number in range(n_layers)]
        else:
            usual = []
        if config.get("layer_types") is not None:
            slides = _sliding_layers(config, n_layers)
            if slides != usual:
                described.keys["attention.sliding_window_pattern"] = np.array(slides)
        elif config.get("sliding_window_pattern") is not None:
            described.keys["attention.sliding_window_pattern"] = config.integer(
                "sliding_window_pattern"
            )

    return add


def _sliding_layers(config: JsonObject, n_layers: int) -> list[bool]:
    """Return whether each layer has a window, by the kinds of layers in a file.

    The file may list more of them.
    """
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) < n_layers:
        raise config.fail_value("layer_types", f"a list of {n_layers} kinds")
    for kind in kinds[:n_layers]:
        if kind not in ("sliding_attention", "full_attention"):
            raise config.fail(f"layer_types has {shown_value(kind)}, which a GGUF file cannot say")
    return [kind == "sliding_attention" for kind in kinds[:n_layers]]


def _own_rope(config: JsonObject, described: ConvertedConfig) -> None:
    """Windows have a base of their own."""
    own = rope_of(config, "sliding_attention")
    is_own = "sliding_attention" in config.under("rope_parameters").values
    if is_own:
        theta = own.number("rope_theta")
    else:
        theta = config.number("rope_local_base_freq", 10000.0)
    described.keys["rope.freq_base_swa"] = theta


def _scaled_by_head(config: JsonObject, described: ConvertedConfig) -> None:
    """Queries are divided by the root of a number that GGUF does not name: a head's width, or the
    share of a head."""
    wide = described.keys["embedding_length"]
    n_heads = described.n_heads
    if described.keys["block_count"] in (46, 62):
        usual = {described.head_dim, wide / n_heads}
    else:
        usual = {described.head_dim}
    if config.number("query_pre_attn_scalar", described.head_dim) not in usual:
        raise config.fail(
            "query_pre_attn_scalar is not the width of a head, which a GGUF file cannot say"
        )


def _four_times_as_wide(config: JsonObject, described: ConvertedConfig) -> None:
    described.keys.setdefault("feed_forward_length", 4 * described.keys["embedding_length"])


def _encoder(config: JsonObject, described: ConvertedConfig) -> None:
    """All see all; what becomes of a text's vectors is added by who knows the directory."""
    described.keys["attention.causal"] = False
    described.vocabulary["token_type_count"] = config.integer("type_vocab_size", 0)


def _one_kv_head(config: JsonObject, described: ConvertedConfig) -> None:
    if config.flag("multi_query", True):
        described.keys["attention.head_count_kv"] = 1


def _side_by_side(config: JsonObject, described: ConvertedConfig) -> None:
    described.keys["use_parallel_residual"] = config.flag("use_parallel_residual", True)


def _kinds_of_granite(config: JsonObject, described: ConvertedConfig) -> None:
    described.keys["rope.scaling.finetuned"] = (
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
    _kinds_of_granite,
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
    more=(_sliding(6), _own_rope, _SOFT_CAPS, _scaled_by_head),
)
_LLAMA = Recipe("llama", is_turned=True)
_CONV = ("c_attn.weight", "c_proj.weight", "c_fc.weight")

RECIPES: dict[str, Recipe] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": Recipe("qwen2"),
    "Qwen3ForCausalLM": Recipe("qwen3"),
    "Qwen2MoeForCausalLM": Recipe("qwen2moe", expects={"norm_topk_prob": False, **_ALL_SPARSE}),
    "Qwen3MoeForCausalLM": Recipe("qwen3moe", expects={"norm_topk_prob": True, **_ALL_SPARSE}),
    "GemmaForCausalLM": Recipe(
        "gemma", norm_added=1.0, activations=_GELU, defaults={"tie_word_embeddings": True}
    ),
    "Gemma2ForCausalLM": Recipe(
        "gemma2",
        norm_added=1.0,
        activations=_GELU,
        defaults={"tie_word_embeddings": True},
        more=(_sliding(2), _SOFT_CAPS, _scaled_by_head),
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "PhiForCausalLM": Recipe("phi2", activations=_GELU),
    "Phi3ForCausalLM": Recipe("phi3"),
    "SmolLM3ForCausalLM": Recipe("smollm3", is_turned=True),
    "GraniteForCausalLM": Recipe("granite", is_turned=True, more=_GRANITE),
    "OlmoForCausalLM": Recipe(
        "olmo",
        is_turned=True,
        more=(_set("attention.layer_norm_epsilon", 1e-5), _copied(attention__clamp_kqv="clip_qkv")),
    ),
    "Olmo2ForCausalLM": Recipe("olmo2"),
    "Olmo3ForCausalLM": Recipe("olmo2", more=(_sliding(4),)),
    "OlmoeForCausalLM": Recipe("olmoe", expects={"norm_topk_prob": False}),
    "StableLmForCausalLM": Recipe("stablelm"),
    "Starcoder2ForCausalLM": Recipe("starcoder2", activations=_GELU),
    "GPT2LMHeadModel": Recipe(
        "gpt2", transposed=_CONV, has_rope=False, activations=_GELU, more=(_four_times_as_wide,)
    ),
    "GPTBigCodeForCausalLM": Recipe(
        "starcoder", has_rope=False, activations=_GELU, more=(_four_times_as_wide, _one_kv_head)
    ),
    "GPTNeoXForCausalLM": Recipe(
        "gptneox", is_by_head=True, activations=_GELU, more=(_side_by_side,)
    ),
    "BloomForCausalLM": Recipe(
        "bloom", is_by_head=True, has_rope=False, activations=_GELU, more=(_four_times_as_wide,)
    ),
    "CohereForCausalLM": Recipe("command-r", more=(_copied(logit_scale="logit_scale"),)),
    "Cohere2ForCausalLM": Recipe("cohere2", more=(_copied(logit_scale="logit_scale"), _sliding(4))),
    "NemotronForCausalLM": Recipe("nemotron", norm_added=1.0, activations=_RELU2),
    "ArceeForCausalLM": Recipe("arcee", is_turned=True, activations=_RELU2),
    "SeedOssForCausalLM": Recipe("seed_oss"),
    "Ernie4_5ForCausalLM": Recipe("ernie4_5"),
    "Glm4ForCausalLM": Recipe("glm4"),
    "Exaone4ForCausalLM": Recipe("exaone4", more=(_sliding(4),)),
    "HunYuanDenseV1ForCausalLM": Recipe("hunyuan-dense"),
    "BertModel": Recipe("bert", has_rope=False, activations=_GELU, more=(_encoder,)),
}
