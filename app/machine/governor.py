"""What sets the processor's clock (the kernel's documents: admin-guide/pm/cpufreq, intel_pstate, amd-pstate)."""

from __future__ import annotations

from app.text.record import record

_CHOOSING_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""With these the processor chooses its clock, whatever the governor is called; their passive modes have other names."""


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
