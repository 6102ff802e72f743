"""Break small valid files and check how the engine refuses them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError
from engine.gguf.contents import GGUFFile
from engine.gguf.read import read_gguf
from engine.models import expected_tensors, read_config
from engine.weights.weights import Weights
from tests.engine import tiny_gguf
from tests.engine.tiny_gguf import TinyGGUF

Break = Callable[[TinyGGUF], Any]
MOST_BYTES = 50 << 20


def weights_of(gguf: GGUFFile) -> Weights:
    config = read_config(gguf)
    return Weights.check(gguf, config, expected_tensors(config))


def check(path: Path) -> Weights:
    """Run all checks that need no tokenizer."""
    gguf = read_gguf(path)
    try:
        return weights_of(gguf)
    finally:
        gguf.close()


def refusal(path: Path, checked: Callable[[Path], Any] = check) -> str:
    """Expect one short clean line, made with little memory, and return it."""
    tracemalloc.start()
    try:
        with pytest.raises(EngineError) as caught:
            checked(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.isprintable()
    assert len("jalopy: " + message) <= 300
    assert message.startswith("model.gguf: ")
    assert peak_bytes < MOST_BYTES
    return message


def broken(tmp_path: Path, break_it: Break, **arguments: Any) -> Path:
    tiny = tiny_gguf.model(**arguments)
    break_it(tiny)
    return tiny.write(tmp_path / "model.gguf")


def edit(tensor_name: str, /, **fields: Any) -> Break:
    """Change fields of one row of the tensor table."""

    def change(tiny: TinyGGUF) -> None:
        tensor = tiny.tensor(tensor_name)
        for attribute, value in fields.items():
            setattr(tensor, attribute, value)

    return change


def extra(tensor_name: str) -> Break:
    """Add a vector that the engine does not read."""
    return lambda tiny: tiny.tensors.append(tiny_gguf.TensorEntry(tensor_name, [64], 0, bytes(256)))
