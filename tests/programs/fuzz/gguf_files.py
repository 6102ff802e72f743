"""Damaged and made-up GGUF files: a model or one clean line, and what opens computes without a
crash.

An input is one or more files: for each its length in eight bytes, then its bytes. Several are the
parts of one model.
"""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from gguf.quants import QuantError

from engine import Model, Sampling
from engine.errors import EngineError
from engine.loader import validate
from engine.models import ARCHITECTURES
from tests.engine import tiny_gguf
from tests.engine.tiny_gguf import ARRAY, STRING, Key, TensorEntry, TinyGGUF, array, string
from tests.programs.fuzz.mutation import edge, mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch, require_clean_line

COMPUTED_QUANTS = ("F32", "Q8_0")
"""Types for which tokens are computed: kernels of others take seconds to compile and see the same
sizes."""
_CPU_S = 2.0
_MEMORY_BYTES = 300 << 20
_MOST_COMPUTED = 4 << 20
"""Bytes of weights; a lie about sizes cannot make a file larger than it is."""
_LENGTH = struct.Struct("<Q")
_HEADER_BYTES = 9000
"""Bytes that hold most of a tiny model's header; the data after it are only numbers."""
_SMALL: dict[str, Any] = {"n_layers": 1, "dim": 32, "hidden_dim": 32, "n_heads": 2, "n_kv_heads": 1}
_ARCHITECTURES = tuple(ARCHITECTURES)
_WORDS = ("", "x", "llama", "gpt2", "qwen2", "default", "\x1b[31m", "é☃", "{{ messages }}", "<s>",
          "a" * 70, "\x00",
          "\u202e", "<0x00>", "<0xFF>", "▁", "Ġ", "32", "none", "yarn", "linear",
          "longrope")  # fmt: skip


def pack(files: Sequence[bytes]) -> bytes:
    """Return an input made of several files."""
    return b"".join(_LENGTH.pack(len(file)) + file for file in files)


def unpack(data: bytes) -> list[bytes]:
    """Return the files of an input."""
    files = []
    while len(data) >= _LENGTH.size:
        length = min(_LENGTH.unpack_from(data)[0], len(data) - _LENGTH.size)
        files.append(data[_LENGTH.size : _LENGTH.size + length])
        data = data[_LENGTH.size + length :]
    return files


def seeds() -> list[bytes]:
    """Sound tiny models of each kind, whole and in parts."""
    files = [tiny_gguf.build(architecture=name, **_SMALL) for name in _ARCHITECTURES[:3]]
    files += [
        tiny_gguf.build(vocabulary="bpe", tied=True, rope_factors=True, **_SMALL),
        tiny_gguf.build(quant="Q8_0", **_SMALL),
        tiny_gguf.build(quant="Q4_K", **{**_SMALL, "dim": 256, "hidden_dim": 256}),
    ]
    with tempfile.TemporaryDirectory(prefix="jalopy-fuzz-") as name:
        splits = [
            path.read_bytes() for path in tiny_gguf.write_parts(Path(name), "tiny", 3, **_SMALL)
        ]
    return [pack([file]) for file in files] + [pack(splits)]


