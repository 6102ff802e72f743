import itertools
from pathlib import Path

import pytest

from app.machine.sensors.cached_reading import CachedReading
from app.machine.sensors.energy import (
    EnergyMeter,
    EnergyReading,
    EnergyScope,
    joules_between,
    joules_per_token,
    read_batteries,
)
from tests.app.machine.sensors.scripted_machine import write_tree


@pytest.fixture(autouse=True)
def free_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the load of this machine, because slow readings would be taken more rarely."""
    monkeypatch.setattr(CachedReading.__init__, "__defaults__", (lambda: 0.0,))


def supply(name: str, **values: object) -> dict[str, str]:
    """Return the files of a power supply as the kernel writes them."""
    return {f"class/power_supply/{name}/{key}": f"{value}\n" for key, value in values.items()}


AC_OFF = supply("AC", type="Mains", online=0)
AC_ON = supply("AC", type="Mains", online=1)
THINKPAD = supply(
    "BAT0",
    type="Battery",
    present=1,
    status="Discharging",
    power_now=14_000_000,
    energy_now=28_000_000,
    voltage_now=11_400_000,
)
"""A battery that counts energy."""
DELL = supply(
    "BAT1",
    type="Battery",
    present=1,
    status="Discharging",
    current_now=1_500_000,
    charge_now=3_000_000,
    voltage_now=12_000_000,
)
"""A battery that counts charge."""
RESTING = supply(
    "BAT1", type="Battery", present=1, status="Unknown", power_now=0, energy_now=20_000_000
)
MOUSE = supply(
    "hidpp_battery_0", type="Battery", scope="Device", status="Discharging", voltage_now=3_900_000
)
PINEBOOK = supply(
    "cw2015-battery",
    type="Battery",
    present=1,
    status="Discharging",
    current_now=-800_000,
    voltage_now=4_000_000,
)
USB_SOURCE = supply("ucsi-source-psy-USBC000:001", type="USB", online=1)


@pytest.mark.parametrize(
    ("files", "watts", "hours"),
    [
        (AC_OFF | THINKPAD, 14.0, 2.0),
        (AC_OFF | DELL, 18.0, 2.0),
        (AC_OFF | THINKPAD | DELL, 32.0, 2.0),
        (AC_OFF | THINKPAD | RESTING, 14.0, 48 / 14),
        (AC_OFF | THINKPAD | MOUSE, 14.0, 2.0),
        (THINKPAD | USB_SOURCE, 14.0, 2.0),
        (PINEBOOK, 3.2, None),
        (AC_OFF | THINKPAD | supply("BAT0", status="Unknown"), 14.0, 2.0),
        (AC_OFF | THINKPAD | supply("BAT0", energy_now="?"), 14.0, None),
        (AC_OFF | THINKPAD | supply("BAT0", energy_now=-5), 14.0, None),
        (AC_OFF | THINKPAD | supply("BAT0", power_now=-14_000_000), 14.0, 2.0),
    ],
    ids=[
        "power",
        "current",
        "two batteries",
        "one rests",
        "mouse",
        "USB port",
        "negative current",
        "unknown status",
        "no energy",
        "negative energy",
        "negative power",
    ],
)
def test_batteries_of_laptops_state_power_and_time(
    tmp_path: Path, files: dict[str, str], watts: float, hours: float | None
) -> None:
    power = read_batteries(write_tree(tmp_path, files))
    assert power is not None
    assert power.watts == pytest.approx(watts)
    left_s = power.left_s(power.watts)
    assert left_s == (pytest.approx(3600 * hours) if hours else None)


@pytest.mark.parametrize(
    "files",
    [
        {},
        AC_ON,
        AC_OFF,
        AC_ON | THINKPAD,
        AC_ON | THINKPAD | supply("BAT0", status="Charging"),
        AC_OFF | THINKPAD | supply("BAT0", status="Full"),
        AC_OFF | THINKPAD | supply("BAT0", status="\x00\xff"),
        THINKPAD | USB_SOURCE | supply("BAT0", status="Unknown"),
        AC_OFF | THINKPAD | supply("BAT0", present=0),
        AC_OFF | THINKPAD | supply("BAT0", power_now=0),
        AC_OFF | THINKPAD | supply("BAT0", power_now="garbage\n" * 9999),
        AC_OFF | THINKPAD | supply("BAT0", power_now=4_294_967_295_000),
        AC_OFF | THINKPAD | DELL | supply("BAT1", current_now=""),
        AC_OFF | DELL | supply("BAT1", voltage_now=0),
        MOUSE,
        {"class/power_supply/BAT0": "a file\n"},
    ],
)
def test_unmeasured_power_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    assert read_batteries(write_tree(tmp_path, files)) is None


def test_a_battery_in_an_unreadable_file_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs = write_tree(tmp_path, AC_OFF | THINKPAD | rapl({"intel-rapl:0": ("package-0", 5)}))

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    meter = EnergyMeter(sysfs)
    assert meter.read(1.0) is None
    assert meter.read(5.0) is None


def test_the_energy_of_a_battery_is_summed_up(tmp_path: Path) -> None:
    sysfs = write_tree(tmp_path, AC_OFF | THINKPAD)
    meter = EnergyMeter(sysfs)
    first = meter.read(100.0)
    assert first == EnergyReading(EnergyScope.MACHINE, 100.0, 100.0, 0.0, 14.0, 7200.0)
    meter.read(110.0)
    write_tree(tmp_path, supply("BAT0", power_now=28_000_000))
    last = meter.read(120.0)
    assert joules_between(first, last) == pytest.approx(140.0 + 210.0)
    assert last is not None
    assert last.watts == 28.0
    # a short burst hardly changes the time left
    assert last.left_s == pytest.approx(7200 * 14 / (14 + 14 * 0.1535), rel=0.01)


def test_slow_batteries_are_read_rarely_unless_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CachedReading.__init__, "__defaults__", (itertools.count(0.0, 0.05).__next__,)
    )
    sysfs = write_tree(tmp_path, AC_OFF | THINKPAD)
    meters = EnergyMeter(sysfs), EnergyMeter(sysfs, is_exact=True)
    for meter in meters:
        meter.read(100.0)
    write_tree(tmp_path, supply("BAT0", power_now=28_000_000))
    readings = [meter.read(110.0) for meter in meters]
    assert [reading and reading.watts for reading in readings] == [14.0, 28.0]


def test_energy_across_a_change_of_the_supply_is_unknown(tmp_path: Path) -> None:
    sysfs = write_tree(tmp_path, AC_OFF | THINKPAD | rapl({"intel-rapl:0": ("package-0", 5)}))
    meter = EnergyMeter(sysfs)
    on_battery = meter.read(100.0)
    write_tree(tmp_path, AC_ON)
    on_mains = meter.read(110.0)
    assert on_mains is not None
    assert on_mains.scope is EnergyScope.PROCESSOR
    write_tree(tmp_path, AC_OFF)
    again = meter.read(120.0)
    assert again is not None
    assert again.scope is EnergyScope.MACHINE
    assert joules_between(on_battery, on_mains) is None
    assert joules_between(on_battery, again) is None
    assert joules_between(None, again) is None


def rapl(zones: dict[str, tuple[str, object]]) -> dict[str, str]:
    """Return the files of energy counters: name and microjoules by zone."""
    files = {}
    for zone, (name, count) in zones.items():
        folder = f"class/powercap/{zone}"
        files[f"{folder}/name"] = f"{name}\n"
        files[f"{folder}/energy_uj"] = f"{count}\n"
        files[f"{folder}/max_energy_range_uj"] = "262143328850\n"
    return files


def test_packages_and_their_memory_are_counted_once(tmp_path: Path) -> None:
    def at(joules: int) -> dict[str, str]:
        names = {
            "intel-rapl:0": "package-0",
            "intel-rapl:0:0": "core",
            "intel-rapl:0:1": "uncore",
            "intel-rapl:0:2": "dram",
            "intel-rapl:1": "package-1",
            "intel-rapl:2": "psys",
            "intel-rapl-mmio:0": "package-0",
        }
        return rapl({zone: (name, 7 + joules * 1_000_000) for zone, name in names.items()})

    meter = EnergyMeter(write_tree(tmp_path, at(0)))
    first = meter.read(10.0)
    write_tree(tmp_path, at(20))
    last = meter.read(12.0)
    assert first is not None
    assert first.watts is None
    assert last == EnergyReading(EnergyScope.PROCESSOR, 10.0, 12.0, 60.0, 30.0)
    assert joules_between(first, last) == pytest.approx(60.0)


def test_a_full_energy_counter_starts_again(tmp_path: Path) -> None:
    meter = EnergyMeter(
        write_tree(tmp_path, rapl({"intel-rapl:0": ("package-0", 262_143_000_000)}))
    )
    meter.read(10.0)
    write_tree(tmp_path, rapl({"intel-rapl:0": ("package-0", 1_000_000)}))
    reading = meter.read(11.0)
    assert reading is not None
    assert reading.joules == pytest.approx(1.32885)


@pytest.mark.parametrize("count", ["", "x", -5, "\x00" * 50])
def test_a_senseless_energy_counter_is_none(tmp_path: Path, count: object) -> None:
    meter = EnergyMeter(write_tree(tmp_path, rapl({"intel-rapl:0": ("package-0", count)})))
    assert meter.read(10.0) is None
    assert meter.read(11.0) is None


def reading(at_s: float, joules: float, began_s: float = 0.0) -> EnergyReading:
    return EnergyReading(EnergyScope.MACHINE, began_s, at_s, joules, 10.0)


def test_the_energy_of_a_token_is_the_mean_of_the_reply() -> None:
    times_s = [100.0 + 0.5 * n for n in range(21)]  # until 110 s
    readings = [reading(float(second), 10.0 * second) for second in range(90, 120)]
    assert joules_per_token(readings, times_s) == pytest.approx(5.0)


@pytest.mark.parametrize(
    "readings",
    [
        [],
        [reading(100.5, 5.0)],
        [reading(100.5, 5.0), reading(101.5, 15.0)],
        [reading(100.5, 5.0), reading(109.5, 15.0, began_s=105.0)],
        [reading(100.5, 5.0), reading(109.5, 5.0)],
    ],
    ids=["none", "one", "short", "supply changed", "no energy"],
)
def test_little_measured_energy_gives_no_mean(readings: list[EnergyReading]) -> None:
    assert joules_per_token(readings, [100.0, 105.0, 110.0]) is None
    assert joules_per_token(readings, []) is None
