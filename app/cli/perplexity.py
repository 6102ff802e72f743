"""``jalopy perplexity``: how well a model foretells a text, and what another file or KV cache
changes. No Textual."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.local import opening as engine_access
from app.cli.chunks import ChunkReading
from app.documents.text_file import read_text_file
from app.program import exit_codes
from app.program.bundled_model import model_path
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.figures import count, counted
from app.text.json_line import json_line
from app.text.record import record

if TYPE_CHECKING:
    from engine import Model
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


def perplexity(
    options: PerplexityOptions, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> int:
    """Measure and print; Ctrl-C prints what is known.

    Raises:
        EngineError: a model cannot be used.
        Refusal: the text is too short, or the models do not cut it into the same tokens.
    """
    text = read_text_file(Path(options.file))
    reading = ChunkReading["TextScore"](clock)
    measured = reading.run(partial(_measure, options, settings, text))
    if measured is None:
        return exit_codes.INTERRUPTED
    if options.as_json:
        figures = {name: value for name, value in asdict(measured).items() if value is not None}
        about = {
            "model": options.model,
            "against": options.against,
            "kv": options.kv,
            "n_chunk": options.n_chunk,
        }
        done = {
            "chunks": reading.n_done,
            "chunks_in_all": reading.n_chunks,
            "seconds": reading.seconds,
        }
        print(json_line({**about, **figures, **done}), flush=True)
    else:
        print("\n".join(_lines(measured, reading, options)), flush=True)
    if reading.is_whole:
        return exit_codes.OK
    return exit_codes.INTERRUPTED


def _measure(
    options: PerplexityOptions, settings: Settings, text: str, reading: ChunkReading[TextScore]
) -> Iterator[TextScore]:
    """Open what is needed and read chunk after chunk."""
    from engine.measure.perplexity import chunks_of, measure

    kv_type = settings.kv_type_or_default
    with ExitStack() as opened:

        def open_model(path: str) -> Model:
            model = engine_access.open_model(settings, path, reading.progress.show_opening)
            return opened.enter_context(closing(model))

        model = open_model(options.model)
        ids = model.tokenizer.encode(text, special=False)
        _check(options, model, ids)
        sessions = [(model, options.kv or kv_type)]
        if options.against:
            other = open_model(str(model_path(options.against)))
            _check_other(model, other, text, ids)
            sessions.append((other, kv_type))
        elif options.kv:
            sessions.append((model, EXACT_KV))
        for one, kv in sessions:
            reading.sessions.append(opened.enter_context(closing(one.session(options.n_chunk, kv))))
        chunks = chunks_of(ids, options.n_chunk, model.tokenizer)
        found = measure(reading.sessions[0], chunks, *reading.sessions[1:])
        yield from reading.follow(
            found, len(chunks), lambda one: f", perplexity {_written(one.perplexity)}"
        )


def _check(options: PerplexityOptions, model: Model, ids: list[int]) -> None:
    n_chunk = options.n_chunk
    trained = model.config.context_length
    if n_chunk > trained:
        why = (
            f"the model holds {count(trained)} tokens, and a chunk has {count(n_chunk)} (give a "
            f"smaller --ctx)"
        )
        raise Refusal(f"jalopy perplexity: {why}")
    if len(ids) < n_chunk:
        name = clean_line(options.file, 80)
        why = f"has {counted(len(ids), 'token')}, fewer than one chunk of {count(n_chunk)}"
        raise Refusal(f"jalopy perplexity: {name}: {why} (give a longer text, or a smaller --ctx)")


def _check_other(model: Model, other: Model, text: str, ids: list[int]) -> None:
    vocab_sizes = {one.config.vocab_size for one in (model, other)}
    if len(vocab_sizes) > 1 or other.tokenizer.encode(text, special=False) != ids:
        names = f"{clean_line(model.name, 40)} and {clean_line(other.name, 40)}"
        why = "have not the same vocabulary, so that their predictions do not compare"
        raise Refusal(f"jalopy perplexity: {names} {why} (measure each alone)", exit_codes.BAD_DATA)


def _lines(
    measured: TextScore, reading: ChunkReading[TextScore], options: PerplexityOptions
) -> Iterator[str]:
    done = reading.n_done
    if reading.seconds > 0:
        rate = done * options.n_chunk / reading.seconds
    else:
        rate = 0.0
    how = (
        f"{count(measured.n_tokens)} tokens in {counted(done, 'chunk')} of {count(options.n_chunk)}"
    )
    yield f"{reading.stopped_words}perplexity {_written(measured.perplexity)} ({how}; {count(round(rate))} tok/s)"
    if (
        measured.reference is not None
        and measured.divergence is not None
        and measured.same is not None
    ):
        if options.against:
            other = clean_line(options.against, 80)
        else:
            other = f"KV cache {EXACT_KV}"
        yield f"against {other}: perplexity {_written(measured.reference)}"
        yield f"divergence from it (KL) {_written(measured.divergence, 5)} nats a token; 0 = the same"
        error = 100 * measured.same.error
        same = 100 * measured.same.value
        yield f"same likeliest token {same:.2f} % ± {error:.2f}"


def _written(estimate: Estimate, decimals: int = 4) -> str:
    return f"{estimate.value:.{decimals}f} ± {estimate.error:.{decimals}f}"
