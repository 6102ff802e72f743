"""The HTTP server: sockets and signals in the main thread, next to the engine threads.

Connections are limited in number, and none may wait forever for a request.
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

from app.program import exit_codes, paths
from app.program.settings import Settings
from app.server.guard import ABORT
from app.server.log import log
from app.server.model_pool import ModelPool, OpenModel
from app.server.routes import make_application
from app.server.served_engine import ServedEngine
from app.text.figures import count
from engine.model import DEFAULT_CONTEXT

MAX_CONNECTIONS = 128
"""Limit on the open connections.

For a further one, a connection without a request in progress is cut: from the address with most
connections, the one that has kept the server waiting longest.
"""
MIN_CHUNK_BYTES = 64
"""Required average size of the chunks of a body.

Each chunk costs the event loop as much as 64 KiB in one piece.
"""
MAX_SMALL_CHUNKS = 1024
"""Number of chunks of any size that a body may have."""
MAX_HEAD_BYTES = 16 << 10
"""Limit on the first line and the headers of a request."""
REQUEST_PATIENCE_S = 30.0
"""Limit on the time from the first byte of a request, or from the beginning of the connection, to
the last byte of the request."""
IDLE_S = 30
"""Time that a connection stays open after a response."""
SHUTDOWN_S = 0.7
"""Time that responses have to end with the server; then their connections are cut."""
ENGINE_SHUTDOWN_S = 0.3
"""Time that engine threads have after that."""


ONLY_MODEL_CONTEXT = 1 << 16
"""Limit on the context of the only model, in tokens, if the settings set none.

