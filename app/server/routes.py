"""The routes of the server, after their guard: answers to conversations, continued texts, and what
tells about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Scope

from app.program.version import installed_version
from app.server.api_error import ApiError, without_trace
from app.server.completion_request import (
    CompletionRequest,
    chat_order,
    completion_order,
    take_model,
)
from app.server.dialects import ollama
from app.server.dialects.embeddings import (
    Work,
    detokenize_work,
    embedding_work,
    ollama_embed_work,
    ollama_embedding_work,
    rerank_work,
    tokenize_work,
)
from app.server.dialects.ollama_models import OllamaModels
from app.server.dialects.openai_reply import CompletionBody
from app.server.dialects.responses_reply import ResponseBody
from app.server.dialects.responses_request import response_order
from app.server.fields import Fields, read_json
from app.server.guard import CLIENT_LEFT, Guard
from app.server.log import log
from app.server.model_pool import Models
from app.server.reply_task import Finish, Happening, PendingRequest, ReplyPiece
from app.server.sampling_fields import LLAMA_SERVER_NAMES
from app.server.transfer import STILL_HERE_S, BodyReader, EventStream, GoneError, JsonBody, watched

MOST_NAMED = 200
"""Limit on the ignored fields that the log names."""
IN_LINE_S = 1.0
"""Seconds that a stream waits for its turn before it begins.

Until then the status tells what is wrong.
"""

T = TypeVar("T")
ReadOrder = Callable[[Fields, str], CompletionRequest]
Body = CompletionBody | ResponseBody | ollama.ChatBody


class Metrics:
    """Counters since the start of the server, in Prometheus' words.

    Used by the event loop alone.
    """

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self.note_reply(Finish("stop"))

    def note_request(self, route: str, status: int) -> None:
        """A request was answered; ``route`` is one of the server's own."""
        self._add(f'requests_total{{route="{route}",status="{status}"}}', 1)

    def note_reply(self, ended: Finish) -> None:
        """A reply was written, whole or in part."""
        self._add("prompt_tokens_total", ended.prompt_tokens)
        self._add("prompt_tokens_cached_total", ended.cached_tokens)
        self._add("prompt_seconds_total", ended.read_s)
        self._add("generated_tokens_total", ended.tokens)
        self._add("generation_seconds_total", ended.write_s)
        self._add("clients_gone_total", ended.reason == "cancelled" and ended.error is None)

    def _add(self, name: str, value: float) -> None:
        self._values[name] = self._values.get(name, 0) + value

    def text(self, **now: int) -> str:
        """Return all of them, with what is so now, in Prometheus' text format."""
        return "".join(
            f"jalopy_{name} {value:.15g}\n" for name, value in {**self._values, **now}.items()
        )


