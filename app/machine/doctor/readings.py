"""Readings of a machine as plain values, before any judgement; None if unknown.

They come from psutil, sysfs, procfs and the environment. Nothing here raises. All paths are below a
root directory, so that tests can imitate any machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from app.machine.doctor.host_system import HostSystem
from app.machine.sensors.cached_reading import or_none
from app.machine.sensors.low_power import is_on_battery
from app.machine.sensors.processor import number_in
from app.machine.sensors.tuning_conditions import look_at_load
from app.models.library.measure import EngineReadings
from app.program.clipboard import has_desktop
from app.text.record import record

LOOK_S = 0.3
"""Duration for which the load of other programs is watched."""
ROOT = Path("/")
_CPU = Path("sys/devices/system/cpu")
_NETWORK_KINDS = ("nfs", "cifs", "smb", "sshfs", "fuse.sshfs", "9p", "ceph", "glusterfs", "afs")
_SHARED_KINDS = ("9p", "drvfs", "virtiofs")
"""File systems by which WSL and Crostini reach folders of Windows and ChromeOS."""
_MEMORY_KINDS = ("tmpfs", "ramfs")
_VIRTUAL_DISKS = ("vd", "xvd")
"""Disks of virtual machines, which report the hypervisor's default instead of the truth."""


@record
class CoreReadings:
    """Numbers of processors, and how many this process may use."""

    name: str = ""
    physical: int | None = None
    """Cores of the whole machine."""
    logical: int | None = None
    allowed: int | None = None
    """Logical CPUs in this process's affinity set."""
    allowed_physical: int | None = None
    quota: float | None = None
    """CPUs granted by the control group."""
    flags: frozenset[str] = frozenset()
    """Features of the processor by the system's names; empty if unknown."""
    others_busy: float | None = None
    """Cores kept busy by other programs."""


@record
class ClockReadings:
    """Clock governor and power source."""

    governor: str = ""
    driver: str = ""
    preference: str = ""
    """Energy preference, if the processor chooses its clock itself."""
    most_mhz: float | None = None
    """Highest clock of the processor."""
    limit_mhz: float | None = None
    """Highest clock allowed by the system."""
    turbo: bool | None = None
    throttled: int | None = None
    """Number of times that heat slowed the processor since the start."""
    on_battery: bool = False
    """Whether the machine runs on battery, as far as is known."""


