"""Details of a model file as plain values: layers, rope, context, special tokens, the template.

Takes what ``engine.loader.validate`` returns and imports no engine. Text is the file's own: the caller cleans it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_LAYER = re.compile(r"blk\.([0-9]{1,6})\.")
_PARTS = {"attn": "attention", "ffn": "feed-forward"}
_SPECIAL_KEY = re.compile(r"tokenizer\.ggml\.([a-z0-9_]{1,40})_token_id")
_MOST_CONTROL_TOKENS = 64


def parameters_of(tensors: Iterable[Any]) -> int:
    """Count the elements of all tensors."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def layers_of(tensors: Iterable[Any]) -> list[dict[str, Any]]:
    """Sum every layer, and what stands outside of them: parameters, bytes, and the types of each part.

    Layers that follow each other and are alike are one row: ``layers`` is "0-15".
    """
    sums: dict[int, dict[str, Any]] = {}
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        row = sums.setdefault(int(match[1]) if match else -1, {"parameters": 0, "bytes": 0, "types": {}})
        row["parameters"] += math.prod(tensor.shape)
        row["bytes"] += tensor.size_bytes
        if len(tensor.shape) > 1:
            row["types"].setdefault(_part(tensor.name, match), {}).setdefault(tensor.type_name, None)
    rows: list[dict[str, Any]] = []
    for number in sorted(sums):
        types = {part: " ".join(names) for part, names in sums[number]["types"].items()}
        row = {**sums[number], "types": types, "first": number, "last": number}
        if rows and number > 0 and _alike(rows[-1], row):
            rows[-1]["last"] = number
        else:
            rows.append(row)
    return [_named(row) for row in rows]


def rope_of(config: Any, metadata: Mapping[str, Any], tensor_names: Iterable[str]) -> dict[str, Any]:
    """Return what places tokens in the context: trained length, rotation, scaling."""
    architecture = getattr(config, "architecture", "")
    scaling = {
        key.rpartition(".")[2]: value
        for key, value in metadata.items()
        if isinstance(key, str) and key.startswith(f"{architecture}.rope.scaling.")
    }
    return {
        "context_length": getattr(config, "context_length", None),
        "rope_theta": _one_or_all([one.theta for one in getattr(config, "ropes", ())]),
        "rope_dim": _one_or_all([one.dim for one in getattr(config, "ropes", ())]),
        "scaling": scaling,
        "has_factors": any(name.startswith("rope_") for name in tensor_names),
    }


def _one_or_all(values: list[Any]) -> Any:
    """The value that all layers share, or the list of their values; None for none."""
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else different or None


def tokenizer_of(tokenizer: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vocabulary's kind, and every token that means something by itself: id, spelling, role."""
    control = dict(getattr(tokenizer, "control_texts", {}))
    spelled = {token_id: text for text, token_id in control.items()}
    roles: dict[int, list[str]] = {}
    for key, value in metadata.items():
        match = _SPECIAL_KEY.fullmatch(key) if isinstance(key, str) else None
        if match and type(value) is int and 0 <= value < tokenizer.vocab_size:
            roles.setdefault(value, []).append(match[1])
    for token_id in getattr(tokenizer, "end_ids", ()):
        roles.setdefault(token_id, []).append("ends")
    ids = [*roles, *(token_id for token_id in sorted(spelled) if token_id not in roles)]
    text_of = getattr(tokenizer, "token_text", lambda token_id: spelled.get(token_id, ""))
    return {
        "model": metadata.get("tokenizer.ggml.model"),
        "pre": metadata.get("tokenizer.ggml.pre"),
        "vocab_size": tokenizer.vocab_size,
        "adds_bos": getattr(tokenizer, "add_bos", None),
        "n_control": len(control),
        "special": [
            {"id": token_id, "text": text_of(token_id), "roles": ", ".join(roles.get(token_id, ["control"]))}
            for token_id in ids[:_MOST_CONTROL_TOKENS]
        ],
    }


def template_of(metadata: Mapping[str, Any]) -> str:
    """Return the chat template; "" where the file has none."""
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else ""


def _part(name: str, match: re.Match[str] | None) -> str:
    if match is None:
        return "output head" if name.startswith("output.") else "embedding"
    word = name[match.end() :].partition("_")[0]
    return _PARTS.get(word, "other")


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    keys = ("parameters", "bytes", "types")
    return one["last"] + 1 == other["first"] and [one[key] for key in keys] == [other[key] for key in keys]


def _named(row: dict[str, Any]) -> dict[str, Any]:
    first, last = row.pop("first"), row.pop("last")
    name = "outside" if first < 0 else str(first) if first == last else f"{first}-{last}"
    return {"layers": name, **row}
