"""Readings of a machine as plain values, before any conclusion; None for unknown. Findings are
functions of these.

They come from psutil, sysfs, procfs, and what the environment says of the terminal. What cannot be
read is absent; nothing here raises. Every path hangs below a root, so that a test can lay out the
files of any machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from app.machine.sensors.cached_reading import or_none
from app.machine.sensors.low_power import is_on_battery
from app.machine.sensors.processor import number_in
from app.machine.sensors.tuning_conditions import look_at_load
from app.models.library.measure import EngineReadings
from app.program.clipboard import has_desktop
from app.text.record import record

LOOK_S = 0.3
"""How long the load of other programs is watched."""
ROOT = Path("/")
_CPU = Path("sys/devices/system/cpu")
_NETWORK_KINDS = ("nfs", "cifs", "smb", "sshfs", "fuse.sshfs", "9p", "ceph", "glusterfs", "afs")
_MEMORY_KINDS = ("tmpfs", "ramfs")
_VIRTUAL_DISKS = ("vd", "xvd")
"""Disks of virtual machines: what they say of themselves is the hypervisor's default and not the
truth."""


@record
class CoreReadings:
    """Processors: how many there are and how many this process may use."""

    name: str = ""
    physical: int | None = None
    """Of the whole machine."""
    logical: int | None = None
    allowed: int | None = None
    """Logical ones of this process's affinity set."""
    allowed_physical: int | None = None
    quota: float | None = None
    """Whole CPUs that the control group grants."""
    flags: frozenset[str] = frozenset()
    """The processor's features by the system's names; empty for unknown."""
    others_busy: float | None = None
    """How many cores other programs kept busy while it was looked at."""


@record
class ClockReadings:
    """Clock governor and power source."""

    governor: str = ""
    driver: str = ""
    preference: str = ""
    """Energy preference, where the processor chooses its clock itself."""
    most_mhz: float | None = None
    """The processor's highest clock."""
    limit_mhz: float | None = None
    """The highest clock that the system allows."""
    turbo: bool | None = None
    throttled: int | None = None
    """How often heat slowed the processor down since the start."""
    on_battery: bool = False
    """As far as can be told."""


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
    """Where the model is kept."""

    kind: str = ""
    """"ssd", "spinning", "network", "memory"; "" for unknown."""
    device: str = ""
    file_bytes: int | None = None
    filesystem: str = ""


@record
class TerminalReadings:
    """Abilities of the terminal, from the environment; it is not queried."""

    is_terminal: bool = False
    name: str = ""
    columns: int = 80
    rows: int = 24
    encoding: str = ""
    colours: int | None = None
    """16, 256 or 2**24; 0 where NO_COLOR asks for none."""
    clipboard: str = ""
    """"desktop", "terminal", "file"."""
    clipboard_program: str = ""
    desktop: str = ""
    """"wayland", "x11" or ""."""
    multiplexer: str = ""
    """"tmux", "screen" or ""."""


@record
class Readings:
    """Everything that findings are drawn from; a part that is None was not looked at."""

    cores: CoreReadings = field(default_factory=CoreReadings)
    clock: ClockReadings = field(default_factory=ClockReadings)
    memory: MemoryReadings = field(default_factory=MemoryReadings)
    terminal: TerminalReadings = field(default_factory=TerminalReadings)
    disk: DiskReadings | None = None
    engine: EngineReadings | None = None
    wanted_threads: int = 0
    """The setting; 0 for automatic."""


def read_cores(root: Path = ROOT, look_s: float = LOOK_S) -> CoreReadings:
    """Count processors and watch for a moment what other programs take of them."""
    import psutil

    from engine.machine import host

    cores = or_none(host.cores)
    name, flags = _cpu_info(root)
    return CoreReadings(
        name=name,
        physical=or_none(lambda: psutil.cpu_count(logical=False)),
        logical=or_none(lambda: psutil.cpu_count(logical=True)),
        allowed=len(cores.logical) if cores else None,
        allowed_physical=cores.n_physical if cores else None,
        quota=cores.quota if cores else None,
        flags=flags,
        others_busy=look_at_load(look_s).others_cores,
    )


def read_clock(root: Path = ROOT) -> ClockReadings:
    """Read governor, limits and what heat and battery do to the clock."""
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

    swap: Any = or_none(psutil.swap_memory)
    modes = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = modes.partition("[")[2].partition("]")[0]
    return MemoryReadings(
        total_bytes=or_none(host.total_memory_bytes),
        available_bytes=or_none(host.available_memory_bytes),
        swap_bytes=int(swap.total) if swap else None,
        swap_used_bytes=int(swap.used) if swap else None,
        huge_pages=chosen,
    )


def read_disk(path: str | os.PathLike[str], root: Path = ROOT) -> DiskReadings:
    """Find out what kind of disk a file is on, by its device number or by what is mounted there."""
    return or_none(lambda: _disk(Path(path), root)) or DiskReadings()


def _disk(path: Path, root: Path) -> DiskReadings:
    import psutil

    status = path.stat()
    path = path.resolve()
    mounts = [
        one
        for one in psutil.disk_partitions(all=True)
        if Path(one.mountpoint) in (path, *path.parents)
    ]
    mount = max(reversed(mounts), key=lambda one: len(one.mountpoint), default=None)
    if mount:
        filesystem, source = (mount.fstype, mount.device)
    else:
        filesystem, source = ("", "")
    kind = device = ""
    place = root / f"sys/dev/block/{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    if not place.exists():  # btrfs and overlays give files a device number of their own
        place = root / "sys/class/block" / Path(source).name
    if filesystem.startswith(_NETWORK_KINDS):
        kind = "network"
    elif filesystem in _MEMORY_KINDS:
        kind = "memory"
    elif place.exists():
        disk = _whole_disk(place.resolve())
        device = disk.name
        rotational = _text(disk / "queue/rotational")
        if rotational and not (rotational == "1" and device.startswith(_VIRTUAL_DISKS)):
            if rotational == "1":
                kind = "spinning"
            else:
                kind = "ssd"
    return DiskReadings(kind, device, status.st_size, filesystem)


def _whole_disk(place: Path) -> Path:
    """Go from a partition to its disk, and from a mapped device (LVM, LUKS) to what it is on."""
    for _ in range(8):
        if (place / "slaves").is_dir():
            below = sorted((place / "slaves").iterdir())
        else:
            below = []
        if below:
            place = below[0].resolve()
        elif (place / "partition").exists():
            place = place.parent
        else:
            break
    return place


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
    """Return what is known of the terminal; ``encoding``: of standard output; ``size``: columns and
    rows."""
    name = environ.get("TERM", "")
    if environ.get("WAYLAND_DISPLAY"):
        desktop = "wayland"
    elif environ.get("DISPLAY"):
        desktop = "x11"
    else:
        desktop = ""
    program = next((program for program in _PROGRAMS[desktop] if find_program(program)), "")
    # TERM_PROGRAM alone, which tmux sets on servers too, makes no desktop.
    reaches_desktop = has_desktop(environ) and bool(desktop or program)
    return TerminalReadings(
        is_terminal=is_terminal,
        name=name,
        columns=size[0],
        rows=size[1],
        encoding=encoding,
        colours=_colours(name, environ),
        clipboard="desktop" if reaches_desktop else "file" if name == "linux" else "terminal",
        clipboard_program=program if reaches_desktop else "",
        desktop=desktop,
        multiplexer="tmux" if environ.get("TMUX") else "screen" if environ.get("STY") else "",
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
