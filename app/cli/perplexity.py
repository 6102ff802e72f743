"""``jalopy perplexity``: how well a model foretells a text, and what another file or KV cache changes. No Textual."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat import opening as engine_access
from app.chat.host import engine_host
from app.cli.output import ProgressLine
from app.documents.text_file import read_text_file
from app.program import exit_codes
from app.program.bundled_model import model_path
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import count, counted, whole_seconds
from app.text.json_line import json_line
from app.text.record import record

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.measure.perplexity import Estimate, TextScore

EXACT_KV = "f32"
"""What another KV cache is compared with."""


@record
class PerplexityOptions:
    """Arguments of ``perplexity`` that are no settings."""

    model: str
    file: str
    against: str = ""
    kv: str = ""
    n_chunk: int = 512
    as_json: bool = False


def perplexity(options: PerplexityOptions, settings: Settings, clock: Callable[[], float] = time.monotonic) -> int:
    """Measure and print; Ctrl-C prints what is known.

    Raises:
        EngineError: a model cannot be used.
        Refusal: the text is too short, or the models do not cut it into the same tokens.
    """
    text = read_text_file(Path(options.file))
    engine, progress, measuring = engine_host(), ProgressLine(), _Measuring(options, settings, clock)
    try:
        engine.run(lambda: measuring.run(text, progress), measuring.stop)
    finally:
        progress.clear()
    measured = measuring.measured
    if measured is None:
        return exit_codes.INTERRUPTED
    if options.as_json:
        figures = {name: value for name, value in asdict(measured).items() if value is not None}
        about = {"model": options.model, "against": options.against, "kv": options.kv, "n_chunk": options.n_chunk}
        done = {"chunks": measuring.n_done, "chunks_in_all": measuring.n_chunks, "seconds": measuring.seconds}
        print(json_line({**about, **figures, **done}), flush=True)
    else:
        print("\n".join(_lines(measured, measuring, options)), flush=True)
    return exit_codes.OK if measuring.n_done == measuring.n_chunks else exit_codes.INTERRUPTED


class _Measuring:
    """The work in the engine's thread, which any thread may stop."""

    def __init__(self, options: PerplexityOptions, settings: Settings, clock: Callable[[], float]) -> None:
        self._options, self._settings, self._clock = options, settings, clock
        self._sessions: list[Session] = []
        self._is_stopped = threading.Event()
        self.measured: TextScore | None = None
        """After the last chunk that is done; None before the first."""
        self.n_done = self.n_chunks = 0
        self.seconds = 0.0

    def stop(self) -> None:
        """End it; what is known stays. Raises KeyboardInterrupt: nothing is."""
        if not self._sessions:
            raise KeyboardInterrupt
        self._is_stopped.set()
        for session in self._sessions:
            session.cancel()

    def run(self, text: str, progress: ProgressLine) -> None:
        """Open what is needed and read chunk after chunk."""
        from engine.errors import Cancelled
        from engine.measure.perplexity import chunks_of, measure

        options = self._options
        with ExitStack() as opened:
            model = opened.enter_context(closing(self._open(options.model, progress)))
            ids = model.tokenizer.encode(text, special=False)
            self._check(model, ids)
            sessions = [(model, options.kv or self._settings.kv_type_or_default)]
            if options.against:
                other = opened.enter_context(closing(self._open(str(model_path(options.against)), progress)))
                self._check_other(model, other, text, ids)
                sessions.append((other, self._settings.kv_type_or_default))
            elif options.kv:
                sessions.append((model, EXACT_KV))
            for one, kv in sessions:
                self._sessions.append(opened.enter_context(closing(one.session(options.n_chunk, kv))))
            chunks = chunks_of(ids, options.n_chunk, model.tokenizer)
            self.n_chunks, started_s = len(chunks), self._clock()
            self._show(progress)
            try:
                for measured in measure(self._sessions[0], chunks, *self._sessions[1:]):
                    self.measured, self.n_done = measured, self.n_done + 1
                    self.seconds = self._clock() - started_s
                    self._show(progress)
                    if self._is_stopped.is_set():
                        return
            except Cancelled:
                return

    def _open(self, path: str, progress: ProgressLine) -> Model:
        return engine_access.open_model(self._settings, path, progress.show_opening)

    def _check(self, model: Model, ids: list[int]) -> None:
        n_chunk, trained = self._options.n_chunk, model.config.context_length
        if n_chunk > trained:
            why = f"the model holds {count(trained)} tokens, and a chunk has {count(n_chunk)} (give a smaller --ctx)"
            raise Refusal(f"jalopy perplexity: {why}")
        if len(ids) < n_chunk:
            name = clean_line(self._options.file, 80)
            why = f"has {counted(len(ids), 'token')}, fewer than one chunk of {count(n_chunk)}"
            raise Refusal(f"jalopy perplexity: {name}: {why} (give a longer text, or a smaller --ctx)")

    def _check_other(self, model: Model, other: Model, text: str, ids: list[int]) -> None:
        vocab_sizes = {one.config.vocab_size for one in (model, other)}
        if len(vocab_sizes) > 1 or other.tokenizer.encode(text, special=False) != ids:
            names = f"{clean_line(model.name, 40)} and {clean_line(other.name, 40)}"
            why = "have not the same vocabulary, so that their predictions do not compare"
            raise Refusal(f"jalopy perplexity: {names} {why} (measure each alone)", exit_codes.BAD_DATA)

    def _show(self, progress: ProgressLine) -> None:
        done, total = self.n_done, self.n_chunks
        known = f", perplexity {_written(self.measured.perplexity)}" if self.measured is not None else ""
        left = f", about {whole_seconds(self.seconds * (total - done) / done)} left" if 0 < done < total else ""
        progress.show(f"chunk {count(min(done + 1, total))} of {count(total)}{known}{left}")


def _lines(measured: TextScore, measuring: _Measuring, options: PerplexityOptions) -> Iterator[str]:
    done, total = measuring.n_done, measuring.n_chunks
    stopped = "" if done == total else f"stopped after {count(done)} of {count(total)} chunks: "
    rate = done * options.n_chunk / measuring.seconds if measuring.seconds > 0 else 0.0
    how = f"{count(measured.n_tokens)} tokens in {counted(done, 'chunk')} of {count(options.n_chunk)}"
    yield f"{stopped}perplexity {_written(measured.perplexity)} ({how}; {count(round(rate))} tok/s)"
    if measured.reference is not None and measured.divergence is not None and measured.same is not None:
        other = clean_line(options.against, 80) if options.against else f"KV cache {EXACT_KV}"
        yield f"against {other}: perplexity {_written(measured.reference)}"
        yield f"divergence from it (KL) {_written(measured.divergence, 5)} nats a token; 0 = the same"
        same, error = 100 * measured.same.value, 100 * measured.same.error
        yield f"same likeliest token {same:.2f} % ± {error:.2f}"


def _written(estimate: Estimate, decimals: int = 4) -> str:
    return f"{estimate.value:.{decimals}f} ± {estimate.error:.{decimals}f}"
