"""The chat as it is, in a process of its own, with one thing changed: what its replies show.

The engine decodes and samples every token as always; only its text is replaced by Markdown on the
way to the screen, and an end token does not end the reply. So any model, even one of random
weights, gives a Markdown-heavy reply of the wanted length at its own speed. When a reply ends, its
times go to the parent as one line of JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from app.backend.local import engine_access
from app.machine.sensors.low_power import prepare_environment
from app.program.settings import Settings, load_settings, override
from tests.programs.interface_bench.reply_text import pieces

if TYPE_CHECKING:
    from app.tui.app import JalopyApp

Tell = Callable[[dict[str, Any]], None]


def run(events_fd: int, model: str, threads: int, n_tokens: int, context: int) -> int:
    """Run the chat until it is left.

    Args:
        events_fd: where events go, one JSON object a line.
    """
    tell = partial(_write_event, events_fd)
    settings = override(load_settings(), "threads", threads, "--threads")
    settings = override(settings, "prefill_threads", threads, "--threads")
    settings = override(settings, "context_size", context, "--ctx")
    # a reply has its length, whatever it says
    settings = override(settings, "loop_guard", "off", "the benchmark")
    prepare_environment(settings.low_power)
    from app.tui.app import JalopyApp
    from app.tui.chat_options import chat_options

    options = chat_options(settings)
    holder: list[JalopyApp] = []
    opened = partial(_open_model, settings, n_tokens, tell, lambda: type(holder[0].screen).__name__)
    options = replace(options, open_model=opened, on_opened=lambda path: None)
    app = JalopyApp(settings, Path(model), options=options)
    holder.append(app)
    app.run()
    os._exit(app.return_code or 0)


def _open_model(
    settings: Settings,
    n_tokens: int,
    tell: Tell,
    screen_name: Callable[[], str],
    path: Path,
    progress: Any,
) -> Any:
    model: Any = engine_access.open_model(settings, path, progress)
    make = model.session
    model.tokenizer.end_ids = frozenset()

    def session(*arguments: Any, **options: Any) -> Any:
        session = make(*arguments, **options)
        session.generate = partial(
            _generate, session.generate, model.threads, n_tokens, tell, screen_name
        )
        tell({"event": "ready", "n_ctx": session.n_ctx})
        return session

    model.session = session
    return model


def _generate(
    generate: Callable[..., Iterator[Any]],
    threads: int,
    n_tokens: int,
    tell: Tell,
    screen_name: Callable[[], str],
    sampling: Any,
    *_: Any,
    **__: Any,
) -> Iterator[Any]:
    """Decode as the engine does and show Markdown; report when the wanted number of tokens is
    there."""
    text = pieces()
    tell({"event": "begin"})
    started_s = interface_s = 0.0
    n = -1
    for generated in generate(sampling, n_tokens):
        n += 1
        if n == 0:
            started_s = time.perf_counter()
            interface_s = _interface_s()
        if n < n_tokens:
            yield replace(generated, text=next(text))
    seconds = time.perf_counter() - started_s
    # Between the first token and the end lie the steps of all later ones.
    tell(
        {
            "event": "end",
            "threads": threads,
            "tokens": n_tokens - 1,
            "seconds": seconds,
            "interface_s": _interface_s() - interface_s,
            "screen": screen_name(),
        }
    )


def _interface_s() -> float:
    """CPU time of the interface's thread, which is the process's first."""
    own_pid = os.getpid()
    return next(
        (t.user_time + t.system_time for t in psutil.Process().threads() if t.id == own_pid), 0.0
    )


def _write_event(events_fd: int, event: dict[str, Any]) -> None:
    os.write(events_fd, json.dumps(event).encode() + b"\n")
