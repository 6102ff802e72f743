"""Readings of a machine as plain values, before any conclusion; None for unknown.

Findings are functions of these, so that a test can write down any machine.
"""

from __future__ import annotations

from dataclasses import field

from app.library.measure import EngineReadings
from app.text.record import record


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
    on_battery: bool | None = None


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
    """Where the model lies."""

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