# ---- what is made


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Damage bytes, mostly of a header, or write a model that is described wrongly."""
    files = unpack(data) or [b""]
    if rng.random() < 0.5:
        files = _described(rng)
    if rng.random() < 0.6:
        index = rng.randrange(len(files))
        within = rng.choice((64, _HEADER_BYTES, _HEADER_BYTES, None))
        files[index] = mutate_bytes(
            rng, files[index], [donor[8:4104] for donor in inputs[:8]], within
        )
    elif rng.random() < 0.1 and len(files) > 1:
        rng.shuffle(files)
        del files[rng.randrange(2, 4) :]
    return pack(files)


def _described(rng: Random) -> list[bytes]:
    arguments = dict(_SMALL)
    for name, values in (
        ("quant", ("F32", "F32", "Q8_0")), ("tied", (True, False)),
        ("rope_factors", (True, False, False)),
        ("n_heads", (1, 2, 4)), ("n_kv_heads", (1, 2)), ("dim", (32, 64)),
        ("head_dim", (None, None, 8, 16, 24, 32)),
        ("vocabulary", ("spm", "bpe", None)), ("context_length", (0, 1, 16, 128)),
        ("biases", (None, None, True)),
    ):  # fmt: skip
        if rng.random() < 0.5:
            arguments[name] = rng.choice(values)
    try:
        tiny = tiny_gguf.model(rng.choice(_ARCHITECTURES), **arguments)
    except (
        QuantError,
        ValueError,
        TypeError,
        ZeroDivisionError,
    ):  # it cannot have what was asked for
        tiny = tiny_gguf.model(**_SMALL)
    for _ in range(rng.randrange(1, 4)):
        rng.choice(_CHANGES)(rng, tiny)
    try:
        return [tiny.to_bytes()]
    except (struct.error, OverflowError, ZeroDivisionError, UnicodeEncodeError):
        return [tiny_gguf.build(**_SMALL)]


def _other_number(rng: Random, tiny: TinyGGUF) -> None:
    """A hyperparameter of another value or type."""
    key = rng.choice(tiny.keys)
    if key.kind in (STRING, ARRAY) and rng.random() < 0.8:
        return
    own_type = tiny_gguf.U32 if key.kind in (STRING, ARRAY) else key.kind
    value_type = rng.choice((own_type, tiny_gguf.U32, tiny_gguf.I32, tiny_gguf.U64, tiny_gguf.F32,
                       tiny_gguf.F64,
                       tiny_gguf.BOOL, tiny_gguf.U8, tiny_gguf.I64))  # fmt: skip
    floats = (0.0, -1.0, 1e-38, 1e38, math.inf, -math.inf, math.nan, 0.5, 1e300)
    value: Any = (
        rng.choice(floats)
        if value_type in (tiny_gguf.F32, tiny_gguf.F64)
        else rng.choice((edge(rng), 1, 2, 3, -1))
    )
    try:
        tiny.set(key.name, value, value_type)
    except (struct.error, OverflowError):
        tiny.set(key.name, value % 100 if isinstance(value, int) else 0.0, value_type)


def _known_key(rng: Random, tiny: TinyGGUF) -> None:
    """A key that the engine may read, with a value it may not expect."""
    architecture = rng.choice(_ARCHITECTURES)
    name = rng.choice((
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scale_linear",
        "attention.sliding_window", "vocab_size", "expert_count", "attention.causal",
        "attention.key_length",
        "attention.value_length", "rope.dimension_count", "attention.head_count_kv",
        "rope.freq_base",
        "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_log_multiplier",
        "rope.scaling.alpha", "rope.scaling.finetuned", "embedding_scale", "residual_scale",
        "logit_scale",
        "attention.scale", "attention.temperature_scale", "attn_logit_softcapping",
        "final_logit_softcapping",
        "attention.sliding_window_pattern", "attention.layer_norm_epsilon",
    ))  # fmt: skip
    tokenizer = rng.choice((
        "chat_template", "add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap",
        "padding_token_id",
        "eot_token_id", "eom_token_id", "unknown_token_id", "add_bos_token", "pre", "model",
        "seperator_token_id",
    ))  # fmt: skip
    full = rng.choice((f"{architecture}.{name}", f"tokenizer.ggml.{tokenizer}", "general.alignment",
                       "split.count",
                       "general.file_type", "general.sampling.temp", "tokenizer.chat_template",
                       "general.name"))  # fmt: skip
    value: Any = rng.choice(
        (edge(rng) % (1 << 32), 1.5, math.nan, True, rng.choice(_WORDS), [rng.choice(_WORDS)])
    )
    tiny.set(full, value)


def _lied_count(rng: Random, tiny: TinyGGUF) -> None:
    choice = rng.randrange(6)
    if choice == 0:
        tiny.n_kv = edge(rng) % (1 << 64)
    elif choice == 1:
        tiny.n_tensors = edge(rng) % (1 << 64)
    elif choice == 2:
        tiny.version = edge(rng) % (1 << 32)
    elif choice == 3:
        rng.choice(tiny.keys).name_length = edge(rng) % (1 << 64)
    elif choice == 4:
        tiny.layout_alignment = rng.choice((1, 8, 64, 4096))
    else:
        key = rng.choice(tiny.keys)
        key.payload = array(rng.randrange(14), edge(rng) % (1 << 64), key.payload[:4096])
        key.kind = ARRAY


def _other_tensor(rng: Random, tiny: TinyGGUF) -> None:
    tensor = rng.choice(tiny.tensors)
    choice = rng.randrange(9)
    if choice == 0:
        tensor.dims = [edge(rng) % (1 << 64) for _ in range(rng.randrange(5))]
    elif choice == 1:
        tensor.dims = tensor.dims[::-1]
    elif choice == 2:
        tensor.ggml_type = rng.choice((*range(36), edge(rng) % (1 << 32)))
    elif choice == 3:
        tensor.offset = edge(rng) % (1 << 64)
    elif choice == 4:
        tensor.name = rng.choice(
            ("", "x", "blk.1.attn_q.weight", "output.bias", b"\xff", rng.choice(tiny.tensors).name)
        )
    elif choice == 5:
        tensor.n_dims = rng.choice((0, 1, 2, 3, 4, 5, edge(rng) % (1 << 32)))
    elif choice == 6:
        tiny.tensors.remove(tensor)
        if not tiny.tensors:
            tiny.tensors.append(tensor)
    elif choice == 7:
        tiny.tensors.append(
            TensorEntry(tensor.name, list(tensor.dims), tensor.ggml_type, tensor.data)
        )
    else:
        tensor.data = (
            rng.randbytes(len(tensor.data)) if rng.random() < 0.7 else b"\xff" * len(tensor.data)
        )


def _other_vocabulary(rng: Random, tiny: TinyGGUF) -> None:
    names = [key.name for key in tiny.keys if str(key.name).startswith("tokenizer.ggml.")]
    name = rng.choice(names)
    choice = rng.randrange(5)
    if choice == 0:
        tiny.drop(str(name))
    elif choice == 1:
        tiny.set(name, [rng.choice(_WORDS) for _ in range(rng.choice((0, 1, 3, 300)))])
    elif choice == 2:
        n = rng.choice((0, 1, 291, 292, 300))
        tiny.set(
            name, np.array([rng.choice((0, 1, 3, 6, 7, -1, 1 << 30)) for _ in range(n)], "<i4")
        )
    elif choice == 3:
        tiny.set(
            name,
            np.array([rng.choice((0.0, math.nan, math.inf, -1e38))] * rng.choice((1, 292)), "<f4"),
        )
    else:
        key = tiny.key(str(name))
        if key.kind == ARRAY and key.payload:
            key.payload = key.payload[:12] + mutate_bytes(rng, key.payload[12:], ())


def _other_key(rng: Random, tiny: TinyGGUF) -> None:
    choice = rng.randrange(4)
    if choice == 0:
        tiny.keys.remove(rng.choice(tiny.keys))
    elif choice == 1:
        tiny.keys.append(
            Key(
                rng.choice((b"\xff", "", "x", "\x1b[2J", "k" * 70000)),
                STRING,
                string(rng.choice(_WORDS)),
            )
        )
    elif choice == 2:
        rng.shuffle(tiny.keys)
    else:
        key = rng.choice(tiny.keys)
        key.payload = mutate_bytes(rng, key.payload, ())


_CHANGES: tuple[Callable[[Random, TinyGGUF], None], ...] = (
    _other_number, _other_number, _known_key, _lied_count, _other_tensor, _other_tensor,
    _other_vocabulary, _other_key,
)  # fmt: skip


# ---- what must hold


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Open the first file; what opens reads text, writes a prompt and computes a few tokens."""
    files = unpack(data)
    path = _write(files, folder)
    with watch.bounded("opening", _CPU_S, _MEMORY_BYTES):
        try:
            checked = validate(path)
        except EngineError as error:
            return require_clean_line(f"jalopy: {error}")
    with watch.bounded("reading text", _CPU_S, _MEMORY_BYTES):
        outcome = read_text(checked)
    quants = {tensor.quant for tensor in checked.weights.tensors.values()}
    is_computed = quants <= set(COMPUTED_QUANTS) and checked.weights.total_bytes <= _MOST_COMPUTED
    checked.gguf.close()
    if not outcome and is_computed:
        outcome = _compute(path, watch)
    return outcome or "opens"


