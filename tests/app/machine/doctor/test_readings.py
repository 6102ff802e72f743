"""Readings from recorded trees of sysfs and procfs, and from environments."""

import os
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from app.machine.doctor import readings as reading
from app.machine.doctor.host_system import HostKind, HostSystem
from app.machine.doctor.readings import (
    ClockReadings,
    read_clock,
    read_cores,
    read_disk,
    read_memory,
    read_terminal,
)
from app.machine.sensors import tuning_conditions
from app.machine.sensors.tuning_conditions import ConditionsWatch


def lay_out(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


def test_all_clock_readings_of_a_laptop_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "is_on_battery", lambda: True)
    policy = "sys/devices/system/cpu/cpu0/cpufreq/"
    lay_out(
        tmp_path,
        {
            policy + "scaling_governor": "powersave",
            policy + "scaling_driver": "intel_pstate",
            policy + "energy_performance_preference": "balance_power",
            policy + "cpuinfo_max_freq": "2900000",
            policy + "scaling_max_freq": "1900000",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "7",
        },
    )
    assert read_clock(tmp_path) == ClockReadings(
        "powersave", "intel_pstate", "balance_power", 2900.0, 1900.0, False, 7, True
    )


def test_a_machine_without_readings_gives_empty_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "is_on_battery", lambda: False)
    assert read_clock(tmp_path) == ClockReadings()
    assert read_memory(tmp_path).huge_pages == ""
    assert read_cores(tmp_path, look_s=0.0).flags == frozenset()


def test_failing_readers_leave_a_gap_and_raise_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a driver")

    for name in ("cpu_count", "cpu_times", "swap_memory", "virtual_memory", "sensors_battery"):
        monkeypatch.setattr(psutil, name, fail, raising=False)
    cores = read_cores(tmp_path, look_s=0.0)
    memory = read_memory(tmp_path)
    assert (cores.physical, cores.others_busy) == (None, None)
    assert (memory.swap_bytes, memory.total_bytes) == (None, None)
    assert not read_clock(tmp_path).on_battery


_Windows = namedtuple("_Windows", "user system idle interrupt dpc")
_Linux = namedtuple("_Linux", "user nice system idle iowait irq softirq steal guest guest_nice")


@pytest.mark.parametrize(
    ("spent", "busy_s"),
    [
        (_Windows(10.0, 5.0, 1000.0, 0.5, 0.5), 16.0),
        (_Linux(10.0, 1.0, 5.0, 1000.0, 50.0, 0.5, 0.5, 2.0, 8.0, 1.0), 19.0),
    ],
)
def test_idle_time_is_not_counted_as_busy_in_any_field_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent: tuple[float, ...], busy_s: float
) -> None:
    looks = iter([[type(spent)(*(0.0 for _ in spent))], [spent]])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(looks))
    moments = iter([100.0, 110.0])
    watch = ConditionsWatch(psutil, clock=lambda: next(moments))
    monkeypatch.setattr(tuning_conditions, "watch_machine", lambda: watch)
    monkeypatch.setattr(tuning_conditions, "time", SimpleNamespace(sleep=bool))
    assert read_cores(tmp_path, look_s=10.0).others_busy == pytest.approx(busy_s / 10, abs=0.05)


def test_name_and_features_come_from_the_first_processor(tmp_path: Path) -> None:
    entry = (
        "processor\t: 0\nmodel name\t: Intel(R) Core(TM) i5-4300U CPU @ 1.90GHz\nflags\t\t: fpu "
        "sse2 avx2 fma\n"
    )
    lay_out(tmp_path, {"proc/cpuinfo": entry + "\nmodel name\t: another\nflags\t: none"})
    cores = read_cores(tmp_path, look_s=0.0)
    assert cores.name == "Intel Core i5-4300U CPU @ 1.90GHz"
    assert {"avx2", "fma"} <= cores.flags


@pytest.mark.parametrize("mode", ["always", "madvise", "never"])
def test_the_mode_of_huge_pages_is_the_bracketed_word(tmp_path: Path, mode: str) -> None:
    text = " ".join(
        f"[{name}]" if name == mode else name for name in ("always", "madvise", "never")
    )
    lay_out(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})
    assert read_memory(tmp_path).huge_pages == mode


def device_of(path: Path) -> str:
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def lay_out_disk(root: Path, model: Path, disk: str, rotational: str, partition: str = "") -> None:
    """Write a disk and optionally a partition on it, as sysfs shows them."""
    device_path = root / "sys/devices/pci0" / disk
    lay_out(root, {f"sys/devices/pci0/{disk}/queue/rotational": rotational})
    target = device_path
    if partition:
        lay_out(root, {f"sys/devices/pci0/{disk}/{partition}/partition": "1"})
        target = device_path / partition
    link = root / "sys/dev/block" / device_of(model)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "m.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF")
    return file


