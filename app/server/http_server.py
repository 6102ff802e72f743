"""The server while it runs: its sockets and signals in the main thread, next to the engine's
thread.

Connections are bounded in number, and none waits forever for a request that does not come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.program import exit_codes
from app.program.settings import Settings
from app.server.guard import ABORT
from app.server.log import log
from app.server.model_pool import Models, OpenModel
from app.server.routes import make_application
from app.server.served_engine import ServedEngine
from app.text.figures import count

MOST_CONNECTIONS = 128
"""Limit on the connections that are open at once.

For a further one, another that waits for no answer is cut: of the address that has most of them,
the one that has kept the server waiting longest.
"""
LEAST_CHUNK_BYTES = 64
"""Size that the chunks of a body must have on average.

Each one costs the event loop as much as 64 KiB in one piece.
"""
MOST_SMALL_CHUNKS = 1024
"""Chunks of any size that a body may have."""
MOST_HEAD_BYTES = 16 << 10
"""Limit on a request's line and headers."""
REQUEST_PATIENCE_S = 30.0
"""Limit on the time from a request's first byte, or from a connection's beginning, to the request's
last byte."""
IDLE_S = 30
"""How long a connection is kept open after an answer."""
ENDING_S = 0.7
"""How long answers may take to end with the server; then their connections are cut."""
ENGINE_S = 0.3
"""How long the engine's thread gets after them."""


