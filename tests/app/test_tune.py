"""``jalopy tune`` over a scripted engine."""

import json
import os
import signal
from typing import Any

import pytest

from app import engine_access, exit_codes, state
from app.__main__ import main
from app.settings import built_in_settings, override
from app.state import TunedChoice
from app.tune import TuneOptions, tune
from engine import host
from engine.topology import Cores
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setattr(host, "cores", lambda: Cores((0, 1, 2, 3), 2, None, name="i5-4278U"))
    speeds = {1: 1.0, 2: 1.7, 3: 1.5, 4: 1.4}
    return use_script(monkeypatch, Script(seconds_per_prompt_token=0.02, thread_speeds=speeds))


def run(script: Script, **options: Any) -> int:
    return tune(TuneOptions("m.gguf", **{"budget_s": 60.0, **options}), built_in_settings(), script.clock)


def test_people_get_bars_the_reason_and_what_is_remembered(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.thread_speeds = {1: 1.0, 2: 1.7, 3: 2.5, 4: 3.4}
    assert run(script) == exit_codes.OK
    out = capsys.readouterr().out
    assert "m · Q4_K_M · context 64 tokens" in out
    assert "4 threads write fastest: siblings help here" in out
    assert "Remembered: --threads 4 --prefill-threads 4 from the next start on." in out
    remembered = state.load_state()[0].tuned_threads
    assert list(remembered.values()) == [TunedChoice(4, 4)]
    assert "i5-4278U" in next(iter(remembered))


def test_json_is_one_object_with_samples_cores_and_the_best(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(script, as_json=True) == exit_codes.OK
    report = json.loads(capsys.readouterr().out)
    assert report["best"] == {"decode": 2, "prefill": 2, "pinned": False, "weights": "mmap", "kv_type": "f16"}
    assert report["state"] == "done"
    assert report["remembered"] is True
    assert [curve["phase"] for curve in report["curves"]] == ["decode", "prefill"]
    assert [point["kind"] for point in report["curves"][0]["points"]] == ["core", "core", "sibling", "sibling"]
    assert report["curves"][0]["points"][1]["tps"]["median"] == pytest.approx(85.0)
    assert report["cores"]["n_physical"] == 2
    assert report["cpu"] == "avx2"


def test_a_dry_run_remembers_nothing(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    run(script, remember=False)
    assert "not remembered, as was asked (--threads 2" in capsys.readouterr().out
    assert state.load_state()[0].tuned_threads == {}


def test_ctrl_c_prints_what_was_measured_so_far_and_remembers_nothing(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = engine_access.make_sweep

    def interrupted(*arguments: Any) -> Any:
        sweep = real(*arguments)

        def reports() -> Any:
            for n, report in enumerate(sweep):
                if n == 4:
                    os.kill(os.getpid(), signal.SIGINT)  # Python hands it to the main thread, which waits
                    while not sweep._cancelled.is_set():
                        pass
                yield report

        return _Wrapped(reports(), sweep.cancel)

    monkeypatch.setattr(engine_access, "make_sweep", interrupted)
    assert run(script) == exit_codes.INTERRUPTED
    out = capsys.readouterr().out
    assert "Stopped: this is what was measured so far." in out
    assert "not remembered, since it was not measured to the end" in out
    assert state.load_state()[0].tuned_threads == {}
    assert script.opened[0].sessions[0].is_closed


class _Wrapped:
    def __init__(self, reports: Any, cancel: Any) -> None:
        self._reports, self.cancel = reports, cancel

    def __iter__(self) -> Any:
        return self._reports


@pytest.mark.parametrize("seconds", ["0", "-3", "1e9", "nan", "soon"])
def test_seconds_that_make_no_sense_are_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "m.gguf", "--seconds", seconds]) == exit_codes.USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1


class FakeModel:
    """Remembers the threads it is given."""

    name, quantization, weights_bytes, most_threads = "m", "Q8_0", 1000, 4

    def __init__(self) -> None:
        self.given: list[Any] = []

    def set_threads(self, decode: int, prefill: int) -> None:
        self.given.append((decode, prefill))

    def set_pinned(self, pinned: bool) -> None:
        self.given.append(pinned)


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ({}, [(2, 4), True]),
        ({"threads": 1}, [True]),
        ({"prefill_threads": 3}, [True]),
        ({"pin_threads": "off"}, [(2, 4)]),
        ({"pin_threads": "on", "threads": 3}, []),
    ],
)
def test_remembered_threads_are_used_unless_the_settings_name_some(named: dict[str, Any], given: list[Any]) -> None:
    settings = built_in_settings()
    for key, value in named.items():
        settings = override(settings, key, value, "test")
    model: Any = FakeModel()
    engine_access.use_tuned(model, TunedChoice(2, 9, True), settings)
    assert model.given == given


def test_what_is_remembered_belongs_to_one_machine_and_one_model(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = FakeModel()
    assert engine_access.recall_tuned(model).choice is None
    assert engine_access.remember_tuned(model, TunedChoice(2, 4)) is None
    assert engine_access.recall_tuned(model).choice == TunedChoice(2, 4)
    monkeypatch.setattr(host, "cores", lambda: Cores((0, 1, 2, 3), 2, 1, name="i5-4278U"))  # a quota now
    assert engine_access.recall_tuned(model).choice is None
    monkeypatch.setattr(host, "cores", lambda: Cores((0, 1, 2, 3), 2, None, name="i5-4278U"))
    monkeypatch.setattr(engine_access, "cpu_level", lambda: "ssse3")
    assert engine_access.recall_tuned(model).choice is None
    monkeypatch.setattr(engine_access, "cpu_level", lambda: "avx2")
    model.weights_bytes = 2000
    assert engine_access.recall_tuned(model).choice is None
    model.weights_bytes = 1000
    engine_access.remember_tuned(model, None)
    assert engine_access.recall_tuned(model).choice is None
