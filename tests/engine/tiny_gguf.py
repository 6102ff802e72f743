"""Builds tiny GGUF files, valid and broken, without any download.

``model()`` makes a complete little model as an editable description; change what should be wrong
and write it::

    tiny = model(architecture="qwen2")
    tiny.set("qwen2.block_count", 3)
    path = tiny.write(tmp_path / "broken.gguf")

Every number in the file can be lied about: keys and tensors carry their own counts and lengths
where a test sets them. The writer is our own for that reason; the quantised bytes come from the
``gguf`` package where it can quantise.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants

from engine.gguf.ggml_types import GGML_TYPES, TYPES_BY_NAME
from tests.engine import architectures

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "B",
    U64: "Q",
    I64: "q",
    F64: "d",
}
_ARRAY_KINDS = {"u1": U8, "i1": I8, "u2": U16, "i2": I16, "u4": U32, "i4": I32, "f4": F32,
                "b1": BOOL, "u8": U64,
                "i8": I64, "f8": F64}  # fmt: skip


def string(text: str | bytes, length: int | None = None) -> bytes:
    """Return a GGUF string; ``length`` may be wrong."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def array(item_type: int, count: int, payload: bytes) -> bytes:
    """Return a GGUF array whose count need not match its payload."""
    return struct.pack("<IQ", item_type, count) + payload


@dataclass
class Key:
    """Metadata entry; ``payload`` follows the value type."""

    name: str | bytes
    kind: int
    payload: bytes
    name_length: int | None = None


@dataclass
class TensorEntry:
    """Row of the tensor table with its data; the optional fields replace what the writer would
    compute."""

    name: str | bytes
    dims: list[int]
    ggml_type: int
    data: bytes
    name_length: int | None = None
    n_dims: int | None = None
    offset: int | None = None


