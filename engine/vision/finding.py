"""The encoder that belongs to a model: which files are near it, and which of them fits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EngineError, printable
from engine.vision.mmproj import MmprojFile, read_mmproj

if TYPE_CHECKING:
    from engine.config import ModelConfig

MOST_FILES = 32
"""Limit on the files that are opened."""
NAME = re.compile(r"mmproj", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+|[0-9]+(?:\.[0-9]+)?")
_SIZE = re.compile(r"(?<![a-z0-9.])e?[0-9]+(?:\.[0-9]+)?[bm](?![a-z0-9])")
"""Number of parameters in a name."""
_TYPES = "f16", "bf16", "q8_0", "f32"
"""Types of files in the order of preference."""


def mmproj_problem(file: MmprojFile, shown_name: str, model: ModelConfig) -> str:
    """Return why an encoder does not fit a model; empty if it does.

    Args:
        shown_name: Name of the model, for the message.
    """
    model_name = printable(shown_name)
    architectures = file.family.architectures
    if model.architecture not in architectures:
        return (
            f"{file.gguf.shown_name}: is for {file.family.title}, {model_name} is a model of the "
            f"architecture {model.architecture}: it belongs to another model"
        )
    if file.config.text_width != model.dim:
        return (
            f"{file.gguf.shown_name}: makes embeddings of {file.config.text_width} numbers, "
            f"{model_name} needs {model.dim}: it belongs to another model"
        )
    return ""


def find_mmproj(model_path: str | os.PathLike[str], model: ModelConfig) -> Path | None:
    """Return the mmproj file in a model's folder that fits it; None if there is none.

    The first of ``candidates`` that fits is taken.
    """
    path = Path(model_path)
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(path.parent)
    for name in candidates(path.name, names):
        candidate = path.parent / name
        with suppress(EngineError):
            file = read_mmproj(candidate)
            problem = mmproj_problem(file, path.name, model)
            file.close()
            if not problem:
                return candidate
    return None


def candidates(model_name: str, names: Iterable[str]) -> list[str]:
    """Return the names of mmproj files among those of a model's folder, the most likely first.

    That is the one with the most words of the model's name, then the one of the first type of
    ``_TYPES``. One that names another number of parameters belongs to another model.
    """
    words = _words(model_name)
    sizes = _sizes(model_name)
    matches = [
        name
        for name in names
        if NAME.search(name)
        and name.lower().endswith(".gguf")
        and name != model_name
        and not (sizes and _sizes(name) and sizes.isdisjoint(_sizes(name)))
    ]
    matches.sort(key=lambda name: (-len(words & _words(name)), _type_rank(name), name))
    return matches[:MOST_FILES]


def _words(name: str) -> set[str]:
    return set(_WORD.findall(name.lower().removesuffix(".gguf")))


def _sizes(name: str) -> set[str]:
    return set(_SIZE.findall(name.lower().removesuffix(".gguf")))


def _type_rank(name: str) -> int:
    matches = [rank for rank, quant in enumerate(_TYPES) if quant in name.lower()]
    return max(matches, default=len(_TYPES))
