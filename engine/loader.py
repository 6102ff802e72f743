"""Checks of a model file: structure, hyperparameters, vocabulary and weights.

Every reason to refuse a file is found here, before any kernel is compiled. Importing this module
does not import numba.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import GGUFError
from engine.gguf.contents import GGUFFile
from engine.gguf.read import read_gguf
from engine.models import expected_tensors, read_config
from engine.weights.weights import Weights

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class CheckedModelFile:
    """A model file that passed every check. ``gguf`` is open and owns the map that the weights
    point into."""

    gguf: GGUFFile
    config: ModelConfig
    tokenizer: Tokenizer
    weights: Weights


def validate(path: str | os.PathLike[str]) -> CheckedModelFile:
    """Open a model file and check all of it: structure, hyperparameters, tensors, vocabulary.

    Raises:
        EngineError: the file has a fault; the message is one line that names file and field.
    """
    gguf = read_gguf(path)
    try:
        if not gguf.tensors:
            raise GGUFError(f"{gguf.shown_name}: has no tensors: it is a vocabulary, not a model")
        config = read_config(gguf)
        weights = Weights.check(gguf, config, expected_tensors(config))
        return CheckedModelFile(gguf, config, _tokenizer(gguf), weights)
    except BaseException:
        gguf.close()
        raise


def _tokenizer(gguf: GGUFFile) -> Tokenizer:
    from engine.tokenizer import Tokenizer

    return Tokenizer.from_metadata(gguf.metadata, gguf.shown_name)
