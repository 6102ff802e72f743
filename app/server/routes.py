"""The routes of the server, after their guard: answers to conversations, continued texts, and what tells about it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from app.program.version import installed_version
from app.server import ollama
from app.server.api_error import ApiError
from app.server.bodies import CompletionBody
from app.server.embedding import Work, embedding_work, ollama_work, rerank_work
from app.server.fields import Fields, read_json
from app.server.guard import CLIENT_LEFT, Guard, refusal
from app.server.job import Ended, Happening, Job, PromptTaken, ReplyPiece
from app.server.log import log
from app.server.models import Models, OpenModel
from app.server.ollama_models import OllamaModels
from app.server.order import Order, chat_order, completion_order, take_model
from app.server.response_body import ResponseBody
from app.server.responses import response_order
from app.server.sampling_fields import LLAMA_SERVER_NAMES
from app.server.transfer import STILL_HERE_S, EventStream, GoneError, JsonBody, read_body, watched

MOST_TOKENIZED_CHARS = 1 << 18
"""Limit on a text that is only counted: it is done between two tokens of a running reply."""
_MOST_IDS = 1 << 18
MOST_NAMED = 200
"""Limit on the ignored fields that the log names."""
_HELP = {
    "requests_total": "Requests by route and HTTP status.",
    "prompt_tokens_total": "Tokens of prompts.",
    "prompt_tokens_cached_total": "Those that the cache held already.",
    "prompt_seconds_total": "Time spent on reading prompts.",
    "generated_tokens_total": "Tokens written.",
    "generation_seconds_total": "Time spent on writing.",
    "clients_gone_total": "Requests whose client left before the end.",
    "requests_running": "Requests that are answered now.",
    "requests_waiting": "Requests that wait.",
    "context_tokens": "Size of the context.",
}
"""Counters of the server, in the words of Prometheus."""

ReadOrder = Callable[[Fields, str], Order]
Body = CompletionBody | ResponseBody | ollama.ChatBody


class Metrics:
    """Counters and totals since the start of the server. Used by the event loop alone."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._totals: dict[str, float] = {name: 0.0 if "seconds" in name else 0 for name in _HELP}

    def note_request(self, route: str, status: int) -> None:
        """A request was answered; ``route`` is one of the server's own."""
        self._requests[route, status] += 1

    def note_reply(self, ended: Ended) -> None:
        """A reply was written, whole or in part."""
        self._totals["prompt_tokens_total"] += ended.prompt_tokens
        self._totals["prompt_tokens_cached_total"] += ended.cached_tokens
        self._totals["generated_tokens_total"] += ended.tokens
        self._totals["prompt_seconds_total"] += ended.read_s
        self._totals["generation_seconds_total"] += ended.write_s
        if ended.reason == "cancelled" and ended.error is None:
            self._totals["clients_gone_total"] += 1

    def text(self, running: int, waiting: int, context_tokens: int) -> str:
        """Return all of them in Prometheus' text format."""
        now = {"requests_running": running, "requests_waiting": waiting, "context_tokens": context_tokens}
        values = {name: {"": round(value, 3)} for name, value in (self._totals | now).items()}
        values["requests_total"] = {
            f'{{route="{route}",status="{status}"}}': n for (route, status), n in sorted(self._requests.items())
        }
        lines = []
        for name, meaning in _HELP.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP jalopy_{name} {meaning}", f"# TYPE jalopy_{name} {kind}"]
            lines += [f"jalopy_{name}{labels} {value}" for labels, value in values[name].items()]
        return "\n".join(lines) + "\n"


