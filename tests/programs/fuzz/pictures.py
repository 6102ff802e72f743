"""Damaged and made-up pictures and encoders: rows, or one clean line.

An input is a picture's file, or the file of an encoder.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from engine import Crew, PictureEncoder
from engine.errors import EngineError
from engine.vision.pixels import MAX_PIXELS, decode
from engine.vision.rows import DETAILS
from tests.engine.tiny_gguf import TinyGGUF
from tests.engine.vision.tiny_mmproj import TINY, picture
from tests.programs.fuzz.mutation import edge, mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch, require_clean_line

_FORMATS = "PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"
_GGUF = b"GGUF"
_CPU_S = 20.0
_MEMORY_BYTES = 2 << 30
"""A picture of ``MAX_PIXELS`` takes four bytes for each pixel while it is put over white, twice."""
_HEADER_BYTES = 3000
_SMALL_PIXELS = 400_000
"""Pictures of more pixels are decoded and not encoded."""


def seeds() -> list[bytes]:
    """Sound pictures of each format, some with several frames or transparency, and encoders."""
    first, second = (Image.fromarray(picture(40, 30, seed)) for seed in (0, 1))
    layer = first.convert("RGBA")
    layer.putalpha(128)
    files = []
    for name in _FORMATS:
        for image, options in ((first, {}), (layer, {}), (first, {"append_images": [second]})):
            if name in ("JPEG", "BMP"):
                image = image.convert("RGB")
            out = io.BytesIO()
            image.save(out, name, save_all=bool(options) and name not in ("JPEG", "BMP"), **options)
            files.append(out.getvalue())
    return files + [TINY[name]().to_bytes() for name in TINY]


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Damage bytes, or describe an encoder wrongly."""
    if data.startswith(_GGUF) and rng.random() < 0.7:
        tiny = TINY[rng.choice(list(TINY))]()
        for _ in range(rng.randrange(1, 4)):
            _describe_wrongly(rng, tiny)
        try:
            data = tiny.to_bytes()
        except (ValueError, OverflowError):
            return data
        if rng.random() < 0.7:
            return data
    within = _HEADER_BYTES if data.startswith(_GGUF) else rng.choice((64, None))
    return mutate_bytes(rng, data, [donor[:4096] for donor in inputs[:8]], within)


def _describe_wrongly(rng: Random, tiny: TinyGGUF) -> None:
    key = rng.choice([key for key in tiny.keys if b"clip" in str(key.name).encode()])
    tensor = rng.choice(tiny.tensors)
    match rng.randrange(5):
        case 0:
            tiny.set(key.name, edge(rng) % (1 << 32))
        case 1:
            tiny.set(key.name, rng.choice((0.0, -1.0, 1e-38, 1e38, math.inf, math.nan)))
        case 2:
            tensor.dims = [rng.choice((0, 1, 16, 64, edge(rng) % (1 << 64))) for _ in tensor.dims]
        case 3:
            tiny.tensors.remove(tensor)
        case _:
            tensor.data = rng.randbytes(len(tensor.data))


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Decode a picture and encode it, or open an encoder and encode a picture."""
    if data.startswith(_GGUF):
        path = folder / "mmproj.gguf"
        path.write_bytes(data)
        return _encoded(path, picture(60, 40), watch)
    with watch.bounded("decoding", _CPU_S, _MEMORY_BYTES):
        try:
            pixels = decode(data, "a.png")
        except EngineError as error:
            return require_clean_line(f"jalopy: {error}")
    height, width, n_channels = pixels.shape
    if pixels.dtype != np.uint8 or n_channels != 3 or height * width > MAX_PIXELS:
        raise Fault(f"pixels of {pixels.dtype}, {pixels.shape}")
    if height * width > _SMALL_PIXELS:
        return "large"
    path = folder / "mmproj.gguf"
    path.write_bytes(TINY["lfm2"]().to_bytes())
    return _encoded(path, pixels, watch)


def _encoded(path: Path, pixels: np.ndarray, watch: Watch) -> str:
    """Encode a picture with each detail, and check its rows."""
    with watch.bounded("encoding", _CPU_S, _MEMORY_BYTES):
        try:
            encoder = PictureEncoder.open(path, _crew(), 1)
            for detail in DETAILS[:1]:
                prepared = encoder.prepare(pixels, detail)
                rows = encoder.encode(prepared).rows
                if sum(map(len, rows)) != prepared.n_rows or not all(
                    np.isfinite(part).all() for part in rows
                ):
                    raise Fault("rows are missing or not finite")
            encoder.close()
        except EngineError as error:
            return require_clean_line(f"jalopy: {error}")
    return "rows"


@cache
def _crew() -> Crew:
    return Crew()


TARGET = Target(seeds, mutate, run, source=("engine/vision",))
