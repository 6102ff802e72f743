"""Downloads of models that see: the encoder for pictures (mmproj) comes with the model."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from app.models.downloads import hub, pull
from app.models.downloads.encoder_file import encoder_of, local_name
from app.models.downloads.fetch import DownloadProgress
from app.models.downloads.hub import RemoteFile
from app.program import exit_codes
from app.program.settings import built_in_settings
from tests.app.models.downloads.local_hub import LocalHub
from tests.app.models.downloads.pulling import client, get, remaining_files
from tests.engine import families, tiny_gguf
from tests.engine.vision import tiny_mmproj

REPOSITORY = "someone/Qwen3-VL-Tiny-GGUF"
MODEL = "Qwen3-VL-Tiny-Q8_0.gguf"
ENCODER = "mmproj-Qwen3-VL-Tiny-F16.gguf"


@cache
def model() -> bytes:
    sections = {"rope.dimension_sections": np.array([3, 3, 2, 0], "<i4")}
    described = tiny_gguf.model("qwen3vl", dim=tiny_mmproj.TEXT_WIDTH, head_dim=16)
    return families.keyed(described, **sections).to_bytes()


@cache
def encoder() -> bytes:
    return tiny_mmproj.qwen3vl().to_bytes()


@pytest.fixture
def seeing(server: LocalHub) -> LocalHub:
    """Add a repository with a model that sees; the encoder has the usual name."""
    server.add(REPOSITORY, MODEL, model())
    server.add(REPOSITORY, "mmproj-F16.gguf", encoder())
    server.add(REPOSITORY, "mmproj-F32.gguf", encoder() + bytes(8))
    return server


def names_sent(server: LocalHub) -> list[str]:
    paths = [request.path for request in server.requests_to("content")]
    return [path.partition("?")[0].rpartition("/")[2] for path in paths]


def test_model_and_encoder_are_one_download(
    seeing: LocalHub, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert get(target, REPOSITORY) == exit_codes.OK
    assert remaining_files(target) == [MODEL, ENCODER]
    assert (target / ENCODER).read_bytes() == encoder()
    out = capsys.readouterr().out
    assert " in 2 files" in out
    assert "sees pictures, with an encoder (mmproj) of " in out
    assert f"Downloaded and checked: {target / ENCODER}" in out
    assert f"To open it: jalopy {target / MODEL}" in out


def test_progress_counts_both_files(seeing: LocalHub, target: Path) -> None:
    settings = dataclasses.replace(built_in_settings(), model_directories=(str(target),))
    prepared = pull.prepare(REPOSITORY, settings, client())
    assert prepared.plan.total_bytes == len(model()) + len(encoder())
    seen: list[DownloadProgress] = []
    result = pull.carry_out(prepared, client(), seen.append)
    assert result.path == target / MODEL
    assert not result.encoder_trouble
    assert seen[-1].done_bytes == seen[-1].total_bytes == prepared.plan.total_bytes


def test_a_missing_encoder_is_offered_alone(
    seeing: LocalHub, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = target / "own"
    folder.mkdir(parents=True)
    (folder / MODEL).write_bytes(model())
    seeing.add(REPOSITORY, "Qwen3-VL-Tiny-Q4_K_M.gguf", b"GGUF" + bytes(100))
    assert get(folder, REPOSITORY) == exit_codes.OK
    assert names_sent(seeing) == ["mmproj-F16.gguf"]
    assert remaining_files(folder) == [MODEL, ENCODER]
    out = capsys.readouterr().out
    assert "its encoder for pictures; the model is here already" in out
    assert f"Downloaded and checked: {folder / MODEL}" not in out
    assert f"To open it: jalopy {folder / MODEL}" in out
    seeing.requests.clear()
    assert get(folder, f"{REPOSITORY}:Q8_0") == exit_codes.OK
    assert names_sent(seeing) == []


def test_a_setting_leaves_the_encoder_out(seeing: LocalHub, target: Path) -> None:
    settings = dataclasses.replace(built_in_settings(), model_directories=(str(target),))
    pictures = dataclasses.replace(settings.pictures, mmproj="off")
    prepared = pull.prepare(REPOSITORY, dataclasses.replace(settings, pictures=pictures), client())
    assert [file.name for file in prepared.plan.files] == [MODEL]


def test_an_encoder_that_does_not_fit_is_named(
    server: LocalHub, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(REPOSITORY, MODEL, model())
    server.add(REPOSITORY, "mmproj-F16.gguf", tiny_mmproj.gemma3().to_bytes())
    assert get(target, REPOSITORY) == exit_codes.OK
    assert f"It will not see pictures: {ENCODER}: it belongs to another" in capsys.readouterr().out


def test_two_repositories_of_one_title_keep_their_encoders(seeing: LocalHub, target: Path) -> None:
    target.mkdir()
    (target / ENCODER).write_bytes(b"another encoder")
    assert get(target, REPOSITORY) == exit_codes.OK
    assert "mmproj-someone-Qwen3-VL-Tiny-F16.gguf" in remaining_files(target)
    assert (target / ENCODER).read_bytes() == b"another encoder"


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], "mmproj-M-VL-F16.gguf"),
        (["mmproj-M-VL-F16.gguf", "mmproj-M-VL-Q8_0.gguf"], "mmproj-M-VL-Q8_0.gguf"),
        (["M-VL-BF16-mmproj.gguf"], "M-VL-BF16-mmproj.gguf"),
        (["mmproj-model-f16.gguf"], "mmproj-M-VL-F16.gguf"),
        (["mmproj.gguf"], "mmproj-M-VL-model.gguf"),
        (["M-VL-Q8_0.gguf"], ""),
    ],
)
def test_the_smallest_good_encoder_is_chosen(names: list[str], chosen: str, tmp_path: Path) -> None:
    files = tuple(RemoteFile(name, "http://127.0.0.1/x", 100, "0" * 64) for name in names)
    encoder = encoder_of(hub.Repository("a/M-VL-GGUF", files), tmp_path)
    assert (encoder.name if encoder else "") == chosen


@pytest.mark.parametrize(
    ("architecture", "has_encoder"),
    [("", True), ("clip", True), ("qwen35", True), ("qwen2", False)],
)
def test_models_that_cannot_see_get_no_encoder(
    architecture: str, has_encoder: bool, tmp_path: Path
) -> None:
    file = RemoteFile("mmproj-F16.gguf", "http://127.0.0.1/x", 100, "0" * 64)
    repository = hub.Repository("a/b", (file,), architecture=architecture)
    assert (encoder_of(repository, tmp_path) is not None) == has_encoder


def test_a_long_title_keeps_the_name_of_the_file() -> None:
    assert local_name("x" * 300, "mmproj-F16.gguf") == "mmproj-F16.gguf"
