"""Sizes and numbers of embeddings against llama.cpp.

``golden_sizes.json`` has, for 173 sizes of pictures, what libmtmd (in llama-cpp-python 0.3.36) made
of them with its own limits: width, height, then rows and columns, or the embeddings of each part,
or for SmolVLM the number of parts (0 for pictures that it refuses).
``tests.programs.peers.pictures`` compares with the same library, if it is there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.vision.mmproj import read_mmproj
from engine.vision.pixels import PictureError
from engine.vision.rows import HIGH
from tests.engine.vision.tiny_mmproj import TINY

GOLDEN = json.loads((Path(__file__).parent / "golden_sizes.json").read_text())
ENCODERS = {
    "qwen35": "qwen3vl_merger",
    "lfm2": "lfm2",
    "gemma4v": "gemma4v",
    "gemma4uv": "gemma4v",
    "pixtral": "pixtral",
    "mistral3": "mistral3",
}


@pytest.mark.parametrize("name", ENCODERS)
def test_sizes_equal_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    file = read_mmproj(TINY[name]().write(tmp_path / "mmproj.gguf"))
    rows = GOLDEN[ENCODERS[name]]
    assert len(rows) > 150
    for width, height, *expected in rows:
        frames, _ = file.family.frames(file.config, (width, height), HIGH)
        if name == "qwen35":
            sizes = [frames[0].grid.n_rows, frames[0].grid.n_columns]
        else:
            sizes = [frame.grid.n for frame in frames]
        assert sizes == expected, (width, height)
    file.close()


def test_tiles_of_enlarged_pictures_equal_llama_cpp(tmp_path: Path) -> None:
    tiny = TINY["idefics3"]()
    file = read_mmproj(tiny.write(tmp_path / "mmproj.gguf"))
    config = replace(file.config, image_size=128, longest_side=512)  # those of the golden sizes
    for width, height, n_parts in GOLDEN["idefics3"]:
        if n_parts:
            frames, _ = file.family.frames(config, (width, height), HIGH)
            assert len(frames) == n_parts, (width, height)
        else:
            with pytest.raises(PictureError, match="too narrow"):
                file.family.frames(config, (width, height), HIGH)
    file.close()