@dataclass
class TinyGGUF:
    """GGUF file as an editable description."""

    keys: list[Key] = field(default_factory=list)
    tensors: list[TensorEntry] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    layout_alignment: int = 32
    n_tensors: int | None = None
    n_kv: int | None = None
    marks: list[tuple[str, int]] = field(default_factory=list)

    def set(self, name: str | bytes, value: Any, value_type: int | None = None) -> None:
        """Add or replace a key. The kind follows from the value unless given."""
        self.set_raw(name, *_encode(value, value_type))

    def set_raw(self, name: str | bytes, value_type: int, payload: bytes) -> None:
        """Add or replace a key by the bytes of its value."""
        for key in self.keys:
            if key.name == name:
                key.kind = value_type
                key.payload = payload
                return
        self.keys.append(Key(name, value_type, payload))

    def drop(self, name: str) -> None:
        """Remove a key, which must be there."""
        self.keys.remove(self.key(name))

    def key(self, name: str) -> Key:
        """Find a key."""
        return next(key for key in self.keys if key.name == name)

    def value(self, name: str) -> Any:
        """Return the value of a key that holds a single number or a string."""
        key = self.key(name)
        if key.kind == STRING:
            return key.payload[8:].decode()
        return struct.unpack("<" + _FORMATS[key.kind], key.payload)[0]

    def tensor(self, name: str) -> TensorEntry:
        """Find a tensor."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def drop_tensor(self, name: str) -> None:
        """Remove a tensor, which must be there."""
        self.tensors.remove(self.tensor(name))

    def rename(self, old_name: str, new_name: str) -> None:
        """Replace ``old_name`` with ``new_name`` in the names of tensors."""
        for tensor in self.tensors:
            tensor.name = str(tensor.name).replace(old_name, new_name)

    def add_vector(self, name: str, values: np.ndarray) -> None:
        """Add a tensor of type F32."""
        self.tensors.append(
            TensorEntry(
                name, [len(values)], GGMLQuantizationType.F32, values.astype("<f4").tobytes()
            )
        )

    def add_rows(self, name: str, values: np.ndarray) -> None:
        """Add a tensor of type F32 with several rows."""
        dims = list(values.shape[::-1])
        self.tensors.append(
            TensorEntry(name, dims, GGMLQuantizationType.F32, values.astype("<f4").tobytes())
        )

    def add_biases(self, *names: str, seed: int = 7, std: float = 0.1) -> None:
        """Give every tensor whose name ends so, but for ``.weight``, a bias, as long as it has rows
        or elements."""
        rng = np.random.default_rng(seed)
        for tensor in list(self.tensors):
            stem = str(tensor.name).removesuffix(".weight")
            if stem.endswith(names):
                self.add_vector(stem + ".bias", std * rng.standard_normal(tensor.dims[-1]))

    def with_layer_norms(self) -> None:
        """Give the norms of the residual stream what LayerNorm has: another key for eps, and
        biases."""
        name = next(
            str(key.name) for key in self.keys if str(key.name).endswith("layer_norm_rms_epsilon")
        )
        self.drop(name)
        self.set(name.replace("rms_", ""), 1e-5)
        self.add_biases(".attn_norm", ".ffn_norm", "output_norm")

    def with_head_layer_norms(self) -> None:
        """Give every head of queries and keys a LayerNorm of its own."""
        rng = np.random.default_rng(11)
        for tensor in [
            tensor
            for tensor in self.tensors
            if str(tensor.name).endswith(("attn_q.weight", "attn_k.weight"))
        ]:
            width = self.value(f"{self.value('general.architecture')}.attention.key_length")
            rows = tensor.dims[1] // width
            data = 1 + 0.3 * rng.standard_normal((rows, width))
            name = str(tensor.name).replace(".weight", "_norm.weight")
            self.tensors.append(
                TensorEntry(
                    name, [width, rows], GGMLQuantizationType.F32, data.astype("<f4").tobytes()
                )
            )

    def fuse(self, name: str, *suffixes: str) -> None:
        """Make tensors of each layer that has them one tensor, their rows after each other; names
        end so."""
        names = [str(entry.name) for entry in self.tensors]
        blocks = [
            entry.removesuffix("." + suffixes[0])
            for entry in names
            if entry.endswith("." + suffixes[0])
        ]
        for block in blocks:
            tensors = [self.tensor(f"{block}.{suffix}") for suffix in suffixes]
            dims = [*tensors[0].dims[:-1], sum(entry.dims[-1] for entry in tensors)]
            data = b"".join(entry.data for entry in tensors)
            self.tensors[self.tensors.index(tensors[0])] = TensorEntry(
                f"{block}.{name}", dims, tensors[0].ggml_type, data
            )
            for entry in tensors[1:]:
                self.tensors.remove(entry)

    def with_experts(
        self,
        n_experts: int = 6,
        n_used: int = 2,
        hidden_dim: int | None = None,
        *,
        first: int = 0,
        is_fused: bool = False,
        biases: bool = False,
        choice_biases: bool = False,
        shared_dim: int = 0,
        shared_gate: bool = False,
        keeps_dense: bool = False,
        seed: int = 5,
    ) -> None:
        """Give every layer experts in place of its feed-forward, whose routers rounding seldom
        sways.

        Args:
            hidden_dim: of one; 64, or 256 where blocks have 256 elements.
            first: the first layer that has them.
            biases: of the router and of each expert's matrices.
            choice_biases: what is added to scores for the choice alone.
            keeps_dense: the dense feed-forward stays.
        """
        rng = np.random.default_rng(seed)
        architecture = self.value("general.architecture")
        self.set(f"{architecture}.expert_count", n_experts)
        self.set(f"{architecture}.expert_used_count", n_used)
        for number in range(first, self.value(f"{architecture}.block_count")):
            block = f"blk.{number}."
            quant = GGMLQuantizationType(self.tensor(block + "ffn_up.weight").ggml_type).name
            dim = self.tensor(block + "ffn_up.weight").dims[0]
            hidden = hidden_dim or (256 if TYPES_BY_NAME[quant].block_size == 256 else 64)
            if not keeps_dense:
                self.drop_tensors(*(f"{block}ffn_{name}.weight" for name in ("gate", "up", "down")))

            def slab(
                name: str, rows: int, cols: int, std: float, block: str = block, quant: str = quant
            ) -> None:
                entry = quantised(
                    f"{block}ffn_{name}_exps.weight", quant, n_experts * rows, cols, std, rng
                )
                entry.dims = [cols, rows, n_experts]
                self.tensors.append(entry)
                if biases:
                    values = 0.3 * rng.standard_normal((n_experts, rows))
                    data = values.astype("<f4").tobytes()
                    self.tensors.append(
                        TensorEntry(f"{block}ffn_{name}_exps.bias", [rows, n_experts], 0, data)
                    )

            self.tensors.append(
                quantised(block + "ffn_gate_inp.weight", "F32", n_experts, dim, 4 / dim**0.5, rng)
            )
            if is_fused:
                slab("gate_up", 2 * hidden, dim, 1 / dim**0.5)
            else:
                slab("gate", hidden, dim, 1 / dim**0.5)
                slab("up", hidden, dim, 1 / dim**0.5)
            slab("down", dim, hidden, 1 / hidden**0.5)
            if biases:
                self.add_vector(block + "ffn_gate_inp.bias", rng.standard_normal(n_experts))
            if choice_biases:
                self.add_vector(block + "exp_probs_b.bias", rng.standard_normal(n_experts))
            if shared_gate:
                self.add_vector(
                    block + "ffn_gate_inp_shexp.weight", rng.standard_normal(dim) / dim**0.5
                )
            for name, rows, cols in (
                ("gate", shared_dim, dim),
                ("up", shared_dim, dim),
                ("down", dim, shared_dim),
            ):
                if shared_dim:
                    name = f"{block}ffn_{name}_shexp.weight"
                    fitting = quant if cols % TYPES_BY_NAME[quant].block_size == 0 else "Q8_0"
                    self.tensors.append(quantised(name, fitting, rows, cols, 0.5 / cols**0.5, rng))

    def drop_tensors(self, *names: str) -> None:
        """Remove the tensors whose names end so."""
        self.tensors = [tensor for tensor in self.tensors if not str(tensor.name).endswith(names)]

    def fill(self, name: str, value: float) -> None:
        """Overwrite every element of an F32 tensor."""
        tensor = self.tensor(name)
        assert tensor.ggml_type == GGMLQuantizationType.F32
        tensor.data = np.full(len(tensor.data) // 4, value, "<f4").tobytes()

    def to_bytes(self) -> bytes:
        """Lay the file out; ``marks`` then holds where each header field ends."""
        out = bytearray(self.magic)
        self.marks = [("magic", 4)]
        self._put(out, "version", struct.pack("<I", self.version))
        self._put(
            out,
            "n_tensors",
            struct.pack("<Q", len(self.tensors) if self.n_tensors is None else self.n_tensors),
        )
        self._put(
            out, "n_kv", struct.pack("<Q", len(self.keys) if self.n_kv is None else self.n_kv)
        )
        for key in self.keys:
            self._put(out, f"{key.name!r} name", string(key.name, key.name_length))
            self._put(out, f"{key.name!r} kind", struct.pack("<I", key.kind))
            self._put(out, f"{key.name!r} value", key.payload)
        self._put_table(out)
        return bytes(out + self._data(len(out)))

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        path.write_bytes(self.to_bytes())
        return path

    def _put(self, out: bytearray, label: str, payload: bytes) -> None:
        out += payload
        self.marks.append((label, len(out)))

    def _put_table(self, out: bytearray) -> None:
        offset = 0
        for tensor in self.tensors:
            n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
            self._put(out, f"{tensor.name!r} name", string(tensor.name, tensor.name_length))
            self._put(out, f"{tensor.name!r} n_dims", struct.pack("<I", n_dims))
            self._put(
                out, f"{tensor.name!r} dims", struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
            )
            self._put(out, f"{tensor.name!r} type", struct.pack("<I", tensor.ggml_type))
            shown_offset = offset if tensor.offset is None else tensor.offset
            self._put(out, f"{tensor.name!r} offset", struct.pack("<Q", shown_offset))
            offset += self._padded(len(tensor.data))

    def _padded(self, n_bytes: int) -> int:
        return -(-n_bytes // self.layout_alignment) * self.layout_alignment

    def _data(self, header_bytes: int) -> bytes:
        out = bytearray(self._padded(header_bytes) - header_bytes)
        for tensor in self.tensors:
            out += tensor.data + bytes(self._padded(len(tensor.data)) - len(tensor.data))
        return bytes(out)


def _encode(value: Any, value_type: int | None) -> tuple[int, bytes]:
    """Return the value type that a converter would choose, and the bytes."""
    if isinstance(value, (str, bytes)):
        return STRING, string(value)
    if isinstance(value, np.ndarray):
        return ARRAY, array(_ARRAY_KINDS[value.dtype.str[1:]], len(value), value.tobytes())
    if isinstance(value, list):
        return ARRAY, array(STRING, len(value), b"".join(string(item) for item in value))
    if value_type is None:
        value_type = BOOL if isinstance(value, bool) else F32 if isinstance(value, float) else U32
    return value_type, struct.pack("<" + _FORMATS[value_type], value)


def spm_vocabulary() -> dict[str, Any]:
    """A SentencePiece-like vocabulary: three control tokens, 256 byte tokens, a space, letters, a
    few pieces."""
    pieces = [
        "▁",
        *"abcdefghijklmnopqrstuvwxyz.,!?",
        "▁t",
        "he",
        "▁the",
        "▁a",
        "in",
        "an",
        "re",
        "on",
        "▁s",
        "er",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, "<f4"),
        "tokenizer.ggml.token_type": np.array(types, "<i4"),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
    }


def bpe_vocabulary(pre: str = "qwen2") -> dict[str, Any]:
    """A byte-level vocabulary: GPT-2's 256 byte characters, a few merges, ChatML's control
    tokens."""
    merges = ["h e", "t he", "Ġ the", "i n", "a n", "r e", "Ġ a", "Ġ s"]
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*byte_characters(), *(merge.replace(" ", "") for merge in merges), *controls]
    types = [1] * (len(tokens) - len(controls)) + [3] * len(controls)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, "<i4"),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
    }


def byte_characters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes: bytes without one are numbered from U+0100
    on."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def model(
    architecture: str = "llama", quant: str = "F32", vocabulary: str | None = None, **arguments: Any
) -> TinyGGUF:
    """Describe a complete model as the architecture's own file does, with the arguments of
    ``decoder``."""
    if vocabulary is not None:
        arguments["vocabulary"] = vocabulary
    described: TinyGGUF = architectures.load(architecture).tiny(quant=quant, **arguments)
    return described


def decoder(
    architecture: str,
    quant: str = "F32",
    vocabulary: str = "spm",
    *,
    n_layers: int = 2,
    dim: int | None = None,
    hidden_dim: int | None = None,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    head_dim: int | None = None,
    context_length: int = 128,
    tied: bool = False,
    biases: bool = False,
    head_norms: bool | str = False,
    norms_after: bool = False,
    rope_factors: bool = False,
    seed: int = 0,
) -> TinyGGUF:
    """Describe a decoder with random weights, the same for the same arguments.

    Args:
        quant: type of every matrix; widths default to 64 and 96, or 256 and 512 for blocks of more
            than 32.
        vocabulary: ``"spm"`` or ``"bpe"``.
        biases: on query, key and value.
        head_norms: of every head's query and key; ``"whole"`` for norms over all heads.
        norms_after: both branches.
    """
    wide = TYPES_BY_NAME[quant].block_size > 32
    dim = dim or (256 if wide else 64)
    hidden_dim = hidden_dim or (512 if wide else 96)
    head_dim = head_dim or dim // n_heads
    tiny = TinyGGUF()
    tiny.set("general.architecture", architecture)
    tiny.set("general.name", f"tiny {architecture} {quant}")
    for key, value in {
        "block_count": n_layers, "context_length": context_length, "embedding_length": dim,
        "feed_forward_length": hidden_dim, "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.key_length": head_dim,
        "attention.value_length": head_dim, "rope.freq_base": 10000.0,
        "rope.dimension_count": head_dim,
    }.items():  # fmt: skip
        tiny.set(f"{architecture}.{key}", value)
    entries = spm_vocabulary() if vocabulary == "spm" else bpe_vocabulary()
    for key, value in entries.items():
        tiny.set(key, value)
    rng = np.random.default_rng(seed)
    n_vocab = len(entries["tokenizer.ggml.tokens"])
    q_dim = n_heads * head_dim
    kv_dim = n_kv_heads * head_dim

    def matrix(name: str, rows: int, cols: int, std: float) -> None:
        tiny.tensors.append(quantised(name, quant, rows, cols, std, rng))

    def norm(name: str, n: int) -> None:
        tiny.add_vector(name, 1 + 0.1 * rng.standard_normal(n))

    matrix("token_embd.weight", n_vocab, dim, 0.05)
    norm("output_norm.weight", dim)
    if not tied:
        matrix("output.weight", n_vocab, dim, 0.05)
    if rope_factors:
        tiny.add_vector("rope_freqs.weight", np.linspace(1, 32, head_dim // 2))
    for layer in range(n_layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight", dim)
        matrix(block + "attn_q.weight", q_dim, dim, 0.8 / dim**0.5)
        matrix(block + "attn_k.weight", kv_dim, dim, 0.8 / dim**0.5)
        matrix(block + "attn_v.weight", kv_dim, dim, 1 / dim**0.5)
        matrix(block + "attn_output.weight", dim, q_dim, 0.3 / q_dim**0.5)
        norm(block + "ffn_norm.weight", dim)
        matrix(block + "ffn_gate.weight", hidden_dim, dim, 1 / dim**0.5)
        matrix(block + "ffn_up.weight", hidden_dim, dim, 1 / dim**0.5)
        matrix(block + "ffn_down.weight", dim, hidden_dim, 0.3 / hidden_dim**0.5)
        if biases:
            for letter, width in (("q", q_dim), ("k", kv_dim), ("v", kv_dim)):
                tiny.add_vector(f"{block}attn_{letter}.bias", 0.1 * rng.standard_normal(width))
        if head_norms:
            norm(block + "attn_q_norm.weight", q_dim if head_norms == "whole" else head_dim)
            norm(block + "attn_k_norm.weight", kv_dim if head_norms == "whole" else head_dim)
        if norms_after:
            norm(block + "post_attention_norm.weight", dim)
            norm(block + "post_ffw_norm.weight", dim)
    return tiny


def quantised(
    name: str, quant: str, rows: int, cols: int, std: float, rng: np.random.Generator
) -> TensorEntry:
    """A matrix of normal deviates in a type, as the ``gguf`` package quantises it, or as random
    sane blocks."""
    if not hasattr(GGMLQuantizationType, quant):
        number = next(number for number, layout in GGML_TYPES.items() if layout.name == quant)
        return TensorEntry(name, [cols, rows], number, random_blocks(quant, rows * cols, std, rng))
    ggml_type = GGMLQuantizationType[quant]
    values = (rng.standard_normal((rows, cols)) * std).astype(np.float32)
    try:
        data = quants.quantize(values, ggml_type).tobytes()
    except NotImplementedError:
        data = random_blocks(quant, rows * cols, std, rng)
    return TensorEntry(name, [cols, rows], ggml_type, data)


def random_blocks(quant: str, n_elements: int, std: float, rng: np.random.Generator) -> bytes:
    """Random bits with scales that keep the weights near ``std``, for types nothing here can
    quantise to."""
    layout = TYPES_BY_NAME[quant]
    blocks = rng.integers(0, 256, (n_elements // layout.block_size, layout.type_size), np.uint8)
    if quant == "IQ1_M":
        _put_nibbles(blocks, std * _scales("IQ1_S")[0])
        return blocks.tobytes()
    if quant == "NVFP4":
        blocks[:, :4] = quants.NVFP4.fp32_to_ue4m3(
            std / 2.7 * rng.uniform(0.7, 1.3, (len(blocks), 4))
        )
        return blocks.tobytes()
    for offset, value in zip(layout.f16_offsets, _scales(quant), strict=True):
        blocks[:, offset : offset + 2] = np.frombuffer(np.float16(std * value).tobytes(), np.uint8)
    return blocks.tobytes()


def _put_nibbles(blocks: np.ndarray, scale: float) -> None:
    """A half in the upper nibbles of the last four words of a block."""
    half = int(np.float16(scale).view(np.uint16))
    for k in range(4):
        blocks[:, 49 + 2 * k] = blocks[:, 49 + 2 * k] & 15 | (half >> 4 * k & 15) << 4


_SCALES = {"Q1_0": [1.0], "Q2_0": [0.8]}
"""Scales of types that the gguf package does not read."""


@cache
def _scales(quant: str) -> list[float]:
    """Scales of a block for weights of mean zero and unit deviation: found by reading random
    blocks."""
    if quant in _SCALES:
        return _SCALES[quant]
    layout = TYPES_BY_NAME[quant]
    blocks = np.random.default_rng(0).integers(0, 256, (500, layout.type_size), np.uint8)

    def weights(*halves: float) -> np.ndarray:
        for offset, half in zip(layout.f16_offsets, halves, strict=True):
            blocks[:, offset : offset + 2] = np.frombuffer(np.float16(half).tobytes(), np.uint8)
        return quants.dequantize(blocks, GGMLQuantizationType[quant])

    if len(layout.f16_offsets) == 1:
        return [1 / weights(1.0).std()]
    minimum = -weights(1.0, 0.0).mean() / weights(0.0, 1.0).mean()
    deviation = weights(1.0, minimum).std()
    return [1 / deviation, minimum / deviation]


def build(**arguments: Any) -> bytes:
    """Return the bytes of ``model(**arguments)``."""
    return model(**arguments).to_bytes()


def write(path: Path, architecture: str = "llama", quant: str = "F32", **arguments: Any) -> Path:
    """Write ``model(architecture, quant, ...)`` to a file and return its path."""
    return model(architecture, quant, **arguments).write(path)


def write_parts(directory: Path, stem: str, n_parts: int, **arguments: Any) -> list[Path]:
    """Write ``model(**arguments)`` as ``n_parts`` files, as llama-gguf-split does: all metadata in
    the first."""
    full_model = model(**arguments)
    paths = []
    for number in range(n_parts):
        split = TinyGGUF(keys=list(full_model.keys) if number == 0 else [])
        split.set("split.no", number, U16)
        split.set("split.count", n_parts, U16)
        split.set("split.tensors.count", len(full_model.tensors), I32)
        first, last = (len(full_model.tensors) * n // n_parts for n in (number, number + 1))
        split.tensors = full_model.tensors[first:last]
        paths.append(split.write(directory / f"{stem}-{number + 1:05}-of-{n_parts:05}.gguf"))
    return paths
