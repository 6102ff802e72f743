"""Explains the result of a memory comparison (weights or KV cache) in one or two sentences.

Pure functions.
"""

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
        remark: a sentence needed to judge the result, or "".
    """
    if not comparison.is_measured:
        return ""
    if comparison.part == WEIGHTS:
        explain = _weights
    else:
        explain = _kv
    return " ".join(filter(None, (explain(comparison), remark))) + (
        "" if comparison.is_settled else UNSURE
    )


def _weights(comparison: Comparison) -> str:
    present = comparison.present
    best = comparison.option(comparison.best)
    assert best is not None
    if comparison.best != present and comparison.best == "huge":
        return (
            f"With its weights in huge pages this model {_gains(best)}: the processor looks "
            f"up far fewer addresses. "
            f"They take {shown_bytes(best.own_bytes)} of memory of their own."
        )
    if comparison.best != present:
        return (
            f"From the file's map this model {_gains(best)} than from huge pages; it takes no "
            f"memory of its own."
        )
    other = next(option for option in comparison.options if option.name != present)
    if present == "mmap":
        return f"Weights stay in the file's map: huge pages {_no_gain(other)}."
    return (
        f"Weights stay in huge pages: the file's map {_no_gain(other)}. "
        f"It would need {shown_bytes(_own(comparison, present))} less memory, though."
    )


def _kv(comparison: Comparison) -> str:
    present = comparison.present
    best = comparison.option(comparison.best)
    assert best is not None
    filled = f"with {comparison.n_context:,} tokens in the context"
    if comparison.best == present:
        others = [option for option in comparison.options if option.name != present]
        found = ", ".join(f"{option.name} {_no_gain(option)}" for option in others)
        return f"The KV cache stays {present}: {filled}, {found}."
    before = _own(comparison, present)
    after = best.own_bytes
    memory = f"takes {shown_bytes(after)} of memory instead of {shown_bytes(before)}"
    return f"A KV cache of {comparison.best} {_gains(best)} {filled}; it {memory}."


def _own(comparison: Comparison, name: str) -> int:
    option = comparison.option(name)
    if option is not None:
        return option.own_bytes
    return 0


def _gains(option: Option) -> str:
    """Return "writes 12 % faster (9 to 14)", and the same for reading if that is a gain too."""
    gains = {phase: gain for phase, gain in option.gain.items() if gain.low > 1}
    shown = [
        f"{_VERBS[phase]} {_percent(gain.median):.0f} % faster {_span(gain)}"
        for phase, gain in gains.items()
    ]
    return " and ".join(shown)


def _no_gain(option: Option) -> str:
    """Return why an option is not better."""
    gains = option.gain.values()
    slower = [phase for phase, gain in option.gain.items() if gain.high < 1]
    if slower:
        return f"proved slower ({'; '.join(_signed(option, phase) for phase in slower)})"
    shown = "; ".join(_signed(option, phase) for phase in option.gain)
    if all(gain.median <= 1 for gain in gains):
        return f"brought no gain ({shown})"
    is_small = all(gain.is_sure and gain.median <= GAIN for gain in gains)
    return f"brought {'too little to count' if is_small else 'no gain that is certain'} ({shown})"


def _signed(option: Option, phase: str) -> str:
    gain = option.gain[phase]
    return (
        f"{'writing' if phase == DECODE else 'reading'} {_percent(gain.median):+.0f} %, "
        f"{_span(gain)[1:-1]}"
    )


def _span(gain: Interval) -> str:
    return f"({_percent(gain.low):.0f} to {_percent(gain.high):.0f})"


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)
