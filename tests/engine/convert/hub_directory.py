"""Valid and broken Hugging Face directories, made from the tiny GGUF models of other tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine import GGUFFile, read_gguf
from engine.tokenizer.vocabulary import TokenType
from tests.engine import tiny_gguf

CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
}
_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
_NORMS_OF_GEMMA = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_SETTINGS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}  # fmt: skip
TURNED = ("llama",)
"""Architectures whose RoPE pairs halves in one format and neighbours in the other format."""
SPLIT = {
    "type": "Sequence",
    "pretokenizers": [
        {
            "type": "Split",
            "pattern": {
                "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
                r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            },
            "behavior": "Isolated",
            "invert": False,
        },
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ],
}
"""Splitting step of Qwen 2's tokenizer.json."""


def pack(tensors: Mapping[str, tuple[str, np.ndarray[Any, Any]]], **lies: dict[str, Any]) -> bytes:
    """Return a safetensors file; ``lies`` changes entries of its header ("__" stands for a dot)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, values) in tensors.items():
        raw = values.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": values.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    for name, lie in lies.items():
        header[name.replace("__", ".")].update(lie)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def change_json(path: Path, **changes: Any) -> None:
    """Set entries of a JSON object; None removes an entry."""
    values = {**json.loads(path.read_text("utf-8")), **changes}
    write_json(path, {key: value for key, value in values.items() if value is not None})


def numbers(gguf: GGUFFile, name: str) -> np.ndarray[Any, Any]:
    """Return a tensor of type F32."""
    info = gguf.tensors[name]
    return np.frombuffer(gguf.map, np.float32, info.size_bytes // 4, info.offset_bytes).reshape(
        info.shape
    )


def write(
    directory: Path, architecture: str = "llama", dtype: str = "F32", **arguments: Any
) -> GGUFFile:
    """Write the directory of a model, and return the tiny GGUF file it is made from."""
    directory.mkdir(exist_ok=True)
    path = tiny_gguf.model(architecture, **arguments).write(
        directory.parent / f"{directory.name}.gguf"
    )
    gguf = read_gguf(path)
    names = {**_NAMES, **(_NORMS_OF_GEMMA if architecture.startswith("gemma") else {})}
    tensors = {}
    for name in gguf.tensors:
        layer, _, base = name.rpartition(".")[0].rpartition(".")
        values = numbers(gguf, name)
        if architecture in TURNED and base in ("attn_q", "attn_k"):
            n_heads = gguf.metadata[
                "llama.attention.head_count" + ("_kv" if base == "attn_k" else "")
            ]
            values = (
                values.reshape(n_heads, -1, 2, values.shape[-1])
                .swapaxes(1, 2)
                .reshape(values.shape)
            )
        if architecture.startswith("gemma") and base.endswith("norm"):
            values = values - np.float32(1)
        prefix = f"model.layers.{layer.removeprefix('blk.')}." if layer else ""
        tensors[f"{prefix}{names[base]}.{name.rpartition('.')[2]}"] = dtype, as_dtype(values, dtype)
    (directory / "model.safetensors").write_bytes(pack(tensors))
    settings = {
        _SETTINGS[key.partition(".")[2]]: gguf.metadata[key]
        for key in gguf.metadata
        if key.partition(".")[2] in _SETTINGS
    }
    write_json(directory / "config.json", {"architectures": [CLASSES[architecture]], **settings})
    write_vocabulary(directory, gguf.metadata)
    return gguf


def as_dtype(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return values in a type of the file; BF16 is truncated."""
    if dtype == "BF16":
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype])


def write_vocabulary(directory: Path, metadata: Mapping[str, Any]) -> None:
    """Write the tokenizer.json of a byte-level vocabulary, or a SentencePiece file."""
    key = "tokenizer.ggml."
    texts = [text.decode() for text in metadata[f"{key}tokens"]]
    types = metadata[f"{key}token_type"].tolist()
    marks = {f"{name}_token": texts[metadata[f"{key}{name}_token_id"]] for name in ("bos", "eos")}
    adds = {
        f"add_{name}_token": metadata.get(f"{key}add_{name}_token", False)
        for name in ("bos", "eos")
    }
    write_json(directory / "tokenizer_config.json", {**marks, **adds})
    if metadata[f"{key}model"] == "llama":
        pieces = zip(texts, metadata[f"{key}scores"], types, strict=True)
        (directory / "tokenizer.model").write_bytes(sentencepiece(list(pieces)))
        return
    added = [i for i, token_type in enumerate(types) if token_type == TokenType.CONTROL]
    model = {
        "type": "BPE",
        "vocab": {text: i for i, text in enumerate(texts) if i not in added},
        "merges": [merge.decode().split(" ") for merge in metadata[f"{key}merges"]],
    }
    listed = [{"id": i, "content": texts[i], "special": True} for i in added]
    tokenizer = {
        "added_tokens": listed,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": SPLIT,
        "model": model,
    }
    write_json(directory / "tokenizer.json", tokenizer)


