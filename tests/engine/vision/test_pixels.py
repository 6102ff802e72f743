"""Pixels of pictures: formats, turning, transparency, limits, and resizing."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.errors import EngineError
from engine.vision import pixels
from engine.vision.pixels import BICUBIC, BILINEAR, LANCZOS, PictureError, decode, fit, stretch
from engine.vision.sizes import RowBudget, aligned_size, fitted_size
from tests.engine.vision.tiny_mmproj import picture

ROOT = Path(__file__).parents[3]


def encoded(array: np.ndarray, file_format: str, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).convert(mode).save(out, file_format, **options)
    return out.getvalue()


def chunk(name: bytes, payload: bytes) -> bytes:
    """Return a chunk of a PNG."""
    checksum = struct.pack(">I", zlib.crc32(name + payload))
    return struct.pack(">I", len(payload)) + name + payload + checksum


def png(width: int, height: int, data: bytes = b"", more: bytes = b"", colour: int = 2) -> bytes:
    """Return a PNG that claims a size.

    Args:
        data: rows of pixels, each after a zero.
        more: chunks before them.
        colour: type of the pixels; 2 for RGB.
    """
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    pixel_chunk = chunk(b"IDAT", zlib.compress(data, 9))
    return b"\x89PNG\r\n\x1a\n" + header + more + pixel_chunk + chunk(b"IEND", b"")


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "GIF", "WEBP", "JPEG"])
def test_formats_are_read(file_format: str) -> None:
    array = picture(40, 30)
    options = {"lossless": True} if file_format == "WEBP" else {}
    result = decode(encoded(array, file_format, **options))
    assert result.shape == (30, 40, 3)
    assert result.dtype == np.uint8
    if file_format in ("PNG", "BMP", "TIFF", "WEBP"):
        assert (result == array).all()
    else:
        assert np.abs(result.astype(int) - array).mean() < 40


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "RGBA", "LA", "I;16", "I", "F"])
def test_modes_become_three_channels(mode: str) -> None:
    grey = picture(16, 8)[:, :, 0]
    out = io.BytesIO()
    if mode == "I;16":
        Image.fromarray(grey.astype(np.uint16) * 257).save(out, "PNG")
    elif mode == "F":
        Image.fromarray(grey.astype(np.float32)).save(out, "TIFF")
    elif mode == "I":
        Image.fromarray(grey.astype(np.int32) * 257).save(out, "TIFF")
    else:
        Image.fromarray(grey).convert(mode).save(out, "TIFF" if mode == "CMYK" else "PNG")
    result = decode(out.getvalue())
    assert result.shape == (8, 16, 3)
    if mode in ("L", "I;16", "I", "F", "LA", "RGBA"):
        assert (result == grey[:, :, None]).all()


def test_pictures_are_turned_by_their_exif_data() -> None:
    array = picture(24, 16)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    turned = decode(encoded(array, "PNG", exif=exif.tobytes()))
    assert (turned == np.rot90(array, -1)).all()
    broken = decode(encoded(array, "PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff"))
    assert (broken == array).all()


def test_transparent_parts_are_white() -> None:
    layer = np.zeros((4, 6, 4), np.uint8)
    layer[:, 3:, 3] = 255
    layer[0, 0] = 200, 100, 0, 128
    result = decode(encoded(layer, "PNG", "RGBA"))
    assert (result[1:, :3] == 255).all()
    assert (result[:, 3:] == 0).all()
    assert np.abs(result[0, 0].astype(int) - [227, 177, 127]).max() <= 1
    palette = Image.fromarray(picture(8, 8)).convert("P")
    palette.putpixel((0, 0), 7)
    out = io.BytesIO()
    palette.save(out, "GIF", transparency=7)
    assert (decode(out.getvalue())[0, 0] == 255).all()


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_read(file_format: str) -> None:
    frames = [Image.fromarray(np.full((8, 8, 3), level, np.uint8)) for level in (10, 200)]
    out = io.BytesIO()
    options = {"lossless": True} if file_format == "WEBP" else {}
    frames[0].save(out, file_format, save_all=True, append_images=frames[1:], **options)
    assert np.abs(decode(out.getvalue()).astype(int) - 10).max() <= 2


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_a_broken_second_frame_does_not_matter(file_format: str) -> None:
    noise = [picture(64, 64, seed) for seed in (1, 2)]
    frames = [Image.fromarray(array) for array in noise]
    out = io.BytesIO()
    options = {"lossless": True} if file_format == "WEBP" else {}
    frames[0].save(out, file_format, save_all=True, append_images=frames[1:], **options)
    expected = decode(out.getvalue())
    raw = bytearray(out.getvalue())
    first = 3 * len(raw) // 4
    last = len(raw) - 4
    raw[first:last] = b"\x55" * (last - first)
    assert (decode(bytes(raw)) == expected).all()
    del raw[first:]
    result, message = outcome(bytes(raw))
    if file_format == "WEBP":  # the file says how long it is
        assert message.startswith("x: is damaged: ")
    else:
        assert (result == expected).all()


def rows(width: int, height: int, n_channels: int = 3) -> bytes:
    """Return black pixels of a PNG."""
    return bytes(1 + width * n_channels) * height


def test_a_small_file_of_many_pixels_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    width, height = 4000, 3000
    bomb = png(width, height, rows(width, height))
    assert len(bomb) < 60_000
    result = decode(bomb)
    assert result.shape == (height, width, 3)
    assert not result.any()
    monkeypatch.setattr(pixels.host, "available_memory_bytes", lambda: 90 << 20)
    with pytest.raises(PictureError, match=r"x\.png: there is no memory to decode it \(make it sm"):
        decode(bomb, "x.png")
    with pytest.raises(PictureError, match="there is no memory to decode it"):
        pixels.small(bomb, (16, 12))
    assert pixels.read_size(bomb) == (width, height)


PEAK = """
import resource, sys
from engine.vision import pixels
bomb = sys.stdin.buffer.read()
pixels.decode({small!r})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pixels.decode(bomb)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("n_channels", [3, 4])
def test_decoding_takes_eight_bytes_for_a_pixel(n_channels: int) -> None:
    colour = 2 if n_channels == 3 else 6
    width, height = 5000, 4000
    bomb = png(width, height, rows(width, height, n_channels), colour=colour)
    small = png(8, 8, rows(8, 8, n_channels), colour=colour)
    process = subprocess.run(
        [sys.executable, "-c", PEAK.format(small=small)],
        input=bomb,
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    assert int(process.stdout) * 1024 < 8 * width * height


REFUSED = {
    "text": (b"hello", "x.png: is no picture of a known format (PNG, JPEG, WEBP, GIF, BMP, TIFF)"),
    "nothing": (b"", "x.png: is no picture of a known format"),
    "of 20,000 x 20,000": (png(20_000, 20_000), "at most 100 million are read"),
    "of 11,000 x 10,000": (png(11_000, 10_000), "are read: 11,000 x 10,000"),
    "of 70,000 x 2": (png(70_000, 2), "are read: 70,000 x 2"),
    "of 0 x 5": (png(0, 5), "x.png: "),
    "cut": (encoded(picture(64, 64), "PNG")[:2000], "x.png: is damaged: "),
    "cut as JPEG": (encoded(picture(64, 64), "JPEG")[:700], "x.png: is damaged: "),
    "with large text": (
        png(8, 8, rows(8, 8), chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(9 << 20), 9))),
        "x.png: is damaged: ",
    ),
    "of a format not read": (encoded(picture(8, 8), "PPM"), "x.png: is no picture"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pictures_that_cannot_be_read_are_named(name: str) -> None:
    data, expected = REFUSED[name]
    with pytest.raises(PictureError) as caught:
        decode(data, "x.png")
    message = str(caught.value)
    assert expected in message
    assert message.isprintable()
    assert len(message) < 200


def test_files_are_read_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"x" * 100)
    assert pixels.read_bytes(path) == b"x" * 100
    with pytest.raises(PictureError, match=r"b\.png: no such file"):
        pixels.read_bytes(tmp_path / "b.png")
    with pytest.raises(PictureError, match=r"is not a regular file|cannot be read"):
        pixels.read_bytes(tmp_path)
    fifo = tmp_path / "fifo.png"
    os.mkfifo(fifo)
    with pytest.raises(PictureError, match=r"fifo\.png: is not a regular file"):
        pixels.read_bytes(fifo)
    with pytest.raises(PictureError, match="cannot be read"):
        pixels.read_bytes("a\0b.png")
    monkeypatch.setattr(pixels, "MAX_FILE_BYTES", 99)
    with pytest.raises(PictureError, match=r"a\.png: has 0 MB, at most 0 MB are read"):
        pixels.read_bytes(path)


