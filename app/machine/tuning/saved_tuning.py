"""Tuned choices: from a search, and saved by machine, model and power source. No engine is
imported.

On battery, clocks are lower and other thread counts may be best. So choices measured on battery
apply on battery only. Choices measured on mains are used on battery until there is a better one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from app.machine.sensors.reply_history import PastReply, past_measurement
from app.machine.sensors.tuning_conditions import Conditions
from app.machine.tuning.levels import speed_of
from app.program.settings import AUTO, DEFAULT_KV_TYPE
from app.program.state import ProgramState, TunedChoice, TuningConditions
from app.text.record import record
from engine import KV_TYPES
from engine.tuning.report import DECODE, MEASURING, PREFILL, STOPPED

if TYPE_CHECKING:
    from engine.tuning.report import TuningReport

_ON_BATTERY = " | on battery"
_FIELDS = 5
"""Number of fields after a machine's name: cores, siblings, sockets, quota, instruction level."""


@record
class TuningPlace:
    """Machine and model of a choice, named as in ``app.backend.local.engine_access``."""

    machine: str
    model: str
    kernels: str = ""
    """Version of the compiled kernels."""
    on_battery: bool = False

    def key(self, on_battery: bool) -> str:
        """Return the key of a saved choice."""
        return f"{self.machine} | {self.model}{_ON_BATTERY if on_battery else ''}"


@record
class SavedTuning:
    """The saved choice to start with; None if there is none."""

    choice: TunedChoice | None = None
    measured: TuningConditions | None = None
    """Conditions of the measurement; None for a choice made by hand."""
    doubt: str = ""
    """Reason why the choice may not fit, such as "threads were tuned on mains, now on battery"; ""
    if none.
    """


def kv_type_of(requested: str, choice: TunedChoice | None) -> str:
    """Return the type of the KV cache: the requested one, a saved one, or AUTO."""
    if choice is not None:
        faster = choice.kv_type
    else:
        faster = ""
    if requested != AUTO or faster in ("", DEFAULT_KV_TYPE) or faster not in KV_TYPES:
        return requested
    return faster


def recall(state: ProgramState, target: TuningPlace) -> SavedTuning:
    """Return the saved choice for a machine and model, with a reason for doubt."""
    key = target.key(target.on_battery)
    other_key = target.key(not target.on_battery)
    if key in state.tuned_threads:
        conditions = state.tuned_when.get(key)
        if conditions is not None:
            kernels = {conditions.kernels, target.kernels}
        else:
            kernels = set()
        doubt = "threads were tuned with another version of the engine"
        return SavedTuning(
            state.tuned_threads[key],
            conditions,
            doubt if len(kernels) > 1 and "" not in kernels else "",
        )
    if other_key in state.tuned_threads and target.on_battery:
        doubt = "threads were tuned on mains, now on battery"
        return SavedTuning(state.tuned_threads[other_key], state.tuned_when.get(other_key), doubt)
    if other_key in state.tuned_threads:
        return SavedTuning(doubt="threads were tuned on battery, now on mains")
    return SavedTuning(doubt=_machine_doubt(state, target))


def tuning_keys(target: TuningPlace, conditions: TuningConditions | None) -> tuple[str, str]:
    """Return the key for saving a choice, and a key to remove; "" if there is none."""
    if conditions is None:
        on_battery = target.on_battery
    else:
        on_battery = conditions.on_battery
    if on_battery == target.on_battery:
        return target.key(on_battery), ""
    return target.key(on_battery), target.key(target.on_battery)


def _machine_doubt(state: ProgramState, target: TuningPlace) -> str:
    """Return a doubt if the newest choice for this model is from the same processor with other
    cores.
    """
    for key in reversed(list(state.tuned_threads)):
        machine, _, model = key.removesuffix(_ON_BATTERY).partition(" | ")
        earlier_fields = machine.rsplit(", ", _FIELDS)
        current_fields = target.machine.rsplit(", ", _FIELDS)
        if (
            model == target.model
            and earlier_fields[0] == current_fields[0]
            and earlier_fields != current_fields
        ):
            changed = [
                (a, b)
                for a, b in zip_longest(earlier_fields[1:], current_fields[1:], fillvalue="")
                if a != b
            ]
            earlier_text, current_text = (
                ", ".join(_field_text(field) for field in fields)
                for fields in zip(*changed, strict=True)
            )
            return f"threads were tuned with {earlier_text}, now with {current_text}"
    return ""


