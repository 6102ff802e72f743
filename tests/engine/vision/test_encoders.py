"""Rows of pictures against the NumPy twin, and against llama.cpp.

``golden_rows.json`` has some numbers of the rows that libmtmd (in llama-cpp-python 0.3.36, without
flash attention) computed by ``tests/programs/peers/pictures_peer.py`` for the encoders of
``tiny_mmproj.TINY``, with rows of 256 numbers, and the picture of ``GOLDEN_SIZE``: forty values,
evenly spread over all rows after each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import Crew
from engine.config import ModelConfig
from engine.errors import BrokenModelError, Cancelled, EngineError
from engine.vision import idle
from engine.vision.encoder import PictureEncoder
from engine.vision.rows import DETAILS, HIGH, LOW, USUAL, PreparedPicture
from tests.engine.tiny_gguf import TinyGGUF
from tests.engine.vision import tiny_mmproj
from tests.engine.vision.tiny_mmproj import TEXT_WIDTH, TINY, gemma3, lfm2, picture, qwen3vl
from tests.engine.vision.twin import Array, EncoderTwin

SIZES = [(96, 64), (97, 301), (1, 1)]
EXACT = 1e-10
AS_Q8_0 = 1e-3
AS_LLAMA_CPP = 2e-6
GOLDEN = json.loads((Path(__file__).parent / "golden_rows.json").read_text())
GOLDEN_SIZE = 97, 301


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


def nmse(rows: Array, expected: Array) -> float:
    return float(((rows - expected) ** 2).sum() / (expected**2).sum())


def written(tiny: TinyGGUF, tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "mmproj.gguf")


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for another thread."""
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


def twin_rows(path: Path, prepared: PreparedPicture) -> Array:
    twin = EncoderTwin(path)
    return np.concatenate([twin.rows(part.pixels) for part in prepared.parts])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", TINY)
def test_rows_equal_the_numpy_twin(
    name: str, size: tuple[int, int], tmp_path: Path, crew: Crew
) -> None:
    path = written(TINY[name](), tmp_path)
    encoder = PictureEncoder.open(path, crew, 2, is_exact=True)
    prepared = encoder.prepare(picture(*size), LOW)
    rows = np.concatenate(encoder.encode(prepared).rows)
    assert rows.shape == (prepared.n_rows, encoder.row_width)
    assert rows.dtype == np.float32
    expected = twin_rows(path, prepared)
    assert nmse(rows, expected) < EXACT
    encoder.close()

    quantised = PictureEncoder.open(path, crew, 1)
    prepared = quantised.prepare(picture(*size), LOW)
    rows = np.concatenate(quantised.encode(prepared).rows)
    assert nmse(rows, expected) < AS_Q8_0
    quantised.close()