@record
class MemoryReadings:
    """Memory in bytes."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_bytes: int | None = None
    swap_used_bytes: int | None = None
    huge_pages: str = ""
    """Transparent huge pages: "always", "madvise" or "never"."""


@record
class DiskReadings:
    """Disk of the model."""

    kind: str = ""
    """Kind of disk: "ssd", "spinning", "network", "memory", or "shared" for a folder of the system
    around this Linux; "" if unknown."""
    device: str = ""
    file_bytes: int | None = None
    filesystem: str = ""


@record
class StatesReadings:
    """Saved states of text that models have read."""

    n_bytes: int
    """Size of all saved states."""
    quota_bytes: int
    """Limit on them; 0 if none are saved any more."""


@record
class TerminalReadings:
    """Abilities of the terminal according to the environment; the terminal is not queried."""

    is_terminal: bool = False
    name: str = ""
    columns: int = 80
    rows: int = 24
    encoding: str = ""
    colours: int | None = None
    """Number of colours: 16, 256 or 2**24; 0 with NO_COLOR."""
    clipboard: str = ""
    """Route of copied text: "desktop", "terminal" or "file"."""
    clipboard_program: str = ""
    desktop: str = ""
    """Desktop: "wayland", "x11" or ""."""
    multiplexer: str = ""
    """Terminal multiplexer: "tmux", "screen" or ""."""


@record
class Readings:
    """All readings; None for a group that was not read."""

    cores: CoreReadings = field(default_factory=CoreReadings)
    clock: ClockReadings = field(default_factory=ClockReadings)
    memory: MemoryReadings = field(default_factory=MemoryReadings)
    terminal: TerminalReadings = field(default_factory=TerminalReadings)
    disk: DiskReadings | None = None
    engine: EngineReadings | None = None
    states: StatesReadings | None = None
    host: HostSystem = field(default_factory=HostSystem)
    wanted_threads: int = 0
    """Setting ``threads``; 0 for automatic."""


def read_cores(root: Path = ROOT, look_s: float = LOOK_S) -> CoreReadings:
    """Read the processors, and watch the load of other programs for a moment."""
    import psutil

    from engine.machine import host

    name, flags = _cpu_info(root)
    readings = CoreReadings(
        name=name,
        physical=or_none(lambda: psutil.cpu_count(logical=False)),
        logical=or_none(lambda: psutil.cpu_count(logical=True)),
        flags=flags,
        others_busy=look_at_load(look_s).others_cores,
    )
    cores = or_none(host.cores)
    if cores is None:
        return readings
    return replace(
        readings,
        allowed=len(cores.logical),
        allowed_physical=cores.n_physical,
        quota=cores.quota,
    )


def read_clock(root: Path = ROOT) -> ClockReadings:
    """Read governor, clock limits, heat and battery."""
    cpu = root / _CPU
    policy = cpu / "cpu0/cpufreq"
    return ClockReadings(
        governor=_text(policy / "scaling_governor"),
        driver=_text(policy / "scaling_driver"),
        preference=_text(policy / "energy_performance_preference"),
        most_mhz=_mhz(policy / "cpuinfo_max_freq"),
        limit_mhz=_mhz(policy / "scaling_max_freq"),
        turbo=_turbo(cpu),
        throttled=number_in(cpu / "cpu0/thermal_throttle/core_throttle_count"),
        on_battery=is_on_battery(),
    )


def read_memory(root: Path = ROOT) -> MemoryReadings:
    """Read memory, swap and the mode of huge pages."""
    import psutil

    from engine.machine import host

    modes = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    readings = MemoryReadings(
        total_bytes=or_none(host.total_memory_bytes),
        available_bytes=or_none(host.available_memory_bytes),
        huge_pages=modes.partition("[")[2].partition("]")[0],
    )
    swap: Any = or_none(psutil.swap_memory)
    if swap is None:
        return readings
    return replace(readings, swap_bytes=int(swap.total), swap_used_bytes=int(swap.used))


def read_disk(path: str | os.PathLike[str], host: HostSystem, root: Path = ROOT) -> DiskReadings:
    """Return the kind of disk of a file, by device number or mount point."""
    return or_none(lambda: _disk(Path(path), host, root)) or DiskReadings()


def _disk(path: Path, host: HostSystem, root: Path) -> DiskReadings:
    import psutil

    status = path.stat()
    path = path.resolve()
    mounts = [
        mount_point
        for mount_point in psutil.disk_partitions(all=True)
        if Path(mount_point.mountpoint) in (path, *path.parents)
    ]
    mount = max(reversed(mounts), key=lambda mount_point: len(mount_point.mountpoint), default=None)
    filesystem = source = ""
    if mount:
        filesystem = mount.fstype
        source = mount.device
    disk_kind = device = ""
    device_path = root / f"sys/dev/block/{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    if not device_path.exists():  # btrfs and overlays have device numbers of their own
        device_path = root / "sys/class/block" / Path(source).name
    if host.kind is not None and filesystem in _SHARED_KINDS:
        disk_kind = "shared"
    elif filesystem.startswith(_NETWORK_KINDS):
        disk_kind = "network"
    elif filesystem in _MEMORY_KINDS:
        disk_kind = "memory"
    elif device_path.exists():
        disk = _whole_disk(device_path.resolve())
        device = disk.name
        rotational = _text(disk / "queue/rotational")
        if rotational and not (rotational == "1" and device.startswith(_VIRTUAL_DISKS)):
            if rotational == "1":
                disk_kind = "spinning"
            else:
                disk_kind = "ssd"
    return DiskReadings(disk_kind, device, status.st_size, filesystem)


def _whole_disk(path: Path) -> Path:
    """Return the disk of a partition, or of a mapped device (LVM, LUKS)."""
    for _ in range(8):
        if (path / "slaves").is_dir():
            below = sorted((path / "slaves").iterdir())
        else:
            below = []
        if below:
            path = below[0].resolve()
        elif (path / "partition").exists():
            path = path.parent
        else:
            break
    return path


def _cpu_info(root: Path) -> tuple[str, frozenset[str]]:
    """Return name and features of the first processor."""
    name = ""
    flags = frozenset[str]()
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not name:
            name = " ".join(value.replace("(R)", "").replace("(TM)", "").split())
        elif key.strip() in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
    if not name:
        import platform

        name = or_none(platform.processor) or or_none(platform.machine) or ""
    return name, flags


def _turbo(cpu: Path) -> bool | None:
    off = _text(cpu / "intel_pstate/no_turbo")
    if off in ("0", "1"):
        return off == "0"
    boost = _text(cpu / "cpufreq/boost")
    if boost in ("0", "1"):
        return boost == "1"
    return None


def _mhz(path: Path) -> float | None:
    khz = number_in(path)
    if khz:
        return khz / 1000
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


_PROGRAMS = {"wayland": ("wl-copy",), "x11": ("xclip", "xsel"), "": ("pbcopy", "clip.exe")}


def read_terminal(
    environ: Mapping[str, str],
    is_terminal: bool,
    encoding: str,
    size: tuple[int, int],
    find_program: Callable[[str], str | None] = shutil.which,
) -> TerminalReadings:
    """Return what the environment tells about the terminal.

    Args:
        encoding: encoding of standard output.
        size: columns and rows.
    """
    name = environ.get("TERM", "")
    if environ.get("WAYLAND_DISPLAY"):
        desktop = "wayland"
    elif environ.get("DISPLAY"):
        desktop = "x11"
    else:
        desktop = ""
    program = next((program for program in _PROGRAMS[desktop] if find_program(program)), "")
    # tmux sets TERM_PROGRAM on servers, too, where there is no desktop
    reaches_desktop = has_desktop(environ) and bool(desktop or program)
    if reaches_desktop:
        clipboard = "desktop"
    elif name == "linux":
        clipboard = "file"
    else:
        clipboard = "terminal"
    if not reaches_desktop:
        program = ""
    if environ.get("TMUX"):
        multiplexer = "tmux"
    elif environ.get("STY"):
        multiplexer = "screen"
    else:
        multiplexer = ""
    return TerminalReadings(
        is_terminal=is_terminal,
        name=name,
        columns=size[0],
        rows=size[1],
        encoding=encoding,
        colours=_colours(name, environ),
        clipboard=clipboard,
        clipboard_program=program,
        desktop=desktop,
        multiplexer=multiplexer,
    )


def _colours(name: str, environ: Mapping[str, str]) -> int | None:
    if environ.get("NO_COLOR"):
        return 0
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return 1 << 24
    if "256color" in name or "direct" in name:
        return 256
    if name and name != "dumb":
        return 16
    return None
