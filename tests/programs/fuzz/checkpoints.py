"""Damaged and made-up directories of Hugging Face's form.

Each gives a GGUF file that opens, or one clean line.

An input is the files of a directory: for each the length of its name in a byte, the name, the
length of its content in eight bytes, and the content.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from engine.convert.convert import prepare
from engine.convert.ranges import REAL, WHOLE
from engine.convert.recipes import RECIPES
from engine.errors import EngineError
from engine.loader import validate
from tests.engine.convert import hub_directory
from tests.programs.fuzz.gguf_files import read_text
from tests.programs.fuzz.mutation import edge, mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch, require_clean_line

_CPU_S = 10.0
_MEMORY_BYTES = 400 << 20
"""An expression that cuts words may take five seconds."""
_MOST_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_SMALL: dict[str, Any] = {"n_layers": 1, "dim": 32, "hidden_dim": 32, "n_heads": 2, "n_kv_heads": 1}
_MIXES = "", "F32", "BF16"
_WEIGHTS = "model.safetensors"
_PIECES = "tokenizer.model"
_NAMES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "chat_template.json", "chat_template.jinja", "modules.json", "1_Pooling/config.json",
    "added_tokens.json", "special_tokens_map.json", "adapter_config.json",
    "model.safetensors.index.json", "model-1.safetensors", "pytorch_model.bin", _WEIGHTS,
    _PIECES,
)  # fmt: skip
_HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 0.5, -0.0, 1e-320, 1e30, 2e7, 1e308, math.nan, math.inf,
    10**9, 10**400, 1 << 31, 1 << 63, "", "a", "64", "\ud800", "\udfff", "\x1b[31m", "\x00", "é☃",
    "a" * 70_000, "\u202e", [], {}, [[]], [{}], {"a": {}}, [1, 2], ["a"], [None],
    {"type": "Sequence"}, [5, "a"], {"content": 5},
)  # fmt: skip
_WORDS: Mapping[str, Sequence[Any]] = {
    "rope_type": ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su"),
    "type": (
        "BPE", "Unigram", "WordPiece", "WordLevel", "Sequence", "Split", "ByteLevel", "Digits",
        "Punctuation", "Metaspace", "Precompiled", "Prepend", "Replace", "NFC", "Lowercase",
        "BertNormalizer", "TemplateProcessing",
        "RobertaProcessing",
    ),
    "architectures": [[name] for name in RECIPES],
    "hidden_act": ("silu", "gelu", "relu2"),
    "layer_types": (["sliding_attention"], ["full_attention"] * 3, ["chunked_attention"]),
    "Regex": ("(a+)+$", "(" * 3000, "\\p{L}+", "(?:a{1,999}){1,999}", "[a-z&&[b]]", "(?R)",
              "(?P<a>.)(?P=a)*\\Z"),
    "dtype": ("F32", "F16", "BF16", "F64", "F8_E4M3", "U32", "I8"),
}  # fmt: skip
"""Values that some keys know, right and wrong ones for the model at hand."""
_TOKENIZER_KEYS = (
    "normalizer", "normalizers", "pre_tokenizer", "pretokenizers", "post_processor", "processors",
    "single", "model", "vocab", "merges", "unk_token", "unk_id", "byte_fallback", "ignore_merges",
    "added_tokens", "precompiled_charsmap", "prepend_scheme", "pattern", "behavior", "invert",
    "use_regex", "individual_digits", "lowercase", "strip_accents", "id", "content", "special",
    "added_tokens_decoder", "chat_template", "eos_token", "bos_token", "add_bos_token",
    "eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings", "text_config",
    "rope_scaling", "rope_parameters", "quantization_config", "short_factor", "long_factor",
    "sliding_attention", "weight_map", "data_offsets", "shape", "pooling_mode_mean_tokens", "path",
)  # fmt: skip
_KEYS = (*WHOLE, *REAL, *_WORDS, *_TOKENIZER_KEYS)


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return one input of several files."""
    return b"".join(
        bytes([len(name)]) + name.encode() + _LENGTH.pack(len(raw)) + raw
        for name, raw in files.items()
    )


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the files of an input."""
    files = {}
    while data:
        name = data[1 : 1 + data[0]]
        data = data[1 + data[0] :]
        (length,) = _LENGTH.unpack(data[: _LENGTH.size].ljust(_LENGTH.size, b"\0"))
        content = data[_LENGTH.size : _LENGTH.size + min(length, len(data))]
        files[name.decode("utf-8", "replace")] = content
        data = data[_LENGTH.size + len(content) :]
    return files


# ---- what is made


@cache
def _sound() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory(prefix="jalopy-fuzz-") as name:
        folder = Path(name)
        for number, (architecture, vocabulary) in enumerate(
            (
                ("llama", "spm"),
                ("llama", "bpe"),
                ("qwen2", "bpe"),
                ("qwen3", "bpe"),
                ("gemma2", "spm"),
            )
        ):
            directory = folder / f"{number}"
            is_tied = architecture.startswith("gemma")
            hub_directory.write(
                directory, architecture, "BF16", vocabulary=vocabulary, tied=is_tied, **_SMALL
            )
        plain = [_files_of(folder / f"{number}") for number in range(5)]
    stretched = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    config = json.loads(plain[1]["config.json"])
    more = [
        {**plain[1], "config.json": _json({**config, "rope_scaling": stretched})},
        {**plain[1], **_unigram(plain[1])},
        {**plain[1], **_wordpiece(plain[1])},
        {**plain[0], **_shards(plain[0])},
        {**plain[2], **_siblings()},
    ]
    return tuple(pack(files) for files in (*plain, *more))


def seeds() -> list[bytes]:
    """Sound tiny models of several architectures.

    They have each kind of vocabulary, and are whole and in shards.
    """
    return list(_sound())


def _files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _texts(files: Mapping[str, bytes]) -> list[str]:
    """Return as many texts as the model has rows: its vocabulary, with those that were added."""
    tokenizer = json.loads(files["tokenizer.json"])
    added = [entry["content"] for entry in tokenizer["added_tokens"]]
    return [*tokenizer["model"]["vocab"], *added]


def _unigram(files: Mapping[str, bytes]) -> dict[str, bytes]:
    rules = base64.b64encode(np.zeros(4, np.uint32).tobytes() + b"\0").decode()
    model = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [[text, -float(i)] for i, text in enumerate(_texts(files))],
    }
    steps = [{"type": "Precompiled", "precompiled_charsmap": rules}]
    tokenizer = {"model": model, "normalizer": {"type": "Sequence", "normalizers": steps},
                 "pre_tokenizer": {"type": "Metaspace"}}  # fmt: skip
    return {"tokenizer.json": _json(tokenizer)}


def _wordpiece(files: Mapping[str, bytes]) -> dict[str, bytes]:
    vocab = {text: i for i, text in enumerate(["[UNK]", "[CLS]", "[SEP]", *_texts(files)[3:]])}
    single = [
        {"SpecialToken": {"id": "[CLS]"}},
        {"Sequence": {"id": "A"}},
        {"SpecialToken": {"id": "[SEP]"}},
    ]
    tokenizer = {
        "model": {"type": "WordPiece", "vocab": vocab},
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "added_tokens": [
            {"id": i, "content": text, "special": True} for text, i in vocab.items() if i < 3
        ],
        "post_processor": {"type": "TemplateProcessing", "single": single},
    }
    return {"tokenizer.json": _json(tokenizer)}


def _shards(files: Mapping[str, bytes]) -> dict[str, bytes]:
    header, _ = _opened(files[_WEIGHTS])
    names = {name: _WEIGHTS for name in header if name != "__metadata__"}
    return {
        "model.safetensors.index.json": _json({"metadata": {"total_size": 1}, "weight_map": names})
    }


def _siblings() -> dict[str, bytes]:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return {
        "generation_config.json": _json({"eos_token_id": [1, 2], "temperature": 0.7}),
        "chat_template.json": _json({"chat_template": template}),
        "modules.json": _json(
            [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
        ),
        "1_Pooling/config.json": _json({"pooling_mode_mean_tokens": True}),
    }


def _opened(weights: bytes) -> tuple[dict[str, Any], bytes]:
    """Return a safetensors file's header and data."""
    (length,) = _LENGTH.unpack(weights[: _LENGTH.size])
    header: dict[str, Any] = json.loads(weights[_LENGTH.size : _LENGTH.size + length])
    return header, weights[_LENGTH.size + length :]


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Change values in JSON, mostly; also bytes, headers of weights, and which files there are."""
    files = unpack(data) or {"config.json": b"{}"}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        choice = rng.random()
        name = rng.choice(sorted(files))
        if choice < 0.75:
            chosen = [name for name in sorted(files) if name.endswith(".json") or name == _WEIGHTS]
            name = rng.choice(chosen or [name])
            files[name] = _mutated_values(rng, name, files[name])
        elif choice < 0.9:
            within = 4096 if name == _WEIGHTS else None
            files[name] = mutate_bytes(
                rng, files[name], [donor[:4096] for donor in inputs[:8]], within
            )
        else:
            _change_files(rng, files, unpack(rng.choice(inputs)) if inputs else {})
        if not files:
            files = {"config.json": b"{}"}
    packed = pack(files)
    return packed if len(packed) <= _MOST_BYTES else data


def _change_files(rng: Random, files: dict[str, bytes], foreign: Mapping[str, bytes]) -> None:
    """Take a file away, give it another name, or take one from another input."""
    name = rng.choice(sorted(files))
    choice = rng.randrange(3)
    if choice == 0:
        del files[name]
    elif choice == 1:
        files[rng.choice(_NAMES)] = files[name]
    elif foreign:
        foreign_name = rng.choice(sorted(foreign))
        files[foreign_name] = foreign[foreign_name]


def _mutated_values(rng: Random, name: str, raw: bytes) -> bytes:
    """Return a JSON file, or weights, with values changed.

    Bytes are changed where it is no JSON.
    """
    try:
        root, data = _opened(raw) if name == _WEIGHTS else (json.loads(raw), b"")
    except (ValueError, RecursionError, struct.error):
        return mutate_bytes(rng, raw, ())
    for _ in range(rng.choice((1, 1, 2, 4))):
        root = _change_value(rng, root)
    try:
        text = json.dumps(root).encode()
    except (ValueError, RecursionError):
        return raw
    return _LENGTH.pack(len(text)) + text + data if name == _WEIGHTS else text


def _change_value(rng: Random, root: Any) -> Any:
    """Change one value below a root; another root where it holds none."""
    places = list(_places(root))
    if not places:
        return rng.choice(_HOSTILE)
    top = [slot for slot in places if slot[0] is root]
    holder, key = rng.choice(top if rng.random() < 0.4 else places)
    choice = rng.randrange(8)
    if choice in (0, 1, 2):
        holder[key] = _value_for(rng, key)
    elif choice == 3 and isinstance(root, dict):
        chosen = rng.choice(_KEYS)
        target = holder if isinstance(holder, dict) else root
        target[chosen] = _value_for(rng, chosen)
    elif choice == 4:
        del holder[key]
    elif choice == 5:
        donor, other_key = rng.choice(places)
        holder[key] = json.loads(json.dumps(donor[other_key]))
    elif choice == 6:
        holder[key] = _nested(rng, holder[key])
    else:
        holder[key] = rng.choice((edge(rng), -edge(rng), edge(rng) / 3))
    return root


def _places(root: Any) -> Iterator[tuple[Any, Any]]:
    """Yield where each value lies: the list or object, and its key there.

    Long ones are not all seen.
    """
    waiting = [root]
    while waiting:
        node = waiting.pop()
        keys = (
            list(node)
            if isinstance(node, dict)
            else list(range(len(node)))
            if isinstance(node, list)
            else []
        )
        for key in keys[:40]:
            yield node, key
            if isinstance(node[key], (dict, list)):
                waiting.append(node[key])


def _value_for(rng: Random, key: Any) -> Any:
    words = _WORDS.get(key if isinstance(key, str) else "")
    if words is not None and rng.random() < 0.7:
        return json.loads(json.dumps(rng.choice(words)))
    if key in WHOLE and rng.random() < 0.4:
        return rng.choice((1, 2, 3, 8, 16, 32, 64, int(WHOLE[key].most), int(WHOLE[key].most) + 1))
    if key in REAL and rng.random() < 0.4:
        return rng.choice((0.0, 0.5, 1.0, 2.0, 1e4, REAL[key].most, REAL[key].least))
    return json.loads(json.dumps(rng.choice(_HOSTILE)))


def _nested(rng: Random, value: Any) -> Any:
    """Return a value in some or in many lists or objects, or many times in a list."""
    depth = rng.choice((1, 2, 70, 500))
    choice = rng.randrange(3)
    if choice == 2:
        return [value] * rng.choice((2, 100, 3000)) if len(json.dumps(value)) < 100 else [value]
    for _ in range(depth):
        value = [value] if choice else {"normalizers": value}
    return value


# ---- what must hold


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Convert the directory; what is written opens, and its vocabulary reads text."""
    directory = folder / "m"
    out = folder / "out.gguf"
    directory.mkdir()
    for name, content in unpack(data).items():
        if name in _NAMES:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_bytes(content)
    with watch.bounded("converting", _CPU_S, _MEMORY_BYTES):
        line = _converted(directory, out, _MIXES[zlib.crc32(data) % len(_MIXES)])
    if list(folder.glob(".jalopy*")):
        raise Fault("half of a file is left")
    if line:
        if out.exists():
            raise Fault(f"a file is there, and this was said: {line}")
        return require_clean_line(f"jalopy: {line}")
    try:
        checked = validate(out)
    except EngineError as error:
        raise Fault(f"what was written does not open: {error}") from None
    outcome = read_text(checked)
    checked.gguf.close()
    return outcome or "converted"


def _converted(directory: Path, out: Path, mix: str) -> str:
    """Convert; return the reason why it cannot be, "" if it was."""
    try:
        conversion = prepare(directory, mix)
    except EngineError as error:
        return str(error)
    try:
        conversion.write(out, lambda done_bytes, name: None)
    except EngineError as error:
        return str(error)
    finally:
        conversion.close()
    return ""


TARGET = Target(
    seeds,
    mutate,
    run,
    source=("engine/convert", "engine/tokenizer", "engine/gguf/write.py"),
    hang_s=300.0,
)
