"""Findings as text, one line each, folded to a width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.machine.doctor.findings import BAD, LOOKS, OK, WEAK, Finding
from app.machine.doctor.readings import Readings
from app.machine.sensors.reply_history import Basis
from app.models.library import advice
from app.models.library.speed import ModelSpeed, speed_figure, speed_text
from app.text.clean_text import clean_line
from app.text.figures import count, counted, size

if TYPE_CHECKING:
    from app.machine.doctor.examine import Examination
    from app.models.library.advice import Suggestion
    from app.models.library.listing import ModelEntry
    from engine.measure.fit import Fit, ModelNeeds

_TOPIC_COLUMN = 4
_TEXT_COLUMN = 18
SMALL_SHARE = 0.5
"""Share of the weights below which the bytes read for a token are shown. Dense models read nearly
all.
"""


def all_findings(readings: Readings) -> list[Finding]:
    """Return all findings about machine and terminal, failures first, then warnings."""
    findings = [finding for look in LOOKS for finding in look(readings)]
    return sorted(findings, key=lambda finding: (BAD, WEAK, OK).index(finding.mark))


def finding_lines(finding: Finding, width: int) -> list[str]:
    """Return the lines of a finding: mark, topic and text, then the remedy."""
    if finding.meaning:
        text = f"{finding.found}: {finding.meaning}"
    else:
        text = finding.found
    head = f"{finding.mark:<{_TOPIC_COLUMN}}{finding.topic:<{_TEXT_COLUMN - _TOPIC_COLUMN}}"
    lines = _fold(head, text, width)
    if finding.mend:
        lines += _fold(" " * _TEXT_COLUMN + "-> ", finding.mend, width)
    return lines


def summary(findings: Sequence[Finding]) -> str:
    """Return the counts of findings: "9 OK, 2 warnings (!), 1 failure (x)"."""
    counts = [sum(finding.mark == mark for finding in findings) for mark in (OK, WEAK, BAD)]
    words = (
        f"{counts[0]} OK",
        f"{counted(counts[1], 'warning')} (!)",
        f"{counted(counts[2], 'failure')} (x)",
    )
    return ", ".join(word for word, n in zip(words, counts, strict=True) if n)


def fit_title(needs: ModelNeeds) -> str:
    """Return the name and type of the model."""
    return f"{clean_line(needs.name, 40)} · {clean_line(needs.quantization, 12)}"


def fit_findings(examination: Examination, kv_type: str) -> list[Finding]:
    """Return findings about memory, context and speed of a model; empty without a model."""
    needs = examination.needs
    fit = examination.fit
    if needs is None or fit is None:
        return []
    # mixtures of experts read a part of their weights for a token
    is_small = needs.bytes_per_token < SMALL_SHARE * needs.weights_bytes
    if is_small:
        read = f" ({size(needs.bytes_per_token)} per token)"
    else:
        read = ""
    if fit.encoder_bytes:
        encoder = f" + {size(fit.encoder_bytes)} encoder for pictures"
    else:
        encoder = ""
    sizes = (
        f"{size(fit.weights_bytes)} weights{read} + {size(fit.kv_bytes)} context "
        f"({count(fit.n_ctx)} tokens, {kv_type}) + {size(fit.own_bytes)} program"
        f"{encoder} = {size(fit.needed_bytes)}"
    )
    available = f", {size(examination.memory.available_bytes)} free"
    speed = []
    if examination.speed is not None and examination.speed.decode_tps is not None:
        speed = [_speed_finding(needs, fit, examination.speed, examination.speed.decode_tps)]
    return [_memory_finding(fit, sizes + available), _context_finding(needs, fit), *speed]


def _memory_finding(fit: Fit, text: str) -> Finding:
    if fit.verdict == "yes":
        return Finding(OK, "memory", text)
    if fit.largest_ctx:
        smaller = f"--ctx {fit.largest_ctx} fits; or "
    else:
        smaller = ""
    if fit.verdict == "tight":
        meaning = "fits only with other programs closed; else every token is read from disk"
        return Finding(WEAK, "memory", text, meaning, f"{smaller}close other programs")
    meaning = "more than this machine has: every token would be read from disk"
    return Finding(
        BAD, "memory", text, meaning, f"{smaller}use a smaller model or a type with fewer bits"
    )


def _context_finding(needs: ModelNeeds, fit: Fit) -> Finding:
    trained = f"trained for {count(needs.context_length)}"
    if fit.n_ctx > needs.context_length:
        meaning = "beyond that it may write nonsense"
        return Finding(
            WEAK, "context", f"{count(fit.n_ctx)} tokens, {trained}", meaning, "a smaller --ctx"
        )
    if fit.largest_ctx:
        return Finding(OK, "context", f"up to {count(fit.largest_ctx)} tokens fit now ({trained})")
    return Finding(BAD, "context", f"no room next to the weights now ({trained})")


def _speed_finding(needs: ModelNeeds, fit: Fit, speed: ModelSpeed, decode_tps: float) -> Finding:
    text = f"writes {speed_figure(decode_tps, speed.basis)} tok/s"
    if fit.decode_full_tps and speed.basis is Basis.ESTIMATED:
        text += f" ({speed_figure(fit.decode_full_tps, speed.basis)} with a full context)"
    if speed.prefill_tps:
        text += f", reads prompts at {speed_figure(speed.prefill_tps, speed.prefill_basis)}"
    basis = speed.basis.value
    if speed.prefill_tps and speed.prefill_basis is not speed.basis:
        basis += f", reading {speed.prefill_basis.value}"
    if speed.basis is Basis.MEASURED:
        return Finding(OK, "speed", text, basis)
    if fit.verdict == "no":
        basis += "; far slower in reality, since it does not fit in memory"
    return Finding(
        OK,
        "speed",
        text,
        f"{basis}; `jalopy bench MODEL` measures" if not needs.is_estimate else basis,
    )


def advice_lines(examination: Examination) -> list[str]:
    """Return lines with models for this machine, and the table by memory."""
    lines: list[str] = []
    if examination.suggestions:
        lines += ["", "Models for this machine now (estimated for a short conversation)"]
        lines += _suggestion_lines(examination.suggestions)
        lines += _first_choice_lines(examination)
    total = size(examination.memory.total_bytes)
    lines += ["", f"Largest models by memory (> fits in this machine's {total})"]
    machine_row = advice.row_for(examination.memory.total_bytes)
    for row in advice.memory_rows():
        if row is machine_row:
            mark = " > "
        else:
            mark = "   "
        lines.append(f"{mark} {row.gib:>2} GB   {', '.join(row.best)}")
    return lines


def first_choice(examination: Examination) -> ModelEntry | None:
    """Return the known model that suits this machine best; None if that is not known."""
    from app.machine.sensors.reply_history import ReplyHistory
    from app.models.library import known_models
    from app.models.library.listing import Lister

    return known_models.first_choice(
        Lister(examination.memory, examination.rates, ReplyHistory(), examination.kv_type)
    )


def _first_choice_lines(examination: Examination) -> list[str]:
    entry = first_choice(examination)
    if entry is None:
        return []
    speed = ""
    if entry.outlook is not None and entry.outlook.decode_tps:
        speed = f", {speed_text(entry.outlook.decode_tps, entry.outlook.basis)}"
    return [
        f" >  recommended: {entry.title} {entry.quantization}{speed}",
        f"    {entry.good_at}",
        f"    jalopy pull {entry.repository}",
        f"    (licence {entry.licence}, list of {entry.listed_on})",
    ]


def _suggestion_lines(suggestions: Sequence[Suggestion]) -> list[str]:
    rows = [
        f"    {'size':<6}{'type':<8}{'file':>6}{'memory':>8}{'writes tok/s':>14}{'reads tok/s':>13}"
    ]
    for suggestion in suggestions:
        writes = _estimate(suggestion.fit.decode_tps)
        reads = _estimate(suggestion.fit.prefill_tps)
        sizes = f"{size(suggestion.file_bytes):>6}{size(suggestion.fit.needed_bytes):>8}"
        rows.append(
            f"    {suggestion.size:<6}{suggestion.quantization:<8}{sizes}{writes:>14}{reads:>13}"
        )
    return rows


def _estimate(tokens_per_s: float | None) -> str:
    if tokens_per_s:
        return speed_figure(tokens_per_s, Basis.ESTIMATED)
    return "-"


def _fold(head: str, text: str, width: int) -> list[str]:
    if len(head) > _TEXT_COLUMN:
        indent = " " * len(head)
    else:
        indent = " " * _TEXT_COLUMN
    return textwrap.wrap(
        head + clean_line(text, 400), max(40, width), subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