def test_a_picture_that_changes_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(picture(8, 8), "PNG"))
    original = os.fstat
    calls: list[int] = []

    def changing(fd: int) -> os.stat_result:
        calls.append(fd)
        if len(calls) == 2:
            path.write_bytes(b"")
        return original(fd)

    monkeypatch.setattr(pixels.os, "fstat", changing)
    with pytest.raises(PictureError, match=r"a\.png: was changed while it was read \(try again\)"):
        pixels.read_bytes(path)


def outcome(data: bytes) -> tuple[np.ndarray, str]:
    """Return the pixels of a picture, or the message of its refusal."""
    try:
        return decode(data, "x"), ""
    except EngineError as error:
        return np.zeros(0), str(error)


@pytest.mark.parametrize("seed", range(6))
def test_mutated_pictures_are_read_or_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    formats = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]
    original = encoded(picture(48, 36), formats[seed])
    for _ in range(150):
        raw = bytearray(original)
        for _ in range(int(rng.integers(1, 6))):
            raw[int(rng.integers(0, len(raw)))] = int(rng.integers(0, 256))
        if rng.random() < 0.2:
            del raw[int(rng.integers(1, len(raw))) :]
        result, message = outcome(bytes(raw))
        assert message.isprintable()
        assert len(message) < 200
        if not message:
            assert result.ndim == 3
            assert result.size <= 3 * pixels.MAX_PIXELS


