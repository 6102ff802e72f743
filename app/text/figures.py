"""Numbers as text: short, of steady width, and no more exact than they are."""

from __future__ import annotations

WORTH_SAVING_S = 5.0
USUAL_LINE_BPS = 25e6 / 8
"""Bytes per second of a typical home connection."""
_UNITS = ("B", "K", "M", "G", "T")


def rate(tokens_per_s: float) -> str:
    """Return a rate: two decimals below 1, one below 100, else none."""
    if tokens_per_s < 1:
        return f"{tokens_per_s:.2f}"
    if tokens_per_s < 99.95:
        return f"{tokens_per_s:.1f}"
    return f"{tokens_per_s:,.0f}"


def estimated_rate(tokens_per_s: float) -> str:
    """Return an estimate with two digits, written like a measured rate: "5.4", "43", "1,500"."""
    if tokens_per_s < 9.95:
        return rate(tokens_per_s)
    unit = 10 ** (len(str(round(tokens_per_s))) - 2)
    return f"{round(tokens_per_s / unit) * unit:,}"


def seconds(duration_s: float) -> str:
    """Return a measured duration: "0.84 s", "4.1 s", "1 min 26 s"."""
    if duration_s < 1:
        return f"{duration_s:.2f} s"
    if duration_s < 59.95:
        return f"{duration_s:.1f} s"
    return whole_seconds(duration_s)


def whole_seconds(duration_s: float) -> str:
    """Return an estimated duration without decimals: "4 s", "1 min 26 s", "2 h 5 min"."""
    total_s = max(1, round(duration_s))
    if total_s < 60:
        return f"{total_s} s"
    if total_s < 3600:
        return f"{total_s // 60} min {total_s % 60} s"
    return f"{total_s // 3600} h {total_s % 3600 // 60} min"


def size(n_bytes: float) -> str:
    """Return a size in powers of 1024: "118M", "4.2G"."""
    value = float(n_bytes)
    unit = 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
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
    """Return a rough download time on a typical connection."""
    return f"about {max(1, round(n_bytes / USUAL_LINE_BPS / 60))} min at 25 Mbit/s"


def count(n: int) -> str:
    """Return a count with thousands separators: "2,310"."""
    return f"{n:,}"


def counted(n: int, noun: str) -> str:
    """Return a count with a noun: "1 core", "2 cores"."""
    return f"{count(n)} {noun}{'' if n == 1 else 's'}"


def parameters(n: int) -> str:
    """Return a number of parameters: "3.2B", "135M", "260K"."""
    for unit, factor in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= 0.9995 * factor:
            value = n / factor
            if value < 9.95:
                return f"{value:.1f}{unit}"
            return f"{value:.0f}{unit}"
    return str(n)


def short_tokens(n: int) -> str:
    """Return a context size as models name it, rounded down: "128k" for 131,072."""
    if n >= 1024:
        return f"{n // 1024}k"
    return str(n)


def bar(done: int, total: int, width: int) -> str:
    """Return a progress bar of ``width`` cells, from glyphs that every terminal font has."""
    if total > 0:
        filled = width * min(done, total) // total
    else:
        filled = 0
    return "█" * filled + "░" * (width - filled)


def back(n_tokens: int, duration_s: float, read_s: float | None) -> str:
    """Describe what a saved state restored, and the reading time it saved if that was long."""
    if saves_much(duration_s, read_s):
        instead = f" instead of about {whole_seconds(read_s or 0)}"
    else:
        instead = ""
    duration = f"in {seconds(duration_s)}"
    if duration_s < 0.005:
        duration = "at once"
    return f"{count(n_tokens)} tokens restored {duration}{instead}"


def saves_much(duration_s: float, read_s: float | None) -> bool:
    """Whether a restored state saved enough time to mention."""
    return (read_s or 0.0) - duration_s >= WORTH_SAVING_S


def dropped_turns(n_turns: int, n_tokens: int, read_tokens: int, read_s: float | None) -> str:
    """Describe what left a full context, and what must be read again."""
    if n_turns == 1:
        turns = f"oldest turn ({count(n_tokens)} tokens) was"
    else:
        turns = f"oldest {n_turns} turns ({count(n_tokens)} tokens) were"
    if read_s:
        duration = f", about {whole_seconds(read_s)}"
    else:
        duration = ""
    return (
        f"The context was full: the {turns} dropped from it, not from the conversation. "
        f"{count(read_tokens)} tokens are read again{duration}"
    )


def context_nearly_full(used: int, n_ctx: int, may_grow: bool, compact: str = "off") -> str:
    """Describe how full the context is, and what happens then.

    Args:
        may_grow: whether the model supports a larger context.
        compact: value of the setting ``compact``.
    """
    if compact == "ask":
        summary = "/compact lets the model summarize them instead; "
    elif compact == "on":
        summary = "While you pause, the model summarizes them instead; "
    else:
        summary = ""
    if may_grow:
        hint = "; a larger context_size holds more"
    else:
        hint = ""
    return (
        f"The context is {100 * used // n_ctx} % full: {count(n_ctx - used)} tokens left. "
        f"When it is full, the oldest turns are dropped from it (never the system prompt). "
        f"{summary}/new starts a new conversation{hint}."
    )
