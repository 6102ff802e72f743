"""``jalopy tune`` over a scripted engine."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.backend.local import engine_access
from app.backend.local.engine_access import open_model
from app.cli import battery as battery_command
from app.cli import tune as tune_command
from app.cli.tune import TuneOptions, tune
from app.machine.sensors.tuning_conditions import Conditions
from app.machine.tuning.past_runs import PastRuns
from app.program import exit_codes, paths, state
from app.program.refusals import Refusal
from app.program.settings import built_in_settings, override
from app.program.state import TunedChoice, TuningConditions
from engine.errors import Cancelled, MemoryPlanError
from engine.machine import host
from engine.machine.topology import Cores
from engine.tuning.lookahead_trials import Lookahead
from tests.app.backend.test_battery_run import MadeMeter
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script
from tests.app.scripted_machine import ScriptedMachine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> ScriptedMachine:
    scripted = ScriptedMachine()
    monkeypatch.setattr(tune_command, "watch_machine", scripted.watch)
    monkeypatch.setattr(engine_access, "is_on_battery", lambda: scripted.on_mains is False)
    return scripted


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, machine: ScriptedMachine) -> Script:
    monkeypatch.setattr(host, "cores", lambda: Cores((0, 1, 2, 3), 2, None, name="i5-4278U"))
    monkeypatch.setattr("engine.tuning.trials.gives_huge_pages", lambda: True)
    speeds = {1: 1.0, 2: 1.7, 3: 1.5, 4: 1.4}
    return use_script(monkeypatch, Script(seconds_per_prompt_token=0.02, thread_speeds=speeds))


def run(script: Script, **options: Any) -> int:
    return tune(
        TuneOptions("m.gguf", **{"budget_s": 60.0, **options}), built_in_settings(), script.clock
    )


def test_the_text_has_bars_the_reason_and_saved_options(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.thread_speeds = {1: 1.0, 2: 1.7, 3: 2.5, 4: 3.4}
    assert run(script) == exit_codes.OK
    out = capsys.readouterr().out
    assert "m · Q4_K_M · context 64 tokens" in out
    assert "4 threads write fastest: siblings help here" in out
    assert "Saved: --threads 4 --prefill-threads 4 from the next start on." in out
    remembered = state.load_state()[0].tuned_threads
    assert list(remembered.values()) == [TunedChoice(4, 4)]
    assert "i5-4278U" in next(iter(remembered))


def test_sentences_are_wrapped_in_a_terminal(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    run(script)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) < 60
    assert "2 threads write fastest" in out


def test_the_screen_shows_the_results_of_the_command_later(script: Script) -> None:
    run(script)
    model = script.opened[0]
    past = PastRuns(paths.tunings_file()).load(engine_access.tuning_key(model))
    assert past is not None
    assert past.report.best("decode") == 2


def test_json_is_one_object_with_samples_cores_and_the_best(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(script, as_json=True) == exit_codes.OK
    report = json.loads(capsys.readouterr().out)
    assert report["best"] == {
        "decode": 2,
        "prefill": 2,
        "pinned": False,
        "weights": "mmap",
        "kv_type": "f16",
    }
    assert report["state"] == "done"
    assert report["remembered"] is True
    assert [curve["phase"] for curve in report["curves"]] == ["decode", "prefill"]
    assert [point["kind"] for point in report["curves"][0]["points"]] == [
        "core",
        "core",
        "sibling",
        "sibling",
    ]
    assert report["curves"][0]["points"][1]["tps"]["median"] == pytest.approx(85.0)
    assert report["cores"]["n_physical"] == 2
    assert report["cpu"] == "avx2"


def test_weights_and_kv_types_are_compared_on_request(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.weight_speeds = {"huge": 1.1}
    script.kv_speeds = {"f32": 1.2}
    assert run(script, budget_s=None, try_weights=True, try_kv=True) == exit_codes.OK
    captured = capsys.readouterr()
    assert "jalopy: huge pages: a copy of 1 MB" in captured.err
    assert "jalopy: KV types: caches of 256 tokens" in captured.err
    lines = captured.out.splitlines()
    assert (
        "now 85.0 → best 93.5 tok/s (+10 %) · 2 threads, huge pages, KV cache f32" in captured.out
    )
    assert any(line.startswith("▶ mapped file") for line in lines)
    assert any(line.split()[:1] == ["huge"] and line.endswith("best") for line in lines)
    assert any(line.split()[:1] == ["f32"] and line.endswith("best") for line in lines)
    assert "With weights in huge pages this model writes 10 % faster (10 to 10)" in captured.out
    options = "--threads 2 --prefill-threads 2 --weights huge --kv f32"
    assert f"Saved: {options} from the next start on." in captured.out
    assert list(state.load_state()[0].tuned_threads.values()) == [
        TunedChoice(2, 2, False, "huge", "f32")
    ]
    assert [model.has_copy for model in script.opened] == [False]


def test_json_holds_the_comparisons_and_the_conditions(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.weight_speeds = {"huge": 1.1}
    assert run(script, budget_s=None, try_weights=True, as_json=True) == exit_codes.OK
    captured = capsys.readouterr()
    assert "a copy of" not in captured.err
    report = json.loads(captured.out)
    (weights,) = report["comparisons"]
    assert (weights["part"], weights["present"], weights["best"]) == ("weights", "mmap", "huge")
    assert weights["options"][1]["gain"]["decode"]["low"] == pytest.approx(1.1)
    assert report["best"]["weights"] == "huge"
    assert report["conditions"] == {"on_battery": False, "swapped_bytes": 0, "others_cores": None}


def test_without_the_flags_neither_is_touched(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    run(script)
    assert "huge" not in capsys.readouterr().out
    assert script.opened[0].weight_calls == []
    assert len(script.opened[0].sessions) == 1


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("swapping", "because the machine was swapping"),
        ("crowded", "because other programs used 0.9 cores"),
    ],
)
def test_results_of_a_busy_machine_are_not_saved(
    script: Script,
    machine: ScriptedMachine,
    capsys: pytest.CaptureFixture[str],
    trouble: str,
    reason: str,
) -> None:
    real = machine.cpu_times

    def look(percpu: bool) -> Any:
        machine.now_s += 10.0
        machine.swapped_bytes += (64 << 20) * (trouble == "swapping")
        machine.busy_s += 9.0 * (trouble == "crowded")
        return real(percpu)

    machine.cpu_times = look  # type: ignore[method-assign]
    run(script)
    out = capsys.readouterr().out
    assert f"Not saved, {reason}. To use them: --threads 2" in out
    assert state.load_state()[0].tuned_threads == {}


def test_a_result_on_battery_is_saved_separately(
    script: Script, machine: ScriptedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.on_mains = False
    run(script)
    assert "Measured on battery, so this applies on battery only." in capsys.readouterr().out
    saved_state = state.load_state()[0]
    ((key, choice),) = saved_state.tuned_threads.items()
    assert key.endswith(" | on battery")
    assert choice == TunedChoice(2, 2)
    assert saved_state.tuned_when == {key: TuningConditions("kernels-1", True)}


def test_kernels_are_tuned_first_or_alone(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def try_lookahead(
        model: Any, session: Any, is_unwanted: Any, again: bool
    ) -> dict[str, Lookahead]:
        calls.append((again, is_unwanted()))
        return {
            "Q4_K": Lookahead(-4096, 24.1, 16.54),
            "F16": Lookahead(0, 20.0, 20.0),
            "Q8_0": Lookahead(2048, 9, 9),
            "Q6_K": Lookahead(8193, 25.7, 25.7),
            "Q4_0": Lookahead(1, 22.0, 20.0),
            "Q5_K": Lookahead(1031, 32.0, 22.4),
        }

    monkeypatch.setattr(engine_access, "try_lookahead", try_lookahead)
    lines = (
        "Q4_K: prefetch 4 kB, non-temporal: 24.1 instead of 16.5 GB/s\n"
        "F16: no prefetch, as usual: 20.0 GB/s\n"
        "Q8_0: prefetch 2 kB, as usual: 9.0 GB/s\n"
        "Q6_K: prefetch 8 kB and pages, as usual: 25.7 GB/s\n"
        "Q4_0: prefetch pages: 22.0 instead of 20.0 GB/s\n"
        "Q5_K: prefetch 1 kB into L1 and pages, four rows at once: 32.0 instead of 22.4 GB/s\n"
    )
    assert run(script, only_kernels=True) == exit_codes.OK
    assert capsys.readouterr().out == lines
    assert run(script) == exit_codes.OK
    assert lines in capsys.readouterr().out
    assert run(script, only_kernels=True, as_json=True) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)["kernels"]["Q4_K"]["ahead"] == -4096
    assert run(script, remember=False) == exit_codes.OK
    assert calls == [(True, False), (False, False), (True, False)]


def test_a_race_in_a_pipe_prints_the_figures(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(script, show=True) == exit_codes.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "1 thread      2.0 tok/s",
        *(f"{n} threads     2.0 tok/s  1.0 times one thread" for n in (2, 4)),
    ]
    assert script.opened[0].sessions[0].is_closed
    assert state.load_state()[0].tuned_threads == {}


def test_the_longest_battery_is_printed_and_not_saved(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_meter() -> MadeMeter:
        return MadeMeter(script, script.opened[0])

    monkeypatch.setattr(battery_command, "EnergyMeter", open_meter)
    monkeypatch.setattr(battery_command, "watch_machine", ScriptedMachine().watch)
    script.seconds_per_prompt_token = 0.1
    script.thread_speeds = {1: 1.0, 2: 1.7, 3: 1.75, 4: 1.8}
    assert run(script, battery=True) == exit_codes.OK
    out = capsys.readouterr().out
    assert out.startswith("2 of 4 threads: 6 % slower, 56 % less energy per token\n")
    assert "energy per token, J (whole machine)" in out
    assert state.load_state()[0].tuned_threads == {}
    assert script.opened[0].sessions[0].is_closed


def test_a_machine_that_does_not_tell_its_power_is_an_error(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        battery_command, "EnergyMeter", lambda: SimpleNamespace(read=lambda now_s: None)
    )
    with pytest.raises(Refusal, match="does not tell its power"):
        run(script, battery=True)


def test_in_a_terminal_the_command_waits_for_quiet(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = [1.4, 1.2, 0.1, 0.0]

    def look(look_s: float) -> Conditions:
        script.clock.advance(2.0)
        return Conditions(others_cores=loads.pop(0))

    monkeypatch.setattr(tune_command, "look_at_load", look)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert run(script) == exit_codes.OK
    assert loads == []
    assert run(script, anyway=True) == exit_codes.OK


def test_a_dry_run_saves_nothing(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    run(script, remember=False)
    assert "Not saved, because of --dry-run. To use them: --threads 2" in capsys.readouterr().out
    assert state.load_state()[0].tuned_threads == {}


def test_ctrl_c_prints_results_and_saves_none(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = engine_access.make_sweep

    def interrupted(*arguments: Any) -> Any:
        sweep = real(*arguments)

        def reports() -> Any:
            for n, report in enumerate(sweep):
                if n == 4:
                    # Python hands it to the main thread, which waits
                    os.kill(os.getpid(), signal.SIGINT)
                    assert sweep._cancelled.wait(60)
                yield report

        return _Wrapped(reports(), sweep.cancel)

    monkeypatch.setattr(engine_access, "make_sweep", interrupted)
    assert run(script) == exit_codes.INTERRUPTED
    out = capsys.readouterr().out
    assert "Stopped: these are the results so far." in out
    assert "Not saved, because the measurement was stopped" in out
    assert state.load_state()[0].tuned_threads == {}
    assert script.opened[0].sessions[0].is_closed


class _Wrapped:
    def __init__(self, reports: Any, cancel: Any) -> None:
        self._reports = reports
        self.cancel = cancel

    def __iter__(self) -> Any:
        return self._reports


class FakeModel:
    """Model that records its thread counts."""

    name = "m"
    quantization = "Q8_0"
    weights_bytes = 1000
    most_threads = 4

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.weights_error: MemoryPlanError | None = None

    def set_threads(self, decode: int, prefill: int) -> None:
        self.given.append((decode, prefill))

    def set_pinned(self, pinned: bool) -> None:
        self.given.append(pinned)

    def use_weights(self, mode: str, progress: Any = None) -> None:
        if self.weights_error:
            raise self.weights_error
        self.given.append(mode)


@pytest.mark.parametrize(
    ("requested", "changes"),
    [
        ({}, [(2, 4), True]),
        ({"threads": 1}, [True]),
        ({"prefill_threads": 3}, [True]),
        ({"pin_threads": "off"}, [(2, 4)]),
        ({"pin_threads": "on", "threads": 3}, []),
    ],
)
def test_threads_of_the_settings_win_over_saved_ones(
    requested: dict[str, Any], changes: list[Any]
) -> None:
    settings = built_in_settings()
    for key, value in requested.items():
        settings = override(settings, key, value, "test")
    model: Any = FakeModel()
    engine_access.use_tuned(model, TunedChoice(2, 9, True), settings)
    assert model.given == changes


@pytest.mark.parametrize(
    ("requested", "changes"), [("auto", "huge"), ("mmap", None), ("huge", None)]
)
def test_weights_of_the_settings_win_over_saved_ones(requested: str, changes: str | None) -> None:
    model: Any = FakeModel()
    settings = override(built_in_settings(), "weights", requested, "test")
    engine_access.use_tuned(model, TunedChoice(2, 2, weights="huge"), settings)
    assert ("huge" in model.given) == (changes is not None)


def test_saved_huge_pages_need_enough_memory(script: Script) -> None:
    model: Any = FakeModel()
    model.weights_error = MemoryPlanError("no room")
    engine_access.use_tuned(model, TunedChoice(2, 2, weights="huge"), built_in_settings())
    assert model.given == [(2, 2), False]


def test_stopping_the_copy_to_huge_pages_closes_the_model(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(progress: Any) -> None:
        raise Cancelled("stopped")

    engine_access.remember_tuned(script.open_model("m.gguf"), TunedChoice(2, 2, weights="huge"))
    script.open_progress = []
    monkeypatch.setattr("engine.Model", SimpleNamespace(open=script.open_model))
    with pytest.raises(Cancelled):
        open_model(built_in_settings(), Path("m.gguf"), stop)
    assert script.opened[-1].is_closed


def test_the_kv_type_is_the_setting_or_the_one_kept(script: Script) -> None:
    model: Any = FakeModel()
    settings = built_in_settings()
    assert engine_access.kv_type_of(settings, model) == "auto"
    for remembered, kv_type in (
        ("f32", "f32"),
        ("f16", "auto"),
        ("q8_0", "q8_0"),
        ("f16/q8_0", "f16/q8_0"),
    ):
        engine_access.remember_tuned(model, TunedChoice(2, 2, kv_type=remembered))
        assert engine_access.kv_type_of(settings, model) == kv_type
    assert engine_access.kv_type_of(override(settings, "kv_type", "q8_0", "test"), model) == "q8_0"


def test_saved_tuning_belongs_to_a_machine_and_a_model(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = FakeModel()
    assert engine_access.recall_tuned(model).choice is None
    assert engine_access.remember_tuned(model, TunedChoice(2, 4)) is None
    assert engine_access.recall_tuned(model).choice == TunedChoice(2, 4)
    # a quota now
    monkeypatch.setattr(host, "cores", lambda: Cores((0, 1, 2, 3), 2, 1, name="i5-4278U"))
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
