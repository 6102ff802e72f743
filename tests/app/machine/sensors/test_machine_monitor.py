import dataclasses
import os
from types import SimpleNamespace

import psutil
import pytest

from app.machine.sensors import processor
from app.machine.sensors.cached_reading import CachedReading, Rate
from app.machine.sensors.machine_monitor import MachineMonitor
from app.machine.sensors.processor import CoreLoads
from app.machine.sensors.sample import Battery, ClockLimit, Governor, MachineSample
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
def free_readings(monkeypatch):
    """Ignore the load of this machine, because slow readings would be taken more rarely."""
    monkeypatch.setattr(CachedReading.__init__, "__defaults__", (lambda: 0.0,))
    monkeypatch.setattr(processor, "allowed_cpus", range)


@pytest.fixture
def source():
    return ScriptedPsutil()


@pytest.fixture
def monitor(source, tmp_path):
    sysfs = write_tree(tmp_path / "sys", LAPTOP_2014)
    procfs = write_tree(tmp_path / "proc", {"self/status": STATUS})
    return MachineMonitor(source, sysfs, procfs)


def test_a_laptop_has_all_readings(monitor, source):
    monitor.sample(100.0, FACTS, None)
    source.run([1.0, 0.25])
    source.thread_times = {1: 1.9, 2: 1.05, 3: 1.0, 4: 0.5}
    facts = dataclasses.replace(FACTS, resident_kv_bytes=lambda: 20 * MIB)
    sample = monitor.sample(101.0, facts, 0.02)
    assert sample.core_loads == pytest.approx((1.0, 0.25))
    assert (sample.clock_ghz, sample.most_clock_ghz) == pytest.approx((2.5, 2.9))
    assert sample.temperature_c == 71.0
    assert sample.governor == Governor("powersave", "intel_pstate")
    assert sample.battery == Battery(83.0, False)
    assert sample.weights_resident_bytes == FACTS.weights_bytes
    assert (sample.available_bytes, sample.swap_used_bytes) == (3 << 30, MIB)
    assert sample.own_bytes == (200 + 20 - 20) * MIB
    assert sample.threads_working == 2
    assert sample.interface_share == 0.02


def test_the_first_sample_has_no_loads_and_no_rates(monitor):
    sample = monitor.sample(100.0, None, None)
    assert sample.core_loads == ()
    assert (sample.others_cores, sample.disk_bytes_per_s, sample.threads_working) == (
        None,
        None,
        None,
    )
    assert sample.weights_resident_bytes is None


def test_other_programs_have_the_load_that_is_not_our_own(source):
    own_s = [5.0]
    loads = CoreLoads(source, lambda: own_s[0])
    assert loads.since_before(1.0) is None
    source.run([1.0, 0.5])
    own_s[0] += 1.2
    assert loads.since_before(1.0).others_cores == pytest.approx(0.3)
    source.run([0.2, 0.0])
    own_s[0] += 0.5  # the clocks of the process and the machine differ
    assert loads.since_before(1.0).others_cores == 0.0


def test_only_programs_on_the_cores_of_this_one_count(source, monkeypatch):
    monkeypatch.setattr(processor, "allowed_cpus", lambda n_cpus: [1])
    loads = CoreLoads(source, lambda: 0.0)
    loads.since_before(1.0)
    source.run([1.0, 0.25])
    since = loads.since_before(1.0)
    assert since.others_cores == pytest.approx(0.25)
    assert (since.n_allowed, len(since.cores)) == (1, 2)


@pytest.mark.parametrize(
    ("affinity", "allowed"), [({1}, [1]), ({0, 1}, [0, 1]), ({0, 5}, [0, 1]), (OSError(), [0, 1])]
)
def test_cores_are_allowed_by_the_affinity(monkeypatch, affinity, allowed):
    def tell(pid: int) -> set[int]:
        if isinstance(affinity, OSError):
            raise affinity
        return affinity

    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", tell, raising=False)
    assert list(processor.allowed_cpus(2)) == allowed


def test_stolen_time_counts_as_load_of_others(source):
    loads = CoreLoads(source, lambda: 0.0)
    loads.since_before(1.0)
    source.steal_s += 0.4
    source.run([0.0, 0.0], 0.6)
    loads_since = loads.since_before(1.0)
    assert loads_since.others_cores == pytest.approx(0.8)
    assert loads_since.stolen_cores == pytest.approx(0.8)
    assert loads_since.cores == (0.0, 0.0)


