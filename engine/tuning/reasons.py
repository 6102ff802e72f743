"""Explanation in a sentence why a thread count won."""

from __future__ import annotations

from collections.abc import Sequence

from engine.machine.topology import Cores
from engine.tuning.report import DECODE, Curve

CAVEAT = " This is not certain yet: measure again when nothing else runs."


def explain(curve: Curve, cores: Cores, others_cores: float | None = None) -> str:
    """Return a sentence that explains the best count of a curve.

    Args:
        curve: a curve with a best count.
        cores: processor of the machine.
        others_cores: processor time of other programs during the sweep, in cores; None if
            negligible.
    """
    best = curve.best
    assert best is not None
    is_decode = curve.phase == DECODE
    if len(curve.points) == 1:
        return f"{_threads(best)}: this process may use one CPU only."
    verb = _verb(best, is_decode)
    if not curve.is_settled and curve.close_counts:
        task = "writing" if is_decode else "reading the prompt"
        return f"Too close to call for {task}: {_either(curve.close_counts)} threads."
    if others_cores is not None and best < cores.default_threads:
        sentence = (
            f"{_threads(best)} {verb} fastest. Unreliable: other programs used "
            f"{others_cores:.1f} cores. Measure again."
        )
    elif curve.fastest not in (None, best):
        sentence = _explain_not_fastest(curve, best)
    else:
        cause = _quota_cause(best, cores) or _cause(best, cores, is_decode)
        sentence = f"{_threads(best)} {verb} fastest: {cause}."
    if not curve.is_settled:
        sentence += CAVEAT
    return sentence


def _explain_not_fastest(curve: Curve, best: int) -> str:
    """Explain a best count that is not the fastest: the difference is noise, or too small to
    matter."""
    gain = ""
    # The median of the ratios may contradict the medians of the rates; that is noise, not a gain.
    if curve.gain is not None and curve.gain.median > 1:
        gain = f" ({100 * (curve.gain.median - 1):+.0f} %)"
    task = "writing" if curve.phase == DECODE else "reading the prompt"
    verb = "is" if best == 1 else "are"
    return (
        f"{_threads(best)} {verb} enough for {task}: {curve.fastest} were faster by too "
        f"little to count{gain}, and fewer leave more of the machine to others."
    )


def _quota_cause(best: int, cores: Cores) -> str:
    if cores.quota is None or best < cores.quota or cores.quota >= cores.n_fast:
        return ""
    granted = "1 CPU" if cores.quota == 1 else f"{cores.quota} CPUs"
    if best > cores.quota:
        return (
            f"one more than the control group's {granted} proved faster, which it may not stay "
            f"under a longer load"
        )
    return (
        f"the control group grants this process {granted}, and stops further threads in the "
        f"middle of their work"
    )


def _cause(best: int, cores: Cores, is_decode: bool) -> str:
    if best > cores.n_physical:
        if is_decode:
            return (
                "siblings help here: one computes while the other one of its core waits for memory"
            )
        return "that is arithmetic, and two siblings fill each other's pauses"
    if best == cores.n_physical:
        return _all_cores(
            cores, f"share the same {'memory bandwidth' if is_decode else 'units of arithmetic'}"
        )
    if best > cores.n_fast:
        return (
            f"{best - cores.n_fast} of the {cores.n_efficiency} efficiency cores help, further "
            f"ones hold it up"
        )
    if best == cores.n_fast:
        return _fast_cores(cores)
    if is_decode:
        return "more would probably only wait for the memory, or for each other"
    return "further threads brought nothing, which points to other programs, or to heat"


def _all_cores(cores: Cores, siblings_share: str) -> str:
    n = cores.n_physical
    n_siblings = cores.n_siblings
    if not n_siblings:
        if n > 1:
            return f"one on each of the {n} cores"
        return "this CPU has 1 core"
    if n > 1:
        siblings = f"the other {n_siblings} are their siblings"
    else:
        siblings = f"the other {n_siblings} is its sibling"
    verb = siblings_share
    if n == 1 and n_siblings == 1:
        verb = siblings_share.replace("share", "shares", 1)
    return f"this CPU has {n} core{'s' if n > 1 else ''}; {siblings} and {verb}"


def _fast_cores(cores: Cores) -> str:
    cause = (
        f"this CPU has {cores.n_fast} fast cores; its {cores.n_efficiency} efficiency cores would "
        f"hold them up"
    )
    if cores.n_siblings:
        cause += f", and the {cores.n_siblings} siblings share the fast ones"
    return cause


def _verb(n_threads: int, is_decode: bool) -> str:
    if is_decode:
        verbs = ("writes", "write")
    else:
        verbs = ("reads the prompt", "read the prompt")
    return verbs[n_threads > 1]


def _either(counts: Sequence[int]) -> str:
    *first, last = map(str, counts)
    return f"{', '.join(first)} or {last}"


def _threads(n: int) -> str:
    return f"{n} thread{'s' if n > 1 else ''}"
