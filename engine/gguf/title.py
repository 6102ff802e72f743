"""Titles of models, from the metadata or from the file name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.gguf.parts import part_name

_SIZE = r"\d{1,4}(?:\.\d{1,3})?[bm]"
_USUAL_NAME = re.compile(
    rf"(?P<title>.*(?<![a-z0-9]){_SIZE}(?![a-z0-9]).*)[-._]"
    r"(?:[it]?q[1-9]_\w{1,8}|mxfp4|nvfp4|b?f16|f32)",
    re.IGNORECASE,
)
"""Pattern of the usual file names: model, size and type, "Qwen3-0.6B-Q8_0"."""
_SAYS_NOTHING = re.compile(
    "ggml|gguf|hf|llama|models?|merged|out|output|checkpoint|final|tmp|main|[0-9a-f]{16,}", re.I
)
"""Pattern of words that could name any model."""
_LONGEST = 400


def model_title(metadata: Mapping[str, Any], path: Path) -> str:
    """Return ``general.name``, or the title in the file name if the former is empty, generic or
    different.

    Neither is cleaned, although both come from outside.
    """
    general_name = metadata.get("general.name")
    split_name = part_name(path.name)
    if isinstance(general_name, str):
        name = general_name
    else:
        name = ""
    if split_name:
        stem = split_name.stem
    else:
        stem = path.stem
    usual = _USUAL_NAME.fullmatch(stem[:_LONGEST])
    if usual and _plain(usual["title"]) != _plain(name):
        return usual["title"]
    words = re.findall(r"\w+", name[:_LONGEST].replace("_", " "))
    if all(map(_SAYS_NOTHING.fullmatch, words)) or re.search(r"[/\\]", name):
        return stem
    return name


def _plain(name: str) -> str:
    return "".join(character for character in name[:_LONGEST].lower() if character.isalnum())
