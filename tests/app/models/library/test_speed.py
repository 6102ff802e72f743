"""Tests that every place shows the same figure for the speed of a model."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import bench as bench_module
from app.cli.bench import BenchOptions, bench
from app.cli.doctor import doctor
from app.cli.models import models
from app.cli.tune import TuneOptions, tune
from app.machine.doctor import examine, report
from app.machine.sensors.reply_history import KnownAs, PastReply, ReplyHistory, rates_key
from app.models.library.header import read_header
from app.models.library.known_models import KnownModel
from app.models.library.listing import look_up, make_lister
from app.models.library.measure import EngineReadings
from app.models.library.model_files import Place
from app.models.library.rates import usual_threads
from app.models.library.report_card import report as print_card
from app.program import paths
from app.program.settings import built_in_settings
from app.text import figures
from engine.measure.fit import MachineRates, needs_of_file
from tests.app import chat_driver
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import FakeModel, Script
from tests.app.scripted_access import use_script
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow

WRITES = "24.6"
READS = "423"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file that the scripted engine opens, too, without measurements."""
    (tmp_path / "models").mkdir()
    path: Path = tiny_gguf.write(tmp_path / "models" / "tiny.gguf", quant="Q8_0")
    needs = needs_of_file(path)
    initialize = FakeModel.__init__

    def open_as_described(fake: FakeModel, *arguments: Any) -> None:
        initialize(fake, *arguments)
        fake.name = needs.name
        fake.quantization = needs.quantization
        fake.weights_bytes = needs.weights_bytes

    monkeypatch.setattr(FakeModel, "__init__", open_as_described)
    for module in ("app.models.library.scan", "app.models.library.offers", "app.cli.models"):
        monkeypatch.setattr(f"{module}.places", lambda directories: [Place("here", path.parent)])
    offered = KnownModel(needs.name, "me/tiny", 1e8, "mit", "llama", "tests", first_from_gib=1)
    for module in ("app.models.library.known_models", "app.models.library.offers"):
        monkeypatch.setattr(f"{module}.known_models", lambda: (offered,))
    monkeypatch.setattr("app.cli.models.rates_for", lambda *_: MachineRates(12.0))
    monkeypatch.setattr(bench_module, "starter_file", lambda: None)
    monkeypatch.setattr(
        examine, "measure", lambda *_: (EngineReadings("avx2", 2, 12.0), MachineRates(12.0))
    )
    original = chat_driver.options_for
    history = {"open_history": lambda: ReplyHistory(paths.speeds_file())}
    monkeypatch.setattr(
        chat_driver, "options_for", lambda script: replace(original(script), **history)
    )
    return path


def record(path: Path) -> None:
    """Save measurements with several settings, short texts, and one next to a busy program."""
    needs = needs_of_file(path)
    known_as = KnownAs(needs.name, needs.quantization, needs.weights_bytes)
    history = ReplyHistory(paths.speeds_file())
    for mode, threads, tokens, tps, is_quiet in (
        ("mmap", 1, 100, 14.7, True),
        ("mmap", 2, 100, 24.6, True),
        ("mmap", 2, 200, 24.6, True),
        ("mmap", 2, 22, 93.0, True),
        ("mmap", 2, 100, 8.0, False),
        ("huge", 2, 100, 30.0, False),
    ):
        reply = PastReply(time.time(), tokens, tps, 423.0, 1.0, is_quiet)
        history.add(known_as.key(mode, threads), reply)


async def shown(driver: Driver, key: str, *texts: str) -> None:
    """Open a screen and wait until it shows the texts."""
    await driver.pilot.press(key)
    for text in texts:
        await driver.until(lambda text=text: text in " ".join(driver.screen_text().split()), text)
    await driver.pilot.press("escape")
    await driver.until(lambda: driver.app.screen is driver.chat, "the chat")


async def test_all_screens_show_one_measured_speed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(model)
    copied: list[str] = []
    async with chatting(model=str(model), size=(120, 40)) as driver:
        await driver.note(f"usually {WRITES} tok/s (measured)")
        await shown(driver, "f2", f"usual here {WRITES}")
        await shown(driver, "f3", f"writes {WRITES} tok/s (measured)", f"{READS} tok/s (measured)")
        await shown(driver, "f4", f"in use, usually {WRITES}", f"in use, usually {READS}")
        await shown(driver, "f7", f"{WRITES} tok/s (measured)", "on this machine already")
        monkeypatch.setattr(driver.app, "copy_to_clipboard", copied.append)
        await driver.say("/report")
        await driver.until(lambda: copied, "copied")
    assert re.search(rf"usually writes +{WRITES} tok/s \(measured\)", copied[0])
    assert re.search(rf"usually reads +{READS} tok/s \(measured\)", copied[0])
    examination = examine.examine(built_in_settings(), needs_of_file(model))
    (speed,) = (
        finding for finding in report.fit_findings(examination, "f16") if finding.topic == "speed"
    )
    assert speed.found == f"writes {WRITES} tok/s, reads prompts at {READS}"
    assert speed.meaning == "measured"