class RunningServer:
    """A server that has an address and gets a model, or opens those of this machine by name.

    Args:
        path: the model, or the one for requests that name none; None for none.
        model_id: the name of the one model, which answers to any; "" where requests choose.
        idle_s: after how long a model is closed that requests chose; 0 for never.
    """

    def __init__(
        self,
        path: Path | None,
        settings: Settings,
        listener: socket.socket,
        model_id: str,
        names: tuple[str, ...],
        api_key: str,
        most_waiting: int,
        most_at_once: int = 1,
        idle_s: float = 0.0,
    ) -> None:
        self._listener = listener
        self._model_id = model_id
        self._loop: asyncio.AbstractEventLoop | None = None
        make_engine = partial(
            ServedEngine, settings=settings, most_waiting=most_waiting, most_at_once=most_at_once
        )
        self._models = Models(settings, make_engine, path, model_id, idle_s, self._tell_opened)
        application = make_application(self._models, names, api_key, settings.serve.origins)
        self._server = _Server(
            uvicorn.Config(
                application,
                http=_Connection,
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

    def run(self) -> int:
        """Answer until a signal comes; returns the exit code.

        Raises Exception: the model cannot be opened.
        """
        for name in ("uvicorn", "asyncio"):
            logger = logging.getLogger(name)
            logger.handlers = [_FaultLines(logging.ERROR)]
            logger.propagate = False
        asyncio.run(self._run())
        if self._failure is not None:
            raise self._failure
        return self._code

    async def _run(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(_note_fault)
        if threading.current_thread() is threading.main_thread():
            for number, code in exit_codes.BY_SIGNAL.items():
                if signal.getsignal(number) is not signal.SIG_IGN:
                    loop.add_signal_handler(number, self._end, code)
        if self._model_id:
            what = "opening the model"
        else:
            what = "each model is opened when a request names it; ctrl+c ends it"
        log(f"{self._model_id or 'this machine'} at {_url(self._listener)}: {what}")
        task = self._models.start()
        task.add_done_callback(self._note_ended)
        try:
            await self._server.serve([self._listener])
        finally:
            task.cancel()
            self._models.close(ENGINE_S)

    def _note_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._end(exit_codes.INTERNAL)

    def _tell_opened(self, model: OpenModel) -> None:
        for notice in model.engine.model.notices:
            log(notice)
        served = model.engine.served
        size = "vectors of texts only"
        if served is not None:
            if served.local.model.chat_template.call_format is None:
                log(f"{model.name}: the chat template has no tools: requests with some are refused")
            if model.engine.n_slots > 1:
                at_once = f"{model.engine.n_slots} requests at once, "
            else:
                at_once = ""
            size = (
                f"{at_once}context of {count(model.n_ctx)} tokens, {served.local.model.threads} "
                f"threads"
            )
        if self._model_id:
            where = f" at {_url(self._listener)}: ready ({size}); ctrl+c ends it"
        else:
            where = f": open ({size})"
        log(f"{model.name}{where}")

    def _end(self, code: int) -> None:
        """End the server; what runs and what waits is told so."""
        if self._server.should_exit:
            return
        self._code = code
        self._server.should_exit = True
        self._models.close(0.0)
        asyncio.get_running_loop().call_later(ENDING_S, self._server.cut_connections)


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the one who runs it."""
        yield

    def cut_connections(self) -> None:
        """Cut the open connections and end."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


class _Connection(H11Protocol):
    """uvicorn's connection on h11 (pure Python, strict), and deadlines, which uvicorn has for idle
    ones only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _RequestParser(h11.SERVER, MOST_HEAD_BYTES)
        self._since_s = self._heard_s = 0.0
        """When the request began to come that is awaited, and when something came last."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; where there are too many, cut one that waits for no answer, or this
        one."""
        if len(self.connections) >= MOST_CONNECTIONS:
            other = self._longest_waiting()
            if other is None:
                self.transport = transport
                transport.abort()
                return
            other.transport.abort()
            self.connections.discard(other)
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        self._since_s = self._heard_s = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_PATIENCE_S, self._look)

    def _longest_waiting(self) -> _Connection | None:
        """Return the connection that is cut for this one; None if all are answered."""
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, _Connection) and not connection._is_answered
        ]
        n_of_address = Counter(connection.address for connection in waiting)
        return max(
            waiting,
            key=lambda connection: (n_of_address[connection.address], -connection._waiting_since_s),
            default=None,
        )

    @property
    def address(self) -> str:
        """Address of the client."""
        if self.client:
            return self.client[0]
        return ""

    @property
    def _waiting_since_s(self) -> float:
        """When the request began that has not come whole, or when something came last."""
        if self._is_awaited:
            return self._since_s
        return self._heard_s

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        was_awaited = self._is_awaited
        super().data_received(data)
        self._heard_s = self.loop.time()
        if self._is_awaited and not was_awaited:
            self._since_s = self._heard_s

    @property
    def _is_answered(self) -> bool:
        """Whether a request has come whole, and its answer has not gone whole."""
        return (
            self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        )

    @property
    def _is_awaited(self) -> bool:
        """Whether a request has begun to come, or is the first, and has not come whole."""
        if self.cycle is None or self.cycle.more_body:
            return True
        return self.cycle.response_complete and self.timeout_keep_alive_task is None

    def _look(self) -> None:
        left_s = REQUEST_PATIENCE_S
        if self._is_awaited:
            left_s = self._since_s + REQUEST_PATIENCE_S - self.loop.time()
        if left_s <= 0:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(left_s, self._look)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()


class _RequestParser(h11.Connection):
    """h11's reading of requests, with two further limits.

    It also bounds the chunks of a body and closes after an ambiguous request.
    """

    _n_chunks = 0
    _n_chunk_bytes = 0

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: what came is no request, or costs too much.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._n_chunks = 0
            self._n_chunk_bytes = 0
            return _closing_if_ambiguous(event)
        if isinstance(event, h11.Data):
            self._n_chunks += event.chunk_start
            self._n_chunk_bytes += len(event.data)
            if self._n_chunks > MOST_SMALL_CHUNKS + self._n_chunk_bytes // LEAST_CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


def _closing_if_ambiguous(request: h11.Request) -> h11.Request:
    """Return a request, which ends its connection if it gives its length in two ways.

    Who passes it on may take the other way and see another request in what follows (RFC 9112, 6.1).
    """
    names = {name for name, _ in request.headers}
    if not {b"content-length", b"transfer-encoding"} <= names:
        return request
    headers = [(name, value) for name, value in request.headers if name != b"content-length"]
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=[*headers, (b"connection", b"close")],
        http_version=request.http_version,
    )


class _FaultLines(logging.Handler):
    """Takes what uvicorn and asyncio log: faults as one line each, the rest not at all."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a fault's line without its traceback, which may hold what was said."""
        if record.exc_info and record.exc_info[0]:
            kind = record.exc_info[0].__name__
        else:
            kind = ""
        log(f"fault: {record.msg} {kind}".strip())


def _note_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if error is not None:
        kind = f": {type(error).__name__}"
    else:
        kind = ""
    log(f"fault: {context.get('message', '')}{kind}")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
