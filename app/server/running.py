"""The server while it runs: its sockets and signals in the main thread, beside the engine's thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from app.program import exit_codes
from app.program.refusals import say
from app.program.settings import Settings
from app.server.application import make_application
from app.server.connections import IDLE_S, MOST_HEAD_BYTES, BoundedProtocol
from app.server.engine_thread import EngineThread, Served
from app.text.figures import count

ENDING_S = 0.7
"""How long answers may take to end with the server; then their connections are cut."""
ENGINE_S = 0.3
"""How long the engine's thread gets after them."""
_ENDINGS = {
    signal.SIGINT: exit_codes.INTERRUPTED,
    signal.SIGTERM: exit_codes.TERMINATED,
    signal.SIGHUP: exit_codes.HANGUP,
}


class Running:
    """A server that has an address and gets a model."""

    def __init__(
        self,
        path: Path,
        settings: Settings,
        listener: socket.socket,
        model_id: str,
        names: tuple[str, ...],
        api_key: str,
        most_waiting: int,
    ) -> None:
        self._listener, self._model_id = listener, model_id
        self._engine = EngineThread(path, settings, most_waiting, self._note_opened)
        application = make_application(self._engine, model_id, names, api_key, log)
        self._server = _Server(
            uvicorn.Config(
                application,
                http=BoundedProtocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=MOST_HEAD_BYTES,
            )
        )
        self._code = exit_codes.OK
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> int:
        """Answer until a signal comes; returns the exit code. Raises Exception: the model cannot be opened."""
        _quiet_logs()
        asyncio.run(self._run())
        if self._failure is not None:
            raise self._failure
        return self._code

    async def _run(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(_note_fault)
        if threading.current_thread() is threading.main_thread():
            for number, code in _ENDINGS.items():
                if signal.getsignal(number) is not signal.SIG_IGN:
                    loop.add_signal_handler(number, self._end, code)
        log(f"{self._model_id} at {_url(self._listener)}: opening the model")
        self._engine.start()
        try:
            await self._server.serve([self._listener])
        finally:
            self._engine.close(ENGINE_S)

    def end(self, code: int) -> None:
        """End the server, from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end, code)

    def _note_opened(self, served: Served | BaseException) -> None:
        """Called in the engine's thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            self._loop.call_soon_threadsafe(partial(self._tell_opened, served))

    def _tell_opened(self, served: Served | BaseException) -> None:
        if isinstance(served, BaseException):
            self._failure = served
            self._end(exit_codes.INTERNAL)
            return
        for notice in served.notices:
            log(notice)
        size = f"context of {count(served.n_ctx)} tokens, {served.threads} threads"
        log(f"{self._model_id} at {_url(self._listener)}: ready ({size}); ctrl+c ends it")

    def _end(self, code: int) -> None:
        """End the server; what runs and what waits is told so."""
        if self._server.should_exit:
            return
        self._code = code
        self._server.should_exit = True
        self._engine.close(0.0)
        asyncio.get_running_loop().call_later(ENDING_S, self._server.cut_connections)


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to whoever runs it."""
        yield

    def cut_connections(self) -> None:
        """Cut the open connections and end."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


class _FaultLines(logging.Handler):
    """Takes what uvicorn and asyncio log: faults as one line each, the rest not at all."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a fault's line without its traceback, which may hold what was said."""
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        log(f"fault: {record.msg} {kind}".strip())


def log(line: str) -> None:
    """Write a line of the log."""
    say(f"jalopy serve: {line}")


def _quiet_logs() -> None:
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_FaultLines(logging.ERROR)], False


def _note_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    kind = f": {type(error).__name__}" if error is not None else ""
    log(f"fault: {context.get('message', '')}{kind}")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