class Routes:
    """Answers with the engine's help, or about it."""

    def __init__(self, models: Models, metrics: Metrics, bodies: BodyReader) -> None:
        self._models = models
        self._metrics = metrics
        self._bodies = bodies
        self._started = int(time.time())
        self._ignored: set[str] = set()
        """Fields that the log has named."""

    async def reply(self, read_order: ReadOrder, kind: type[Body], request: Request) -> Response:
        """Answer a conversation or continue a text: of what the request says, in the words of one
        API."""
        order = await self._read(request, lambda fields: read_order(fields, self._models.only))
        name = await self._models.meant(order.model)
        body = kind(order, name)
        if order.is_empty and order.unloads:
            await self._models.unload(name)
            return JsonBody(body.whole([(ReplyPiece(), Finish("unload"))]))
        if order.is_empty:
            await self._models.open(name)
            return JsonBody(body.whole([(ReplyPiece(), Finish("load"))]))
        if request.client is not None:
            peer = request.client.host
        else:
            peer = ""
        if not order.is_streamed:
            asked = await self._ask(order, name, peer)
            async with watched(request.receive, asked.drop):
                return await self._whole(asked, body)
        stream = self._stream(request, order, name, peer, body)
        # what is wrong with the prompt is told by the status, which the first event settles
        await anext(stream)
        return EventStream(stream, body.ends_with_done, body.in_lines)

    async def aside(self, read_work: Callable[[Fields], Work], request: Request) -> Response:
        """Count tokens, make vectors or judge documents: between two steps of what is written."""

        def read(fields: Fields) -> tuple[str, bool, Work]:
            name = take_model(fields, self._models.only)
            work = read_work(fields)
            fields.ignore_rest()
            return name, work.unloads, work

        wanted, unloads, work = await self._read(request, read)
        model = await self._models.open(wanted, unloads)
        model.n_wanted += 1
        try:
            aside = model.engine.aside(partial(work.compute, model.name))
            async with watched(request.receive, lambda: aside.end(GoneError())):
                return JsonBody(await asyncio.wrap_future(aside.future))
        finally:
            model.n_wanted -= 1

    async def _read(self, request: Request, read: Callable[[Fields], T]) -> T:
        """Return what is read from a request's fields, and note those that are ignored."""

        def reading(body: bytes) -> tuple[T, set[str]]:
            fields = read_json(body)
            return read(fields), fields.ignored

        value, ignored = await self._bodies.read(request, reading)
        self._note_ignored(ignored)
        return value

    async def _ask(self, order: CompletionRequest, name: str, peer: str) -> PendingRequest:
        """Open a model and have it answer a request when its turn comes."""
        model = await self._models.open(name, order.unloads)
        asked = PendingRequest(order, peer, model.engine.drop)
        model.engine.ask(asked.jobs)
        return asked

    async def root(self, request: Request) -> Response:
        """Say what Ollama's clients take as a sign of life."""
        return PlainTextResponse("Ollama is running")

    async def health(self, request: Request) -> Response:
        """Say whether the model is open, where there is one alone."""
        if self._models.only:
            await self._models.open("")
        return JsonBody({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """List the models that requests may name."""
        listed = await self._models.listed()
        return JsonBody({"object": "list", "data": [self._model(name) for name in listed]})

    async def model(self, request: Request) -> Response:
        """Tell about a model."""
        wanted = request.path_params["model_id"]
        only = self._models.only
        if only and wanted != only:
            why = f'there is no model "{wanted[:60]}" here (served: {only}, whatever name a request has)'
            raise ApiError(why, 404, "model", "model_not_found")
        return JsonBody(self._model(await self._models.meant(wanted)))

    async def metrics(self, request: Request) -> Response:
        """Return the counters."""
        engines = [one.engine for one in self._models.opened.values()]
        used = self._models.last_used
        text = self._metrics.text(
            requests_running=sum(one.n_running for one in engines),
            requests_waiting=sum(one.n_waiting for one in engines),
            context_tokens=used.n_ctx if used is not None else 0,
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def props(self, request: Request) -> Response:
        """Tell what llama-server tells about a model."""
        opened = await self._models.open(request.query_params.get("model", ""))
        served = opened.served
        tokenizer = served.local.model.tokenizer
        model = served.local.model
        sampling = asdict(served.sampling)
        for theirs, ours in LLAMA_SERVER_NAMES.items():
            sampling[theirs] = sampling.pop(ours)
        return JsonBody(
            {
                "default_generation_settings": {"n_ctx": opened.n_ctx, "params": sampling},
                "total_slots": opened.engine.n_slots,
                "model_alias": opened.name,
                "model_name": model.name,
                "chat_template": model.chat_template.source or "",
                "bos_token": tokenizer.token_text(tokenizer.bos_id),
                "eos_token": tokenizer.token_text(tokenizer.eos_id),
                "modalities": {"vision": False, "audio": False},
                "build_info": f"jalopy {installed_version()}",
            }
        )

    def _note_ignored(self, ignored: set[str]) -> None:
        """Name in the log, once, what a request has and this server does not know."""
        found = sorted(ignored - self._ignored)[: max(0, MOST_NAMED - len(self._ignored))]
        if found:
            self._ignored |= set(found)
            log(f"ignored from now on, since it is not known here: {', '.join(found)}")

    def _model(self, name: str) -> dict[str, Any]:
        told = {"id": name, "object": "model", "created": self._started, "owned_by": "jalopy"}
        opened = self._models.opened.get(name)
        if opened is None or opened.engine.served is None:
            return told
        model = opened.served.local.model
        meta = {
            "n_vocab": model.tokenizer.vocab_size,
            "n_ctx": opened.n_ctx,
            "n_embd": model.config.dim,
            "size": model.weights_bytes,
            "quantization": model.quantization,
        }
        return {**told, "meta": meta}

    async def _whole(self, asked: PendingRequest, body: Body) -> Response:
        replies = [ReplyPiece()] * len(asked.jobs)
        ends: dict[int, Finish] = {}
        async for at, one in self._happenings(asked, is_streamed=False):
            if isinstance(one, ReplyPiece):
                replies[at] = replies[at].joined(one)
            elif isinstance(one, Finish):
                ends[at] = one
                if asked.order.n_logprobs is None:  # else each token is told with its chances
                    replies[at] = replies[at].without_end(one.n_repeated_chars)
        return JsonBody(body.whole([(reply, ends[at]) for at, reply in enumerate(replies)]))

    async def _stream(
        self, request: Request, order: CompletionRequest, name: str, peer: str, body: Body
    ) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Yield the events of a stream, after one that settles the status and is not sent.

        Raises:
            ApiError: the request is refused before that.
            GoneError: the client has left.
        """
        has_begun = False
        asking = asyncio.ensure_future(self._ask(order, name, peer))
        async with watched(request.receive, partial(_drop, asking)):
            try:
                while not (await asyncio.wait({asking}, timeout=STILL_HERE_S))[0]:
                    if not has_begun:
                        has_begun = True
                        yield None
                    yield body.still_here
                if asking.cancelled():
                    raise GoneError
                asked = asking.result()
                async for index, happening in self._happenings(asked, is_streamed=True):
                    if not has_begun:
                        has_begun = True
                        yield None
                    for event in (
                        body.events(happening, index)
                        if happening is not None
                        else (body.still_here,)
                    ):
                        yield event
            except ApiError as error:
                without_trace(error)
                if not has_begun:
                    raise
                yield body.broken(error)
            finally:
                _drop(asking)

    async def _happenings(
        self, asked: PendingRequest, is_streamed: bool
    ) -> AsyncGenerator[tuple[int, Happening | None], None]:
        """Yield what happens to each answer, by its index, until all have ended.

        In streams, also yield None after a silence.

        Raises:
            ApiError: one broke off.
            GoneError: the client has left.
        """
        n_left = len(asked.jobs)
        if asked.is_waiting:
            first_s = IN_LINE_S
        else:
            first_s = STILL_HERE_S
        if is_streamed:
            patience_s = first_s
        else:
            patience_s = None
        try:
            while n_left:
                try:
                    came = await asyncio.wait_for(asked.next(), patience_s)
                    if is_streamed:
                        patience_s = STILL_HERE_S
                    else:
                        patience_s = None
                except asyncio.TimeoutError:
                    patience_s = STILL_HERE_S
                    yield 0, None
                    continue
                for at, one in came:
                    if isinstance(one, Finish):
                        n_left -= 1
                        self._note(one)
                        if one.error is not None or one.reason == "cancelled":
                            raise one.error or GoneError
                    yield at, one
        finally:
            asked.drop()  # whatever ended this, no one reads on

    def _note(self, ended: Finish) -> None:
        self._metrics.note_reply(ended)
        if ended.error is not None:
            log(f"reply broken off: {ended.error.message}")
            return
        if ended.write_s > 0 and ended.tokens > 1:
            tps = (ended.tokens - 1) / ended.write_s
        else:
            tps = 0.0
        how = (
            f"{ended.reason}: {ended.prompt_tokens} prompt tokens, {ended.cached_tokens} of them "
            f"cached"
        )
        log(f"reply {how}; {ended.tokens} written at {tps:.1f} tok/s")


def _drop(asking: asyncio.Future[PendingRequest]) -> None:
    """End what still waits or runs of a request."""
    if not asking.done():
        asking.cancel()
    elif not asking.cancelled() and asking.exception() is None:
        asking.result().drop()


def make_application(
    models: Models, names: Collection[str], api_key: str, origins: Collection[str]
) -> Guard:
    """Return the ASGI application.

    Args:
        names: host names by which the server may be called.
        origins: of the pages in browsers that may use it.
    """
    metrics = Metrics()
    bodies = BodyReader()
    tells = Routes(models, metrics, bodies)
    posts: dict[str, Callable[[Request], Any]] = {
        "/v1/chat/completions": partial(tells.reply, chat_order, CompletionBody),
        "/v1/completions": partial(tells.reply, completion_order, CompletionBody),
        "/v1/responses": partial(tells.reply, response_order, ResponseBody),
        "/v1/embeddings": partial(tells.aside, embedding_work),
        "/v1/rerank": partial(tells.aside, rerank_work),
        "/api/chat": partial(tells.reply, ollama.chat_order, ollama.ChatBody),
        "/api/generate": partial(tells.reply, ollama.generate_order, ollama.GenerateBody),
        "/api/embed": partial(tells.aside, ollama_embed_work),
        "/api/embeddings": partial(tells.aside, ollama_embedding_work),
        "/tokenize": partial(tells.aside, tokenize_work),
        "/detokenize": partial(tells.aside, detokenize_work),
    }
    routes = [
        *(Route(path, answer, methods=["POST"]) for path, answer in posts.items()),
        *OllamaModels(models, bodies).routes(),
        Route("/", tells.root),
        Route("/v1/models", tells.models),
        Route("/v1/models/{model_id:path}", tells.model),
        Route("/health", tells.health),
        Route("/metrics", tells.metrics),
        Route("/props", tells.props),
    ]
    paths = {route.path for route in routes}

    def note(scope: Scope, status: int) -> None:
        path = scope["path"]
        metrics.note_request(path if path in paths else "other", status)
        log(
            f"{scope['method']} {path[:80]} "
            f"{status}{' (client left)' if status == CLIENT_LEFT else ''}"
        )

    return Guard(Router(routes, redirect_slashes=False), names, api_key, note, origins)