@pytest.mark.parametrize("name", GOLDEN)
def test_rows_equal_those_of_llama_cpp(
    name: str, tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_mmproj, "TEXT_WIDTH", 256)
    encoder = PictureEncoder.open(written(TINY[name](), tmp_path), crew, 2, is_exact=True)
    rows = np.concatenate(encoder.encode(encoder.prepare(picture(*GOLDEN_SIZE), HIGH)).rows)
    assert list(rows.shape) == GOLDEN[name]["shape"]
    expected = np.array(GOLDEN[name]["values"])
    assert nmse(rows.ravel()[:: rows.size // 40][:40], expected) < AS_LLAMA_CPP
    encoder.close()


@pytest.mark.parametrize("name", ["gemma3", "gemma4v", "pixtral"])
def test_feed_forwards_that_are_no_full_blocks(
    name: str, tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_mmproj, "HIDDEN", 88)
    path = written(TINY[name](), tmp_path)
    for is_exact, bound in ((True, EXACT), (False, AS_Q8_0)):
        encoder = PictureEncoder.open(path, crew, 2, is_exact)
        prepared = encoder.prepare(picture(60, 90), LOW)
        rows = np.concatenate(encoder.encode(prepared).rows)
        assert nmse(rows, twin_rows(path, prepared)) < bound
        encoder.close()


def test_rows_of_tiles_equal_the_twin(tmp_path: Path, crew: Crew) -> None:
    path = written(lfm2(), tmp_path)
    encoder = PictureEncoder.open(path, crew, 2, is_exact=True)
    prepared = encoder.prepare(picture(1100, 700), HIGH)
    texts = [part.text_before for part in prepared.parts]
    assert len(texts) > 3
    assert texts[0] == "<|image_start|><|img_row_1_col_1|>"
    assert texts[1] == "<|img_row_1_col_2|>"
    assert texts[-1] == "<|img_thumbnail|>"
    assert prepared.text_after == "<|image_end|>"
    rows = np.concatenate(encoder.encode(prepared).rows)
    assert nmse(rows, twin_rows(path, prepared)) < EXACT
    encoder.close()


def test_threads_and_earlier_pictures_change_nothing(tmp_path: Path, crew: Crew) -> None:
    path = written(qwen3vl(), tmp_path)
    one = PictureEncoder.open(path, crew, 1)
    two = PictureEncoder.open(path, crew, 2)
    small = picture(100, 100)
    large = picture(400, 700)
    first = one.encode(one.prepare(small)).rows[0]
    two.encode(two.prepare(large))
    assert (two.encode(two.prepare(small)).rows[0] == first).all()
    two.release()
    assert (two.encode(two.prepare(small)).rows[0] == first).all()
    one.close()
    two.close()


def test_equal_pictures_have_equal_digests(tmp_path: Path, crew: Crew) -> None:
    path = written(qwen3vl(), tmp_path)
    encoder = PictureEncoder.open(path, crew, 1)
    pixels = picture(1200, 900)
    digest = encoder.prepare(pixels, USUAL).digest
    assert len(digest) == 64
    assert encoder.prepare(pixels.copy(), USUAL).digest == digest
    assert encoder.prepare(pixels, LOW).digest != digest
    changed = pixels.copy()
    changed[:40] = 0
    assert encoder.prepare(changed, USUAL).digest != digest
    exact = PictureEncoder.open(path, crew, 1, is_exact=True)
    assert exact.prepare(pixels, USUAL).digest != digest
    other = PictureEncoder.open(written(gemma3(), tmp_path), crew, 1)
    assert other.prepare(pixels, USUAL).digest != digest
    for opened in (encoder, exact, other):
        opened.close()


def test_details_bound_the_rows(tmp_path: Path, crew: Crew) -> None:
    encoder = PictureEncoder.open(written(qwen3vl(), tmp_path), crew, 1)
    counts = [encoder.prepare(picture(3000, 2500), detail).n_rows for detail in DETAILS]
    assert counts[0] <= 256 < counts[1] <= 1024 < counts[2] <= 4096
    with pytest.raises(EngineError, match="detail sharp is unknown; supported: low, usual, high"):
        encoder.prepare(picture(8, 8), "sharp")
    encoder.close()


@pytest.mark.parametrize("name", TINY)
def test_costs_are_known_before_pixels_are(name: str, tmp_path: Path, crew: Crew) -> None:
    encoder = PictureEncoder.open(written(TINY[name](), tmp_path), crew, 1)
    for size in ((640, 360), (97, 301)):
        for detail in DETAILS:
            cost = encoder.costs.cost(size, detail)
            prepared = encoder.prepare(picture(*size), detail)
            assert (cost.n_parts, cost.n_rows) == (len(prepared.parts), prepared.n_rows)
            assert cost.products == encoder.products(prepared)
    encoder.close()


def test_opening_weights_can_be_stopped(tmp_path: Path, crew: Crew) -> None:
    encoder = PictureEncoder.open(written(qwen3vl(), tmp_path), crew, 1)
    prepared = encoder.prepare(picture(64, 64))
    shares: list[float] = []

    def stop(share: float) -> None:
        shares.append(share)
        if len(shares) == 3:
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        encoder.encode(prepared, stop)
    assert shares == [0, 0, 0]
    assert len(encoder.encode(prepared).rows[0]) == prepared.n_rows
    encoder.close()


def test_progress_and_cancelling(tmp_path: Path, crew: Crew) -> None:
    encoder = PictureEncoder.open(written(qwen3vl(), tmp_path), crew, 2)
    prepared = encoder.prepare(picture(64, 64))
    shares: list[float] = []
    encoder.encode(prepared, shares.append)
    assert shares == sorted(shares)
    assert len(shares) >= 2
    assert shares[-1] == 1
    crew.cancel()
    with pytest.raises(Cancelled):
        encoder.encode(prepared)
    crew.clear_cancel()
    assert len(encoder.encode(prepared).rows[0]) == prepared.n_rows
    encoder.close()


def test_memory_is_released_when_no_picture_comes(
    tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "LOOK_S", 0.01)
    encoder = PictureEncoder.open(written(qwen3vl(), tmp_path), crew, 1)
    prepared = encoder.prepare(picture(64, 64))
    assert encoder.used_bytes == 0
    expected = encoder.encode(prepared).rows[0]
    assert encoder.used_bytes > 0
    monkeypatch.setattr(idle, "IDLE_S", 0.0)
    wait_until(lambda: encoder.used_bytes == 0)
    monkeypatch.setattr(idle, "IDLE_S", 300.0)
    assert (encoder.encode(prepared).rows[0] == expected).all()
    assert encoder.used_bytes > 0
    monkeypatch.setattr(idle.host, "available_memory_bytes", lambda: 0)
    wait_until(lambda: encoder.used_bytes == 0)
    encoder.close()


@pytest.mark.parametrize("name", TINY)
def test_the_needed_memory_is_about_what_is_used(name: str, tmp_path: Path, crew: Crew) -> None:
    encoder = PictureEncoder.open(written(TINY[name](), tmp_path), crew, 1)
    encoder.encode(encoder.prepare(picture(1500, 1500), USUAL))
    assert 0.5 < encoder.needed_bytes / encoder.used_bytes < 2
    encoder.close()


def test_nan_in_weights_is_named(tmp_path: Path, crew: Crew) -> None:
    tiny = qwen3vl()
    tiny.fill("v.blk.1.ffn_down.weight", float("nan"))
    path = written(tiny, tmp_path)
    for is_exact in (True, False):
        encoder = PictureEncoder.open(path, crew, 1, is_exact)
        with pytest.raises(BrokenModelError, match=r"^mmproj.gguf: .*damaged"):
            encoder.encode(encoder.prepare(picture(64, 64)))
        encoder.close()


def test_exchanged_names_of_old_files_are_mended(tmp_path: Path, crew: Crew) -> None:
    path = written(gemma3(), tmp_path)
    encoder = PictureEncoder.open(path, crew, 1, is_exact=True)
    expected = encoder.encode(encoder.prepare(picture(50, 80))).rows[0]
    encoder.close()
    old = gemma3()
    for one, other in (("ffn_up", "ffn_x"), ("ffn_down", "ffn_up"), ("ffn_x", "ffn_down")):
        old.rename(one, other)
    encoder = PictureEncoder.open(written(old, tmp_path), crew, 1, is_exact=True)
    assert (encoder.encode(encoder.prepare(picture(50, 80))).rows[0] == expected).all()
    encoder.close()


def test_an_encoder_of_another_model_is_refused(tmp_path: Path, crew: Crew) -> None:
    encoder = PictureEncoder.open(written(qwen3vl(), tmp_path), crew, 1)
    model = ModelConfig("qwen35", TEXT_WIDTH, (), 1e-6, 100, 100)
    encoder.check_fits(model, "model.gguf")
    with pytest.raises(EngineError) as caught:
        encoder.check_fits(replace(model, dim=1024), "model.gguf")
    assert str(caught.value) == (
        "mmproj.gguf: makes embeddings of 48 numbers, model.gguf needs 1024: it belongs to another "
        "model"
    )
    with pytest.raises(EngineError) as caught:
        encoder.check_fits(replace(model, architecture="gemma3"), "model.gguf")
    assert str(caught.value) == (
        "mmproj.gguf: is for Qwen3-VL, Qwen3.5, model.gguf is a model of the architecture gemma3: "
        "it belongs to another model"
    )
    encoder.close()


def test_the_expected_time_grows_with_the_picture(tmp_path: Path, crew: Crew) -> None:
    encoder = PictureEncoder.open(written(qwen3vl(), tmp_path), crew, 1)
    small, large = (encoder.prepare(picture(side, side)) for side in (100, 500))
    assert encoder.products(large) > 10 * encoder.products(small)
    seconds = encoder.expected_seconds(small)
    assert 0 < seconds < encoder.expected_seconds(large)
    encoder.close()