def test_a_core_going_offline_loses_one_reading_only(source):
    loads = CoreLoads(source, lambda: 0.0)
    loads.since_before(1.0)
    source.busy_s = [10.0]
    source.idle_s = [100.0]
    assert loads.since_before(1.0) is None
    source.run([1.0])
    assert loads.since_before(1.0).cores == (1.0,)


def test_the_clock_is_that_of_the_busy_cores(monitor, source):
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
def test_an_impossible_clock_is_ignored(monitor, source, freq):
    source.freq = freq
    sample = monitor.sample(100.0, None, None)
    assert (sample.clock_ghz, sample.most_clock_ghz) == (None, None)


@pytest.mark.parametrize(
    ("current", "highest", "most"),
    [
        (2445.0, 0.0, None),  # a virtual machine
        (4200.0, 3600.0, None),  # acpi-cpufreq does not report the boost
        (3604.0, 3600.0, 3.6),  # within the precision of a clock
    ],
)
def test_a_missing_or_exceeded_highest_clock_is_not_reported(
    monitor, source, current, highest, most
):
    source.freq = [Frequency(current, 0.0, highest)] * 2
    sample = monitor.sample(100.0, None, None)
    assert sample.clock_ghz == pytest.approx(current / 1000)
    assert sample.most_clock_ghz == most


def test_throttling_is_counted_from_the_first_sample(monitor, tmp_path):
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
def test_senseless_temperatures_are_none(monitor, source, temperatures):
    source.temperatures = temperatures
    assert monitor.sample(100.0, None, None).temperature_c is None


def test_a_machine_that_refuses_everything_gives_an_empty_sample(tmp_path):
    class Refusing:
        def __getattr__(self, name: str):
            raise PermissionError(name)

    monitor = MachineMonitor(Refusing(), tmp_path / "none", tmp_path / "none")
    monitor.sample(100.0, FACTS, None)
    sample = monitor.sample(101.0, FACTS, None)
    readings = {name: value for name, value in vars(sample).items() if value not in (None, ())}
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
        sample = monitor.sample(101.0, None, None)
        assert sample.core_loads == pytest.approx((0.5, 0.5))
        assert (sample.own_bytes, sample.battery, sample.threads_working) == (None, None, None)
        assert sample.governor == Governor("␛[2Jevil")


def test_the_memory_of_a_closed_model_is_unknown(monitor):
    def raise_closed() -> int:
        raise AttributeError("_pipeline")

    facts = dataclasses.replace(
        FACTS, resident_weight_bytes=raise_closed, resident_kv_bytes=raise_closed
    )
    sample = monitor.sample(100.0, facts, None)
    assert (sample.weights_resident_bytes, sample.kv_resident_bytes) == (None, None)


def test_a_new_model_is_measured_at_once(monitor):
    monitor.sample(100.0, FACTS, None)
    new_facts = dataclasses.replace(FACTS, resident_weight_bytes=lambda: 5)
    assert monitor.sample(100.1, new_facts, None).weights_resident_bytes == 5
    assert monitor.sample(100.2, None, None).weights_resident_bytes is None


def test_weights_in_huge_pages_do_not_count_as_own_memory(monitor):
    facts = dataclasses.replace(
        FACTS,
        weights_mode="huge",
        resident_weight_bytes=lambda: 150 * MIB,
        resident_kv_bytes=lambda: 20 * MIB,
    )
    assert monitor.sample(100.0, facts, None).own_bytes == 50 * MIB


def test_own_memory_is_unknown_without_the_file_mapped_figure(source, tmp_path):
    procfs = write_tree(tmp_path / "proc", {"self/status": "Name:\tjalopy\nRssAnon:\t5 kB\n"})
    sample = MachineMonitor(source, tmp_path, procfs).sample(100.0, None, None)
    assert sample.own_bytes is None


def test_disk_bytes_are_per_second(source, tmp_path):
    procfs = write_tree(tmp_path / "proc", {"self/io": "read_bytes: 1000\n"})
    monitor = MachineMonitor(source, tmp_path, procfs)
    monitor.sample(100.0, None, None)
    write_tree(tmp_path / "proc", {"self/io": "read_bytes: 9000\n"})
    assert monitor.sample(102.0, None, None).disk_bytes_per_s == 4000.0


