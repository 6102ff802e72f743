"""A card to share: this machine, a model and its speeds, without anything personal.

It is text or SVG, for ``jalopy report`` (which opens no model) and for the chat. It has no paths,
no names of users or hosts, and no text of conversations.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import date
from html import escape
from itertools import chain, repeat
from pathlib import Path
from textwrap import wrap

from app.backend.engine_thread import EngineThread
from app.conversations.export import write_new
from app.machine.sensors.daily_speeds import day_of
from app.machine.sensors.records import Ceiling, TimeSpent
from app.machine.sensors.reply_history import Basis, KnownAs, ReplyHistory, Speeds
from app.machine.sensors.speed_causes import bound_text
from app.models.library.choose_model import choose_model
from app.models.library.header import ModelHeader, read_header
from app.models.library.rates import known_read_gbps
from app.models.library.speed import speed_text, writing_text
from app.models.library.speed_history import dated_sparkline, marks_text, totals_text
from app.program import exit_codes, paths
from app.program.refusals import Refusal, say
from app.program.settings import Settings
from app.program.version import installed_version
from app.session.chat_session import ChatSession
from app.text import figures, guesses
from app.text.clean_text import clean_line
from app.text.glyphs import choose_glyphs
from app.text.record import record

NO_SPEED = "not measured yet (jalopy bench MODEL)"
_WRITES = "usually writes"
_READS = "usually reads"
_NAME_CHARS = 48
_VALUE_CHARS = 54
_WIDTH = 640
_ROW = 30
_MARGIN = 28
_STYLE = (
    "text{font-family:ui-monospace,monospace;font-size:15px;fill:#e8e2d6}.label{fill:#9a9384}"
    ".big{font-size:30px;font-weight:bold;fill:#e0a458}.name{font-size:18px;font-weight:bold}"
)


@record
class Card:
    """Content of the card, clean."""

    model: str
    quantization: str
    threads: str
    """Number of threads for writing, and for reading if it differs."""
    speeds: Speeds
    machine: tuple[tuple[str, str], ...]
    """Labels and values."""
    today: str = ""
    """Speed of the last reply today."""
    bound: str = ""
    """Sentence on what bounds the usual speed."""
    history: tuple[tuple[str, str], ...] = ()
    """Labels and values on the replies of the last 90 days."""
    guesses: str = ""
    """Guesses of the last reply by kind, and the time that they saved."""

    def rows(self) -> list[tuple[str, str]]:
        """Return labels and values in order."""
        speeds = self.speeds
        if speeds.decode_tps:
            writes = writing_text(speeds)
        else:
            writes = NO_SPEED
        if speeds.prefill_tps:
            reads = speed_text(speeds.prefill_tps, speeds.prefill_basis)
        else:
            reads = ""
        if self.model:
            model = f"{self.model} · {self.quantization}"
        else:
            model = ""
        model_rows = [
            ("model", model),
            (_WRITES, writes if model else ""),
            (_READS, reads),
            *zip(chain(["bound"], repeat("")), wrap(self.bound, _VALUE_CHARS), strict=False),
            ("today", self.today),
            *zip(chain(["guesses"], repeat("")), wrap(self.guesses, _VALUE_CHARS), strict=False),
        ]
        return [
            (label, value)
            for label, value in (
                *model_rows,
                *self.history,
                ("threads", self.threads),
                *self.machine,
            )
            if value
        ]


def report(settings: Settings, model: str | None = None, out: str = "") -> int:
    """Print the card, or write it to a file.

    Raises:
        EngineError: the model cannot be used.
        Refusal: the file cannot be written.
    """
    path = choose_model(model, settings)
    if path:
        header = read_header(Path(path))
    else:
        header = ModelHeader()
    if header.reason:
        raise Refusal(f"jalopy report: {header.reason}", exit_codes.BAD_DATA)
    if header.needs is not None:
        weights_bytes = header.needs.weights_bytes
    else:
        weights_bytes = 0
    speeds = known_speeds(header.name, header.quantization, weights_bytes)
    bound = ""
    if header.needs is not None:
        bound = bound_line(speeds, header.needs.bytes_per_token)
    today = today_line(header.name, header.quantization, weights_bytes, speeds)
    history = history_rows(header.name, header.quantization, weights_bytes)
    threads = speeds.threads, 0
    card = card_of(header.name, header.quantization, threads, speeds, today, history, bound)
    if out:
        say(write_card(card, out))
    else:
        print(as_text(card), end="", flush=True)
    return exit_codes.OK


def card_of(
    model: str,
    quantization: str,
    threads: tuple[int, int],
    speeds: Speeds,
    today: str = "",
    history: tuple[tuple[str, str], ...] = (),
    bound: str = "",
) -> Card:
    """Return the card of a model, whose name or path is not trusted.

    Args:
        threads: numbers for writing and reading; 0 if unknown.
    """
    decode, prefill = threads
    if prefill in (0, decode):
        threads_text = str(decode)
    else:
        threads_text = f"{decode} write, {prefill} read"
    name = re.split(r"[/\\]", model.rstrip("/\\"))[-1]
    name = clean_line(name, _NAME_CHARS)
    quantization = clean_line(quantization, 12)
    return Card(
        name,
        quantization,
        threads_text if decode else "",
        speeds,
        _machine(decode),
        today,
        bound.removeprefix("bound "),
        history,
    )


def report_of_chat(engine_thread: EngineThread, chat_session: ChatSession) -> Card:
    """Return the card of the open model. Raises Refusal: there is none."""
    model = chat_session.model
    in_use = engine_thread.state.threads
    if model is None or in_use is None:
        raise Refusal("no model is loaded: /model PATH opens one")
    speeds = known_speeds(model.full_name, model.quantization, model.weights_bytes)
    threads = in_use.now.decode, in_use.now.prefill
    if speeds.threads not in (0, in_use.now.decode):
        threads = speeds.threads, 0
    today = today_line(model.full_name, model.quantization, model.weights_bytes, speeds)
    history = history_rows(model.full_name, model.quantization, model.weights_bytes)
    bound = ""
    facts = engine_thread.state.figures.facts
    if facts is not None:
        bound = bound_line(speeds, facts.bytes_per_token)
    name = model.full_name or model.name
    card = card_of(name, model.quantization, threads, speeds, today, history, bound)
    return replace(card, guesses=guesses_line(engine_thread.state.figures.last_reply))


def known_speeds(model: str, quantization: str, weights_bytes: int) -> Speeds:
    """Return the usual speeds of a model; 0 if nothing was measured."""
    history = ReplyHistory(paths.speeds_file())
    return history.usual(KnownAs(model, quantization, weights_bytes)) or Speeds()


def bound_line(usual: Speeds, bytes_per_token: int) -> str:
    """Return what bounds the usual speed of a model; "" if that is unknown."""
    gbps = known_read_gbps(usual.threads)
    if usual.basis is not Basis.MEASURED or not gbps:
        return ""
    return bound_text(Ceiling(bytes_per_token, gbps).memory_share(usual.decode_tps))


def today_line(model: str, quantization: str, weights_bytes: int, usual: Speeds) -> str:
    """Return the speed of the last reply today, and how busy the machine was; "" if there was
    none.
    """
    from app.models.library.measure import busy_words

    history = ReplyHistory(paths.speeds_file())
    last = history.newest(KnownAs(model, quantization, weights_bytes))
    if last is None or date.fromtimestamp(last.finished_unix_s) != date.fromtimestamp(time.time()):
        return ""
    words = busy_words(last.decode_tps, usual.decode_tps, last.is_quiet)
    return f"{figures.rate(last.decode_tps)} tok/s{f' ({words})' if words else ''}"


def guesses_line(reply: TimeSpent | None) -> str:
    """Return the guesses of the last reply by kind, and the time that they saved; "" if there were
    none."""
    if reply is None or not reply.guesses:
        return ""
    saving = guesses.saving(reply.guess_saved_s)
    return "last reply: " + ", ".join(filter(None, (guesses.by_kind(reply.guesses), saving)))


def history_rows(model: str, quantization: str, weights_bytes: int) -> tuple[tuple[str, str], ...]:
    """Return rows on the replies of the last 90 days; empty if there were none."""
    daily = ReplyHistory(paths.speeds_file()).daily(KnownAs(model, quantization, weights_bytes))
    today = day_of(time.time())
    rows = [
        ("history", dated_sparkline(daily, today, _VALUE_CHARS, choose_glyphs())),
        ("90 days", totals_text(daily, today)),
    ]
    labels = chain(["marks"], repeat(""))
    rows += zip(labels, wrap(marks_text(daily, today), _VALUE_CHARS), strict=False)
    return tuple(row for row in rows if row[1])


def as_text(card: Card) -> str:
    """Return the card as text."""
    rows = card.rows()
    width = max(len(label) for label, _ in rows)
    lines = [
        "Jalopy " + installed_version(),
        *(f"  {label:<{width}}  {value}" for label, value in rows),
    ]
    return "\n".join(lines) + "\n"


def as_svg(card: Card) -> str:
    """Return the card as SVG, which loads nothing."""
    rows = card.rows()
    big = [row for row in rows if row[0] in (_WRITES, _READS) and card.speeds.decode_tps]
    small = [row for row in rows if row not in big and row[0] != "model"]
    top = _MARGIN + 2 * _ROW
    height = top + (2 * _ROW if big else 0) + _ROW * len(small) + _MARGIN
    title = " · ".join(filter(None, (card.model, card.quantization))) or "this machine"
    texts = [
        _text(_MARGIN, _MARGIN + 18, title, "name"),
        _text(_WIDTH - 96, _MARGIN + 18, "jalopy", "label"),
    ]
    for n, (label, value) in enumerate(big):
        x = _MARGIN + n * (_WIDTH // 2 - _MARGIN)
        # the basis has room only in small letters
        figure, bracket, basis = value.partition(" (")
        texts.append(_text(x, top + 12, figure, "big"))
        texts.append(_text(x, top + 36, f"{label}{bracket}{basis}", "label"))
    y = top + (2 * _ROW + 12 if big else 0)
    for label, value in small:
        texts += [_text(_MARGIN, y, label, "label"), _text(_MARGIN + 110, y, value)]
        y += _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect width="{_WIDTH}" height="{height}" rx="14" fill="#191817"/>\n'
        f"{chr(10).join(texts)}\n</svg>\n"
    )


def write_card(card: Card, path_text: str) -> str:
    """Write a card to a new file (SVG if the name ends so) and return a line about it.

    Raises Refusal: it cannot be written.
    """
    path = paths.expanded(path_text)
    try:
        write_new(path, as_svg(card) if path.suffix.lower() == ".svg" else as_text(card))
    except FileExistsError:
        raise Refusal(
            f"not written: {clean_line(str(path), 200)} exists already; choose another name"
        ) from None
    except (OSError, ValueError) as error:
        raise Refusal(f"not written: {clean_line(str(error), 200)}") from None
    return f"written: {clean_line(str(Path(path).absolute()), 300)}"


def _machine(threads: int) -> tuple[tuple[str, str], ...]:
    from engine.machine import host

    cores = host.cores()
    counted = figures.counted(cores.n_physical, "core")
    if cores.n_siblings > 0:
        logical = f", {len(cores.logical)} threads"
    else:
        logical = ""
    gbps = known_read_gbps(threads or cores.default_threads)
    return (
        ("processor", clean_line(cores.name, _NAME_CHARS)),
        ("cores", f"{counted}{logical}"),
        ("memory", figures.size(host.total_memory_bytes())),
        ("bandwidth", f"{gbps:.1f} GB/s" if gbps else ""),
    )


def _text(x: int, y: int, words: str, style: str = "") -> str:
    if style:
        name = f' class="{style}"'
    else:
        name = ""
    return f'<text x="{x}" y="{y}"{name}>{escape(words)}</text>'