@pytest.mark.parametrize(
    ("disk", "rotational", "partition", "disk_type"),
    [
        ("sda", "1", "sda2", "spinning"),
        ("sda", "0", "sda2", "ssd"),
        ("nvme0n1", "0", "", "ssd"),
        ("vda", "1", "", ""),
    ],
)
def test_the_disk_type_is_read_unless_the_disk_is_virtual(
    tmp_path: Path, model: Path, disk: str, rotational: str, partition: str, disk_type: str
) -> None:
    root = tmp_path / "root"
    lay_out_disk(root, model, disk, rotational, partition)
    reading = read_disk(model, HostSystem(), root)
    assert (reading.kind, reading.device, reading.file_bytes) == (disk_type, disk, 4)


def test_an_encrypted_disk_has_the_type_of_its_device(tmp_path: Path, model: Path) -> None:
    root = tmp_path / "root"
    lay_out(
        root,
        {"sys/devices/pci0/sdb/queue/rotational": "1", "sys/devices/pci0/sdb/sdb1/partition": "1"},
    )
    slaves = root / "sys/devices/virtual/dm-0/slaves"
    slaves.mkdir(parents=True)
    (slaves / "sdb1").symlink_to(root / "sys/devices/pci0/sdb/sdb1")
    link = root / "sys/dev/block" / device_of(model)
    link.parent.mkdir(parents=True)
    link.symlink_to(root / "sys/devices/virtual/dm-0")
    assert read_disk(model, HostSystem(), root).kind == "spinning"


def test_mounts_name_network_memory_and_spinning_disks(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    lay_out(root, {"sys/class/block/sdc1/queue/rotational": "1"})
    top = SimpleNamespace(mountpoint="/", fstype="ext4", device="/dev/sda1")
    plain = HostSystem()
    windows = HostSystem(HostKind.WSL2)
    for fstype, device, disk_type, host in (
        ("9p", "C:", "shared", windows), ("drvfs", "C:", "shared", HostSystem(HostKind.WSL1)),
        ("9p", "share", "network", plain), ("ext4", "/dev/sdc1", "spinning", windows),
        ("nfs4", "server:/models", "network", plain), ("tmpfs", "tmpfs", "memory", plain),
        ("btrfs", "/dev/sdc1", "spinning", plain),
    ):  # fmt: skip
        home = SimpleNamespace(mountpoint=str(model.parent.resolve()), fstype=fstype, device=device)
        monkeypatch.setattr(psutil, "disk_partitions", lambda all, home=home: [top, home])
        assert (
            read_disk(model, host, root).kind,
            read_disk(model, host, root).filesystem,
        ) == (
            disk_type,
            fstype,
        )


def test_a_missing_file_has_no_disk(tmp_path: Path) -> None:
    assert read_disk(tmp_path / "none", HostSystem(), tmp_path).kind == ""


@pytest.mark.parametrize(
    ("environ", "programs", "clipboard", "program", "colours"),
    [
        ({"TERM": "xterm-256color", "DISPLAY": ":0"}, {"xclip"}, "desktop", "xclip", 256),
        (
            {"TERM": "xterm", "WAYLAND_DISPLAY": "w", "COLORTERM": "truecolor"},
            set(),
            "desktop",
            "",
            1 << 24,
        ),
        (
            {"TERM": "xterm-256color", "DISPLAY": ":0", "SSH_TTY": "/dev/pts/1"},
            {"xclip"},
            "terminal",
            "",
            256,
        ),
        (
            {"TERM": "tmux-256color", "TERM_PROGRAM": "tmux", "TMUX": "/tmp/x"},
            set(),
            "terminal",
            "",
            256,
        ),
        ({"TERM": "linux"}, {"xclip"}, "file", "", 16),
        ({"TERM": "xterm", "NO_COLOR": "1"}, set(), "terminal", "", 0),
    ],
)
def test_terminal_abilities_come_from_the_environment(
    environ: dict[str, str], programs: set[str], clipboard: str, program: str, colours: int
) -> None:
    def find(name: str) -> str | None:
        return name if name in programs else None

    terminal = read_terminal(environ, True, "utf-8", (80, 24), find)
    assert (terminal.clipboard, terminal.clipboard_program, terminal.colours) == (
        clipboard,
        program,
        colours,
    )