def sentencepiece(
    pieces: list[tuple[str, float, int]], model_type: int = 2, rules: bytes = b""
) -> bytes:
    """Return a SentencePiece model."""
    out = b""
    for text, score, piece_type in pieces:
        out += _field(
            1,
            _field(1, text.encode())
            + b"\x15"
            + struct.pack("<f", score)
            + b"\x18"
            + bytes([piece_type]),
        )
    return (
        out
        + _field(2, b"\x18" + bytes([model_type]))
        + _field(3, _field(2, rules) + b"\x18\x01\x20\x00")
    )


def _field(number: int, content: bytes) -> bytes:
    size = b""
    length = len(content)
    while length > 127:
        size = size + bytes([length & 127 | 128])
        length = length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


QWEN35_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "tie_word_embeddings": True,
    "vision_config": {"depth": 1, "hidden_size": 8},
    "text_config": {
        "model_type": "qwen3_5_text",
        "attn_output_gate": True,
        "attention_bias": False,
        "full_attention_interval": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 32,
        "max_position_embeddings": 512,
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10_000_000,
            "rope_type": "default",
        },
    },
}
"""Settings of a tiny Qwen 3.5 with pictures and a block for the token after the next."""
_QWEN35_SHAPES: dict[str, tuple[int, ...]] = {
    "mlp.gate_proj.weight": (96, 64),
    "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
    "input_layernorm.weight": (64,),
    "post_attention_layernorm.weight": (64,),
}
_ATTENTION_SHAPES: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj.weight": (256, 64),
    "self_attn.k_proj.weight": (64, 64),
    "self_attn.v_proj.weight": (64, 64),
    "self_attn.o_proj.weight": (64, 128),
    "self_attn.q_norm.weight": (32,),
    "self_attn.k_norm.weight": (32,),
}
_DELTA_NET_SHAPES: dict[str, tuple[int, ...]] = {
    "linear_attn.in_proj_qkv.weight": (320, 64),
    "linear_attn.in_proj_z.weight": (192, 64),
    "linear_attn.in_proj_a.weight": (6, 64),
    "linear_attn.in_proj_b.weight": (6, 64),
    "linear_attn.conv1d.weight": (320, 1, 4),
    "linear_attn.A_log": (6,),
    "linear_attn.dt_bias": (6,),
    "linear_attn.norm.weight": (32,),
    "linear_attn.out_proj.weight": (64, 192),
}


def qwen35_shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a tiny Qwen 3.5, by their names in transformers."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.language_model.embed_tokens.weight": (vocab_size, 64),
        "model.language_model.norm.weight": (64,),
        "model.visual.patch_embed.proj.weight": (8, 3),
        "mtp.fc.weight": (64, 128),
        "mtp.norm.weight": (64,),
        "mtp.pre_fc_norm_embedding.weight": (64,),
        "mtp.pre_fc_norm_hidden.weight": (64,),
    }
    prefixes = [f"model.language_model.layers.{number}." for number in range(4)]
    for number, prefix in enumerate([*prefixes, "mtp.layers.0."]):
        mixer = _DELTA_NET_SHAPES if number in (0, 2) else _ATTENTION_SHAPES
        shapes |= {prefix + name: shape for name, shape in (_QWEN35_SHAPES | mixer).items()}
    return shapes


def drop_tensors(directory: Path, prefix: str) -> None:
    """Remove the tensors of a directory whose names begin with a prefix."""
    path = directory / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(content[8 + size + begin : 8 + size + end], np.float32)
        if not name.startswith(prefix):
            tensors[name] = "F32", values.reshape(entry["shape"])
    path.write_bytes(pack(tensors))


def write_qwen35(directory: Path) -> None:
    """Write the directory of a tiny Qwen 3.5 with random weights."""
    directory.mkdir()
    gguf = read_gguf(tiny_gguf.model("qwen2").write(directory.parent / f"{directory.name}.gguf"))
    tensors = {}
    for name, shape in qwen35_shapes(len(gguf.metadata["tokenizer.ggml.tokens"])).items():
        rng = np.random.default_rng(list(name.encode()))
        tensors[name] = "F32", (0.1 * rng.standard_normal(shape)).astype(np.float32)
    (directory / "model.safetensors").write_bytes(pack(tensors))
    write_json(directory / "config.json", QWEN35_CONFIG)
    write_vocabulary(directory, gguf.metadata)