def _write(files: Sequence[bytes], folder: Path) -> Path:
    if len(files) == 1:
        names = ["model.gguf"]
    else:
        names = [
            f"model-{number:05}-of-{len(files):05}.gguf" for number in range(1, len(files) + 1)
        ]
    for name, content in zip(names, files, strict=True):
        (folder / name).write_bytes(content)
    return folder / (names[0] if names else "model.gguf")


def read_text(checked: Any) -> str:
    """Check that text becomes ids in range and ids become text, whatever the vocabulary holds."""
    tokenizer = checked.tokenizer
    n_vocab = checked.config.vocab_size
    try:
        for text in ("the rain <s> é☃\x00", " ", "<|im_end|>", "a" * 300):
            ids = tokenizer.encode(text)
            if any(not 0 <= token_id < n_vocab for token_id in ids):
                raise Fault(f"ids out of range: {ids[:20]} of {n_vocab}")
            tokenizer.decode(ids)
    except EngineError as error:
        return require_clean_line(f"jalopy: {error}")
    return ""


def _compute(path: Path, watch: Watch) -> str:
    model = None
    try:
        model = Model.open(path, threads=1)
        session = model.session(n_ctx=min(32, model.config.context_length))
        session.feed([1 % model.config.vocab_size] * min(6, session.n_ctx))
        for piece in session.generate(Sampling(seed=1), max_tokens=4):
            if not 0 <= piece.token_id < model.config.vocab_size:
                raise Fault(f"token {piece.token_id} of {model.config.vocab_size}")
        if session.length < session.n_ctx and not np.isfinite(session.feed([0])).all():
            raise Fault("logits that are no numbers were not refused")
    except EngineError as error:
        return "computes: " + require_clean_line(f"jalopy: {error}")
    finally:
        if model is not None:
            model.close()
    return "computes"


TARGET = Target(
    seeds,
    mutate,
    run,
    source=("engine/gguf", "engine/config.py", "engine/weights/weights.py", "engine/gguf/parts.py",
            "engine/tokenizer",
            "engine/gguf/file.py", "engine/loader.py"),
    hang_s=600.0,
)  # fmt: skip