class Routes:
    """Answers with the engine's help, or about it."""

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self._models, self._metrics = models, metrics
        self._started = int(time.time())
        self._ignored: set[str] = set()
        """Fields that the log has named."""

    async def reply(self, read_order: ReadOrder, kind: type[Body], request: Request) -> Response:
        """Answer a conversation or continue a text: of what the request says, in the words of one API."""
        fields = read_json(await read_body(request))
        order = read_order(fields, self._models.only)
        self._note_ignored(fields)
        if order.is_empty:
            name = await (self._models.unload if order.unloads else self._models.load)(order.model)
            return JsonBody(kind(order, name).whole([((), Ended("unload" if order.unloads else "load"))]))
        model = await self._models.open(order.model, order.unloads)
        peer = request.client.host if request.client is not None else ""
        jobs = [Job(order, peer, asyncio.get_running_loop(), at) for at in range(order.n_answers)]
        body = kind(order, model.name)
        asked = _Asked(model, jobs)
        if not order.is_streamed:
            async with watched(request.receive, asked.drop):
                return await self._whole(asked, body)
        stream = self._stream(request, asked, body)
        await anext(stream)  # what is wrong with the prompt is told by the status, which the first event settles
        return EventStream(stream, body.ends_with_done, body.in_lines)

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of a text, as llama-server does."""
        fields = read_json(await read_body(request))
        opened = await self._models.open(take_model(fields, self._models.only))
        text = fields.required(fields.text("content"), "content", "a string")
        if len(text) > MOST_TOKENIZED_CHARS:
            raise ApiError(f"content is longer than {MOST_TOKENIZED_CHARS} characters", 413, "content", "too_long")
        adds_special, parses_special = fields.flag("add_special"), fields.flag("parse_special", True)
        with_pieces = fields.flag("with_pieces")
        fields.ignore_rest()
        self._note_ignored(fields)

        def encode(model: Any) -> list[Any]:
            tokenizer = model.tokenizer
            ids = list(tokenizer.encode(text, bos=None if adds_special else False, special=parses_special))
            return [_with_piece(tokenizer, one) for one in ids] if with_pieces else ids

        return JsonBody({"tokens": await _aside(request, opened, encode)})

    async def detokenize(self, request: Request) -> Response:
        """Return the text of some tokens."""
        fields = read_json(await read_body(request))
        opened = await self._models.open(take_model(fields, self._models.only))
        n_vocab = opened.engine.model.tokenizer.vocab_size
        ids = fields.required(fields.items("tokens", _MOST_IDS), "tokens", "a list of token ids")
        if not all(type(one) is int and 0 <= one < n_vocab for one in ids):
            raise ApiError(f"tokens: ids must be whole numbers from 0 to {n_vocab - 1}", 400, "tokens", "invalid_value")
        fields.ignore_rest()
        self._note_ignored(fields)
        return JsonBody({"content": await _aside(request, opened, lambda model: model.tokenizer.decode(ids))})

    async def embed(self, read_work: Callable[[Fields, str], Work], request: Request) -> Response:
        """Make vectors of texts, or judge documents: between two steps of what is written."""
        fields = read_json(await read_body(request))
        opened = await self._models.open(take_model(fields, self._models.only))
        work = read_work(fields, opened.name)
        self._note_ignored(fields)
        return JsonBody(await _aside(request, opened, work))

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
        wanted, only = request.path_params["model_id"], self._models.only
        if only and wanted != only:
            why = f'there is no model "{wanted[:60]}" here (served: {only}, whatever name a request has)'
            raise ApiError(why, 404, "model", "model_not_found")
        return JsonBody(self._model(await self._models.meant(wanted)))

    async def metrics(self, request: Request) -> Response:
        """Return the counters."""
        engines, used = [one.engine for one in self._models.opened.values()], self._models.last_used
        n_running, n_waiting = (sum(getattr(one, name) for one in engines) for name in ("n_running", "n_waiting"))
        text = self._metrics.text(n_running, n_waiting, _n_ctx(used))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def props(self, request: Request) -> Response:
        """Tell what llama-server tells about a model."""
        opened = await self._models.open(request.query_params.get("model", ""))
        served = opened.served
        model, tokenizer = served.local.model, served.local.model.tokenizer
        sampling = asdict(served.sampling)
        for theirs, ours in LLAMA_SERVER_NAMES.items():
            sampling[theirs] = sampling.pop(ours)
        return JsonBody(
            {
                "default_generation_settings": {"n_ctx": served.local.session.n_ctx, "params": sampling},
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

    def _note_ignored(self, fields: Fields) -> None:
        """Name in the log, once, what a request has and this server does not know."""
        found = sorted(fields.ignored - self._ignored)[: max(0, MOST_NAMED - len(self._ignored))]
        if found:
            self._ignored |= set(found)
            log(f"ignored from now on, since it is not known here: {', '.join(found)}")

    def _model(self, name: str) -> dict[str, Any]:
        model = {"id": name, "object": "model", "created": self._started, "owned_by": "jalopy"}
        opened = self._models.opened.get(name)
        if opened is None or opened.engine.served is None:
            return model
        served = opened.served
        meta = {
            "n_vocab": served.local.model.tokenizer.vocab_size,
            "n_ctx": served.local.session.n_ctx,
            "n_embd": served.local.model.config.dim,
            "size": served.local.model.weights_bytes,
            "quantization": served.local.model.quantization,
        }
        return {**model, "meta": meta}

    async def _whole(self, asked: _Asked, body: Body) -> Response:
        pieces: list[list[ReplyPiece]] = [[] for _ in asked.jobs]
        ends: dict[int, Ended] = {}
        async for at, one in self._happenings(asked):
            if isinstance(one, ReplyPiece):
                pieces[at].append(one)
            elif isinstance(one, Ended):
                ends[at] = one
        return JsonBody(body.whole([(pieces[at], ends[at]) for at in range(len(pieces))]))

    async def _stream(self, request: Request, asked: _Asked, body: Body) -> AsyncGenerator[dict[str, Any] | None, None]:
        async with watched(request.receive, asked.drop):
            try:
                async for at, one in self._happenings(asked, STILL_HERE_S):
                    if isinstance(one, PromptTaken):
                        yield None
                    for event in body.events(one, at) if one is not None else (body.still_here,):
                        yield event
            except ApiError as error:
                if not asked.has_begun:
                    raise
                yield body.broken(error)

    async def _happenings(
        self, asked: _Asked, patience_s: float | None = None
    ) -> AsyncGenerator[tuple[int, Happening | None], None]:
        """Yield what happens to each answer, by its index, until all have ended, and None where nothing has for long.

        Raises:
            ApiError: one broke off.
            GoneError: the client has left.
        """
        awaited = {asyncio.ensure_future(job.next()): job for job in asked.jobs}
        try:
            while awaited:
                timeout = patience_s if asked.has_begun else None
                came, _ = await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not came:
                    yield 0, None
                for task in came:
                    job, happened = awaited.pop(task), task.result()
                    for one in happened:
                        if isinstance(one, Ended):
                            self._note(one)
                            if one.error is not None or one.reason == "cancelled":
                                raise one.error or GoneError
                        yield job.index, one
                    if not isinstance(happened[-1], Ended):
                        awaited[asyncio.ensure_future(job.next())] = job
        finally:
            for task in awaited:
                task.cancel()
            asked.drop()  # whatever ended this, no one reads on

    def _note(self, ended: Ended) -> None:
        self._metrics.note_reply(ended)
        if ended.error is not None:
            log(f"reply broken off: {ended.error.message}")
            return
        tps = (ended.tokens - 1) / ended.write_s if ended.write_s > 0 and ended.tokens > 1 else 0.0
        how = f"{ended.reason}: {ended.prompt_tokens} prompt tokens, {ended.cached_tokens} of them cached"
        log(f"reply {how}; {ended.tokens} written at {tps:.1f} tok/s")


class _Asked:
    """A request's jobs, which a model's engine has. Raises ApiError: it has no room for all of them."""

    def __init__(self, model: OpenModel, jobs: Sequence[Job]) -> None:
        self._engine, self.jobs = model.engine, jobs
        try:
            for job in jobs:
                self._engine.ask(job)
        except ApiError:
            self.drop()
            raise

    @property
    def has_begun(self) -> bool:
        """Whether a reader knows that the prompt was taken."""
        return any(job.has_begun for job in self.jobs)

    def drop(self) -> None:
        """End what still runs or waits: no one reads it."""
        for job in self.jobs:
            self._engine.drop(job)


async def _aside(request: Request, model: OpenModel, work: Callable[[Any], Any]) -> Any:
    model.n_wanted += 1
    try:
        aside = model.engine.aside(work)
        async with watched(request.receive, lambda: aside.end(GoneError())):
            return await asyncio.wrap_future(aside.future)
    finally:
        model.n_wanted -= 1


def _n_ctx(used: OpenModel | None) -> int:
    served = used.engine.served if used is not None else None
    return served.local.session.n_ctx if served is not None else 0


def _with_piece(tokenizer: Any, token_id: int) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
    try:
        return {"id": token_id, "piece": raw.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(raw)}


def make_application(models: Models, names: Collection[str], api_key: str, origins: Collection[str] = ()) -> Guard:
    """Return the ASGI application.

    Args:
        names: host names by which the server may be called.
        origins: of the pages in browsers that may use it.
    """
    metrics = Metrics()
    tells = Routes(models, metrics)
    routes = [
        Route("/v1/chat/completions", partial(tells.reply, chat_order, CompletionBody), methods=["POST"]),
        Route("/v1/completions", partial(tells.reply, completion_order, CompletionBody), methods=["POST"]),
        Route("/v1/responses", partial(tells.reply, response_order, ResponseBody), methods=["POST"]),
        Route("/api/chat", partial(tells.reply, ollama.chat_order, ollama.ChatBody), methods=["POST"]),
        Route("/api/generate", partial(tells.reply, ollama.generate_order, ollama.GenerateBody), methods=["POST"]),
        *OllamaModels(models).routes(),
        Route("/api/embed", partial(tells.embed, ollama_work), methods=["POST"]),
        Route("/v1/embeddings", partial(tells.embed, embedding_work), methods=["POST"]),
        Route("/v1/rerank", partial(tells.embed, rerank_work), methods=["POST"]),
        Route("/v1/models", tells.models),
        Route("/v1/models/{model_id:path}", tells.model),
        Route("/health", tells.health),
        Route("/metrics", tells.metrics),
        Route("/props", tells.props),
        Route("/tokenize", tells.tokenize, methods=["POST"]),
        Route("/detokenize", tells.detokenize, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse_route, ApiError: _refuse})
    app.router.redirect_slashes = False
    paths = {route.path for route in routes}

    def note(scope: Scope, status: int) -> None:
        path = scope["path"]
        metrics.note_request(path if path in paths else "other", status)
        log(f"{scope['method']} {path[:80]} {status}{' (client left)' if status == CLIENT_LEFT else ''}")

    return Guard(app, names, api_key, note, origins)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(error, request.scope)


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:80]
    if error.status_code == 405:
        return refusal(
            ApiError(f"{request.method} is not possible at {path}", 405, code="method_not_allowed"), request.scope
        )
    return refusal(ApiError(f"there is nothing at {path}", error.status_code, code="not_found"), request.scope)
