"""A sample of the machine. Unavailable readings are None, never zero."""

from __future__ import annotations

from enum import Enum

from app.machine.sensors.delays import QuotaUse
from app.machine.sensors.energy import EnergyReading
from app.text.record import record

_CHOOSING_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""Drivers with which the processor chooses its clock, whatever the governor. Their passive modes
have other names.
"""


class ClockLimit(Enum):
    """Reason for which the clock of the processor is held down."""

    HEAT = "too hot"
    VOLTAGE = "too little voltage"


@record
class Governor:
    """Governor of the clock and its driver; "" if unknown."""

    name: str
    driver: str = ""

    @property
    def lets_processor_choose(self) -> bool:
        """Whether the governor is only a preference."""
        return self.driver in _CHOOSING_DRIVERS

    @property
    def holds_clock_down(self) -> bool:
        """Whether the clock stays at its minimum."""
        return self.name == "powersave" and not self.lets_processor_choose


BUSY_LOAD = 0.5
"""Load from which a core counts as working."""


@record
class Battery:
    """Charge, and whether it is being used up."""

    percent: float
    on_mains: bool | None


@record
class MachineSample:
    """Readings of about one second. Loads and rates are averages since the last sample."""

    at_s: float
    interval_s: float = 0.0
    """Seconds since the last sample; 0 for the first, which has no loads and rates."""
    core_loads: tuple[float, ...] = ()
    """Load of each logical CPU, 0 to 1."""
    n_allowed_cores: int | None = None
    """Number of logical CPUs on which this program may run."""
    others_cores: float | None = None
    """Cores of these that other programs use, or the host of a virtual machine."""
    stolen_cores: float | None = None
    """Part of them that the host of a virtual machine took."""
    clock_ghz: float | None = None
    """Mean clock of the working cores."""
    most_clock_ghz: float | None = None
    core_clocks_ghz: tuple[float | None, ...] = ()
    """Each clock of the processor; cores can share one."""
    engine_cpus: tuple[int, ...] = ()
    """Numbers of the logical CPUs on which the threads that compute last ran."""
    temperature_c: float | None = None
    throttled: int | None = None
    """Number of times that heat slowed the processor."""
    clock_limit: ClockLimit | None = None
    """Reason for which the kernel or the firmware holds the clock down; None if it does not."""
    governor: Governor | None = None
    battery: Battery | None = None
    weights_resident_bytes: int | None = None
    kv_resident_bytes: int | None = None
    own_bytes: int | None = None
    """Memory of this program without weights and KV cache."""
    available_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_bytes_per_s: float | None = None
    """Bytes per second that this process reads from disks."""
    disk_stall_share: float | None = None
    """Share of time in which a program waited for a disk."""
    swapped_in_bytes_per_s: float | None = None
    """Bytes per second that all programs read from swap."""
    waiting_share: float | None = None
    """Largest share of time that a working thread of this program waited for a core."""
    quota: QuotaUse | None = None
    """CPU quota of this program and its use; None without one."""
    energy: EnergyReading | None = None
    """Power and energy; None where they are not measured."""
    threads_working: int | None = None
    interface_share: float | None = None
    """Share of a core used by the thread that draws the screen."""
