"""Routes of the server, behind its guard: replies, short computations, and information."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Scope

from app.program.version import installed_version
from app.server.api_error import ApiError, without_trace
from app.server.completion_request import CompletionRequest, read_model_name
from app.server.dialects import llama_server, ollama
from app.server.dialects.anthropic_reply import MessageEncoder
from app.server.dialects.anthropic_request import read_message_request
from app.server.dialects.computation import Computation
from app.server.dialects.embeddings import (
    read_embedding_request,
    read_ollama_embed_request,
    read_ollama_embedding_request,
    read_rerank_request,
)
from app.server.dialects.encoder import ReplyEncoder
from app.server.dialects.ollama import OllamaChatEncoder, OllamaGenerateEncoder
from app.server.dialects.ollama_models import OllamaModels
from app.server.dialects.openai_reply import CompletionEncoder
from app.server.dialects.openai_request import read_chat_request, read_completion_request
from app.server.dialects.responses_reply import ResponseEncoder
from app.server.dialects.responses_request import read_response_request
from app.server.dialects.tokens import read_detokenize_request, read_tokenize_request
from app.server.fields import Fields, read_json
from app.server.guard import CLIENT_LEFT, REQUESTED_PATH, Guard
from app.server.log import log
from app.server.metrics import Metrics
from app.server.model_pool import ModelPool, OpenModel
from app.server.reply_task import Finish, PendingRequest, ReplyEvent, ReplyPiece
from app.server.request_pictures import RequestPictures
from app.server.sampling_fields import LLAMA_SERVER_NAMES
from app.server.start_page import PATHS as PAGE_PATHS
from app.server.start_page import accepts_page, page_headers, start_page
from app.server.transfer import (
    KEEP_ALIVE_S,
    BodyReader,
    ClientLeftError,
    EventStream,
    JsonResponse,
    watch_client,
)

MAX_LOGGED_FIELDS = 200
"""Limit on the ignored fields that the log names."""
QUEUE_PATIENCE_S = 1.0
"""Time that a stream waits in the queue before it starts. Until then, an error can still change the
HTTP status."""

T = TypeVar("T")
ReadRequest = Callable[[Fields, str], CompletionRequest]


class Routes:
    """Handlers of the routes."""

    def __init__(
        self,
        models: ModelPool,
        metrics: Metrics,
        bodies: BodyReader,
        needs_key: bool,
        pictures_folder: Path | None,
    ) -> None:
        self._models = models
        self._pictures_folder = pictures_folder
        self._needs_key = needs_key
        self._metrics = metrics
        self._bodies = bodies
        self._start_s = int(time.time())
        self._logged_fields: set[str] = set()
        """Ignored fields that the log has named."""

    async def reply(
        self, read_request: ReadRequest, make_encoder: type[ReplyEncoder], http_request: Request
    ) -> Response:
        """Write the replies to a request.

        Args:
            read_request: Reads the request in its dialect.
            make_encoder: Encoder for the replies in the same dialect.
            http_request: The HTTP request.
        """
        request = await self._read(
            http_request, lambda fields: read_request(fields, self._models.served_model)
        )
        model_name = await self._models.resolve(request.model)
        encoder = make_encoder(request, model_name)

        if request.is_empty:
            if request.unloads_model:
                await self._models.unload(model_name)
                finish = Finish("unload")
            else:
                await self._models.open(model_name)
                finish = Finish("load")
            return JsonResponse(encoder.encode_replies([(ReplyPiece(), finish)]))

        peer = "" if http_request.client is None else http_request.client.host
        if not request.is_streamed:
            pending = await self._submit(request, model_name, peer)
            async with watch_client(http_request.receive, pending.drop):
                return await self._complete_response(pending, encoder)

        stream = self._stream(http_request, request, model_name, peer, encoder)
        # Errors before the first event become the HTTP status.
        await anext(stream)
        return EventStream(stream, encoder.ends_with_done, encoder.is_ndjson)

    async def compute(
        self, read_computation: Callable[[Fields], Computation], http_request: Request
    ) -> Response:
        """Run a short computation, such as counting tokens, between two steps of replies."""

        def read(fields: Fields) -> tuple[str, Computation]:
            model_name = read_model_name(fields, self._models.served_model)
            computation = read_computation(fields)
            fields.ignore_rest()
            return model_name, computation

        model_name, computation = await self._read(http_request, read)
        model = await self._models.open(model_name, computation.unloads_model)
        work = partial(computation.compute, model.name)
        return JsonResponse(await self._run_between_steps(http_request, model, work))

    async def count_tokens(self, http_request: Request) -> Response:
        """Count the tokens of a conversation as Anthropic's API does."""
        request = await self._read(
            http_request, lambda fields: read_message_request(fields, self._models.served_model)
        )
        model = await self._models.open(request.model)
        writer = model.writer
        n_tokens = await self._run_between_steps(
            http_request, model, lambda model: writer.count_prompt(request)
        )
        return JsonResponse({"input_tokens": n_tokens})

    async def _run_between_steps(
        self, http_request: Request, model: OpenModel, work: Callable[[Any], Any]
    ) -> Any:
        """Return the result of a function of the engine's model."""
        model.n_waiting += 1
        try:
            task = model.engine.run_between_steps(work)
            async with watch_client(http_request.receive, lambda: task.end(ClientLeftError())):
                return await asyncio.wrap_future(task.future)
        finally:
            model.n_waiting -= 1

    async def _read(self, http_request: Request, read: Callable[[Fields], T]) -> T:
        """Return what a function reads from the fields of a request, and log ignored fields."""

        def read_body(body: bytes) -> tuple[T, set[str]]:
            fields = read_json(body, RequestPictures(self._pictures_folder))
            return read(fields), fields.ignored

        value, ignored = await self._bodies.read(http_request, read_body)
        self._log_ignored(ignored)
        return value

    async def _submit(
        self, request: CompletionRequest, model_name: str, peer: str
    ) -> PendingRequest:
        """Open the model and queue a request."""
        model = await self._models.open(model_name, request.unloads_model)
        pending = PendingRequest(request, peer, model.engine.drop)
        model.engine.submit(pending.tasks)
        return pending

    async def root(self, http_request: Request) -> Response:
        """Return a page to a browser, and to others the text by which Ollama's clients recognize a
        running server."""
        if not accepts_page(http_request.headers.get("accept", "")):
            return PlainTextResponse("Ollama is running")
        names: list[str] = []
        if not self._needs_key:
            names = await self._models.default_first()
        url = f"http://{http_request.headers['host']}"
        return HTMLResponse(start_page(url, names, self._needs_key), headers=page_headers())

    async def health(self, http_request: Request) -> Response:
        """Return whether the server is ready: a single model must be open."""
        if self._models.served_model:
            await self._models.open("")
        return JsonResponse({"status": "ok"})

    async def models(self, http_request: Request) -> Response:
        """List the models that requests may name."""
        files = await self._models.list_files()
        return JsonResponse(
            {"object": "list", "data": [self._describe_model(name) for name in files]}
        )

    async def model(self, http_request: Request) -> Response:
        """Describe a model."""
        requested_name = http_request.path_params["model_id"]
        served_model = self._models.served_model
        if served_model and requested_name != served_model:
            raise ApiError(
                f'there is no model "{requested_name[:60]}" here (served under every name: '
                f"{served_model})",
                404,
                "model",
                "model_not_found",
            )
        return JsonResponse(self._describe_model(await self._models.resolve(requested_name)))

    async def metrics(self, http_request: Request) -> Response:
        """Return the counters."""
        engines = [model.engine for model in self._models.opened.values()]
        last_used = self._models.last_used
        text = self._metrics.text(
            requests_running=sum(engine.n_running for engine in engines),
            requests_waiting=sum(engine.n_waiting for engine in engines),
            context_tokens=0 if last_used is None else last_used.n_ctx,
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def props(self, http_request: Request) -> Response:
        """Return llama-server's description of a model."""
        opened = await self._models.open(http_request.query_params.get("model", ""))
        model = opened.writer.local.model
        tokenizer = model.tokenizer
        sampling = asdict(opened.writer.sampling)
        for api_name, name in LLAMA_SERVER_NAMES.items():
            sampling[api_name] = sampling.pop(name)
        return JsonResponse(
            {
                "default_generation_settings": {"n_ctx": opened.n_ctx, "params": sampling},
                "total_slots": opened.engine.n_slots,
                "model_alias": opened.name,
                "model_name": model.name,
                "chat_template": model.chat_template.source or "",
                "bos_token": tokenizer.token_text(tokenizer.bos_id),
                "eos_token": tokenizer.token_text(tokenizer.eos_id),
                "modalities": {"vision": model.pictures.encoder is not None, "audio": False},
                "build_info": f"jalopy {installed_version()}",
            }
        )

    def _log_ignored(self, ignored: set[str]) -> None:
        """Log ignored fields, each once."""
        n_left = max(0, MAX_LOGGED_FIELDS - len(self._logged_fields))
        new_fields = sorted(ignored - self._logged_fields)[:n_left]
        if new_fields:
            self._logged_fields |= set(new_fields)
            log(f"unknown fields are ignored: {', '.join(new_fields)}")

    def _describe_model(self, name: str) -> dict[str, Any]:
        description = {
            "id": name,
            "object": "model",
            "created": self._start_s,
            "owned_by": "jalopy",
        }
        opened = self._models.opened.get(name)
        if opened is None or opened.engine.writer is None:
            return description
        model = opened.writer.local.model
        meta = {
            "n_vocab": model.tokenizer.vocab_size,
            "n_ctx": opened.n_ctx,
            "n_embd": model.config.dim,
            "size": model.weights_bytes,
            "quantization": model.quantization,
        }
        return {**description, "meta": meta}

    async def _complete_response(self, pending: PendingRequest, encoder: ReplyEncoder) -> Response:
        """Return all replies in one object."""
        replies = [ReplyPiece()] * len(pending.tasks)
        finishes: dict[int, Finish] = {}
        async for index, event in self._events(pending, is_streamed=False):
            if isinstance(event, ReplyPiece):
                replies[index] = replies[index].joined(event)
            elif isinstance(event, Finish):
                finishes[index] = event
                # With log-probabilities the reply must keep the text of each token.
                if pending.request.n_logprobs is None:
                    replies[index] = replies[index].without_end(event.n_repeated_chars)
        return JsonResponse(
            encoder.encode_replies(
                [(reply, finishes[index]) for index, reply in enumerate(replies)]
            )
        )

    async def _stream(
        self,
        http_request: Request,
        request: CompletionRequest,
        model_name: str,
        peer: str,
        encoder: ReplyEncoder,
    ) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Yield None as soon as the HTTP status is certain, then the objects of a stream.

        Raises:
            ApiError: The request is refused before that.
            ClientLeftError: The client has left.
        """
        has_started = False
        submitting = asyncio.ensure_future(self._submit(request, model_name, peer))
        async with watch_client(http_request.receive, partial(_drop, submitting)):
            try:
                while not (await asyncio.wait({submitting}, timeout=KEEP_ALIVE_S))[0]:
                    if not has_started:
                        has_started = True
                        yield None
                    for stream_object in _encode(encoder, None, 0):
                        yield stream_object
                if submitting.cancelled():
                    raise ClientLeftError

                async for index, event in self._events(submitting.result(), is_streamed=True):
                    if not has_started:
                        has_started = True
                        yield None
                    for stream_object in _encode(encoder, event, index):
                        yield stream_object
            except ApiError as error:
                without_trace(error)
                if not has_started:
                    raise
                yield encoder.encode_error(error)
            finally:
                _drop(submitting)

    async def _events(
        self, pending: PendingRequest, is_streamed: bool
    ) -> AsyncGenerator[tuple[int, ReplyEvent | None], None]:
        """Yield the events of all replies, each with the index of its reply.

        A stream also gets None after a silence.

        Raises:
            ApiError: A reply broke off.
            ClientLeftError: The client has left.
        """
        n_left = len(pending.tasks)
        patience_s: float | None = None
        if is_streamed:
            patience_s = QUEUE_PATIENCE_S if pending.is_waiting else KEEP_ALIVE_S
        try:
            while n_left:
                events = await pending.next_events(patience_s)
                if is_streamed:
                    patience_s = KEEP_ALIVE_S
                if not events:
                    yield 0, None

                for index, event in events:
                    if isinstance(event, Finish):
                        n_left -= 1
                        self._record_finish(event)
                        if event.error is not None or event.reason == "cancelled":
                            raise event.error or ClientLeftError
                    yield index, event
        finally:
            pending.drop()  # Whatever ended this, nobody reads further events.

    def _record_finish(self, finish: Finish) -> None:
        """Count and log the end of a reply."""
        self._metrics.count_reply(finish)
        if finish.error is not None:
            log(f"reply broken off: {finish.error.message}")
            return
        tokens_per_s = 0.0
        if finish.decode_s > 0 and finish.tokens > 1:
            tokens_per_s = (finish.tokens - 1) / finish.decode_s
        log(
            f"reply {finish.reason}: {finish.prompt_tokens} prompt tokens ({finish.cached_tokens} "
            f"cached), {finish.tokens} written at {tokens_per_s:.1f} tok/s"
        )


def _encode(
    encoder: ReplyEncoder, event: ReplyEvent | None, index: int
) -> Sequence[dict[str, Any] | None]:
    """Return the objects that a stream sends for an event, or for a silence; None is a comment."""
    if event is not None:
        return encoder.encode_event(event, index)
    signs_of_life = encoder.encode_silence()
    if signs_of_life:
        return signs_of_life
    return [None]


def _drop(submitting: asyncio.Future[PendingRequest]) -> None:
    """End everything that still waits or runs of a request."""
    if not submitting.done():
        submitting.cancel()
    elif not submitting.cancelled() and submitting.exception() is None:
        submitting.result().drop()


def make_application(
    models: ModelPool,
    names: Collection[str],
    api_key: str,
    origins: Collection[str],
    pictures_folder: Path | None = None,
) -> Guard:
    """Return the ASGI application.

    Args:
        models: The models.
        names: Host names of the server.
        api_key: Key that requests must have; "" for none.
        origins: Origins of the web pages that may use the server.
        pictures_folder: Folder whose pictures requests may name; None for none.
    """
    metrics = Metrics()
    bodies = BodyReader()
    routes = Routes(models, metrics, bodies, bool(api_key), pictures_folder)
    post_handlers: dict[str, Callable[[Request], Any]] = {
        "/v1/chat/completions": partial(routes.reply, read_chat_request, CompletionEncoder),
        "/v1/completions": partial(routes.reply, read_completion_request, CompletionEncoder),
        "/v1/responses": partial(routes.reply, read_response_request, ResponseEncoder),
        "/v1/messages": partial(routes.reply, read_message_request, MessageEncoder),
        "/v1/messages/count_tokens": routes.count_tokens,
        "/v1/embeddings": partial(routes.compute, read_embedding_request),
        "/v1/rerank": partial(routes.compute, read_rerank_request),
        "/api/chat": partial(routes.reply, ollama.read_chat_request, OllamaChatEncoder),
        "/api/generate": partial(routes.reply, ollama.read_generate_request, OllamaGenerateEncoder),
        "/api/embed": partial(routes.compute, read_ollama_embed_request),
        "/api/embeddings": partial(routes.compute, read_ollama_embedding_request),
        "/completion": partial(
            routes.reply, llama_server.read_completion_request, llama_server.LlamaServerEncoder
        ),
        "/infill": partial(
            routes.reply, llama_server.read_infill_request, llama_server.LlamaServerEncoder
        ),
        "/tokenize": partial(routes.compute, read_tokenize_request),
        "/detokenize": partial(routes.compute, read_detokenize_request),
    }
    all_routes = [
        *(Route(path, handler, methods=["POST"]) for path, handler in post_handlers.items()),
        *OllamaModels(models, bodies).routes(),
        *(Route(path, routes.root) for path in PAGE_PATHS),
        Route("/v1/models", routes.models),
        Route("/v1/models/{model_id:path}", routes.model),
        Route("/health", routes.health),
        Route("/metrics", routes.metrics),
        Route("/props", routes.props),
    ]
    known_paths = {route.path for route in all_routes}

    def record_request(scope: Scope, status: int) -> None:
        path = scope["path"]
        if path in known_paths:
            metrics.count_request(path, status)
        else:
            metrics.count_request("other", status)
            path = scope[REQUESTED_PATH]
        remark = " (client left)" if status == CLIENT_LEFT else ""
        log(f"{scope['method']} {path[:80]} {status}{remark}")

    router = Router(all_routes, redirect_slashes=False)
    return Guard(router, names, api_key, record_request, origins)
