"""``jalopy inspect --image``, with encoders of random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.models.library.inspect import inspect
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings, built_in_settings
from engine.errors import EngineError
from tests.engine import tiny_gguf
from tests.engine.vision.tiny_mmproj import gemma3, lfm2, picture, qwen3vl

SETTINGS: Settings = replace(built_in_settings(), threads=2)


@pytest.fixture
def photo(tmp_path: Path) -> str:
    path = tmp_path / "photo.png"
    Image.fromarray(picture(640, 360)).save(path)
    return str(path)


def encoder(tmp_path: Path, name: str = "mmproj-F16.gguf") -> Path:
    return qwen3vl().write(tmp_path / name)


def test_the_report_says_size_tokens_and_time(
    photo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(SETTINGS, str(encoder(tmp_path)), image=photo) == exit_codes.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{photo}: 640 x 360"
    assert lines[1:-1] == [
        "  encoder: mmproj-F16.gguf (Qwen3-VL, Qwen3.5)",
        "  detail: usual",
        "  resized to 640 x 352: 220 tokens (20 x 11)",
        "  tokens: 220, without markers",
    ]
    assert lines[-1].startswith("  expected wait: about ")


def test_the_report_of_tiles_counts_equal_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = tmp_path / "photo.png"
    Image.fromarray(picture(1100, 700)).save(photo)
    model = lfm2().write(tmp_path / "mmproj.gguf")
    inspect(SETTINGS, str(model), image=str(photo), detail="usual")
    out = capsys.readouterr().out
    assert "of 512 x 512: 256 tokens (16 x 16) each\n" in out
    assert "    1 of " in out


def test_rows_are_written_as_float32(
    photo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.npy"
    model = str(encoder(tmp_path))
    inspect(SETTINGS, model, image=photo, rows=str(out), as_json=True, detail="low")
    report = json.loads(capsys.readouterr().out)
    rows = np.load(out)
    assert rows.dtype == np.float32
    assert list(rows.shape) == report["shape"] == [report["tokens"], 48]
    assert report["parts"][0]["text_before"] == "<|vision_start|>"
    assert report["seconds"] > 0
    with pytest.raises(Refusal, match=r"--rows rows\.txt: must end with \.npy"):
        inspect(SETTINGS, model, image=photo, rows="rows.txt")
    with pytest.raises(Refusal, match="No such file"):
        inspect(SETTINGS, model, image=photo, rows=str(tmp_path / "none" / "rows.npy"))


def test_the_encoder_next_to_a_model_is_used(
    photo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_gguf.model(architecture="qwen2").write(tmp_path / "model.gguf")
    with pytest.raises(EngineError, match=r"^model\.gguf: no mmproj file next to it fits"):
        inspect(SETTINGS, str(model), image=photo)
    other = gemma3().write(tmp_path / "other.gguf")
    with pytest.raises(EngineError, match="belongs to another model"):
        inspect(SETTINGS, str(model), image=photo, mmproj=str(other))


def test_options_without_a_picture_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="--mmproj and --rows need --image FILE"):
        inspect(SETTINGS, "m.gguf", rows="a.npy")


def test_a_broken_picture_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(EngineError, match=r"^broken\.png: is [^\n]+$"):
        inspect(SETTINGS, str(encoder(tmp_path)), image=str(broken))


def test_the_rows_of_an_animation_are_those_of_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.fromarray(picture(64, 64, seed)) for seed in (1, 2)]
    animation = tmp_path / "a.gif"
    frames[0].save(animation, save_all=True, append_images=frames[1:])
    first = tmp_path / "first.gif"
    frames[0].save(first)
    model = str(encoder(tmp_path))
    contents = []
    for image in (animation, first):
        rows = tmp_path / "rows.npy"
        assert inspect(SETTINGS, model, image=str(image), rows=str(rows)) == exit_codes.OK
        contents.append(rows.read_bytes())
    assert contents[0] == contents[1]
