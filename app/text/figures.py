"""How numbers are written on every screen: short, of steady width, never more exact than they
are."""

from __future__ import annotations

WORTH_SAVING_S = 5.0
USUAL_LINE_BPS = 25e6 / 8
"""Bytes a second of a usual line to a home."""
_UNITS = ("B", "K", "M", "G", "T")


def rate(tokens_per_s: float) -> str:
    """Write a rate: two decimals below 1, one below 100, none above."""
    if tokens_per_s < 1:
        return f"{tokens_per_s:.2f}"
    if tokens_per_s < 99.95:
        return f"{tokens_per_s:.1f}"
    return f"{tokens_per_s:,.0f}"


def seconds(duration_s: float) -> str:
    """Write a measured duration: "0.84 s", "4.1 s", "1 min 26 s"."""
    if duration_s < 1:
        return f"{duration_s:.2f} s"
    if duration_s < 59.95:
        return f"{duration_s:.1f} s"
    return whole_seconds(duration_s)


def whole_seconds(duration_s: float) -> str:
    """Write an estimate, which deserves no decimals: "4 s", "1 min 26 s", "2 h 5 min"."""
    total_s = max(1, round(duration_s))
    if total_s < 60:
        return f"{total_s} s"
    if total_s < 3600:
        return f"{total_s // 60} min {total_s % 60} s"
    return f"{total_s // 3600} h {total_s % 3600 // 60} min"


def size(n_bytes: float) -> str:
    """Write a size in powers of 1024: "118M", "4.2G"."""
    value = float(n_bytes)
    unit = 0
    while value >= 1023.5 and unit < len(_UNITS) - 1:
        value = value / 1024
        unit = unit + 1
    if value < 9.95 and unit > 0:
        decimals = 1
    else:
        decimals = 0
    return f"{value:.{decimals}f}{_UNITS[unit]}"


def byte_size(n_bytes: float) -> str:
    """Write a size with its full unit: "0 B", "28 KB", "4.2 GB"."""
    text = size(n_bytes)
    unit = text[-1].removesuffix("B")
    return f"{text[:-1]} {unit}B"


def time_on_a_line(n_bytes: int) -> str:
    """Write how long a download takes on a usual line, for a first idea."""
    return f"about {max(1, round(n_bytes / USUAL_LINE_BPS / 60))} min at 25 Mbit/s"


def count(n: int) -> str:
    """Write a count with thousands apart: "2,310"."""
    return f"{n:,}"


def counted(n: int, what: str) -> str:
    """Write a count of things: "1 core", "2 cores"."""
    return f"{count(n)} {what}{'' if n == 1 else 's'}"


def parameters(n: int) -> str:
    """Write a model's size: "3.2B", "135M", "260K"."""
    for unit, factor in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= 0.9995 * factor:
            value = n / factor
            if value < 9.95:
                return f"{value:.1f}{unit}"
            return f"{value:.0f}{unit}"
    return str(n)


def short_tokens(n: int) -> str:
    """Write a context in the units models are named by, rounded down: "128k" for 131,072."""
    if n >= 1024:
        return f"{n // 1024}k"
    return str(n)


def bar(done: int, total: int, width: int) -> str:
    """Draw progress in ``width`` cells of two glyphs that every terminal font has."""
    if total > 0:
        filled = width * min(done, total) // total
    else:
        filled = 0
    return "█" * filled + "░" * (width - filled)


def back(n_tokens: int, duration_s: float, read_s: float | None) -> str:
    """Write what a saved state brought back, and how long reading the same would have taken where
    that was long."""
    if saves_much(duration_s, read_s):
        instead = f" instead of about {whole_seconds(read_s or 0)}"
    else:
        instead = ""
    return f"{count(n_tokens)} tokens back in {seconds(duration_s)}{instead}"


def saves_much(duration_s: float, read_s: float | None) -> bool:
    """Whether bringing a state back has saved a time that is worth a word."""
    return (read_s or 0.0) - duration_s >= WORTH_SAVING_S


def dropped_turns(n_turns: int, n_tokens: int, read_tokens: int, read_s: float | None) -> str:
    """Write what went of a full context, and what is read again for it."""
    if n_turns == 1:
        turns = "the oldest turn"
    else:
        turns = f"the oldest {n_turns} turns"
    again = f"{count(read_tokens)} tokens are read"
    if read_s:
        how_long = f", about {whole_seconds(read_s)}"
    else:
        how_long = ""
    went = f"{turns}, {count(n_tokens)} tokens, dropped from it, not from the conversation"
    return f"The context was full: {went}. {again}{how_long}"


def context_nearly_full(used: int, n_ctx: int, may_grow: bool) -> str:
    """Write how full the context is, and what happens when it is full; ``may_grow``: the model
    knows a larger one."""
    if may_grow:
        more = ", a larger context_size holds more"
    else:
        more = ""
    return (
        f"The context is {100 * used // n_ctx} % full: {count(n_ctx - used)} tokens left. "
        f"Then the oldest turns are "
        f"dropped from it, never the system prompt; /new starts again{more}."
    )
