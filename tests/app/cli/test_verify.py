"""``jalopy verify``: hash, weights and a short reply, each a line, and an exit code for scripts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.backend.local import engine_access
from app.cli.verify import sha256_of, stated_sha256, verify
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from engine.errors import BrokenModelError, EngineError
from tests.app.fake_engine import Script
from tests.app.models.library.stores import hugging_face_model, ollama_model
from tests.app.scripted_access import use_script
from tests.engine import tiny_gguf


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return use_script(monkeypatch, Script(replies=[["Paris", " it", " is"]]))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf.write(tmp_path / "m.gguf", quant="Q8_0")


def run(capsys: pytest.CaptureFixture[str], path: Path, **options: Any) -> tuple[int, str]:
    code = verify(built_in_settings(), str(path), **options)
    return code, capsys.readouterr().out


def test_a_sound_model_passes_every_check(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    code, out = run(capsys, model, sha256=digest.upper())
    assert code == exit_codes.OK
    assert f"ok  sha256    {digest} as expected" in out
    assert "no NaN, no infinity" in out
    assert '-> "Paris it is"' in out
    assert "ok  tokens" in out
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * 5


def test_another_hash_means_damage(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, model, sha256="0" * 64, runs=False)
    assert code == exit_codes.BAD_DATA
    assert out.startswith("x   sha256")
    assert "download it again" in out


def test_without_a_known_hash_the_result_is_unknown(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(capsys, model, runs=False)
    assert code == exit_codes.OK
    assert out.startswith("?   sha256")


def test_an_invalid_hash_is_refused(model: Path) -> None:
    for digest in ("abc", "g" * 64, "0" * 63):
        with pytest.raises(Refusal, match="64 hexadecimal digits"):
            verify(built_in_settings(), str(model), digest)


def test_a_damaged_scale_is_named_by_tensor_and_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_gguf.model(quant="Q8_0")
    tensor = tiny.tensor("blk.0.ffn_up.weight")
    data = bytearray(tensor.data)
    data[0:2] = np.float16("nan").tobytes()
    tensor.data = bytes(data)
    code, out = run(capsys, tiny.write(tmp_path / "bad.gguf"), runs=False)
    assert code == exit_codes.BAD_DATA
    assert "x   weights   NaN or infinity in blk.0.ffn_up.weight (Q8_0, 1 from row 0)" in out


def test_merges_without_a_token_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_gguf.model("qwen2", quant="Q8_0")
    tiny.set("tokenizer.ggml.merges", [*tiny_gguf.bpe_vocabulary()["tokenizer.ggml.merges"], "q z"])
    code, out = run(capsys, tiny.write(tmp_path / "bad.gguf"), runs=False)
    assert code == exit_codes.BAD_DATA
    assert "x   tokens    bad.gguf: tokenizer.ggml.merges make 'qz', which is no token" in out


def test_a_reply_that_repeats_a_token_means_damage(
    model: Path, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.replies = [[" no"] * 20]
    code, out = run(capsys, model)
    assert code == exit_codes.BAD_DATA
    assert "the same token 20 times in a row" in out


def test_an_engine_error_is_a_failed_check(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def off(model: Any) -> None:
        raise BrokenModelError("m.gguf: the Q8_0 kernel is off\x1b[31m")

    monkeypatch.setattr(engine_access, "check_kernels", off)
    code, out = run(capsys, model)
    assert code == exit_codes.BAD_DATA
    assert "x   run       m.gguf: the Q8_0 kernel is off␛[31m" in out


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"<html>")
    with pytest.raises(EngineError, match="is a web page"):
        verify(built_in_settings(), str(tmp_path / "x.gguf"))


def test_json_has_every_check(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, model, as_json=True)
    report = json.loads(out)
    assert code == exit_codes.OK
    assert [check["topic"] for check in report["checks"]] == [
        "sha256",
        "tokens",
        "weights",
        "kernels",
        "reply",
    ]
    assert report["checks"][0]["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()


def test_every_part_is_hashed_and_a_single_hash_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tiny_gguf.write_parts(tmp_path, "m", 3)[0]
    # the word, and what to do, in each of three lines
    assert run(capsys, first, runs=False)[1].count("sha256") == 6
    with pytest.raises(Refusal, match="the model has 3 files, but --sha256 is the hash of one"):
        run(capsys, first, runs=False, sha256="0" * 64)


def test_the_expected_hash_comes_from_the_file_name(tmp_path: Path) -> None:
    content = tiny_gguf.build()
    digest = hashlib.sha256(content).hexdigest()
    assert stated_sha256(ollama_model(tmp_path / "o", "m", "latest", content)) == digest
    hugging_face_model(tmp_path / "h", "someone/m", "m.gguf")
    (link,) = (tmp_path / "h").glob("*/snapshots/*/m.gguf")
    assert stated_sha256(link) == digest
    assert stated_sha256(tmp_path / "elsewhere" / digest) == ""


def test_hashing_reports_progress(model: Path) -> None:
    seen: list[tuple[int, int]] = []
    digest = sha256_of(model, lambda done, total, left_s: seen.append((done, total)))
    assert digest == hashlib.sha256(model.read_bytes()).hexdigest()
    assert seen[-1] == (model.stat().st_size, model.stat().st_size)