def test_resizing_takes_widths_first() -> None:
    array = picture(97, 1001)
    for resample in (BILINEAR, BICUBIC, LANCZOS):
        method = Image.Resampling[resample]
        by_hand = Image.fromarray(array).resize((64, 1001), method).resize((64, 128), method)
        assert (stretch(array, (64, 128), resample) == np.asarray(by_hand)).all()
    assert stretch(array, (97, 1001), BICUBIC) is array


def test_a_picture_keeps_its_aspect_on_a_black_canvas() -> None:
    array = np.full((360, 640, 3), 200, np.uint8)
    result = fit(array, (640, 352), BICUBIC)
    assert result.shape == (352, 640, 3)
    columns = np.flatnonzero((result == 200).all(axis=(0, 2)))
    assert (columns[0], columns[-1] + 1) == (7, 633)
    assert (result[:, :7] == 0).all()
    assert (result[:, 633:] == 0).all()


def test_sizes_of_a_budget() -> None:
    budget = RowBudget(8, 4096)
    assert aligned_size((640, 360), 32, budget) == (640, 352)
    assert aligned_size((1, 1), 32, budget) == (96, 96)
    assert aligned_size((2200, 2), 32, budget) == (2208, 32)
    assert aligned_size((48, 48), 32, RowBudget(1, 100)) == (64, 64)
    assert fitted_size((640, 360), (640, 352)) == (626, 352)
    assert fitted_size((1, 100_000), (32, 64)) == (1, 64)
