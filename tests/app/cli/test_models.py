"""``jalopy models``: a table for people, JSON for scripts, a word of advice where there is
nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import models as command
from app.cli.models import models
from app.machine.sensors.tuning_conditions import Conditions
from app.models.library import measure as measuring
from app.models.library.measure import EngineReadings
from app.models.library.model_files import Place
from app.program import exit_codes
from app.program.settings import built_in_settings
from engine.measure.fit import MachineRates
from tests.engine import tiny_gguf


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Scripted machine with one folder of models; yields the types that were measured."""
    measured: list[Any] = []

    def measure(threads: int, prefill_threads: int, quants: Any, *_: Any) -> Any:
        measured.append(list(quants))
        rates = MachineRates(12.0, {"Q4_K": 10.5}, {"Q4_K": 40.0})
        measuring.remember_rates(2, rates)
        return EngineReadings("avx2", 2), rates

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(command, "look_at_load", lambda look_s: Conditions(others_cores=0.1))
    monkeypatch.setattr(command, "places", lambda directories: [Place("here", tmp_path / "models")])
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "models").mkdir()
    return measured


def run(capsys: pytest.CaptureFixture[str], *words: str, **options: Any) -> str:
    settings = dataclasses.replace(built_in_settings(), threads=2)
    code = models(settings, words, **options)
    assert code == exit_codes.OK
    return capsys.readouterr().out


def test_the_table_has_every_model_and_no_line_over_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_gguf.write(tmp_path / "models" / "good.gguf", "qwen2", "Q4_K")
    (tmp_path / "models" / "bad.gguf").write_bytes(b"<html>")
    out = run(capsys)
    assert out.startswith("2 models; ")
    assert "good" in out
    assert "is a web page, not a model" in out
    assert "memory speed 12.0 GB/s" in out
    offers = out.partition("Models to download that fit")[2]
    assert "bartowski/Llama-3.2-1B-Instruct-GGUF" in offers
    assert "download that fit" not in run(capsys, "good")
    assert max(map(len, out.splitlines())) <= 80


def test_the_machine_is_measured_once_or_on_request(
    machine: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys)
    run(capsys)
    assert machine == [["Q4_K"]]
    run(capsys, measure=True)
    assert len(machine) == 2


def test_a_busy_machine_has_typical_speeds(
    machine: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "look_at_load", lambda look_s: Conditions(others_cores=0.9))
    tiny_gguf.write(tmp_path / "models" / "good.gguf")
    out = run(capsys)
    assert machine == []
    assert "typical speeds: other programs are busy" in out
    assert "memory speed" not in out
    assert json.loads(run(capsys, as_json=True))["read_gbps"] is None


def test_json_has_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_gguf.write(tmp_path / "models" / "m.gguf")
    report = json.loads(run(capsys, as_json=True))
    (entry,) = report["models"]
    assert entry["path"] == str(path)
    assert entry["parameters"] > 0
    assert entry["outlook"]["verdict"] in ("yes", "tight", "no")
    assert report["read_gbps"] == 12.0
    assert report["offers"][0]["place"] == "advised"
    assert {offer["path"] for offer in report["offers"]} == {None}
    assert report["looked_in"] == [str(tmp_path / "models")]


def test_words_filter_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        tiny_gguf.write(
            tmp_path / "models" / f"{name}.gguf", quant="F32" if name == "one" else "Q8_0"
        )
    out = run(capsys, "q8_0", "TWO")
    assert out.startswith("1 model; ")
    assert "one " not in out


def test_an_empty_list_names_the_searched_folders(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys)
    assert "No models found" in out
    assert "Looked in: here" in out
    assert "jalopy pull" in out


def test_names_of_folders_are_cleaned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "places", lambda directories: [Place("a\x1b[31m\nb", tmp_path)])
    assert "Looked in: a␛[31m\\nb\n" in run(capsys)


@pytest.mark.parametrize(("names", "expected"), [("a", "1 model"), ("ab", "2 models")])
def test_a_search_without_a_match_names_the_count(
    names: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        tiny_gguf.write(tmp_path / "models" / f"{name}.gguf")
    out = run(capsys, "nope", "\x1b[2J")
    assert f"No model matches: nope ␛[2J (searched {expected})" in out
    assert "No models found" not in out
    assert "jalopy pull` downloads" not in out
    assert json.loads(run(capsys, "nope", as_json=True))["models"] == []
