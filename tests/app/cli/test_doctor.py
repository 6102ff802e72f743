"""``jalopy doctor``: works without a model, refuses a broken one in a line, and says the same to
people and scripts."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import doctor as command
from app.cli.doctor import doctor
from app.machine.doctor import examine
from app.machine.doctor.readings import CoreReadings
from app.models.library import measure
from app.models.library.measure import EngineReadings
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import built_in_settings, override
from engine.measure import fit, speed_probe
from engine.measure.fit import MachineMemory, MachineRates
from tests.engine import tiny_gguf

GIB = 1 << 30
RATES = MachineRates(12.0, {"Q4_K": 10.5, "F32": 11.0}, {"Q4_K": 40.0, "F32": 10.0})


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Scripted laptop of 8 GB; yields the types that were measured."""
    measured: list[list[str]] = []

    def measured_now(threads: int, prefill_threads: int, quants: Any, *_: Any) -> Any:
        measured.append(list(dict.fromkeys(quants)))
        readings = EngineReadings("avx2", threads or 2, 12.0, 40.0, "/cache/kernels-1", 1_000_000)
        return readings, RATES

    monkeypatch.setattr(examine, "measure", measured_now)
    monkeypatch.setattr(fit, "machine_memory", lambda: MachineMemory(8 * GIB, 6 * GIB))
    monkeypatch.setattr(command, "read_cores", lambda: CoreReadings("CPU", 2, 4, 4, 2))
    return measured


def run(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, str]:
    code = doctor(built_in_settings(), **options)
    return code, capsys.readouterr().out


def test_without_a_model_the_machine_is_examined_with_advice(
    capsys: pytest.CaptureFixture[str], machine: list[list[str]]
) -> None:
    code, out = run(capsys)
    assert code == exit_codes.OK
    assert "uses AVX2" in out
    assert "12.0 GB/s read with 2 threads" in out
    assert "Will it fit" not in out
    assert " >   8 GB   8B Q4_K_M" in out
    assert machine == [["Q4_K"]]
    assert max(map(len, out.splitlines())) <= command.MAX_COLUMNS


def test_a_model_is_measured_by_its_own_types_and_its_fit_shown(
    capsys: pytest.CaptureFixture[str], machine: list[list[str]], tmp_path: Path
) -> None:
    code, out = run(capsys, model=str(tiny_gguf.write(tmp_path / "m.gguf")))
    assert code == exit_codes.OK
    assert "Will it fit: tiny llama F32 · F32" in out
    assert ": estimated; `jalopy bench MODEL` measures" in " ".join(out.split())
    assert machine == [["Q4_K", "F32"]]


def test_active_experts_are_named_separately(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for n_experts, is_named in ((2, False), (40, True)):
        described = tiny_gguf.model("qwen3moe", n_experts=n_experts)
        text = " ".join(run(capsys, model=str(described.write(tmp_path / "m.gguf")))[1].split())
        assert ("per token)" in text) == is_named


@pytest.mark.parametrize(
    ("n_ctx", "options", "phrases"),
    [
        (
            0,
            {"size": "8B", "quantization": "q4_k_m"},
            ["Will it fit: a model of 8B · Q4_K_M", "estimated"],
        ),
        (0, {"size": "14B"}, ["x memory", "use a smaller model", "x context"]),
        (20_000, {"size": "8B"}, ["--ctx ", " memory 4."]),
        (500, {"model": "m.gguf"}, ["! context 500 tokens, trained for 128"]),
    ],
)
def test_a_size_and_a_file_are_judged(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    n_ctx: int,
    options: dict[str, str],
    phrases: list[str],
) -> None:
    settings = override(built_in_settings(), "context_size", n_ctx, "--ctx")
    if "model" in options:
        options = {"model": str(tiny_gguf.write(tmp_path / options["model"], context_length=128))}
    assert doctor(settings, **options) == exit_codes.OK
    text = " ".join(capsys.readouterr().out.split())  # lines break where the figures let them
    for words in phrases:
        assert words in text


def test_a_broken_model_is_a_finding_with_its_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out = run(capsys, model=str(tmp_path / "none.gguf"))
    assert code == exit_codes.UNREADABLE
    assert "x   model         none.gguf: no such file" in out
    assert "uses AVX2" in out
    (tmp_path / "bad.gguf").write_bytes(b"<html>")
    assert run(capsys, model=str(tmp_path / "bad.gguf"))[0] == exit_codes.BAD_DATA


def test_json_is_one_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out = run(capsys, model=str(tiny_gguf.write(tmp_path / "m.gguf")), as_json=True)
    report = json.loads(out)
    assert code == exit_codes.OK
    assert set(report) == {"findings", "model", "model_findings", "fit", "suggestions", "readings"}
    assert report["fit"]["verdict"] == "yes"
    assert {finding["mark"] for finding in report["findings"]} <= {"ok", "!", "x"}
    assert report["readings"]["engine"]["read_gbps"] == 12.0


def test_a_size_excludes_a_model_and_a_type_needs_it() -> None:
    with pytest.raises(Refusal, match="not both"):
        doctor(built_in_settings(), "m.gguf", "8B")
    for model in (None, "m.gguf"):
        with pytest.raises(Refusal, match="--type needs a size"):
            doctor(built_in_settings(), model, quantization="Q4_0")


def test_an_engine_that_cannot_run_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()

    def fail(*_: Any) -> Any:
        raise ImportError("numba needs a processor with SSE2")

    monkeypatch.setattr(speed_probe, "measure_rates", fail)
    readings, rates = measure.measure(0, 0, ["Q4_K"], None)
    assert readings.error == "ImportError: numba needs a processor with SSE2"
    assert rates == MachineRates()
    code, out = run(capsys)
    assert code == exit_codes.OK
    assert "x   engine        ImportError" in out


def test_kernel_cache_sizes_count_this_and_older_versions(tmp_path: Path) -> None:
    for name, n_bytes in (("kernels-new", 10), ("kernels-old", 30), ("other", 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "k.nbi").write_bytes(bytes(n_bytes))
    assert measure._cache_sizes(tmp_path / "kernels-new") == (10, 30)
    assert measure._cache_sizes(None) == (None, 0)
