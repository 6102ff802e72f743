"""Findings of a search: the one record from which headline, bars, lists and keys are drawn.

The F4 screen and ``jalopy tune`` show the same texts. No engine is imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from app.machine.sensors.tuning_conditions import Conditions
from app.machine.tuning.levels import speed_of
from app.machine.tuning.saved_tuning import best_choice, certain_part, why_not_kept
from app.machine.tuning.thread_bars import pinning_line
from app.machine.tuning.threads_in_use import is_in_use
from app.program.settings import DEFAULT_KV_TYPE
from app.program.state import TunedChoice
from app.text import figures
from app.text.glyphs import Glyphs
from app.text.record import record
from engine.machine.memory import shown_bytes
from engine.tuning.option_reasons import UNSURE
from engine.tuning.reasons import CAVEAT
from engine.tuning.report import DECODE, PREFILL, WEIGHTS

if TYPE_CHECKING:
    from engine.tuning.report import TuningReport

WORTH_NAMING = 0.03
"""Share by which a speed must change to be named as a gain."""
_KERNEL_UNIT = "GB/s"
"""Unit that only the lines about kernels contain."""


@record
class Findings:
    """Results of a search for the threads and memory modes in use."""

    now: TunedChoice
    best: TunedChoice
    """Best measured choice, certain or not."""
    now_tps: Mapping[str, float]
    """Speed of the choice in use, by phase; 0 if it was not measured."""
    best_tps: Mapping[str, float]
    is_over: bool = True
    """Whether nothing more will be measured."""
    cost_bytes: int = 0
    """Memory that the best choice takes in addition; negative if it frees some."""
    close_counts: tuple[int, ...] = ()
    """Thread counts for writing that are too close to call; empty if one is the best."""
    why_not_kept: str = ""
    """Reason such as "because the machine was swapping"; empty if the best choice may be kept."""

    @property
    def is_best_in_use(self) -> bool:
        """Whether the best choice is in use; another type of KV cache is for the next start."""
        return is_in_use(replace(self.best, kv_type=""), self.now)

    def gain(self, phase: str) -> float:
        """Return the gain of the best choice as a share, from the figures as they are shown."""
        now_tps = self.now_tps[phase]
        best_tps = self.best_tps[phase]
        if not now_tps or not best_tps:
            return 0.0
        return _shown(best_tps) / _shown(now_tps) - 1


def findings_of(
    report: TuningReport | None, now: TunedChoice, conditions: Conditions
) -> Findings | None:
    """Return the findings of a search so far; None if nothing was measured."""
    if report is None or not has_results(report):
        return None
    reason = why_not_kept(report, now, conditions) if report.is_over else ""
    judged = report
    if report.is_over and not reason:
        judged = certain_part(report, now)
    best = best_choice(judged, now)
    curve = report.curve(DECODE)
    close_counts: tuple[int, ...] = ()
    if curve is not None and not curve.is_settled:
        close_counts = curve.close_counts
    return Findings(
        now=now,
        best=best,
        now_tps={phase: speed_of(report, phase, now) for phase in (DECODE, PREFILL)},
        best_tps={phase: speed_of(report, phase, best) for phase in (DECODE, PREFILL)},
        is_over=report.is_over,
        cost_bytes=_own_bytes(report, best.weights) - _own_bytes(report, now.weights),
        close_counts=close_counts,
        why_not_kept=reason,
    )


def has_results(report: TuningReport) -> bool:
    """Whether anything was measured."""
    is_any_count = any(point.tps is not None for curve in report.curves for point in curve.points)
    return is_any_count or any(item.is_measured for item in report.comparisons)


def headline(findings: Findings, glyphs: Glyphs) -> str:
    """Return the result in one line, such as "now 24.6 → best 29.3 tok/s (+19 %) · 2 threads"."""
    best = findings.best
    choice = describe_briefly(best)
    now_tps = findings.now_tps[DECODE]
    best_tps = findings.best_tps[DECODE]
    if findings.close_counts and findings.is_best_in_use:
        *first, last = map(str, findings.close_counts)
        return f"Too close to call: {', '.join(first)} or {last} threads · {_now(findings)}"
    if findings.is_best_in_use:
        words = "the best that was measured"
        if not findings.is_over:
            words = "nothing better so far"
        elif findings.why_not_kept:
            words = "nothing better was measured"
        return f"{_now(findings)}: {words} · {choice}"
    word = "best"
    if not findings.is_over:
        word = "so far"
    elif findings.why_not_kept:
        word = "perhaps"
    cost = _cost(findings.cost_bytes)
    gain = findings.gain(DECODE)
    if not now_tps and best_tps:
        return f"{word} {figures.rate(best_tps)} tok/s · {choice}{cost}"
    if gain >= WORTH_NAMING:
        return f"{_step(now_tps, word, best_tps, gain, glyphs)} · {choice}{cost}"
    gain = findings.gain(PREFILL)
    if gain >= WORTH_NAMING:
        step = _step(findings.now_tps[PREFILL], word, findings.best_tps[PREFILL], gain, glyphs)
        return f"Reading the prompt: {step} · {choice}{cost}"
    if not best_tps:
        return f"{word.capitalize()}: {choice}{cost}"
    return f"As fast as now ({figures.rate(best_tps)} tok/s) · {choice}{cost}"


def _now(findings: Findings) -> str:
    tps = findings.now_tps[DECODE]
    if tps:
        return f"now {figures.rate(tps)} tok/s"
    return "now"


def _step(now_tps: float, word: str, best_tps: float, gain: float, glyphs: Glyphs) -> str:
    now_text, best_text = figures.rate(now_tps), figures.rate(best_tps)
    return f"now {now_text} {glyphs.arrow} {word} {best_text} tok/s ({100 * gain:+.0f} %)"


def _cost(n_bytes: int) -> str:
    if n_bytes > 0:
        return f" · costs {shown_bytes(n_bytes)}"
    if n_bytes < 0:
        return f" · frees {shown_bytes(-n_bytes)}"
    return ""


def _shown(tps: float) -> float:
    return float(figures.rate(tps).replace(",", ""))


def _own_bytes(report: TuningReport, mode: str) -> int:
    comparison = report.comparison(WEIGHTS)
    option = comparison.option(mode) if comparison is not None else None
    return option.own_bytes if option is not None else 0


def describe_briefly(choice: TunedChoice) -> str:
    """Return a choice in a few words, such as "2 threads (4 reading), huge pages"."""
    words = [figures.counted(choice.decode, "thread")]
    if choice.prefill != choice.decode:
        words[0] += f" ({choice.prefill} reading)"
    if choice.pinned:
        words.append("each on its own core")
    if choice.weights == "huge":
        words.append("huge pages")
    if choice.kv_type not in ("", DEFAULT_KV_TYPE):
        words.append(f"KV cache {choice.kv_type}")
    return ", ".join(words)


def measured_text(finished_unix_s: float, now_unix_s: float, on_battery: bool = False) -> str:
    """Return when a search ended, such as "measured today 21:14 on battery"; "" if unknown."""
    if not finished_unix_s:
        return ""
    finished = time.localtime(finished_unix_s)
    day = time.strftime("%d %b", finished).lstrip("0")
    today = time.localtime(now_unix_s)
    if (finished.tm_year, finished.tm_yday) == (today.tm_year, today.tm_yday):
        day = "today"
    elif finished.tm_year != today.tm_year:
        day += f" {finished.tm_year}"
    text = f"measured {day} {time.strftime('%H:%M', finished)}"
    if on_battery:
        text += " on battery"
    return text


def why_texts(report: TuningReport) -> list[str]:
    """Return the explanations of the results, one or two sentences each.

    That something is uncertain is said once, at the end.
    """
    texts = [text for text in report.reasons if _KERNEL_UNIT not in text]
    texts += [comparison.reason for comparison in report.comparisons if comparison.reason]
    plain = [text.removesuffix(CAVEAT).removesuffix(UNSURE) for text in texts]
    if plain != texts:
        plain.append("Not certain yet: measure again when nothing else runs.")
    return plain


def detail_texts(report: TuningReport) -> list[str]:
    """Return the details of a search: pinning, kernels, samples and notes."""
    texts = [pinning_line(report)]
    texts += kernel_texts(report)
    texts += [_samples(report, phase) for phase in (DECODE, PREFILL)]
    texts += [comparison.left_out for comparison in report.comparisons]
    texts += report.notes
    return [text for text in texts if text]


def kernel_texts(report: TuningReport) -> list[str]:
    """Return a line about the memory prefetch of each type of weights."""
    return [text for text in report.reasons if _KERNEL_UNIT in text]


def _samples(report: TuningReport, phase: str) -> str:
    curve = report.curve(phase)
    if curve is None:
        return ""
    task = "Writing" if phase == DECODE else "Reading"
    counts = [
        f"{point.tps.n} with {figures.counted(point.n_threads, 'thread')}"
        for point in curve.points
        if point.tps is not None
    ]
    if not counts:
        return ""
    return f"{task}: samples of {curve.n_tokens} tokens: {', '.join(counts)}."