def test_rates_start_again_after_a_pause(monitor, source):
    monitor.sample(100.0, None, None)
    monitor.forget_rates()
    source.run([1.0, 1.0])
    sample = monitor.sample(900.0, None, None)
    assert (sample.core_loads, sample.disk_bytes_per_s, sample.interval_s) == ((), None, 0.0)


def test_free_memory_in_a_container_follows_its_limit(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 30))
    monkeypatch.setattr(host, "_memory_groups", lambda root: iter([(4 << 30, 1 << 30)]))
    assert PerformanceWatch(None)._monitor.sample(100.0, None, None).available_bytes == 3 << 30


def test_slowly_changing_readings_are_taken_rarely(monitor, source):
    for second in range(20):
        monitor.sample(100.0 + second, None, None)
    call_counts = {name: source.calls.count(name) for name in set(source.calls)}
    assert call_counts["sensors_battery"] == 2
    assert call_counts["sensors_temperatures"] == 10
    assert call_counts["cpu_freq"] == 20


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        ("0", None),
        ("50000", None),  # the lower bits are the present, these the past
        ("50005", ClockLimit.VOLTAGE),
        ("20002", ClockLimit.HEAT),
        ("80008", ClockLimit.HEAT),
        ("nonsense", None),
    ],
)
def test_the_firmware_of_a_pi_tells_why_it_holds_the_clock_down(source, tmp_path, state, limit):
    path = "devices/platform/soc/soc:firmware/get_throttled"
    sysfs = write_tree(tmp_path / "sys", {path: f"{state}\n"})
    assert MachineMonitor(source, sysfs, tmp_path).sample(1.0, None, None).clock_limit is limit


@pytest.mark.parametrize(
    ("kind", "level", "limit"),
    [
        ("thermal-cpufreq-0", "3", ClockLimit.HEAT),
        ("thermal-cpufreq-0", "0", None),
        ("Processor", "1", ClockLimit.HEAT),
        ("pwm-fan", "4", None),
        ("intel_powerclamp", "-1", None),
    ],
)
def test_a_kernel_that_cools_by_the_clock_counts_as_heat(source, tmp_path, kind, level, limit):
    device = "class/thermal/cooling_device1"
    texts = {f"{device}/type": f"{kind}\n", f"{device}/cur_state": f"{level}\n"}
    sysfs = write_tree(tmp_path / "sys", texts)
    assert MachineMonitor(source, sysfs, tmp_path).sample(1.0, None, None).clock_limit is limit


def test_a_clock_that_a_virtual_machine_only_states_is_unknown(source, tmp_path):
    for name, flags, is_known in (
        ("virtual", "fpu hypervisor avx2", False),
        ("passed-through", "fpu hypervisor aperfmperf", True),
        ("real", "fpu avx2", True),
    ):
        procfs = write_tree(tmp_path / name, {"cpuinfo": f"processor : 0\nflags\t\t: {flags}\n"})
        monitor = MachineMonitor(source, tmp_path / "sys", procfs)
        assert (monitor.sample(1.0, None, None).clock_ghz is not None) is is_known, name


def test_an_expensive_reading_is_taken_more_rarely():
    cost = iter([0.0, 0.05] * 10)
    readings = []
    paced = CachedReading(lambda: readings.append(1), 1.0, lambda: next(cost))
    for second in range(101):
        paced.get(float(second))
    assert len(readings) == 3  # 50 ms are 0.1 % of 50 s


def test_the_interface_cost_is_the_share_of_its_thread():
    spent = iter([1.0, 1.03, 1.05])
    meter = Rate(lambda: next(spent))
    assert meter.since_last(10.0) is None
    assert meter.since_last(11.0) == pytest.approx(0.03)
    assert meter.since_last(13.0) == pytest.approx(0.01)
    assert [meter.since_last(14.0), meter.since_last(15.0)] == [None, None]  # the count raises


def test_this_machine_can_be_sampled():
    monitor = MachineMonitor()
    monitor.sample(100.0, None, None)
    sample = monitor.sample(101.0, None, None)
    assert isinstance(sample, MachineSample)
    assert sample.threads_working is not None
    assert psutil.cpu_count() in (None, len(sample.core_loads))
