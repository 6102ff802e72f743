"""How a list of models is written: the same columns for `jalopy models` and for the screen. No
widget, no engine.

Colour says nothing here: what is estimated wears a sign, what does not fit says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.models.library.listing import ADVISED, ModelEntry, Outlook
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import cut
from app.text.record import record

ESTIMATE = "~"
"""Comes before every speed that was not measured with the model itself."""
LEGEND = f"{ESTIMATE} estimated from measurements of this machine; without {ESTIMATE}: measured with the model"
NO_RATES = (
    f"{ESTIMATE} typical speeds: other programs are busy, so this machine has not been measured yet"
)
_LEAST_TITLE = 14
_MOST_TITLE = 44
_MOST_TYPES = 3


@record
class _Column:
    heading: str
    width: int
    least_columns: int = 0
    """Shown only on rows at least so wide."""
    align: str = "<"


_COLUMNS = (
    _Column("type", 7),
    _Column("params", 6, 88, ">"),
    _Column("size", 6, 46, ">"),
    _Column("fits", 5),
    _Column("context", 9, 66, ">"),
    _Column("writes", 6, 0, ">"),
    _Column("reads", 6, 74, ">"),
    _Column("from", 14, 100),
)


def heading(columns: int) -> str:
    """Write the line above the list."""
    return _line("name", {column.heading: column.heading for column in _COLUMNS}, columns)


def row(entry: ModelEntry, columns: int) -> str:
    """Write one model in ``columns`` columns; one that cannot be opened says why."""
    if entry.reason:
        title = cut(entry.title, _title_width(columns)).ljust(_title_width(columns))
        return f"{title}  {cut(entry.reason, max(10, columns - _title_width(columns) - 2))}"
    outlook = entry.outlook
    cells = {
        "type": entry.quantization,
        "params": figures.parameters(entry.parameters),
        "size": figures.size(entry.size_bytes)
        if entry.is_here
        else f"{ESTIMATE}{figures.size(entry.size_bytes)}",
        "fits": outlook.verdict if outlook else "-",
        "context": context(outlook, entry.context_length) if entry.is_here else "-",
        "writes": speed(outlook, outlook.decode_tps) if outlook else "-",
        "reads": speed(outlook, outlook.prefill_tps) if outlook else "-",
        "from": entry.place,
    }
    return _line(entry.title, cells, columns)


def context(outlook: Outlook | None, trained: int) -> str:
    """Write the largest context that has room, and the trained one where that is more."""
    if outlook is None or not outlook.largest_ctx:
        if trained:
            return f"-/{figures.short_tokens(trained)}"
        return "-"
    largest = figures.short_tokens(outlook.largest_ctx)
    if outlook.largest_ctx >= trained:
        return largest
    return f"{largest}/{figures.short_tokens(trained)}"


def speed(outlook: Outlook, tokens_per_s: float | None) -> str:
    """Write a speed, with a sign before one that is only estimated."""
    if not tokens_per_s:
        return "-"
    if outlook.is_measured:
        return figures.rate(tokens_per_s)
    return f"{ESTIMATE}{_about(tokens_per_s)}"


def details(entry: ModelEntry) -> list[str]:
    """Write what the columns have no room for."""
    parts = [
        "best for this machine" if entry.place == ADVISED else "",
        f"good at: {entry.good_at}" if entry.good_at else "",
        entry.better,
        entry.architecture,
        f"{figures.parameters(entry.parameters)} parameters" if entry.parameters else "",
        mix(entry.type_bytes),
        f"trained for {figures.count(entry.context_length)} tokens" if entry.context_length else "",
        f"licence {entry.licence}" if entry.licence else "",
        f"{entry.n_parts} files" if entry.n_parts > 1 else "",
        f"list of {entry.listed_on}" if entry.listed_on else "",
        f"name in file: {entry.name}" if entry.name and entry.name != entry.title else "",
    ]
    if entry.is_here:
        where = clean_line(entry.served.server if entry.served else str(entry.path), 400)
    else:
        where = f"not downloaded: jalopy pull {entry.repository}"
    lines = [where, " · ".join(part for part in parts if part)]
    return [
        line
        for line in [*lines, entry.reason or outlook_text(entry.outlook, entry.is_here)]
        if line
    ]


def mix(type_bytes: Mapping[str, int]) -> str:
    """Write which types the weights have: "Q4_K 72 %, Q6_K 28 %"; "" where it is one, which the row
    says."""
    total = sum(type_bytes.values())
    shares = [(name, round(100 * n_bytes / total)) for name, n_bytes in type_bytes.items() if total]
    parts = [f"{name} {share} %" for name, share in shares if share][:_MOST_TYPES]
    if len(parts) > 1:
        return ", ".join(parts)
    return ""


def outlook_text(outlook: Outlook | None, names_context: bool = True) -> str:
    """Say in a sentence whether it fits and how fast it would be."""
    if outlook is None:
        return ""
    needed = f"needs {figures.size(outlook.needed_bytes)}"
    fits = {
        "yes": "Fits" if names_context else f"Fits ({needed})",
        "tight": f"Fits only with other programs closed ({needed})",
        "no": f"Does not fit ({needed}): it would read from disk for every token",
    }[outlook.verdict]
    facts = []
    if outlook.decode_tps and outlook.is_measured:
        facts.append(f"{figures.rate(outlook.decode_tps)} tok/s (measured)")
    elif outlook.decode_tps:
        facts.append(f"About {_about(outlook.decode_tps)} tok/s (estimated)")
    if outlook.prefill_tps and outlook.is_measured:
        facts.append(f"reads {figures.rate(outlook.prefill_tps)}")
    elif outlook.prefill_tps:
        facts.append(f"reads {_about(outlook.prefill_tps)}")
    if outlook.verdict == "yes" and names_context:
        facts.append(f"up to {figures.count(outlook.largest_ctx)} tokens")
    if not facts:
        return fits
    return f"{fits}. {', '.join(facts)}"


def table(entries: Sequence[ModelEntry], columns: int) -> list[str]:
    """Write the whole list."""
    return [heading(columns), *(row(entry, columns) for entry in entries)]


def _about(tokens_per_s: float) -> str:
    """Write an estimate no more exactly than it is: "5.4", "43", "1.5k"."""
    if tokens_per_s < 9.95:
        return figures.rate(tokens_per_s)
    if tokens_per_s < 999.5:
        return f"{tokens_per_s:.0f}"
    if tokens_per_s < 9950:
        return f"{tokens_per_s / 1000:.1f}k"
    return f"{tokens_per_s / 1000:.0f}k"


def _title_width(columns: int) -> int:
    fixed = sum(column.width + 2 for column in _COLUMNS if columns >= column.least_columns)
    return min(_MOST_TITLE, max(_LEAST_TITLE, columns - fixed))


def _line(title: str, cells: dict[str, str], columns: int) -> str:
    width = _title_width(columns)
    parts = [cut(title, width).ljust(width)]
    for column in _COLUMNS:
        if columns >= column.least_columns:
            parts.append(f"{cut(cells[column.heading], column.width):{column.align}{column.width}}")
    return "  ".join(parts).rstrip()
