"""A server that speaks the API of OpenAI as a backend: each turn sends the whole conversation.

What concerns the engine here (threads, its cache, reading ahead, dropping what has no room) is left
out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.backend.engine_link import EngineLink
from app.backend.local import opening as access
from app.backend.options import ChatOptions
from app.backend.protocol import DocumentToRead, Opening
from app.backend.remote.calls import messages_of
from app.backend.remote.exchange import Exchange
from app.backend.remote.keys import find_key
from app.backend.remote.listing import ServerModel, models_of
from app.backend.remote.turn import RemoteTurn, ReplyBeginning
from app.backend.reply import ReplyMeter
from app.backend.status import Activity, EngineStatus
from app.backend.tools import EngineTools
from app.forms.answer_form import GRAMMAR, REGEX, AnswerForm
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace, RemoteModel
from app.program.web_refusals import DownloadError, StatusError
from app.session import events
from app.session.request import Continuation, Request
from app.text.clean_text import clean_line
from app.text.record import record
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.tools.calls import ToolCall

CHAT = "/chat/completions"
COMPLETIONS = "/completions"
_VERSION = "/v1"
_FIELDS = {"repeat_window": "repeat_last_n", "dry_window": "dry_penalty_last_n"}
"""Names of sampling parameters where the API's differ from the settings'."""
_OTHER_KINDS = re.compile(r"embed|rerank|whisper|\btts\b|moderation|dall-e", re.IGNORECASE)
"""Parts of the names of models that answer no question."""
_MOST_NAMED = 6
"""Models that a line names."""
_UNLISTED = (404, 405, 501)
"""Statuses of servers that do not list their models."""
_TOKEN_CHARS = 3
"""Of a token, few enough that a text cut by them has no more tokens than it may."""


@record
class _Open:
    """A server's model."""

    model: RemoteModel
    n_ctx: int
    key: str


