"""Energy per token with several thread counts, measured on the scripted engine."""

from __future__ import annotations

from app.backend.local.battery_run import PASSES, BatteryRun
from app.machine.sensors.energy import EnergyReading, EnergyScope
from tests.app.fake_engine import FakeModel, Script

WATTS = {1: 8.0, 2: 10.0, 3: 18.0, 4: 24.0}


class MadeMeter:
    """Power by the number of threads, summed up on the clock of the script."""

    def __init__(self, script: Script, model: FakeModel) -> None:
        self._script = script
        self._model = model
        self._joules = 0.0
        self._last_s = script.clock()
        self.began_s = self._last_s

    def read(self, now_s: float) -> EnergyReading | None:
        watts = WATTS[self._model.threads]
        self._joules += watts * (now_s - self._last_s)
        self._last_s = now_s
        return EnergyReading(EnergyScope.MACHINE, self.began_s, now_s, self._joules, watts)


def opened() -> tuple[Script, FakeModel]:
    script = Script(seconds_per_prompt_token=0.1, thread_speeds={1: 1.0, 2: 1.7, 3: 1.75, 4: 1.8})
    return script, script.open_model("model.gguf")


def test_the_energy_of_each_count_is_measured_twice() -> None:
    script, model = opened()
    session = model.session(64)
    session.feed([1, 2, 3])
    meter = MadeMeter(script, model)
    counts = (1, 2, 4)
    runs = list(BatteryRun(model, session, counts, meter.read, script.clock).run())
    last = runs[-1]
    assert last.is_over
    assert not last.trouble
    assert [sample.n_threads for sample in last.samples] == [1, 2, 4, 4, 2, 1]
    assert len(last.samples) == PASSES * len(counts) == last.n_samples
    assert last.scope == "whole machine"
    assert last.fastest == 4
    assert last.thriftiest == 2
    assert session.tokens == [1, 2, 3]
    assert (model.threads, model.prefill_threads) == (2, 2)


def test_without_readings_nothing_is_measured() -> None:
    script, model = opened()
    session = model.session(64)
    (run,) = BatteryRun(model, session, (1, 2), lambda now_s: None, script.clock).run()
    assert run.trouble == "this machine does not tell its power"
    assert session.fed_counts == []


def test_another_supply_or_a_full_context_ends_the_measurement() -> None:
    script, model = opened()
    meter = MadeMeter(script, model)
    session = model.session(64)
    measurement = BatteryRun(model, session, (1, 2), meter.read, script.clock).run()
    next(measurement)
    meter.began_s = 7.0
    assert next(measurement).samples  # the whole sample came from the new supply
    session.feed([5] * 60)
    assert "the context is full" in next(measurement).trouble
    assert (model.threads, model.prefill_threads) == (2, 2)


def test_a_stopped_measurement_restores_the_threads() -> None:
    script, model = opened()
    session = model.session(64)
    meter = MadeMeter(script, model)
    battery_run = BatteryRun(model, session, (1, 2), meter.read, script.clock)
    measurement = battery_run.run()
    next(measurement)
    battery_run.cancel()
    assert [run.is_over for run in measurement] == []
    assert (model.threads, model.prefill_threads) == (2, 2)
