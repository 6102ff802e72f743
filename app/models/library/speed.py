"""Speed of a model on this machine, the same for all screens and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.machine.sensors.reply_history import Basis, KnownAs, ReplyHistory, Speeds
from app.text import figures
from app.text.record import record

if TYPE_CHECKING:
    from engine.measure.fit import Fit, ModelNeeds

ESTIMATE = "~"
"""Sign before estimated speeds and sizes."""


@record
class ModelSpeed:
    """Speeds of a model in tokens per second; None if unknown."""

    decode_tps: float | None = None
    prefill_tps: float | None = None
    basis: Basis = Basis.ESTIMATED
    prefill_basis: Basis = Basis.ESTIMATED


def speed_of(needs: ModelNeeds, fit: Fit, history: ReplyHistory) -> ModelSpeed:
    """Return the usual speeds of a model if they were measured, else estimates.

    Args:
        fit: the model compared with this machine; it has the estimates.
    """
    usual = history.usual(KnownAs(needs.name, needs.quantization, needs.weights_bytes))
    if usual is None:
        return ModelSpeed(fit.decode_tps, fit.prefill_tps)
    if not usual.prefill_tps:
        return ModelSpeed(usual.decode_tps, fit.prefill_tps, usual.basis)
    return ModelSpeed(usual.decode_tps, usual.prefill_tps, usual.basis, usual.prefill_basis)


def writing_text(speeds: Speeds) -> str:
    """Return a measured speed of writing and its basis, such as "24.6 tok/s (measured)"."""
    return speed_text(speeds.decode_tps, speeds.basis)


def speed_text(tokens_per_s: float, basis: Basis) -> str:
    """Return a speed and its basis: "24.6 tok/s (measured)", or "~32 tok/s (estimated)"."""
    return f"{speed_figure(tokens_per_s, basis)} tok/s ({basis.value})"


def usual_text(tokens_per_s: float, basis: Basis) -> str:
    """Return a usual speed in two or three words: "usually 24.6" or "8.0 while busy"."""
    if not tokens_per_s:
        return ""
    if basis is Basis.BUSY:
        return f"{speed_figure(tokens_per_s, basis)} while busy"
    return f"usually {speed_figure(tokens_per_s, basis)}"


def speed_figure(tokens_per_s: float, basis: Basis) -> str:
    """Return the figure of a speed; estimates have a sign and two digits."""
    if basis is Basis.ESTIMATED:
        return f"{ESTIMATE}{figures.estimated_rate(tokens_per_s)}"
    return figures.rate(tokens_per_s)