class RemoteBackend:
    """Talks to servers; every method as of ``Backend``."""

    def __init__(
        self,
        link: EngineLink,
        options: ChatOptions,
        sampling: Callable[[], Mapping[str, float]],
        exchange: Callable[[RemoteModel, str], Exchange] = Exchange,
    ) -> None:
        self._link = link
        self._options = options
        self._sampling = sampling
        self._exchange = exchange
        self._tools = EngineTools(link, options)
        self._open: _Open | None = None
        self._used_tokens = 0
        self._seen: tuple[ModelPlace, _Open] | None = None
        """What was looked at last."""

    @property
    def is_open(self) -> bool:
        """Whether a server answered."""
        return self._open is not None

    def continue_conversation(self, request: Request, state: Path | None = None) -> None:
        """Nothing was sent of another conversation yet."""
        self._used_tokens = 0
        self.settle()
        if request.n_turns:
            self._link.emit(events.ConversationTakenUp(0))

    def read(self, request: Request) -> None:
        """A server reads nothing before it is asked."""

    def read_ahead(self, request: Request, draft: str, is_read: bool, is_settled: bool) -> None:
        """A server reads nothing before it is asked."""

    def read_document(self, wanted: DocumentToRead) -> None:
        """A server reads nothing before it is asked."""

    def weigh(self, request: Request, draft: str) -> None:
        """Only the server could count."""

    def write_title(self, request: Request, conversation_id: str) -> None:
        """A server is asked nothing of its own accord."""

    def measure_bandwidth(self) -> None:
        """This machine computes nothing."""

    def tune(self, parts: tuple[str, ...]) -> None:
        """There is nothing to tune."""
        self._link.emit(
            events.TuningEnded(
                "the model is computed elsewhere, and not by threads of this machine"
            )
        )

    def settle(self, meter: ReplyMeter | None = None) -> None:
        """Say that the thread is free."""
        opened = self._open
        if opened is None:
            self._link.update(status=EngineStatus())
            return
        status = EngineStatus(Activity.READY, meter=meter, server=opened.model.host)
        self._link.update(
            status=replace(status, n_ctx=opened.n_ctx, context_used=self._used_tokens)
        )

    def unload(self) -> None:
        """Forget the server."""
        self._open = None
        self._link.inbox.thinking = ""
        self.settle()

    def look_at(self, place: ModelPlace) -> None:
        """Ask which models there are, and choose.

        Raises Refusal or DownloadError: it is not there, or unknown.
        """
        assert isinstance(place, RemoteModel)
        self._link.update(
            status=EngineStatus(
                Activity.LOADING, clean_line(place.stem, 40), since_s=self._link.now_s()
            )
        )
        key = find_key(place.host)
        places = [place]
        # an address without its last part is a usual mistake
        if not place.server.endswith(_VERSION):
            places.append(replace(place, server=place.server + _VERSION))
        for tried in places:
            exchange = self._exchange(tried, key)
            try:
                with self._link.running(exchange):
                    found = _chosen(place, models_of(exchange))
                break
            except DownloadError as error:
                if exchange.is_cancelled:
                    raise Refusal("stopped before the server answered") from None
                if not isinstance(error, StatusError) or error.status not in _UNLISTED:
                    raise
                if tried is places[-1]:
                    tried = place
                    found = _unlisted(place, error)
        self._seen = place, _Open(replace(tried, name=found.name), found.n_ctx, key)

    def open(self, opening: Opening) -> None:
        """Use a server's model."""
        assert isinstance(opening.place, RemoteModel)
        if self._seen is None or self._seen[0] is not opening.place:
            self.look_at(opening.place)
        assert self._seen is not None
        self._open = opened = self._seen[1]
        self._seen = None
        place = opened.model
        self._used_tokens = 0
        self.settle()
        self._link.inbox.thinking = str(
            ThinkingMode.parse(access.recall_thinking(self._options.settings, place))
        )
        if self._options.generation is not None:
            self._options.generation.recall(place)
        name = clean_line(place.name, 60)
        self._link.emit(
            events.ModelLoaded(
                name,
                "",
                str(place),
                opened.n_ctx,
                0,
                0,
                _notices(opened),
                place.name,
                self._link.inbox.thinking,
                place.host,
            )
        )
        if opening.keeps and opening.request.n_turns:
            self._link.emit(
                events.ConversationReread(0, 0, 0.0)
                if opening.rereads
                else events.ConversationTakenUp(0)
            )

    def use_adapters(self, adapters: tuple[str, ...]) -> None:
        """Use none. Raises Refusal: others are wanted."""
        if adapters:
            raise Refusal(
                "adapters change models of this machine, and a server computes (/lora off)"
            )
        self._link.emit(events.AdaptersChanged(()))

    def call_tools(self, calls: tuple[ToolCall, ...], allowed: frozenset[str]) -> None:
        """Run calls on this machine."""
        meter = self._link.status.meter
        if self._open is not None:
            n_ctx = self._open.n_ctx
        else:
            n_ctx = 0
        try:
            self._tools.call(calls, allowed, n_ctx, _within)
        finally:
            self.settle(meter)

    def reply(self, request: Request) -> None:
        """Send a request and tell its reply."""
        if request.adapters:
            self.use_adapters(request.adapters)
        opened = self._open
        if opened is None:
            raise Refusal("no model is loaded")
        if request.n_answers > 1:
            raise Refusal(
                f"{opened.model.host} writes one answer at a time "
                "(/regen without a number asks for one)"
            )
        tools: Sequence[Mapping[str, Any]] = ()
        body: dict[str, Any]
        if request.begun is not None:
            begun = _beginning(request.begun)
        else:
            begun = None
        if request.plain is not None:
            path = COMPLETIONS
            body = {"prompt": request.plain}
        else:
            started = self._tools.started()
            if started is None:
                self.settle()
                return
            tools = started
            path = CHAT
            body = self._conversation(request, begun)
            if tools:
                body["tools"] = list(tools)
        exchange = self._exchange(opened.model, opened.key)
        body = {"model": opened.model.name, **body, **self._how()}
        turn = RemoteTurn(
            self._link, exchange, path, body, begun, self._options.emits_pieces, tools
        )
        try:
            with self._link.running(exchange, turn.written):
                is_answered = turn.run()
            if is_answered and request.plain is None:
                self._used_tokens = turn.meter.prompt_tokens + turn.meter.tokens
        finally:
            self.settle(turn.meter)

    def _conversation(self, request: Request, begun: ReplyBeginning | None) -> dict[str, Any]:
        """Return the conversation up to where the reply goes on."""
        messages = messages_of(request.said, self._open.model if self._open is not None else None)
        fields: dict[str, Any] = self._thought()
        if begun is not None:
            messages.append({"role": "assistant", "content": begun.sent})
            # llama-server goes on with an answer only where none is thought before it
            if not begun.is_thought:
                fields = {"chat_template_kwargs": {"enable_thinking": False}}
            fields |= {"add_generation_prompt": False, "continue_final_message": True}
        return {"messages": messages, **fields}

    def _thought(self) -> dict[str, Any]:
        """Return the fields that ask for more or less thinking; what is left to the server has
        none."""
        thinking = ThinkingMode.parse(self._link.inbox.thinking)
        if thinking.level:
            return {"reasoning_effort": thinking.level}
        if thinking.is_on is None:
            return {}
        return {"chat_template_kwargs": {"enable_thinking": thinking.is_on}}

    def _how(self) -> dict[str, Any]:
        """Return what the user has set; the rest is the server's choice."""
        given = {_FIELDS.get(name, name): value for name, value in sorted(self._sampling().items())}
        given = {name: value for name, value in given.items() if not (name == "seed" and value < 0)}
        if given.get("dry_penalty_last_n") == 0:
            given["dry_penalty_last_n"] = -1
        if not given.get("max_tokens", 1):
            del given["max_tokens"]
        if self._options.form is not None:
            form = self._options.form.form
        else:
            form = None
        return {
            **given,
            **_form_fields(form),
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _beginning(begun: Continuation) -> ReplyBeginning:
    """Return what a server is told of a reply that goes on."""
    if begun.edited is None:
        return ReplyBeginning(begun.reply.text, begun.thinking)
    edited = ReplyBeginning(begun.edited, begun.thinking)
    if edited.is_thought and edited.thinking is not None:  # it was the thought that was edited
        return ReplyBeginning("", replace(edited.thinking, text=begun.edited))
    return edited


def _form_fields(form: AnswerForm | None) -> dict[str, Any]:
    """Return the fields that give a reply a form; a server that has no such form refuses them."""
    if form is None:
        return {}
    if form.kind == GRAMMAR:
        return {"grammar": form.text}
    if form.kind == REGEX:
        return {"response_format": {"type": "regex", "pattern": form.text}}
    schema = {"name": "answer", "schema": json.loads(form.text)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _chosen(wanted: RemoteModel, listed: Sequence[ServerModel]) -> ServerModel:
    """Return the model of this name, or the only one with it in its name.

    Without a name it is the first that may be one for chats: servers list models for embeddings
    among the others.

    Raises:
        Refusal: there is none.
    """
    if not listed:
        raise Refusal(f"{wanted.host}: has no model")
    if not wanted.name:
        return next((model for model in listed if not _OTHER_KINDS.search(model.name)), listed[0])
    exact = [one for one in listed if wanted.name == one.name]
    like = [one for one in listed if wanted.name.lower() in one.name.lower()]
    if exact or len(like) == 1:
        return (exact or like)[0]
    names = ", ".join(clean_line(one.name, 40) for one in listed[:_MOST_NAMED])
    if len(listed) > _MOST_NAMED:
        more = f" and {len(listed) - _MOST_NAMED} more"
    else:
        more = ""
    raise Refusal(
        f"{wanted.host}: has no model {clean_line(wanted.name, 60)} (it has: {names}{more})"
    )


def _unlisted(wanted: RemoteModel, error: StatusError) -> ServerModel:
    """Return the model that the user named, of a server that lists none.

    Raises DownloadError: there is no name.
    """
    if not wanted.name:
        words = f"{error}; where a server does not list its models, name one with --model"
        raise StatusError(words, error.status, error.pause_s)
    return ServerModel(wanted.name)


def _within(text: str, room: int) -> str:
    """Cut a text to about a number of tokens, which only the server could count."""
    n_chars = room * _TOKEN_CHARS
    if len(text) <= n_chars:
        return text
    return f"{text[:n_chars]}\n[cut: {n_chars} of {len(text)} characters]"


def _notices(opened: _Open) -> tuple[str, ...]:
    """Warn where others can read what is written."""
    if opened.model.is_private:
        return ()
    if opened.key:
        withheld = "; the key is not sent"
    else:
        withheld = ""
    cure = "https, or an SSH tunnel, hides it"
    return (f"{opened.model.host}: what is written goes there unencrypted{withheld} ({cure})",)
