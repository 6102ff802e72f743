"""One look at the machine. A reading that this machine does not give is None, never zero."""

from __future__ import annotations

from app.text.record import record

_CHOOSING_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""With these the processor chooses its clock, whatever the governor is called; their passive modes
have other names."""


@record
class Governor:
    """Name of the governor and of the driver it works through, "" where that is not known."""

    name: str
    driver: str = ""

    @property
    def lets_processor_choose(self) -> bool:
        """Whether the name says a preference only."""
        return self.driver in _CHOOSING_DRIVERS

    @property
    def holds_clock_down(self) -> bool:
        """Whether the clock stays at its lowest."""
        return self.name == "powersave" and not self.lets_processor_choose


BUSY_LOAD = 0.5
"""A core with this load works, and its clock is one that it works with."""


@record
class Battery:
    """Charge, and whether it is being used up."""

    percent: float
    on_mains: bool | None


@record
class MachineSample:
    """Readings of about one second; loads and rates speak for the time since the sample before."""

    at_s: float
    interval_s: float = 0.0
    """Since the sample before; 0 for the first, which has no loads and no rates."""
    core_loads: tuple[float, ...] = ()
    """Of each logical CPU, 0 to 1."""
    others_cores: float | None = None
    """Cores' worth of time that other programs, or the host of a virtual machine, took."""
    clock_ghz: float | None = None
    """Mean of the cores that work."""
    most_clock_ghz: float | None = None
    temperature_c: float | None = None
    throttled: int | None = None
    """How often the processor slowed down for heat."""
    governor: Governor | None = None
    battery: Battery | None = None
    weights_resident_bytes: int | None = None
    kv_resident_bytes: int | None = None
    own_bytes: int | None = None
    """Memory of this program alone, neither weights nor KV cache."""
    available_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_bytes_per_s: float | None = None
    """What this process had disks read."""
    threads_working: int | None = None
    interface_share: float | None = None
    """Of one core, taken by the thread that draws the screen."""
