"""The choice that tuning made: from a search, and as remembered by machine, model and power source.
Imports no engine.

On battery a machine is another one: its clocks are lower, and the best count may be too. So what
was measured there holds there. On battery, what holds on mains is used until there is something
better; never the other way round.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from app.machine.sensors.tuning_conditions import Conditions
from app.program.settings import AUTO, DEFAULT_KV_TYPE
from app.program.state import ProgramState, TunedChoice, TuningConditions
from app.text.record import record
from engine import KV_TYPES

if TYPE_CHECKING:
    from engine.tuning.report import Curve, TuningReport


_ON_BATTERY = " | on battery"
_FIELDS = 5
"""Of a machine after its name: cores, siblings, sockets, quota, instruction level."""


@record
class TuningPlace:
    """Where a choice holds; machine and model as ``app.backend.local.engine_access`` names them."""

    machine: str
    model: str
    kernels: str = ""
    """Names the compiled code."""
    on_battery: bool = False

    def key(self, on_battery: bool) -> str:
        """The name under which something is remembered."""
        return f"{self.machine} | {self.model}{_ON_BATTERY if on_battery else ''}"


@record
class SavedTuning:
    """The remembered choice to begin with; None where nothing is."""

    choice: TunedChoice | None = None
    measured: TuningConditions | None = None
    """Its circumstances; None where it was made by hand."""
    doubt: str = ""
    """Why it may not hold, as "threads were tuned on mains, now on battery"; "" for no reason."""


def kv_type_of(wanted: str, choice: TunedChoice | None) -> str:
    """Return the format of the KV cache: the one wished for, or the one remembered if it is as
    exact, or AUTO."""
    if choice is not None:
        faster = choice.kv_type
    else:
        faster = ""
    if wanted != AUTO or faster in ("", DEFAULT_KV_TYPE) or not KV_TYPES[faster].is_exact:
        return wanted
    return faster


def recall(kept: ProgramState, place: TuningPlace) -> SavedTuning:
    """Return what holds here, and whether it is in doubt."""
    own = place.key(place.on_battery)
    other = place.key(not place.on_battery)
    if own in kept.tuned_threads:
        measured = kept.tuned_when.get(own)
        if measured is not None:
            kernels = {measured.kernels, place.kernels}
        else:
            kernels = set()
        doubt = "threads were tuned with another version of the engine"
        return SavedTuning(
            kept.tuned_threads[own],
            measured,
            doubt if len(kernels) > 1 and "" not in kernels else "",
        )
    if other in kept.tuned_threads and place.on_battery:
        doubt = "threads were tuned on mains, now on battery"
        return SavedTuning(kept.tuned_threads[other], kept.tuned_when.get(other), doubt)
    if other in kept.tuned_threads:
        return SavedTuning(doubt="threads were tuned on battery, now on mains")
    return SavedTuning(doubt=_machine_doubt(kept, place))


def tuning_keys(place: TuningPlace, measured: TuningConditions | None) -> tuple[str, str]:
    """Return the name to remember a choice under, and one that must not be in its way; "" for
    none."""
    if measured is None:
        on_battery = place.on_battery
    else:
        on_battery = measured.on_battery
    return place.key(on_battery), place.key(
        place.on_battery
    ) if on_battery != place.on_battery else ""


def _machine_doubt(kept: ProgramState, place: TuningPlace) -> str:
    """Find the model tuned on the same processor with other cores to use, the newest first."""
    for key in reversed(list(kept.tuned_threads)):
        machine, _, model = key.removesuffix(_ON_BATTERY).partition(" | ")
        then = machine.rsplit(", ", _FIELDS)
        now = place.machine.rsplit(", ", _FIELDS)
        if model == place.model and then[0] == now[0] and then != now:
            changed = [(a, b) for a, b in zip_longest(then[1:], now[1:], fillvalue="") if a != b]
            was, is_now = (
                ", ".join(_shown(field) for field in fields)
                for fields in zip(*changed, strict=True)
            )
            return f"threads were tuned with {was}, now with {is_now}"
    return ""


def _shown(field: str) -> str:
    """A field of a machine's name for people: "2+0 cores" is "2 cores"."""
    count, _, noun = field.partition(" ")
    fast, plus, slow = count.partition("+")
    if plus and slow != "0":
        return f"{fast} fast and {slow} efficiency cores"
    if count == "quota":
        if noun == "none":
            return "no quota"
        return f"a quota of {_counted(noun, 'CPUs')}"
    if noun:
        return _counted(fast, noun)
    return field


def _counted(count: str, noun: str) -> str:
    if count == "0":
        return f"no {noun}"
    return f"{count} {noun.removesuffix('s') if count == '1' else noun}"


def equal_counts(curve: Curve) -> frozenset[int]:
    """Return the counts as fast as the best one within the spread of the measurements; none if it
    is the only one."""
    if curve.best is not None:
        found = curve.point(curve.best)
    else:
        found = None
    if found is not None:
        best = found.tps
    else:
        best = None
    if best is None:
        return frozenset()
    alike = {
        point.n_threads
        for point in curve.points
        if point.tps is not None
        and not point.is_dropped
        and point.tps.low <= best.high
        and best.low <= point.tps.high
    }
    if len(alike) > 1:
        return frozenset(alike)
    return frozenset()


def _best_count(report: TuningReport, phase: str, now: int) -> int:
    """Return the best count of a phase; the one in use where that is as fast."""
    curve = report.curve(phase)
    if curve is None or curve.best is None or now in equal_counts(curve):
        return now
    return curve.best


def best_choice(report: TuningReport, now: TunedChoice) -> TunedChoice:
    """Return the best of what was measured, and what holds now for the rest."""
    return TunedChoice(
        decode=_best_count(report, "decode", now.decode),
        prefill=_best_count(report, "prefill", now.prefill),
        pinned=now.pinned if report.pinned is None else report.pinned,
        weights=_best_option(report, "weights") or now.weights,
        kv_type=_best_option(report, "kv") or now.kv_type,
    )


def choice_to_remember(
    report: TuningReport, now: TunedChoice, remembered: TunedChoice | None
) -> TunedChoice:
    """Return this choice; fields that were not measured keep their remembered value, whatever the
    settings say."""
    if remembered is not None:
        weights, kv_type = (remembered.weights, remembered.kv_type)
    else:
        weights, kv_type = ("", "")
    return best_choice(report, replace(now, weights=weights, kv_type=kv_type))


def measured_of(
    report: TuningReport, choice: TunedChoice, conditions: Conditions, kernels: str
) -> TuningConditions | None:
    """Return under which circumstances a choice was measured; None if it was not, but made by
    hand."""
    curve = report.curve("decode")
    if curve is not None:
        point = curve.point(choice.decode)
    else:
        point = None
    if point is not None and point.tps is not None:
        return TuningConditions(kernels, conditions.on_battery)
    return None


def _best_option(report: TuningReport, part: str) -> str:
    comparison = report.comparison(part)
    if comparison is not None and comparison.is_measured:
        return comparison.best
    return ""
