"""``jalopy embed``: a vector for each text on stdout, everything else on stderr. No Textual."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing

from app.chat import opening as engine_access
from app.chat.host import engine_host
from app.cli.output import ProgressLine
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.json_line import json_line
from app.text.record import record

MOST_LINE_BYTES = 1 << 20
"""Limit on a line of standard input."""


@record
class EmbedOptions:
    """Arguments of ``embed`` that are no settings."""

    model: str
    words: Sequence[str] = ()
    """The texts; none for the lines of standard input."""
    as_json: bool = False


def embed(options: EmbedOptions, settings: Settings) -> int:
    """Print the vectors as they come; Ctrl-C ends it after a text.

    Raises:
        EngineError: the model cannot be used, or a text is too long.
        Refusal: there is no text.
        OSError: stdout cannot be written.
    """
    if not options.words and (sys.stdin is None or sys.stdin.isatty()):
        raise Refusal('jalopy embed: there is no text (jalopy embed MODEL "TEXT" ..., or a text a line through a pipe)')
    embedding = _Embedding(options, settings)
    engine_host().run(embedding.run, embedding.stop)
    return exit_codes.INTERRUPTED if embedding.is_stopped else exit_codes.OK


class _Embedding:
    """The work in the engine's thread."""

    def __init__(self, options: EmbedOptions, settings: Settings) -> None:
        self._options, self._settings = options, settings
        self.is_stopped = False

    def stop(self) -> None:
        """End it after the text that is computed."""
        self.is_stopped = True

    def run(self) -> None:
        """Compute and print text after text."""
        progress = ProgressLine()
        try:
            model = engine_access.open_model(self._settings, self._options.model, progress.show_opening)
        finally:
            progress.clear()
        with closing(model):
            for text in self._options.words or _lines():
                if self.is_stopped:
                    return
                ids = model.tokenizer.encode(text, special=False)
                vector = model.embedder.embed(ids).tolist()
                if self._options.as_json:
                    print(json_line({"text": text, "tokens": len(ids), "embedding": vector}), flush=True)
                else:
                    print(" ".join(f"{one:.7g}" for one in vector), flush=True)


def _lines() -> Iterator[str]:
    """Yield the lines of standard input that are not empty."""
    while line := sys.stdin.buffer.readline(MOST_LINE_BYTES + 1):
        if len(line) > MOST_LINE_BYTES:
            raise Refusal(f"jalopy embed: a line has more than {MOST_LINE_BYTES} bytes (a text is a line: cut it)")
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.strip():
            yield text
