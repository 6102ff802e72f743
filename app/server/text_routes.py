"""The routes that compute: answers to conversations, continued texts, tokens of a text and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app.server.api_error import ApiError, unavailable
from app.server.bodies import ReplyBody
from app.server.engine_thread import EngineThread, Served
from app.server.fields import Fields, read_json
from app.server.job import Begun, Ended, Happening, Job, Piece
from app.server.metrics import Metrics
from app.server.order import Order, chat_order, completion_order
from app.server.response_body import ResponseBody
from app.server.responses import response_order
from app.server.transfer import STILL_HERE_S, EventStream, GoneError, JsonBody, read_body, watched

MOST_TOKENIZED_CHARS = 1 << 18
"""Limit on a text that is only counted: it is done between two tokens of a running reply."""
_MOST_IDS = 1 << 18

ReadOrder = Callable[[Fields, str], Order]
Body = ReplyBody | ResponseBody


class TextRoutes:
    """Answers with the engine's help."""

    def __init__(self, engine: EngineThread, model_id: str, metrics: Metrics, log: Callable[[str], object]) -> None:
        self._engine, self._model_id, self._metrics, self._log = engine, model_id, metrics, log

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._reply(request, chat_order)

    async def complete(self, request: Request) -> Response:
        """Continue a text."""
        return await self._reply(request, completion_order)

    async def respond(self, request: Request) -> Response:
        """Answer a conversation in the words of the newer API."""
        return await self._reply(request, response_order, ResponseBody)

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of a text, as llama-server does."""
        fields = read_json(await read_body(request))
        self.served()
        text = fields.required(fields.text("content"), "content", "a string")
        if len(text) > MOST_TOKENIZED_CHARS:
            raise ApiError(f"content is longer than {MOST_TOKENIZED_CHARS} characters", 413, "content", "too_long")
        adds_special, parses_special = fields.flag("add_special"), fields.flag("parse_special", True)
        with_pieces = fields.flag("with_pieces")
        fields.refuse_rest()

        def encode(model: Any) -> list[Any]:
            tokenizer = model.tokenizer
            ids = list(tokenizer.encode(text, bos=None if adds_special else False, special=parses_special))
            return [_with_piece(tokenizer, one) for one in ids] if with_pieces else ids

        return JsonBody({"tokens": await self._aside(encode)})

    async def detokenize(self, request: Request) -> Response:
        """Return the text of some tokens."""
        fields = read_json(await read_body(request))
        n_vocab = self.served().vocab_size
        ids = fields.required(fields.items("tokens", _MOST_IDS), "tokens", "a list of token ids")
        if not all(type(one) is int and 0 <= one < n_vocab for one in ids):
            raise ApiError(f"tokens: ids must be whole numbers from 0 to {n_vocab - 1}", 400, "tokens", "invalid_value")
        fields.refuse_rest()
        return JsonBody({"content": await self._aside(lambda model: model.tokenizer.decode(ids))})

    def served(self) -> Served:
        """Return the open model. Raises ApiError: it is not open yet."""
        if self._engine.served is None:
            raise unavailable("the model is being opened (try again later)", "model_loading")
        return self._engine.served

    async def _aside(self, work: Callable[[Any], Any]) -> Any:
        return await asyncio.wrap_future(self._engine.aside(work))

    async def _reply(self, request: Request, read_order: ReadOrder, kind: type[Body] = ReplyBody) -> Response:
        order = read_order(read_json(await read_body(request)), self._model_id)
        self.served()
        peer = request.client.host if request.client is not None else ""
        job = Job(order, peer, asyncio.get_running_loop())
        body = kind(order, self._model_id)
        self._engine.ask(job)
        if not order.is_streamed:
            async with watched(request.receive, lambda: self._engine.drop(job)):
                return await self._whole(job, body)
        stream = self._stream(request, job, body)
        await anext(stream)  # what is wrong with the prompt is told by the status, which the first event settles
        return EventStream(stream, body.ends_with_done)

    async def _whole(self, job: Job, body: Body) -> Response:
        pieces: list[Piece] = []
        async for one in self._happenings(job):
            if isinstance(one, Piece):
                pieces.append(one)
            elif isinstance(one, Ended):
                return JsonBody(body.whole(pieces, one))
        raise GoneError

    async def _stream(self, request: Request, job: Job, body: Body) -> AsyncGenerator[dict[str, Any] | None, None]:
        async with watched(request.receive, lambda: self._engine.drop(job)):
            happenings = self._happenings(job, STILL_HERE_S)
            try:
                async for one in happenings:
                    if one is None or isinstance(one, Begun):
                        yield None
                    for event in body.events(one) if one is not None else ():
                        yield event
            except ApiError as error:
                if not job.has_begun:
                    raise
                yield body.broken(error)

    async def _happenings(self, job: Job, patience_s: float | None = None) -> AsyncGenerator[Happening | None, None]:
        """Yield what happens to a job until it ends, and None where nothing has for a while.

        Raises:
            ApiError: it broke off.
            GoneError: the client has left.
        """
        try:
            while True:
                try:
                    came = await asyncio.wait_for(job.next(), patience_s if job.has_begun else None)
                except asyncio.TimeoutError:
                    yield None
                    continue
                for one in came:
                    if isinstance(one, Ended):
                        self._note(one)
                    if isinstance(one, Ended) and (one.error is not None or one.reason == "cancelled"):
                        raise one.error or GoneError
                    yield one
                    if isinstance(one, Ended):
                        return
        finally:
            self._engine.drop(job)  # whatever ended this, nobody reads on

    def _note(self, ended: Ended) -> None:
        self._metrics.note_reply(ended)
        if ended.error is not None:
            self._log(f"reply broken off: {ended.error.message}")
            return
        tps = (ended.tokens - 1) / ended.write_s if ended.write_s > 0 and ended.tokens > 1 else 0.0
        how = f"{ended.reason}: {ended.prompt_tokens} prompt tokens, {ended.cached_tokens} of them cached"
        self._log(f"reply {how}; {ended.tokens} written at {tps:.1f} tok/s")


def _with_piece(tokenizer: Any, token_id: int) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
    try:
        return {"id": token_id, "piece": raw.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(raw)}
