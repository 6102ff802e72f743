"""The scan reports every NaN and infinity in all types, and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from engine.gguf.ggml_types import TYPES_BY_NAME
from engine.loader import validate
from engine.quants import QUANTS
from engine.weights.scan import DamagedTensor, damaged_tensors
from tests.engine import tiny_gguf

NAME = "blk.1.ffn_up.weight"
PLAIN = {
    "F32": struct.pack("<I", 0x7FC00000),
    "F16": struct.pack("<H", 0xFC00),
    "BF16": struct.pack("<H", 0x7F80),
}

ODD = {"MXFP4": (0, b"\xff"), "IQ1_M": (52, b"\x00\xe0\x00\x70")}
"""Position in a block and bytes of a NaN, by type, for types whose scales are not f16."""
WITHOUT_NAN = ("NVFP4",)


def scan(path: Path) -> list[DamagedTensor]:
    return list(damaged_tensors(validate(path).weights))


@pytest.mark.parametrize("quant", QUANTS)
def test_damaged_numbers_are_found_and_sound_models_pass(quant: str, tmp_path: Path) -> None:
    tiny = tiny_gguf.model(quant=quant)
    assert scan(tiny.write(tmp_path / "m.gguf")) == []
    if quant in WITHOUT_NAN:
        return
    tensor = tiny.tensor(NAME)
    data = bytearray(tensor.data)
    row_bytes = len(data) // tensor.dims[1]
    if quant in PLAIN:
        position = 3 * row_bytes + len(PLAIN[quant])
        bits = PLAIN[quant]
    else:
        block_bytes = TYPES_BY_NAME[quant].type_size
        position, bits = (
            ODD[quant]
            if quant in ODD
            else (TYPES_BY_NAME[quant].f16_offsets[-1], struct.pack("<H", 0x7E00))
        )
        position += 3 * row_bytes + (row_bytes - block_bytes)
    data[position : position + len(bits)] = bits
    tensor.data = bytes(data)
    assert scan(tiny.write(tmp_path / "m.gguf")) == [DamagedTensor(NAME, quant, 1, 3)]


@pytest.mark.parametrize(
    "quant",
    [
        name
        for name, layout in TYPES_BY_NAME.items()
        if layout.f16_offsets and hasattr(quants, name)
    ],
)
def test_scale_positions_equal_those_of_another_reader(quant: str) -> None:
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[quant]][1]
    sound = np.zeros(block_bytes, np.uint8)
    for offset in TYPES_BY_NAME[quant].f16_offsets:
        damaged = sound.copy()
        damaged[offset : offset + 2] = np.frombuffer(struct.pack("<H", 0x7E00), np.uint8)
        with np.errstate(invalid="ignore"):
            assert np.isnan(quants.dequantize(damaged, GGMLQuantizationType[quant])).any()


def test_every_type_is_plain_or_has_scales_to_check() -> None:
    assert {name for name in QUANTS if not TYPES_BY_NAME[name].f16_offsets} <= {
        *PLAIN,
        *ODD,
        *WITHOUT_NAN,
    }


def test_progress_ends_with_all_bytes_and_can_end_the_scan(tmp_path: Path) -> None:
    weights = validate(tiny_gguf.write(tmp_path / "m.gguf")).weights
    seen: list[tuple[int, int]] = []
    list(damaged_tensors(weights, lambda done, total, _: seen.append((done, total))))
    assert seen[-1] == (weights.total_bytes, weights.total_bytes)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(damaged_tensors(weights, stop))


def test_all_files_of_a_model_are_scanned(tmp_path: Path) -> None:
    weights = validate(tiny_gguf.write_parts(tmp_path, "m", 3, quant="Q8_0")[0]).weights
    seen: set[str] = set()
    assert list(damaged_tensors(weights, lambda done, total, name: seen.add(name))) == []
    assert seen == set(weights.tensors)
