"""Explains in a sentence why a thread count won. Pure functions of the machine and the measurements."""

from __future__ import annotations

from engine.machine.topology import Cores
from engine.tuning.report import DECODE, Curve

SMALL_MODEL_BYTES = 64 << 20
"""Bytes read per token below which a model mostly fits into caches, so that memory is not the limit."""
CAVEAT = " This is not certain yet: measure again when nothing else runs."


def explain(curve: Curve, cores: Cores, bytes_per_token: int, others_cores: float | None = None) -> str:
    """Return a sentence on why the curve's best count is the best.

    Args:
        curve: with a best count.
        cores: the machine it was measured on.
        bytes_per_token: bytes of weights that one decode step reads.
        others_cores: processor time of other programs during the sweep, in cores; None if negligible.
    """
    best = curve.best
    assert best is not None
    is_decode = curve.phase == DECODE
    if len(curve.points) == 1:
        return f"{_threads(best)}: this process may use one CPU only."
    verb = _verb(best, is_decode)
    if others_cores is not None and best < cores.default_threads:
        sentence = (
            f"{_threads(best)} {verb} fastest, but other programs took {others_cores:.1f} cores meanwhile: without "
            "them more may be better."
        )
    elif curve.fastest not in (None, best):
        sentence = _kept(curve, best)
    else:
        is_small = bytes_per_token < SMALL_MODEL_BYTES
        cause = _quota_cause(best, cores) or (
            _decode_cause(best, _next_count(curve, best), cores, is_small) if is_decode else _prefill_cause(best, cores)
        )
        sentence = f"{_threads(best)} {verb} fastest: {cause}."
    return sentence + ("" if curve.is_settled else CAVEAT)


def _kept(curve: Curve, best: int) -> str:
    """Explain a best count that is not the fastest: the difference is noise, or too small to matter."""
    # The median of the ratios may contradict the medians of the rates; that is noise, not a gain.
    is_gain = curve.gain is not None and curve.gain.median > 1
    gain = f" ({100 * (curve.gain.median - 1):+.0f} %)" if curve.gain is not None and is_gain else ""
    task = "writing" if curve.phase == DECODE else "reading the prompt"
    return (
        f"{_threads(best)} {'is' if best == 1 else 'are'} enough for {task}: {curve.fastest} were faster by too "
        f"little to count{gain}, and fewer leave more of the machine to others."
    )


def _quota_cause(best: int, cores: Cores) -> str:
    if cores.quota is None or best < cores.quota or cores.quota >= cores.n_fast:
        return ""
    granted = "1 CPU" if cores.quota == 1 else f"{cores.quota} CPUs"
    if best > cores.quota:
        return f"one more than the control group's {granted} proved faster, which it may not stay under a longer load"
    return f"the control group grants this process {granted}, and stops further threads in the middle of their work"


def _next_count(curve: Curve, best: int) -> int:
    """Return the next higher count that was tried; the best one if none was."""
    return min((point.n_threads for point in curve.points if point.n_threads > best), default=best)


def _decode_cause(best: int, above: int, cores: Cores, is_small: bool) -> str:
    if best > cores.n_physical:
        return "siblings help here: one computes while the other one of its core waits for memory"
    if best == cores.n_physical:
        return _all_cores(cores, "share the same memory bandwidth")
    if best > cores.n_fast:
        return f"{best - cores.n_fast} of the {cores.n_efficiency} efficiency cores help, further ones hold it up"
    if best == cores.n_fast:
        return _fast_cores(cores)
    if is_small:
        return "this model is so small that handing work to more threads costs more than it saves"
    if cores.n_sockets > 1 and best <= cores.n_physical // cores.n_sockets < above:
        return f"more would sit in another of the {cores.n_sockets} sockets, far from the memory that holds the model"
    if best == 1:
        return "one core probably keeps the memory busy by itself; a second one only waits for it"
    return f"{best} cores probably use all the memory bandwidth there is; more only wait for it"


def _prefill_cause(best: int, cores: Cores) -> str:
    if best > cores.n_physical:
        return "that is arithmetic, and two siblings fill each other's pauses"
    if best == cores.n_physical:
        return _all_cores(cores, "share the same units of arithmetic")
    if best > cores.n_fast:
        return f"{best - cores.n_fast} of the {cores.n_efficiency} efficiency cores help, further ones hold it up"
    if best == cores.n_fast:
        return _fast_cores(cores)
    return "further threads brought nothing, which points to other programs, or to heat"


def _all_cores(cores: Cores, siblings_share: str) -> str:
    n, others = cores.n_physical, cores.n_siblings
    if not others:
        return f"one on each of the {n} cores" if n > 1 else "this CPU has 1 core"
    rest = f"the other {others} are their siblings" if n > 1 else f"the other {others} is its sibling"
    verb = siblings_share if n > 1 or others > 1 else siblings_share.replace("share", "shares", 1)
    return f"this CPU has {n} core{'s' if n > 1 else ''}; {rest} and {verb}"


def _fast_cores(cores: Cores) -> str:
    cause = f"this CPU has {cores.n_fast} fast cores; its {cores.n_efficiency} efficiency cores would hold them up"
    return cause + (f", and the {cores.n_siblings} siblings share the fast ones" if cores.n_siblings else "")


def _verb(n_threads: int, is_decode: bool) -> str:
    one, several = ("writes", "write") if is_decode else ("reads the prompt", "read the prompt")
    return one if n_threads == 1 else several


def _threads(n: int) -> str:
    return f"{n} thread{'s' if n > 1 else ''}"
