"""Explanation of a comparison of memory options in one or two sentences."""

from __future__ import annotations

from engine.machine.memory import shown_bytes
from engine.tuning.report import DECODE, PREFILL, WEIGHTS, Comparison, Option
from engine.tuning.statistics import GAIN, Interval

UNSURE = " This is not certain yet."
_VERBS = {DECODE: "writes", PREFILL: "reads the prompt"}


def explain_comparison(comparison: Comparison, remark: str = "") -> str:
    """Return the explanation; "" if nothing was measured (``left_out`` then gives the reason).

    Args:
        comparison: a finished comparison.
        remark: a sentence needed to judge the result; empty if there is none.
    """
    if not comparison.is_measured:
        return ""
    explanation = _weights(comparison) if comparison.part == WEIGHTS else _kv(comparison)
    if remark:
        explanation += f" {remark}"
    if not comparison.is_settled:
        explanation += UNSURE
    return explanation


def _weights(comparison: Comparison) -> str:
    present = comparison.present
    best = comparison.option(comparison.best)
    assert best is not None
    if comparison.best != present and comparison.best == "huge":
        return (
            f"With weights in huge pages this model {_gains(best)} (uses "
            f"{shown_bytes(best.own_bytes)} more memory)."
        )
    if comparison.best != present:
        return (
            f"With weights mapped from the file this model {_gains(best)} than with huge pages, "
            f"and uses no extra memory."
        )
    alternative = next(option for option in comparison.options if option.name != present)
    if present == "mmap":
        return f"Weights stay mapped from the file: huge pages {_no_gain(alternative)}."
    return (
        f"Weights stay in huge pages: mapping the file {_no_gain(alternative)}. "
        f"Mapping would use {shown_bytes(_own(comparison, present))} less memory."
    )


def _kv(comparison: Comparison) -> str:
    present = comparison.present
    best = comparison.option(comparison.best)
    assert best is not None
    filled = f"with {comparison.n_context:,} tokens in the context"
    if comparison.best == present:
        alternatives = [option for option in comparison.options if option.name != present]
        results = ", ".join(f"{option.name} {_no_gain(option)}" for option in alternatives)
        return f"The KV cache stays {present}: {filled}, {results}."
    present_bytes = _own(comparison, present)
    memory = (
        f"takes {shown_bytes(best.own_bytes)} of memory instead of {shown_bytes(present_bytes)}"
    )
    return f"A KV cache of {comparison.best} {_gains(best)} {filled}; it {memory}."


def _own(comparison: Comparison, name: str) -> int:
    option = comparison.option(name)
    if option is not None:
        return option.own_bytes
    return 0


def _gains(option: Option) -> str:
    """Return "writes 12 % faster (9 to 14)", and the same for reading if that is a gain too."""
    gains = {phase: gain for phase, gain in option.gain.items() if gain.low > 1}
    phrases = [
        f"{_VERBS[phase]} {_percent(gain.median):.0f} % faster {_span(gain)}"
        for phase, gain in gains.items()
    ]
    return " and ".join(phrases)


def _no_gain(option: Option) -> str:
    """Return the reason why an option is not better."""
    gains = option.gain.values()
    slower = [phase for phase, gain in option.gain.items() if gain.high < 1]
    if slower:
        return f"proved slower ({'; '.join(_signed(option, phase) for phase in slower)})"
    phrases = "; ".join(_signed(option, phase) for phase in option.gain)
    if all(gain.median <= 1 for gain in gains):
        return f"brought no gain ({phrases})"
    is_small = all(gain.is_sure and gain.median <= GAIN for gain in gains)
    if is_small:
        return f"brought too little to count ({phrases})"
    return f"brought no gain that is certain ({phrases})"


def _signed(option: Option, phase: str) -> str:
    gain = option.gain[phase]
    task = "writing" if phase == DECODE else "reading"
    return f"{task} {_percent(gain.median):+.0f} %, {_span(gain)[1:-1]}"


def _span(gain: Interval) -> str:
    return f"({_percent(gain.low):.0f} to {_percent(gain.high):.0f})"


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)
