"""``jalopy perplexity``: measure how well a model predicts a text; compare files or KV types."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.backend.local import engine_access
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
"""KV cache type that others are compared with."""


@record
class PerplexityOptions:
    """Arguments of ``perplexity`` that are not settings."""

    model: str
    file: str
    against: str = ""
    kv: str = ""
    n_chunk: int = 512
    as_json: bool = False


def perplexity(
    options: PerplexityOptions, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> int:
    """Measure and print; Ctrl-C prints the result so far.

    Raises:
        EngineError: a model cannot be used.
        Refusal: the text is too short, or the models split it into different tokens.
    """
    text = read_text_file(Path(options.file))
    reading = ChunkReading["TextScore"](clock)
    score = reading.run(partial(_measure, options, settings, text))
    if score is None:
        return exit_codes.INTERRUPTED
    if options.as_json:
        figures = {name: value for name, value in asdict(score).items() if value is not None}
        arguments = {
            "model": options.model,
            "against": options.against,
            "kv": options.kv,
            "n_chunk": options.n_chunk,
        }
        progress = {
            "chunks": reading.n_done,
            "chunks_in_all": reading.n_chunks,
            "seconds": reading.seconds,
        }
        print(json_line({**arguments, **figures, **progress}), flush=True)
    else:
        print("\n".join(_lines(score, reading, options)), flush=True)
    if reading.is_complete:
        return exit_codes.OK
    return exit_codes.INTERRUPTED


def _measure(
    options: PerplexityOptions, settings: Settings, text: str, reading: ChunkReading[TextScore]
) -> Iterator[TextScore]:
    """Open the models and yield the score after each chunk."""
    from engine.measure.perplexity import chunks_of, measure

    kv_type = settings.kv_type_or_default
    with ExitStack() as stack:

        def open_model(path: str) -> Model:
            model = engine_access.open_model(settings, path, reading.progress.show_opening)
            return stack.enter_context(closing(model))

        model = open_model(options.model)
        ids = model.tokenizer.encode(text, special=False)
        _check(options, model, ids)
        setups = [(model, options.kv or kv_type)]
        if options.against:
            reference = open_model(str(model_path(options.against)))
            _check_vocabulary(model, reference, text, ids)
            setups.append((reference, kv_type))
        elif options.kv:
            setups.append((model, EXACT_KV))
        for setup_model, setup_kv_type in setups:
            session = setup_model.session(options.n_chunk, setup_kv_type)
            reading.sessions.append(stack.enter_context(closing(session)))

        chunks = chunks_of(ids, options.n_chunk, model.tokenizer)
        scores = measure(reading.sessions[0], chunks, *reading.sessions[1:])
        yield from reading.follow(
            scores, len(chunks), lambda score: f", perplexity {_estimate_text(score.perplexity)}"
        )


def _check(options: PerplexityOptions, model: Model, ids: list[int]) -> None:
    n_chunk = options.n_chunk
    context_length = model.config.context_length
    if n_chunk > context_length:
        raise Refusal(
            f"jalopy perplexity: a chunk of {count(n_chunk)} tokens is longer than the model's "
            f"context of {count(context_length)} (give a smaller --ctx)"
        )
    if len(ids) < n_chunk:
        name = clean_line(options.file, 80)
        raise Refusal(
            f"jalopy perplexity: {name}: has {counted(len(ids), 'token')}, less than one chunk of "
            f"{count(n_chunk)} (give a longer text, or a smaller --ctx)"
        )


def _check_vocabulary(model: Model, reference: Model, text: str, ids: list[int]) -> None:
    has_same_size = model.config.vocab_size == reference.config.vocab_size
    if not has_same_size or reference.tokenizer.encode(text, special=False) != ids:
        names = f"{clean_line(model.name, 40)} and {clean_line(reference.name, 40)}"
        raise Refusal(
            f"jalopy perplexity: {names} have different vocabularies, so they cannot be compared "
            "(measure each alone)",
            exit_codes.BAD_DATA,
        )


def _lines(
    score: TextScore, reading: ChunkReading[TextScore], options: PerplexityOptions
) -> Iterator[str]:
    n_done = reading.n_done
    rate = 0.0
    if reading.seconds > 0:
        rate = n_done * options.n_chunk / reading.seconds
    amount = (
        f"{count(score.n_tokens)} tokens in {counted(n_done, 'chunk')} of {count(options.n_chunk)}"
    )
    yield (
        f"{reading.stopped_words}perplexity {_estimate_text(score.perplexity)} "
        f"({amount}; {count(round(rate))} tok/s)"
    )
    if score.reference is not None and score.divergence is not None and score.same is not None:
        if options.against:
            reference = clean_line(options.against, 80)
        else:
            reference = f"KV cache {EXACT_KV}"
        yield f"{reference}: perplexity {_estimate_text(score.reference)}"
        divergence = _estimate_text(score.divergence, 5)
        yield f"KL divergence from it: {divergence} nats per token (0 = identical)"
        error = 100 * score.same.error
        agreement = 100 * score.same.value
        yield f"same likeliest token {agreement:.2f} % ± {error:.2f}"


def _estimate_text(estimate: Estimate, decimals: int = 4) -> str:
    return f"{estimate.value:.{decimals}f} ± {estimate.error:.{decimals}f}"
