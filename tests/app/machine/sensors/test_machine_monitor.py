import dataclasses
from types import SimpleNamespace

import psutil
import pytest

from app.machine.sensors.cached_reading import CachedReading, Rate
from app.machine.sensors.machine_monitor import MachineMonitor
from app.machine.sensors.processor import CoreLoads
from app.machine.sensors.sample import Battery, Governor, MachineSample
from app.tui.speed.watch import PerformanceWatch
from engine.machine import host
from tests.app.machine.sensors.scripted_machine import (
    LAPTOP_2014,
    STATUS,
    Frequency,
    ScriptedPsutil,
    write_tree,
)
from tests.app.machine.sensors.views import FACTS

MIB = 1 << 20


@pytest.fixture(autouse=True)
def looks_cost_nothing(monkeypatch):
    """Ignore the load of this machine: interrupted readings would be taken more rarely."""
    monkeypatch.setattr(CachedReading.__init__, "__defaults__", (lambda: 0.0,))


@pytest.fixture
def source():
    return ScriptedPsutil()


@pytest.fixture
def monitor(source, tmp_path):
    sysfs = write_tree(tmp_path / "sys", LAPTOP_2014)
    procfs = write_tree(tmp_path / "proc", {"self/status": STATUS})
    return MachineMonitor(source, sysfs, procfs)


def test_a_laptop_tells_everything(monitor, source):
    monitor.sample(100.0, FACTS, None)
    source.run([1.0, 0.25])
    source.thread_times = {1: 1.9, 2: 1.05, 3: 1.0, 4: 0.5}
    facts = dataclasses.replace(FACTS, resident_kv_bytes=lambda: 20 * MIB)
    found = monitor.sample(101.0, facts, 0.02)
    assert found.core_loads == pytest.approx((1.0, 0.25))
    assert (found.clock_ghz, found.most_clock_ghz) == pytest.approx((2.5, 2.9))
    assert found.temperature_c == 71.0
    assert found.governor == Governor("powersave", "intel_pstate")
    assert found.battery == Battery(83.0, False)
    assert found.weights_resident_bytes == FACTS.weights_bytes
    assert (found.available_bytes, found.swap_used_bytes) == (3 << 30, MIB)
    assert found.own_bytes == (200 + 20 - 20) * MIB
    assert found.threads_working == 2
    assert found.interface_share == 0.02


def test_the_first_sample_has_no_loads_and_no_rates(monitor):
    found = monitor.sample(100.0, None, None)
    assert found.core_loads == ()
    assert (found.others_cores, found.disk_bytes_per_s, found.threads_working) == (None, None, None)
    assert found.weights_resident_bytes is None


def test_what_other_programs_took_is_what_this_one_did_not(source):
    own_s = [5.0]
    loads = CoreLoads(source, lambda: own_s[0])
    assert loads.since_before(1.0) is None
    source.run([1.0, 0.5])
    own_s[0] += 1.2
    assert loads.since_before(1.0).others_cores == pytest.approx(0.3)
    source.run([0.2, 0.0])
    own_s[0] += 0.5  # the clocks of process and machine tick differently
    assert loads.since_before(1.0).others_cores == 0.0


def test_time_that_a_host_took_away_counts_as_others(source):
    loads = CoreLoads(source, lambda: 0.0)
    loads.since_before(1.0)
    source.steal_s += 0.4
    source.run([0.0, 0.0], 0.6)
    found = loads.since_before(1.0)
    assert found.others_cores == pytest.approx(0.8)
    assert found.cores == (0.0, 0.0)


def test_a_core_that_went_away_costs_one_reading_and_no_error(source):
    loads = CoreLoads(source, lambda: 0.0)
    loads.since_before(1.0)
    source.busy_s = [10.0]
    source.idle_s = [100.0]
    assert loads.since_before(1.0) is None
    source.run([1.0])
    assert loads.since_before(1.0).cores == (1.0,)


