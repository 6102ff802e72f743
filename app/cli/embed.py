"""``jalopy embed``: print an embedding vector for each text."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

from app.backend.local import engine_access
from app.backend.work_thread import start_work_thread
from app.cli.output import ProgressLine
from app.program import exit_codes
from app.program.refusals import Refusal
from app.program.settings import Settings
from app.text.json_line import json_line

MAX_LINE_BYTES = 1 << 20
"""Limit on the length of a line of standard input."""


def embed(settings: Settings, model: str, words: Sequence[str] = (), as_json: bool = False) -> int:
    """Print the vector of each text, one per line; Ctrl-C stops after the current text.

    Args:
        words: the texts; if empty, the lines of standard input.

    Raises:
        EngineError: the model cannot be used, or a text is too long.
        Refusal: there is no text.
        OSError: stdout cannot be written.
    """
    if not words and (sys.stdin is None or sys.stdin.isatty()):
        raise Refusal(
            'jalopy embed: there is no text (jalopy embed MODEL "TEXT" ..., '
            "or pipe in one text per line)"
        )
    stopped = threading.Event()

    def compute() -> None:
        progress = ProgressLine()
        try:
            opened = engine_access.open_model(settings, model, progress.show_opening)
        finally:
            progress.clear()
        with closing(opened):
            for text in words or _read_lines():
                if stopped.is_set():
                    return
                ids = opened.tokenizer.encode(text, special=False)
                vector = opened.embedder.embed(ids).tolist()
                if as_json:
                    print(
                        json_line({"text": text, "tokens": len(ids), "embedding": vector}),
                        flush=True,
                    )
                else:
                    print(" ".join(f"{value:.7g}" for value in vector), flush=True)

    start_work_thread().run(compute, stopped.set)
    if stopped.is_set():
        return exit_codes.INTERRUPTED
    return exit_codes.OK


def _read_lines() -> Iterator[str]:
    """Yield the lines of standard input that are not empty."""
    while line := sys.stdin.buffer.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise Refusal(
                f"jalopy embed: a line is longer than {MAX_LINE_BYTES} bytes "
                "(each line is one text: split it)"
            )
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.strip():
            yield text
