"""Rows of model lists, the same for ``jalopy models`` and the screen. No widget, no engine.

Colour carries no meaning: estimates have a sign, and problems are written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from app.machine.sensors.reply_history import Basis
from app.models.library.listing import SEES, ModelEntry, Outlook
from app.models.library.speed import ESTIMATE, speed_figure, speed_text
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import Glyphs, choose_glyphs, cut
from app.text.record import record

BUSY = "!"
"""Sign after speeds that were measured while other programs used the processor."""
LEGEND = (
    f"{ESTIMATE} estimated from measurements of this machine; "
    f"without {ESTIMATE}: measured with the model, {BUSY} while busy"
)
NO_RATES = (
    f"{ESTIMATE} typical speeds: other programs are busy, so this machine has not been measured "
    f"yet; without {ESTIMATE}: measured with the model, {BUSY} while busy"
)
_LEAST_TITLE = 14
_MOST_TITLE = 44
_MOST_TYPES = 3


@record
class _ListColumn:
    heading: str
    width: int
    least_columns: int = 0
    """Width of a row from which the column is shown."""
    align: str = "<"


_COLUMNS = (
    _ListColumn("type", 7),
    _ListColumn("params", 6, 88, ">"),
    _ListColumn("size", 6, 46, ">"),
    _ListColumn("fits", 5),
    _ListColumn("context", 9, 66, ">"),
    _ListColumn("writes", 6, 0, ">"),
    _ListColumn("reads", 7, 74, ">"),
    _ListColumn("from", 14, 100),
)


def heading(columns: int) -> str:
    """Return the heading of the list."""
    return _line("name", {column.heading: column.heading for column in _COLUMNS}, columns)


def row(entry: ModelEntry, columns: int) -> str:
    """Return a row of at most ``columns`` columns, or the reason why a model cannot be opened."""
    if entry.reason:
        title = title_cell(entry, _title_width(columns), choose_glyphs())
        return f"{title}  {cut(entry.reason, max(10, columns - _title_width(columns) - 2))}"
    outlook = entry.outlook
    cells = {
        "type": entry.quantization,
        "params": figures.parameters(entry.parameters),
        "size": f"{ESTIMATE}{figures.size(entry.download_bytes)}",
        "fits": "-",
        "context": "-",
        "writes": "-",
        "reads": "-",
        "from": entry.place,
    }
    if entry.is_here:
        cells["size"] = figures.size(entry.size_bytes)
        cells["context"] = context(outlook, entry.context_length)
    if outlook is not None:
        cells["fits"] = outlook.verdict
        cells["writes"] = speed(outlook.decode_tps, outlook.basis)
        cells["reads"] = speed(outlook.prefill_tps, outlook.prefill_basis)
    title = title_cell(entry, _title_width(columns), choose_glyphs())
    return _line(title, cells, columns)


def title_cell(entry: ModelEntry, width: int, glyphs: Glyphs) -> str:
    """Return a title in ``width`` columns, with a sign if the model reads pictures."""
    if not entry.sees:
        return cut(entry.title, width).ljust(width)
    sign = f" {glyphs.eye}"
    return (cut(entry.title, width - len(sign)) + sign).ljust(width)


def context(outlook: Outlook | None, trained: int) -> str:
    """Return the largest context that fits, and the trained one if it is larger."""
    if outlook is None or not outlook.largest_ctx:
        if trained:
            return f"-/{figures.short_tokens(trained)}"
        return "-"
    largest = figures.short_tokens(outlook.largest_ctx)
    if outlook.largest_ctx >= trained:
        return largest
    return f"{largest}/{figures.short_tokens(trained)}"


def speed(tokens_per_s: float | None, basis: Basis) -> str:
    """Return a speed, with a sign if it is estimated or was measured while busy."""
    if not tokens_per_s:
        return "-"
    figure = speed_figure(tokens_per_s, basis)
    if basis is Basis.BUSY:
        return f"{figure}{BUSY}"
    return figure


def details(entry: ModelEntry) -> list[str]:
    """Return lines with facts that have no column."""
    facts = []
    if entry.is_advised:
        facts.append("recommended for this machine")
    if entry.good_at:
        facts.append(f"good at: {entry.good_at}")
    facts += [pictures_text(entry), entry.better, entry.architecture]
    if entry.parameters:
        facts.append(f"{figures.parameters(entry.parameters)} parameters")
    facts.append(mix(entry.type_bytes))
    if entry.context_length:
        facts.append(f"trained for {figures.count(entry.context_length)} tokens")
    if entry.licence:
        facts.append(f"licence {entry.licence}")
    if entry.n_parts > 1:
        facts.append(f"{entry.n_parts} files")
    if entry.listed_on:
        facts.append(f"list of {entry.listed_on}")
    if entry.name and entry.name != entry.title:
        facts.append(f"name in file: {entry.name}")

    if entry.is_here:
        location = clean_line(entry.served.server if entry.served else str(entry.path), 400)
    else:
        location = f"not downloaded: jalopy pull {entry.repository}"
    lines = [location, " · ".join(fact for fact in facts if fact)]
    return [
        line
        for line in [*lines, entry.reason or outlook_text(entry.outlook, entry.is_here)]
        if line
    ]


def pictures_text(entry: ModelEntry) -> str:
    """Return which encoder reads pictures, or how to get it; "" for models that cannot see."""
    size = figures.size(entry.encoder_file_bytes)
    if entry.encoder:
        return f"{SEES} with {clean_line(Path(entry.encoder).name, 80)} ({size})"
    if entry.sees:
        return f"{SEES}, with an encoder of {ESTIMATE}{size}"
    if entry.encoder_repository:
        return f"its encoder for pictures is missing: jalopy pull {entry.encoder_repository}"
    return ""


def labelled_facts(entry: ModelEntry, pace: str = "") -> list[tuple[str, str]]:
    """Return labels and texts of everything that is known about a model.

    Args:
        pace: the speed in words.
    """
    outlook = entry.outlook
    writes = reads = memory = context_text = ""
    if outlook is not None:
        writes = _rate_text(outlook.decode_tps, outlook.basis)
        reads = _rate_text(outlook.prefill_tps, outlook.prefill_basis)
        verdict = {
            "yes": "fits",
            "tight": "fits only with other programs closed",
            "no": "does not fit: it would read from disk for every token",
        }[outlook.verdict]
        memory = f"needs {figures.size(outlook.needed_bytes)}, {verdict}"
        if outlook.largest_ctx and entry.is_here:
            context_text = f"up to {figures.count(outlook.largest_ctx)} tokens now"
    if entry.context_length:
        trained = f"trained for {figures.count(entry.context_length)} tokens"
        context_text = ", ".join(filter(None, (context_text, trained)))
    size = figures.size(entry.size_bytes) if entry.size_bytes else ""
    if not entry.is_here:
        size = f"{ESTIMATE}{size}"
    if entry.n_parts > 1:
        size += f" in {entry.n_parts} files"
    parameters = ""
    if entry.parameters:
        parameters = figures.parameters(entry.parameters)
    quantization = ", ".join(filter(None, (entry.quantization, mix(entry.type_bytes))))
    if entry.served is not None:
        location = "server", clean_line(entry.served.server, 400)
    elif entry.is_here:
        location = "file", clean_line(str(entry.path), 400)
    else:
        location = "download", f"Enter, or jalopy pull {entry.repository}"
    facts = [
        ("", entry.reason),
        ("advice", "recommended for this machine" if entry.is_advised else ""),
        ("good at", entry.good_at),
        ("pictures", pictures_text(entry)),
        ("writes", ", ".join(filter(None, (writes, pace)))),
        ("reads", reads),
        ("memory", memory),
        ("context", context_text),
        ("size", size),
        ("type", quantization),
        ("better", entry.better),
        ("parameters", parameters),
        ("kind", entry.architecture),
        ("licence", entry.licence),
        ("name", entry.name if entry.name != entry.title else ""),
        ("checked", entry.listed_on),
        location,
    ]
    return [(label, text) for label, text in facts if text]


def _rate_text(tokens_per_s: float | None, basis: Basis) -> str:
    if not tokens_per_s:
        return ""
    return speed_text(tokens_per_s, basis)


def mix(type_bytes: Mapping[str, int]) -> str:
    """Return the types of the weights: "Q4_K 72 %, Q6_K 28 %"; "" for a single type."""
    total = sum(type_bytes.values())
    shares = [(name, round(100 * n_bytes / total)) for name, n_bytes in type_bytes.items() if total]
    type_texts = [f"{name} {share} %" for name, share in shares if share][:_MOST_TYPES]
    if len(type_texts) > 1:
        return ", ".join(type_texts)
    return ""


def outlook_text(outlook: Outlook | None, names_context: bool = True) -> str:
    """Return a sentence on fit and speed."""
    if outlook is None:
        return ""
    needed = f"needs {figures.size(outlook.needed_bytes)}"
    fits = {
        "yes": "Fits" if names_context else f"Fits ({needed})",
        "tight": f"Fits only with other programs closed ({needed})",
        "no": f"Does not fit ({needed}): it would read from disk for every token",
    }[outlook.verdict]
    facts = []
    if outlook.decode_tps:
        facts.append(speed_text(outlook.decode_tps, outlook.basis))
    if outlook.prefill_tps:
        reads = f"reads {speed_figure(outlook.prefill_tps, outlook.prefill_basis)}"
        if outlook.prefill_basis is not outlook.basis:
            reads += f" ({outlook.prefill_basis.value})"
        facts.append(reads)
    if outlook.verdict == "yes" and names_context:
        facts.append(f"up to {figures.count(outlook.largest_ctx)} tokens")
    if not facts:
        return fits
    return f"{fits}. {', '.join(facts)}"


def table(entries: Sequence[ModelEntry], columns: int) -> list[str]:
    """Return the lines of the whole list."""
    return [heading(columns), *(row(entry, columns) for entry in entries)]


def _title_width(columns: int) -> int:
    fixed = sum(column.width + 2 for column in _COLUMNS if columns >= column.least_columns)
    return min(_MOST_TITLE, max(_LEAST_TITLE, columns - fixed))


def _line(title: str, cells: dict[str, str], columns: int) -> str:
    width = _title_width(columns)
    texts = [cut(title, width).ljust(width)]
    for column in _COLUMNS:
        if columns >= column.least_columns:
            texts.append(f"{cut(cells[column.heading], column.width):{column.align}{column.width}}")
    return "  ".join(texts).rstrip()