The cache takes memory as it fills. Models that requests choose have the usual context, so that
several are open at once.
"""


class HttpServer:
    """Server on a bound socket.

    Args:
        path: The only model, or the default model for requests that name none. None for no model.
        settings: Settings of the program.
        listener: Bound socket.
        model_id: Name of the only model, which answers to every name. "" if requests choose the
            model.
        names: Host names of the server.
        api_key: Key that requests must have; "" for none.
        max_waiting: Limit on waiting requests.
        max_at_once: Limit on replies that are written at once; 0 for as many as are useful.
        idle_s: Time after which a model that requests chose is closed; 0 for never.
        suffix_first: Whether the text after a gap comes first in prompts that fill it.
    """

    def __init__(
        self,
        path: Path | None,
        settings: Settings,
        listener: socket.socket,
        model_id: str,
        names: tuple[str, ...],
        api_key: str,
        max_waiting: int,
        max_at_once: int = 1,
        idle_s: float = 0.0,
        suffix_first: bool = False,
    ) -> None:
        self._listener = listener
        self._model_id = model_id
        self._loop: asyncio.AbstractEventLoop | None = None
        make_engine = partial(
            ServedEngine,
            settings=settings,
            max_waiting=max_waiting,
            max_at_once=max_at_once,
            suffix_first=suffix_first,
            context_limit=ONLY_MODEL_CONTEXT if model_id else DEFAULT_CONTEXT,
        )
        self._models = ModelPool(settings, make_engine, path, model_id, idle_s, self._log_opened)
        folder = settings.serve.pictures
        application = make_application(
            self._models,
            names,
            api_key,
            settings.serve.origins,
            Path(paths.expanded(folder)) if folder else None,
        )
        self._server = _UvicornServer(
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
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            )
        )
        self._exit_code = exit_codes.OK
        self._failure: BaseException | None = None

    def run(self) -> int:
        """Answer requests until a signal comes, and return the exit code.

        Raises:
            Exception: The only model cannot be opened.
        """
        for name in ("uvicorn", "asyncio"):
            logger = logging.getLogger(name)
            logger.handlers = [_FaultHandler(logging.ERROR)]
            logger.propagate = False
        asyncio.run(self._run())
        if self._failure is not None:
            raise self._failure
        return self._exit_code

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_log_fault)
        if threading.current_thread() is threading.main_thread():
            for number, exit_code in exit_codes.BY_SIGNAL.items():
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._loop.add_signal_handler(number, self._shut_down, exit_code)

        url = _base_url(self._listener)
        if self._model_id:
            log(f"{self._model_id} at {url}: opening the model")
        else:
            log(
                f"this machine at {url}: models are opened when a request names them; ctrl+c stops "
                "the server"
            )
        log(f"a page with a chat for browsers: {url.removesuffix('/v1')}")
        task = self._models.start()
        task.add_done_callback(self._record_failure)
        try:
            await self._server.serve([self._listener])
        finally:
            task.cancel()
            self._models.close(ENGINE_SHUTDOWN_S)

    def _record_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._shut_down(exit_codes.INTERNAL)

    def _log_opened(self, model: OpenModel) -> None:
        for notice in model.engine.model.notices:
            log(notice)

        writer = model.engine.writer
        if writer is None:
            summary = "embeddings only"
        else:
            local = writer.local
            if local.model.chat_template.call_format is None:
                log(
                    f"{model.name}: the chat template has no tools, so requests with tools are "
                    "refused"
                )
            summary = f"context of {count(model.n_ctx)} tokens, {local.model.threads} threads"
            if model.engine.n_slots > 1:
                summary = f"{model.engine.n_slots} requests at once, {summary}"

        if self._model_id:
            url = _base_url(self._listener)
            log(f"{model.name} at {url}: ready ({summary}); ctrl+c stops the server")
        else:
            log(f"{model.name}: open ({summary})")

    def _shut_down(self, exit_code: int) -> None:
        """Stop the server; running and waiting requests get an error."""
        if self._server.should_exit:
            return
        self._exit_code = exit_code
        self._server.should_exit = True
        self._models.close(0.0)
        asyncio.get_running_loop().call_later(SHUTDOWN_S, self._server.cut_connections)


class _UvicornServer(uvicorn.Server):
    """uvicorn's server without its handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: ``HttpServer`` handles signals."""
        yield

    def cut_connections(self) -> None:
        """Cut all open connections and stop."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


class _Connection(H11Protocol):
    """uvicorn's connection on h11 (pure Python, strict) with a deadline for each request.

    uvicorn has deadlines for idle connections only.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _RequestParser(h11.SERVER, MAX_HEAD_BYTES)
        self._request_start_s = 0.0
        """Time at which the current request began to arrive."""
        self._last_data_s = 0.0
        """Time of the last data."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If there are too many, cut one without a request in progress, or
        this one."""
        if len(self.connections) >= MAX_CONNECTIONS:
            waiting = self._longest_waiting()
            if waiting is None:
                self.transport = transport
                transport.abort()
                return
            waiting.transport.abort()
            self.connections.discard(waiting)
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        self._request_start_s = self.loop.time()
        self._last_data_s = self._request_start_s
        self._deadline = self.loop.call_later(REQUEST_PATIENCE_S, self._check_deadline)

    def _longest_waiting(self) -> _Connection | None:
        """Return the connection to cut for this one; None if all have a request in progress."""
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, _Connection) and not connection._is_answering
        ]
        n_by_address = Counter(connection.address for connection in waiting)
        return max(
            waiting,
            key=lambda connection: (n_by_address[connection.address], -connection._waiting_since_s),
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
        """Time since which the server waits for a request."""
        if self._is_receiving:
            return self._request_start_s
        return self._last_data_s

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process data, and record when a request starts."""
        was_receiving = self._is_receiving
        super().data_received(data)
        self._last_data_s = self.loop.time()
        if self._is_receiving and not was_receiving:
            self._request_start_s = self._last_data_s

    @property
    def _is_answering(self) -> bool:
        """Whether a complete request has not got its complete response."""
        return (
            self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        )

    @property
    def _is_receiving(self) -> bool:
        """Whether a request is incomplete: it has started, or it is the first and has not."""
        if self.cycle is None or self.cycle.more_body:
            return True
        return self.cycle.response_complete and self.timeout_keep_alive_task is None

    def _check_deadline(self) -> None:
        left_s = REQUEST_PATIENCE_S
        if self._is_receiving:
            left_s = self._request_start_s + REQUEST_PATIENCE_S - self.loop.time()
        if left_s <= 0:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(left_s, self._check_deadline)

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, unless a response has started."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()


class _RequestParser(h11.Connection):
    """h11's parser of requests, which also limits chunks and closes after an ambiguous request."""

    _n_chunks = 0
    _n_chunk_bytes = 0

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: The data is not a request, or its chunks are too small.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._n_chunks = 0
            self._n_chunk_bytes = 0
            return _closing_if_ambiguous(event)
        if isinstance(event, h11.Data):
            self._n_chunks += event.chunk_start
            self._n_chunk_bytes += len(event.data)
            if self._n_chunks > MAX_SMALL_CHUNKS + self._n_chunk_bytes // MIN_CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


def _closing_if_ambiguous(request: h11.Request) -> h11.Request:
    """Return the request; one that gives its length in two ways closes its connection.

    A proxy in between may use the other length and see another request in the rest (RFC 9112, 6.1).
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


class _FaultHandler(logging.Handler):
    """Handler for the logs of uvicorn and asyncio: each fault becomes one line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a fault without its traceback, which may hold text of requests."""
        error_name = ""
        if record.exc_info and record.exc_info[0]:
            error_name = record.exc_info[0].__name__
        log(f"fault: {record.msg} {error_name}".strip())


def _log_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    error_name = ""
    if error is not None:
        error_name = f": {type(error).__name__}"
    log(f"fault: {context.get('message', '')}{error_name}")


def _base_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}/v1"