def test_the_clock_is_that_of_the_cores_that_work(monitor, source):
    source.freq = [Frequency(3100.0, 800.0, 3500.0), Frequency(800.0, 800.0, 3500.0)]
    monitor.sample(100.0, None, None)
    source.run([1.0, 0.0])
    assert monitor.sample(101.0, None, None).clock_ghz == pytest.approx(3.1)


@pytest.mark.parametrize(
    "freq",
    [
        [],
        None,
        [Frequency(0.0, 0.0, 0.0)],
        [Frequency(2.9e6, 0.0, 0.0)],
        [SimpleNamespace()],
        OSError("gone"),
    ],
)
def test_a_clock_that_cannot_be_is_no_clock(monitor, source, freq):
    source.freq = freq
    found = monitor.sample(100.0, None, None)
    assert (found.clock_ghz, found.most_clock_ghz) == (None, None)


@pytest.mark.parametrize(
    ("current", "highest", "most"),
    [
        (2445.0, 0.0, None),  # a virtual machine
        (4200.0, 3600.0, None),  # acpi-cpufreq names no boost
        (3604.0, 3600.0, 3.6),  # as near as a clock can be read
    ],
)
def test_a_highest_clock_that_is_none_or_exceeded_is_not_told(
    monitor, source, current, highest, most
):
    source.freq = [Frequency(current, 0.0, highest)] * 2
    found = monitor.sample(100.0, None, None)
    assert found.clock_ghz == pytest.approx(current / 1000)
    assert found.most_clock_ghz == most


def test_throttling_is_counted_from_the_first_look_on(monitor, tmp_path):
    def throttle(n_times: int) -> None:
        path = tmp_path / "sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count"
        path.write_text(f"{n_times}\n")

    assert monitor.sample(100.0, None, None).throttled == 0
    throttle(10)
    assert monitor.sample(101.0, None, None).throttled == 0  # not read again yet
    assert monitor.sample(105.0, None, None).throttled == 3
    assert monitor.sample(110.0, None, None).throttled == 0
    throttle(20)
    monitor.forget_rates()
    assert monitor.sample(900.0, None, None).throttled == 0


@pytest.mark.parametrize(
    "temperatures",
    [{}, None, {"nvme": [SimpleNamespace(current=50.0)]},
     {"coretemp": [SimpleNamespace(current=float("nan"))]},
     {"coretemp": [SimpleNamespace(current=-3.0)]}, AttributeError("psutil has none here")],
)  # fmt: skip
def test_no_sensible_temperature_is_none(monitor, source, temperatures):
    source.temperatures = temperatures
    assert monitor.sample(100.0, None, None).temperature_c is None


def test_a_machine_that_refuses_everything_gives_an_empty_sample(tmp_path):
    class Refusing:
        def __getattr__(self, name: str):
            raise PermissionError(name)

    monitor = MachineMonitor(Refusing(), tmp_path / "none", tmp_path / "none")
    monitor.sample(100.0, FACTS, None)
    found = monitor.sample(101.0, FACTS, None)
    readings = {name: value for name, value in vars(found).items() if value not in (None, ())}
    assert set(readings) <= {
        "at_s", "interval_s", "weights_resident_bytes", "kv_resident_bytes"
    }  # fmt: skip


def test_every_single_reading_may_fail_in_any_way(source, tmp_path):
    sysfs = write_tree(
        tmp_path / "sys", {"devices/system/cpu/cpu0/cpufreq/scaling_governor": "\x1b[2Jevil\n"}
    )
    for error in (
        OSError("no"),
        ValueError("no"),
        KeyError("no"),
        NotImplementedError("no"),
        RuntimeError("no"),
    ):
        for name in ("freq", "temperatures", "battery", "available", "swap", "thread_times"):
            setattr(source, name, error)
        monitor = MachineMonitor(source, sysfs, tmp_path / "none")
        monitor.sample(100.0, None, None)
        source.run([0.5, 0.5])
        found = monitor.sample(101.0, None, None)
        assert found.core_loads == pytest.approx((0.5, 0.5))
        assert (found.own_bytes, found.battery, found.threads_working) == (None, None, None)
        assert found.governor == Governor("␛[2Jevil")


