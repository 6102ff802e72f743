"""Architectures that llama.cpp knows by name: the engine runs each or says what it is."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from engine.errors import UnsupportedArchitectureError
from engine.gguf.read import read_gguf
from engine.models import ARCHITECTURES, ENCODERS, read_config, why_refused
from engine.models.not_yet import KINDS, NOT_YET
from tests.engine import tiny_gguf

FIRST = b"\0clip\0"
LAST = b"\0(unknown)\0"
"""Texts around the names of architectures in the reference's library."""


def _library() -> Path:
    """Return the reference's library, by ``JALOPY_LIBLLAMA`` or from the Python that runs the
    tests; skip if there is none."""
    path = os.environ.get("JALOPY_LIBLLAMA")
    if path:
        return Path(path)
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        pytest.skip("llama-cpp-python is not installed (JALOPY_LIBLLAMA names a libllama.so)")
    return Path(spec.origin).parent / "lib" / "libllama.so"


def _names(library: bytes) -> list[str]:
    """Return the names of architectures in the library's table of texts, which may omit names that
    others end with."""
    start = library.index(FIRST)
    return library[start + 1 : library.index(LAST, start)].decode("ascii").split("\0")


def test_every_name_of_the_reference_is_run_or_explained() -> None:
    names = _names(_library().read_bytes())
    assert len(names) > 120
    assert [name for name in names if name not in {**ARCHITECTURES, **ENCODERS, **NOT_YET}] == []


@pytest.mark.parametrize("name", NOT_YET)
def test_a_refusal_says_in_one_line_what_it_is_and_what_to_use(name: str) -> None:
    line = why_refused(name)
    assert line.isprintable()
    assert len(line) < 150
    assert "; use " in line


@pytest.mark.parametrize("file_type", KINDS)
@pytest.mark.parametrize("architecture", ["llama", "clip", None])
def test_files_that_are_no_models_are_refused_by_what_they_are(
    file_type: str, architecture: str | None, tmp_path: Path
) -> None:
    described = tiny_gguf.model(n_layers=1)
    described.set("general.type", file_type)
    if architecture is None:
        described.drop("general.architecture")
    else:
        described.set("general.architecture", architecture)
    gguf = read_gguf(described.write(tmp_path / "m.gguf"))
    with pytest.raises(
        UnsupportedArchitectureError, match=rf"^m\.gguf: general\.type is '{file_type}': this is "
    ):
        read_config(gguf)
    gguf.close()
