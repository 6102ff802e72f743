"""Files of encoders: what is refused, and which file belongs to a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import ModelConfig
from engine.errors import EngineError
from engine.vision.families import FAMILIES, NOT_YET
from engine.vision.finding import find_mmproj
from engine.vision.mmproj import read_mmproj
from engine.vision.tensors import EncoderWeights
from tests.engine import tiny_gguf
from tests.engine.refusals import refusal
from tests.engine.tiny_gguf import TinyGGUF
from tests.engine.vision.tiny_mmproj import TEXT_WIDTH, TINY, gemma3, gemma4uv, lfm2, qwen3vl

MODEL = ModelConfig("qwen35", TEXT_WIDTH, (), 1e-6, 100, 100)


def check(path: Path) -> None:
    """Run all checks up to the weights."""
    file = read_mmproj(path)
    try:
        EncoderWeights(file.gguf, file.expected)
    finally:
        file.close()


def key(name: str, value: Any) -> Callable[[TinyGGUF], None]:
    return lambda tiny: tiny.set(name, value)


def reshaped(name: str, *dims: int) -> Callable[[TinyGGUF], None]:
    def change(tiny: TinyGGUF) -> None:
        tensor = tiny.tensor(name)
        tensor.dims = list(dims)
        tensor.data = tensor.data[: 4 * int(np.prod(dims))].ljust(4 * int(np.prod(dims)), b"\0")

    return change


@pytest.mark.parametrize("name", TINY)
def test_every_family_is_read(name: str, tmp_path: Path) -> None:
    check(TINY[name]().write(tmp_path / "model.gguf"))


def test_all_known_families_have_a_module() -> None:
    assert {TINY[name]().value("clip.projector_type") for name in TINY} == set(FAMILIES)
    assert not set(FAMILIES) & set(NOT_YET)


V = "clip.vision."
BROKEN = {
    "of another kind": (
        key("general.architecture", "llama"),
        "is a model and no encoder of pictures: its architecture is llama, not clip (name its "
        "mmproj file)",
    ),
    "for sounds": (key("clip.has_vision_encoder", False), "has no encoder of pictures"),
    "without projector": (
        lambda tiny: tiny.drop("clip.projector_type"),
        "clip.projector_type is missing; supported: qwen3vl_merger (Qwen3-VL, Qwen3.5 and newer), "
        "lfm2 (LFM2-VL and LFM2.5-VL), gemma3 (Gemma 3), gemma4v (Gemma 4), gemma4uv (Gemma 4 12B), "
        "idefics3 (SmolVLM), pixtral (Pixtral, Mistral 3)",
    ),
    "of a later family": (
        key("clip.projector_type", "internvl"),
        "projector internvl is not supported yet; supported: qwen3vl_merger",
    ),
    "of an unknown family": (
        key("clip.projector_type", "x\ny"),
        r"projector x\x0ay is unknown; supported: qwen3vl_merger",
    ),
    "without width": (
        lambda tiny: tiny.drop(V + "embedding_length"),
        "clip.vision.embedding_length is missing",
    ),
    "with huge width": (key(V + "embedding_length", 2**31), "must be 8 to 65536"),
    "with odd width": (key(V + "embedding_length", 68), "is 68: no multiple of 8"),
    "without heads": (key(V + "attention.head_count", 0), "must be 1 to 256"),
    "with too many layers": (key(V + "block_count", 3), "tensor v.blk.2.ln1.weight is missing"),
    "with too few layers": (
        key(V + "block_count", 1),
        "tensor v.blk.1.ln1.weight is beyond clip.vision.block_count",
    ),
    "with NaN as epsilon": (
        key(V + "attention.layer_norm_epsilon", float("nan")),
        "must be finite",
    ),
    "with a deviation of zero": (
        key(V + "image_std", np.array([1, 0, 1], np.float32)),
        "clip.vision.image_std is out of range: [1.0, 0.0, 1.0]",
    ),
    "with two means": (
        key(V + "image_mean", np.array([1, 0], np.float32)),
        "clip.vision.image_mean must be an array of 3 numbers",
    ),
    "with a huge patch": (key(V + "patch_size", 4096), "must be 1 to 64"),
    "with another patch": (key(V + "patch_size", 14), "tensor v.patch_embd.weight has shape"),
    "with an unknown tensor": (
        lambda tiny: tiny.add_vector("v.class_embd", np.ones(64)),
        "tensor v.class_embd is unknown to its projector",
    ),
    "without a bias": (
        lambda tiny: tiny.drop_tensor("v.blk.0.ffn_up.bias"),
        "tensor v.blk.0.ffn_up.bias is missing",
    ),
    "with a table that is no square": (
        reshaped("v.position_embd.weight", 64, 35),
        "tensor v.position_embd.weight has 35 rows: no square",
    ),
    "with another text width": (
        key(V + "projection_dim", 64),
        "tensor mm.2.weight has shape 48 x 256, the hyperparameters say 64 x 256",
    ),
    "with NaN in a norm": (
        lambda tiny: tiny.fill("v.post_ln.weight", float("nan")),
        "tensor v.post_ln.weight holds NaN or infinity",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    break_it, expected = BROKEN[name]
    tiny = qwen3vl()
    break_it(tiny)
    assert expected in refusal(tiny.write(tmp_path / "model.gguf"), check)


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    tiny = gemma3()
    tiny.set(V + "image_size", 100)
    assert "is 100: no multiple of 56" in refusal(tiny.write(tmp_path / "model.gguf"), check)
    tiny = gemma4uv()
    tiny.set(V + "block_count", 1)
    tiny.set(V + "attention.head_count", 1)
    tiny.set(V + "feed_forward_length", 64)
    assert "block_count is 1: must be 0" in refusal(tiny.write(tmp_path / "model.gguf"), check)
    tiny = lfm2()
    tiny.set(V + "projector.scale_factor", 3)
    assert "do not fill tiles of 512" in refusal(tiny.write(tmp_path / "model.gguf"), check)


def test_sounds_of_a_file_are_left_out(tmp_path: Path) -> None:
    tiny = qwen3vl()
    tiny.add_vector("a.conv1d.1.bias", np.ones(64))
    tiny.add_vector("mm.a.fc.bias", np.ones(64))
    check(tiny.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize("seed", range(4))
def test_mutated_headers_are_refused_or_read(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    names = list(TINY)
    path = tmp_path / "model.gguf"
    for number in range(60):
        tiny = TINY[names[number % len(names)]]()
        for _ in range(rng.integers(1, 4)):
            _mutate(tiny, rng)
        raw = bytearray(tiny.to_bytes())
        if number % 3 == 0:
            raw[int(rng.integers(0, min(len(raw), 6000)))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(raw)
        with suppress(EngineError):
            check(path)


def _mutate(tiny: TinyGGUF, rng: np.random.Generator) -> None:
    keys = [entry for entry in tiny.keys if str(entry.name).startswith("clip.vision.")]
    match int(rng.integers(0, 5)):
        case 0:
            name = str(keys[int(rng.integers(0, len(keys)))].name)
            tiny.set(name, int(rng.choice([0, 1, 7, 255, 65535, 2**31])))
        case 1:
            name = str(keys[int(rng.integers(0, len(keys)))].name)
            tiny.set(name, rng.choice([0.0, -1.0, 1e30, float("nan")]).item())
        case 2:
            tensor = tiny.tensors[int(rng.integers(0, len(tiny.tensors)))]
            tensor.dims = [int(rng.choice([0, 1, 3, 64, 2**33])) for _ in tensor.dims]
        case 3:
            del tiny.tensors[int(rng.integers(0, len(tiny.tensors)))]
        case 4:
            tensor = tiny.tensors[int(rng.integers(0, len(tiny.tensors)))]
            tensor.ggml_type = int(rng.integers(0, 45))


def test_the_encoder_next_to_a_model_is_found(tmp_path: Path) -> None:
    model = tmp_path / "Qwen3.5-0.8B-Q4_K_M.gguf"
    model.write_bytes(b"GGUF")
    assert find_mmproj(model, MODEL) is None
    gemma3().write(tmp_path / "mmproj-Qwen3.5-0.8B-F16.gguf")
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"GGUF")
    assert find_mmproj(model, MODEL) is None
    other = qwen3vl().write(tmp_path / "mmproj-SomethingElse-F16.gguf")
    assert find_mmproj(model, MODEL) == other
    f32 = qwen3vl().write(tmp_path / "Qwen3.5-0.8B.mmproj-f32.gguf")
    assert find_mmproj(model, MODEL) == f32
    f16 = qwen3vl().write(tmp_path / "MMPROJ-Qwen3.5-0.8B-F16.GGUF")
    assert find_mmproj(model, MODEL) == f16
    assert find_mmproj(model, replace(MODEL, dim=1024)) is None
    assert find_mmproj(tmp_path / "missing" / "m.gguf", MODEL) is None


def test_an_encoder_for_another_size_is_left_out(tmp_path: Path) -> None:
    model = tmp_path / "Qwen3.5-0.8B-Q4_K_M.gguf"
    model.write_bytes(b"GGUF")
    qwen3vl().write(tmp_path / "mmproj-Qwen3.5-4B-F16.gguf")
    assert find_mmproj(model, MODEL) is None
    own = qwen3vl().write(tmp_path / "mmproj-Qwen3.5-0.8B-F16.gguf")
    assert find_mmproj(model, MODEL) == own


def test_a_model_is_no_encoder(tmp_path: Path) -> None:
    path = tiny_gguf.model().write(tmp_path / "model.gguf")
    assert "is a model and no encoder of pictures" in refusal(path, check)
