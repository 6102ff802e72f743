"""``jalopy convert``: from a directory or a repository to a checked file; what is wrong is one
line."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from app.cli.arguments import parse
from app.cli.convert import convert
from app.cli.dispatch import guard, run_command
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from engine import EngineError, read_gguf
from tests.app.fake_engine import Script
from tests.app.models.downloads.local_hub import LocalHub
from tests.app.models.downloads.pulling import client
from tests.app.scripted_access import use_script
from tests.engine.convert import hub_directory


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Script:
    monkeypatch.chdir(tmp_path)
    return use_script(monkeypatch, Script(replies=[["Paris"]]))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    hub_directory.write(tmp_path / "Tiny-Model", dtype="BF16")
    return tmp_path / "Tiny-Model"


def run(source: str | Path, **options: Any) -> int:
    settings = dataclasses.replace(
        built_in_settings(), model_directories=(str(Path("models").absolute()),), threads=1
    )
    return convert(settings, str(source), **options)


def test_a_file_is_written_and_checked(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        guard(lambda: run_command(parse(["convert", str(directory), "--threads", "1"])))
        == exit_codes.OK
    )
    out = capsys.readouterr().out
    assert out.startswith("Tiny-Model: llama, 21 tensors, ")
    assert "Tiny-Model-BF16.gguf: written in " in out
    assert "ok  weights" in out
    assert '-> "Paris"' in out
    assert read_gguf("Tiny-Model-BF16.gguf").metadata["general.name"] == "Tiny-Model"


def test_an_existing_file_is_not_replaced(directory: Path) -> None:
    Path("out.gguf").write_bytes(b"mine")
    with pytest.raises(Refusal, match=r"out\.gguf: already exists \(--force replaces it"):
        run(directory, out="out.gguf")
    assert Path("out.gguf").read_bytes() == b"mine"
    assert run(directory, out="out.gguf", mix="F16", force=True) == exit_codes.OK


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "1_Pooling/config.json"])
def test_an_input_file_is_never_the_output(name: str, directory: Path) -> None:
    if "/" in name:
        (directory / name).parent.mkdir()
        (directory / name).write_text('{"pooling_mode_mean_tokens": true}')
    old_bytes = (directory / name).read_bytes()
    Path("link.gguf").symlink_to(directory / name)
    for out in (directory / name, Path("link.gguf"), directory / ".." / directory.name / name):
        with pytest.raises(Refusal, match="is an input file and would be lost"):
            run(directory, out=str(out), force=True)
    assert (directory / name).read_bytes() == old_bytes


def test_an_older_conversion_in_the_directory_is_replaced(directory: Path) -> None:
    (directory / "out.gguf").write_bytes(b"older")
    assert run(directory, out=str(directory / "out.gguf"), force=True) == exit_codes.OK


def test_unknown_types_and_folders_are_refused_in_one_line(directory: Path) -> None:
    with pytest.raises(Refusal, match=r"jalopy convert: unknown type: Q9 \(choose one of "):
        run(directory, mix="Q9")
    with pytest.raises(Refusal, match=r"jalopy convert: nowhere: there is no such folder"):
        run("nowhere")


@pytest.fixture
def hub(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        for path in directory.iterdir():
            hub.add("someone/Tiny", path.name, path.read_bytes())
        hub.in_git = {"config.json", "tokenizer_config.json"}
        hub.add("someone/Tiny", "run_me.py", b"import os")
        hub.add("someone/Tiny", "pytorch_model.bin", b"pickle")
        yield hub


def test_a_repository_is_downloaded_first(
    hub: LocalHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("someone/Tiny", web=client()) == exit_codes.OK
    assert "someone--Tiny-BF16.gguf" not in capsys.readouterr().out
    assert read_gguf("Tiny-BF16.gguf").metadata["general.name"] == "Tiny"
    names = {path.name for path in Path("models/someone--Tiny").iterdir()}
    assert names == {"config.json", "tokenizer_config.json", "tokenizer.model", "model.safetensors"}


def test_a_file_with_another_hash_than_the_hubs_is_refused(hub: LocalHub) -> None:
    hub.git_names["config.json"] = "0" * 40
    with pytest.raises(Refusal, match=r"config\.json has another content than the hub describes"):
        run("someone/Tiny", web=client())
    assert not list(Path().glob("*.gguf.part"))


def test_a_repository_without_safetensors_is_refused(hub: LocalHub) -> None:
    del hub.files["someone/Tiny"]["model.safetensors"]
    with pytest.raises(Refusal, match="someone/Tiny: has no safetensors weights"):
        run("someone/Tiny", web=client())
    with pytest.raises(
        (Refusal, EngineError), match="name a repository as OWNER/REPO, or a directory"
    ):
        run("someone/Tiny:Q4_K_M", web=client())