def _field_text(field: str) -> str:
    """Return a field of a machine's name in words: "2+0 cores" is "2 cores"."""
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


def _best_count(report: TuningReport, phase: str, current: int) -> int:
    """Return the best count of a phase, or the current one if it is too close to call."""
    curve = report.curve(phase)
    if curve is None or curve.best is None:
        return current
    if current in curve.close_counts and not curve.is_settled:
        return current
    return curve.best


def why_not_kept(report: TuningReport, current: TunedChoice, conditions: Conditions) -> str:
    """Return why the results must not be saved, such as "because the machine was swapping"; "" if
    some of them may be saved."""
    if report.state in (MEASURING, STOPPED):
        return "because the measurement was stopped"
    if conditions.is_swapping:
        return "because the machine was swapping"
    if conditions.disturbing_cores is not None:
        return f"because other programs used {conditions.disturbing_cores:.1f} cores"
    certain = certain_part(report, current)
    if not certain.curves and (report.curves or not certain.comparisons):
        return "because they are uncertain"
    return ""


def certain_part(report: TuningReport, current: TunedChoice) -> TuningReport:
    """Return a report without the results that are too close to call.

    Args:
        current: choice in use. A count that is certainly better than it may be used, although
            another one may be better still.
    """
    in_use = {"decode": current.decode, "prefill": current.prefill}
    return replace(
        report,
        curves=tuple(
            curve for curve in report.curves if curve.is_certain_from(in_use[curve.phase])
        ),
        comparisons=tuple(
            comparison
            for comparison in report.comparisons
            if comparison.is_measured and comparison.is_settled
        ),
    )


def best_choice(report: TuningReport, current: TunedChoice) -> TunedChoice:
    """Return the best measured values, and current values for the rest."""
    return TunedChoice(
        decode=_best_count(report, "decode", current.decode),
        prefill=_best_count(report, "prefill", current.prefill),
        pinned=current.pinned if report.pinned is None else report.pinned,
        weights=_best_option(report, "weights") or current.weights,
        kv_type=_best_option(report, "kv") or current.kv_type,
    )


def choice_to_remember(
    report: TuningReport, current: TunedChoice, remembered: TunedChoice | None
) -> TunedChoice:
    """Return the choice to save: of what is certain, the best. The other fields keep their saved
    values, or the threads in use."""
    if remembered is not None:
        weights = remembered.weights
        kv_type = remembered.kv_type
    else:
        weights = kv_type = ""
    certain = certain_part(report, current)
    return best_choice(certain, replace(current, weights=weights, kv_type=kv_type))


def measured_speeds(report: TuningReport, choice: TunedChoice) -> PastReply | None:
    """Return the speeds that a search on a quiet machine measured with a choice; None if it did not
    measure the choice."""
    decode_tps, prefill_tps = (speed_of(report, phase, choice) for phase in (DECODE, PREFILL))
    if not decode_tps:
        return None
    n_written = _n_tokens(report, DECODE, choice.decode)
    n_read = _n_tokens(report, PREFILL, choice.prefill)
    if not prefill_tps:
        n_read = 0
    return past_measurement(n_written, decode_tps, n_read, prefill_tps, is_quiet=True)


def _n_tokens(report: TuningReport, phase: str, count: int) -> int:
    """Return the number of tokens that were measured with a thread count."""
    curve = report.curve(phase)
    point = curve.point(count) if curve is not None else None
    if curve is None or point is None or point.tps is None:
        return 0
    return curve.n_tokens * point.tps.n


def measured_of(
    report: TuningReport, choice: TunedChoice, conditions: Conditions, kernels: str
) -> TuningConditions | None:
    """Return the conditions under which a choice was measured; None if it was made by hand."""
    curve = report.curve("decode")
    if curve is not None:
        point = curve.point(choice.decode)
    else:
        point = None
    if point is not None and point.tps is not None:
        return TuningConditions(kernels, conditions.on_battery)
    return None


def _best_option(report: TuningReport, group: str) -> str:
    comparison = report.comparison(group)
    if comparison is not None and comparison.is_measured:
        return comparison.best
    return ""