def test_a_closed_models_memory_is_not_known_and_no_error(monitor):
    def closed() -> int:
        raise AttributeError("_pipeline")

    facts = dataclasses.replace(FACTS, resident_weight_bytes=closed, resident_kv_bytes=closed)
    found = monitor.sample(100.0, facts, None)
    assert (found.weights_resident_bytes, found.kv_resident_bytes) == (None, None)


def test_another_model_is_looked_at_at_once(monitor):
    monitor.sample(100.0, FACTS, None)
    other = dataclasses.replace(FACTS, resident_weight_bytes=lambda: 5)
    assert monitor.sample(100.1, other, None).weights_resident_bytes == 5
    assert monitor.sample(100.2, None, None).weights_resident_bytes is None


def test_weights_copied_to_huge_pages_are_not_the_programs_own(monitor):
    facts = dataclasses.replace(
        FACTS,
        weights_mode="huge",
        resident_weight_bytes=lambda: 150 * MIB,
        resident_kv_bytes=lambda: 20 * MIB,
    )
    assert monitor.sample(100.0, facts, None).own_bytes == 50 * MIB


def test_own_memory_is_unknown_without_the_file_mapped_figure(source, tmp_path):
    procfs = write_tree(tmp_path / "proc", {"self/status": "Name:\tjalopy\nRssAnon:\t5 kB\n"})
    found = MachineMonitor(source, tmp_path, procfs).sample(100.0, None, None)
    assert found.own_bytes is None


def test_bytes_from_disk_are_those_of_a_second(source, tmp_path):
    procfs = write_tree(tmp_path / "proc", {"self/io": "read_bytes: 1000\n"})
    monitor = MachineMonitor(source, tmp_path, procfs)
    monitor.sample(100.0, None, None)
    write_tree(tmp_path / "proc", {"self/io": "read_bytes: 9000\n"})
    assert monitor.sample(102.0, None, None).disk_bytes_per_s == 4000.0


def test_after_a_pause_rates_begin_again(monitor, source):
    monitor.sample(100.0, None, None)
    monitor.forget_rates()
    source.run([1.0, 1.0])
    found = monitor.sample(900.0, None, None)
    assert (found.core_loads, found.disk_bytes_per_s, found.interval_s) == ((), None, 0.0)


def test_in_a_container_what_is_free_is_what_its_limit_leaves(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 30))
    monkeypatch.setattr(host, "_memory_groups", lambda root: iter([(4 << 30, 1 << 30)]))
    assert PerformanceWatch(None)._monitor.sample(100.0, None, None).available_bytes == 3 << 30


def test_what_changes_rarely_is_asked_for_rarely(monitor, source):
    for second in range(20):
        monitor.sample(100.0 + second, None, None)
    asked = {name: source.asked.count(name) for name in set(source.asked)}
    assert asked["sensors_battery"] == 2
    assert asked["sensors_temperatures"] == 10
    assert asked["cpu_freq"] == 20


def test_a_reading_that_is_slow_is_taken_more_rarely():
    cost = iter([0.0, 0.05] * 10)
    taken = []
    paced = CachedReading(lambda: taken.append(1), 1.0, lambda: next(cost))
    for second in range(51):
        paced.get(float(second))
    assert len(taken) == 3  # 50 ms are 0.2 % of 25 s


def test_the_interfaces_cost_is_that_of_its_own_thread():
    spent = iter([1.0, 1.03, 1.05])
    meter = Rate(lambda: next(spent))
    assert meter.since_last(10.0) is None
    assert meter.since_last(11.0) == pytest.approx(0.03)
    assert meter.since_last(13.0) == pytest.approx(0.01)
    assert [meter.since_last(14.0), meter.since_last(15.0)] == [None, None]  # the count raises


def test_this_machine_can_be_looked_at():
    monitor = MachineMonitor()
    monitor.sample(100.0, None, None)
    found = monitor.sample(101.0, None, None)
    assert isinstance(found, MachineSample)
    assert found.threads_working is not None
    assert psutil.cpu_count() in (None, len(found.core_loads))