def test_all_commands_show_one_measured_speed(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(model)
    script = use_script(monkeypatch, Script(replies=[["Paris."]]))
    settings = built_in_settings()

    def printed(code: int) -> str:
        assert code == 0
        return " ".join(capsys.readouterr().out.split())

    assert f"{WRITES} {READS}" in printed(models(settings))
    assert f"usually writes {WRITES} tok/s (measured)" in printed(print_card(settings, str(model)))
    assert f"writes {WRITES} tok/s, reads prompts at {READS}: measured" in printed(
        doctor(settings, str(model))
    )
    options = BenchOptions(str(model), (2,), n_prompt=8, n_gen=3, rounds=1)
    assert f"usual here: {WRITES} tok/s (measured) with 2 threads" in printed(
        bench(options, settings, script.clock)
    )
    tuning = TuneOptions(str(model), budget_s=5.0, remember=False)
    assert f"Usual here: {WRITES} tok/s (measured) with 2 threads" in printed(
        tune(tuning, settings, script.clock)
    )


async def test_before_a_measurement_there_is_one_estimate(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ReplyHistory(paths.speeds_file()).remember_rates(
        rates_key(usual_threads(built_in_settings())), {"read_gbps": 0.02}, is_quiet=True
    )
    outlook = make_lister(built_in_settings()).outlook(read_header(model))
    assert outlook is not None
    assert outlook.decode_tps is not None
    assert outlook.basis.value == "estimated"
    found = look_up(model, built_in_settings()).result()
    assert found is not None
    assert found.decode_tps == outlook.decode_tps
    examination = examine.examine(built_in_settings(), needs_of_file(model))
    assert examination.speed is not None
    assert examination.speed.decode_tps == pytest.approx(outlook.decode_tps)
    figure = f"~{figures.estimated_rate(outlook.decode_tps)}"
    assert figure in report.fit_findings(examination, "f16")[-1].found
    async with chatting(model=str(model), size=(120, 40)) as driver:
        await driver.note(f"{figure} tok/s (estimated)")
        await shown(driver, "f3", f"writes {figure} tok/s (estimated)")
        await shown(driver, "f7", f"{figure} tok/s (estimated)", "on this machine already")
    monkeypatch.setattr("app.cli.models.rates_for", lambda *_: None)
    assert models(built_in_settings()) == 0
    assert figure in capsys.readouterr().out
    assert doctor(built_in_settings(), str(model)) == 0
    assert f"writes {figure} tok/s" in " ".join(capsys.readouterr().out.split())
    assert print_card(built_in_settings(), str(model)) == 0
    assert "not measured yet" in capsys.readouterr().out


async def test_a_speed_measured_only_while_busy_says_so(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = needs_of_file(model)
    key = KnownAs(needs.name, needs.quantization, needs.weights_bytes).key("mmap", 2)
    busy = PastReply(time.time(), 100, 8.0, 0.0, 1.0, is_quiet=False)
    ReplyHistory(paths.speeds_file()).add(key, busy)
    text = "8.0 tok/s (measured while busy)"
    copied: list[str] = []
    async with chatting(model=str(model), size=(120, 40)) as driver:
        await driver.note(f"usually {text}")
        await shown(driver, "f2", "while busy 8.0 measured")
        await shown(driver, "f3", "writes 8.0 tok/s (measured", "8.0!", "! measured while busy")
        await shown(driver, "f4", "in use, 8.0 while busy")
        await shown(driver, "f7", text)
        monkeypatch.setattr(driver.app, "copy_to_clipboard", copied.append)
        await driver.say("/report")
        await driver.until(lambda: copied, "copied")
    assert re.search(rf"usually writes +{re.escape(text)}", copied[0])
    examination = examine.examine(built_in_settings(), needs)
    speed = report.fit_findings(examination, "f16")[-1]
    assert speed.found == "writes 8.0 tok/s"
    assert speed.meaning.startswith("measured while busy; ")
    assert print_card(built_in_settings(), str(model)) == 0
    assert text in capsys.readouterr().out
    assert models(built_in_settings()) == 0
    assert "8.0!" in capsys.readouterr().out
    script = use_script(monkeypatch, Script(replies=[["Paris."]]))
    options = BenchOptions(str(model), (2,), n_prompt=8, n_gen=3, rounds=1)
    assert bench(options, built_in_settings(), script.clock) == 0
    assert f"usual here: {text}" in " ".join(capsys.readouterr().out.split())
