"""State of the engine thread: one frozen record, which the engine thread replaces as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.backend.picture_costs import PictureCosts
from app.backend.status import EngineStatus
from app.machine.sensors.records import EngineFigures
from app.machine.sensors.tuning_conditions import Conditions
from app.machine.tuning.battery_life import EnergyRun
from app.machine.tuning.race import Race
from app.machine.tuning.threads_in_use import ChoiceChange, ThreadsInUse
from app.program.makers import Advice
from app.text.record import record
from engine.prompt.thinking import ThinkingMode

if TYPE_CHECKING:
    from engine.tuning.report import TuningReport


def _no_advice(mode: ThinkingMode) -> Advice:
    return {}


@record
class EngineState:
    """Facts about the engine that the screen's thread may read at any time."""

    status: EngineStatus = EngineStatus()
    """Current activity and its progress."""
    figures: EngineFigures = EngineFigures()
    """Measurements for the performance screen."""
    threads: ThreadsInUse | None = None
    """Threads in use; None if no model is open."""
    changes: tuple[ChoiceChange, ...] = ()
    """Changes of the choice in use since the model was opened, the newest last; a limited
    number."""
    tuning: TuningReport | None = None
    """Report of the running or last search for this model; None before the first."""
    tuning_conditions: Conditions = Conditions()
    """State of the machine during the last search."""
    tuning_unix_s: float = 0.0
    """Time at which the last search ended; 0 if unknown."""
    race: Race | None = None
    """The running or last race of thread counts; None before the first."""
    energy: EnergyRun | None = None
    """The running or last measurement of the energy per token; None before the first."""
    advise: Callable[[ThinkingMode], Advice] = _no_advice
    """Returns the sampling that the makers of the open model recommend."""
    picture_costs: PictureCosts | None = None
    """Costs of pictures; None if the open model cannot see."""
    state_trouble: str = ""
    """Reason why the state of the KV cache is not saved; empty if it is."""
