"""Findings as text, one line each, folded to a width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.machine.doctor.findings import BAD, LOOKS, OK, WEAK, Finding
from app.machine.doctor.readings import Readings
from app.machine.sensors.reply_history import Basis
from app.models.library import advice
from app.models.library.speed import ModelSpeed
from app.text.clean_text import clean_line
from app.text.figures import count, counted, estimated_rate, rate, size

if TYPE_CHECKING:
    from app.machine.doctor.examine import Examination
    from app.models.library.advice import Suggestion
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
    sizes = (
        f"{size(fit.weights_bytes)} weights{read} + {size(fit.kv_bytes)} context "
        f"({count(fit.n_ctx)} tokens, {kv_type}) + {size(fit.own_bytes)} program = "
        f"{size(fit.needed_bytes)}"
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
    text = f"writes {_tps(decode_tps, speed.basis)} tok/s"
    if fit.decode_full_tps and speed.basis is Basis.ESTIMATED:
        text += f" ({rate(fit.decode_full_tps)} with a full context)"
    if speed.prefill_tps:
        text += f", reads prompts at {_tps(speed.prefill_tps, speed.prefill_basis)}"
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


def _tps(tokens_per_s: float, basis: Basis) -> str:
    if basis is Basis.ESTIMATED:
        return f"about {estimated_rate(tokens_per_s)}"
    return rate(tokens_per_s)


def advice_lines(examination: Examination) -> list[str]:
    """Return lines with models for this machine, and the table by memory."""
    lines: list[str] = []
    if examination.suggestions:
        lines += [
            "",
            "Models for this machine now (estimated for a short conversation, > recommended)",
        ]
        lines += _suggestion_lines(examination.suggestions)
        lines += [f"    {line}" for line in known_lines(examination)]
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


def known_lines(examination: Examination) -> list[str]:
    """Return lines about a well-known model for this machine; empty if there is none."""
    from app.models.library.known_models import best_known, checked_on

    model = best_known(examination.memory, examination.rates)
    if model is None:
        return []
    return [
        f"for example {model.name}: {model.good_at}",
        f"    jalopy pull {model.repository}",
        f"    ({model.licence}, list of {checked_on()})",
    ]


def known_repository(examination: Examination) -> str:
    """Return the repository of the model in ``known_lines``; empty if there is none."""
    from app.models.library.known_models import best_known

    model = best_known(examination.memory, examination.rates)
    if model is None:
        return ""
    return model.repository


def _suggestion_lines(suggestions: Sequence[Suggestion]) -> list[str]:
    best = advice.best_suggestion(suggestions)
    rows = [
        f"    {'size':<6}{'type':<8}{'file':>6}{'memory':>8}{'writes tok/s':>14}{'reads tok/s':>13}"
    ]
    for suggestion in suggestions:
        if suggestion is best:
            mark = " > "
        else:
            mark = "   "
        writes = _about(suggestion.fit.decode_tps)
        reads = _about(suggestion.fit.prefill_tps)
        sizes = f"{size(suggestion.file_bytes):>6}{size(suggestion.fit.needed_bytes):>8}"
        rows.append(
            f"{mark} {suggestion.size:<6}{suggestion.quantization:<8}{sizes}{writes:>14}{reads:>13}"
        )
    return rows


def _about(tokens_per_s: float | None) -> str:
    if tokens_per_s:
        return f"about {estimated_rate(tokens_per_s)}"
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
