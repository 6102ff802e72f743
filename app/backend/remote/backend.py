"""A server with OpenAI's API as a backend: each turn sends the whole conversation.

Work of a local engine (threads, the cache, reading ahead, dropping old turns) does not exist here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.backend.engine_link import EngineLink
from app.backend.local import engine_access
from app.backend.options import ChatOptions
from app.backend.protocol import DocumentToRead, Opening
from app.backend.remote.exchange import Exchange
from app.backend.remote.keys import find_key
from app.backend.remote.listing import ServerModel, list_server_models
from app.backend.remote.picture_parts import PictureParts
from app.backend.remote.tool_calls import messages_of
from app.backend.remote.turn import RemotePrefix, RemoteTurn
from app.backend.reply import ReplyMeter
from app.backend.status import Activity, EngineStatus
from app.backend.tools import EngineTools
from app.conversations.session_options import SessionOptions
from app.forms.answer_form import GRAMMAR, REGEX, AnswerForm
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace, RemoteModel
from app.program.settings import AUTO
from app.program.web_refusals import DownloadError, StatusError
from app.session import events
from app.session.request import Continuation, Request, named_dates
from app.text.clean_text import clean_line
from app.text.record import record
from engine.prompt.thinking import ThinkingMode
from engine.prompt.tools.calls import ToolCall

CHAT_PATH = "/chat/completions"
COMPLETION_PATH = "/completions"
_VERSION = "/v1"
_API_NAMES = {"repeat_window": "repeat_last_n", "dry_window": "dry_penalty_last_n"}
"""Names of sampling parameters in the API, where they differ from the settings."""
_OTHER_PURPOSE = re.compile(r"embed|rerank|whisper|\btts\b|moderation|dall-e", re.IGNORECASE)
"""Pattern of the names of models that are not for chats."""
_MAX_NAMES = 6
"""Limit on the names of models in an error."""
_NO_LIST_STATUSES = (404, 405, 501)
"""Statuses of servers that do not list their models."""
_TOKEN_CHARS = 3
"""Characters per token, few enough that a text cut by this number has not too many tokens."""


@record
class _OpenServer:
    """A model of a server."""

    model: RemoteModel
    n_ctx: int
    key: str


class RemoteBackend:
    """Backend that sends each turn to a server. ``Backend`` describes the methods."""

    def __init__(
        self,
        link: EngineLink,
        options: ChatOptions,
        exchange: Callable[[RemoteModel, str], Exchange] = Exchange,
    ) -> None:
        self._link = link
        self._options = options
        self._exchange = exchange
        self._tools = EngineTools(link, options)
        self._picture_parts = PictureParts(options.settings.pictures.detail)
        self._open: _OpenServer | None = None
        self._used_tokens = 0
        self._found: tuple[ModelPlace, _OpenServer] | None = None
        """Model that was found last and is not open yet, with the place that was asked for."""

    @property
    def is_open(self) -> bool:
        """Whether a server is in use."""
        return self._open is not None

    def compare(self, place: Path, request: Request, back: Opening) -> None:
        """Refuse: models of servers are not compared."""
        raise Refusal("only models of this machine are compared (/regen NAME)")

    def continue_conversation(self, request: Request, state: Path | None = None) -> None:
        """Reset the count of tokens: the server has nothing of the conversation."""
        self._used_tokens = 0
        self.report_free()
        if request.n_turns:
            self._link.emit(events.ConversationResumed(0))

    def read(self, request: Request) -> None:
        """Do nothing: servers read nothing in advance."""

    def read_ahead(self, request: Request, draft: str, is_read: bool, is_settled: bool) -> None:
        """Do nothing: servers read nothing in advance."""

    def read_document(self, document: DocumentToRead) -> None:
        """Do nothing: servers read nothing in advance."""

    def weigh(self, request: Request, draft: str) -> None:
        """Do nothing: only the server could count tokens."""

    def write_title(self, request: Request, conversation_id: str) -> None:
        """Do nothing: servers get no requests that the user did not make."""

    def measure_bandwidth(self) -> None:
        """Do nothing: this machine computes nothing."""

    def use_kv_type(self) -> None:
        """Do nothing: the server has the KV cache."""

    def tune(self, parts: tuple[str, ...]) -> None:
        """Report that there is nothing to tune."""
        self._link.emit(
            events.TuningEnded("the model runs on a server, so there are no threads to tune")
        )

    def report_free(self, meter: ReplyMeter | None = None) -> None:
        """Report that the thread is idle."""
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
        self.report_free()

    def look_at(self, place: ModelPlace) -> None:
        """Find a model of a server.

        Raises:
            DownloadError: The server cannot be reached.
            Refusal: The server does not have the model.
        """
        assert isinstance(place, RemoteModel)
        self._link.update(
            status=EngineStatus(
                Activity.LOADING, clean_line(place.stem, 40), since_s=self._link.now_s()
            )
        )
        key = find_key(place.host)
        candidates = [place]
        if not place.server.endswith(_VERSION):  # People often leave it out.
            candidates.append(replace(place, server=place.server + _VERSION))
        for candidate in candidates:
            exchange = self._exchange(candidate, key)
            try:
                with self._link.running(exchange):
                    model = _choose(place, list_server_models(exchange))
                break
            except DownloadError as error:
                if exchange.is_cancelled:
                    raise Refusal("stopped before the server answered") from None
                if not isinstance(error, StatusError) or error.status not in _NO_LIST_STATUSES:
                    raise
                if candidate is candidates[-1]:
                    candidate = place
                    model = _unlisted_model(place, error)
        opened = _OpenServer(replace(candidate, name=model.name), model.n_ctx, key)
        self._found = (place, opened)

    def open(self, opening: Opening) -> None:
        """Use a model of a server."""
        assert isinstance(opening.place, RemoteModel)
        if self._found is None or self._found[0] is not opening.place:
            self.look_at(opening.place)
        assert self._found is not None
        _, opened = self._found
        self._open = opened
        self._found = None
        place = opened.model
        self._used_tokens = 0
        self.report_free()
        thinking = opening.request.options.thinking or engine_access.recall_thinking(
            self._options.settings, place
        )
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
                str(ThinkingMode.parse(thinking)),
                place.host,
                # Only a request shows whether a server's model sees.
                sees_pictures=True,
            )
        )
        if opening.keeps and opening.request.n_turns:
            if opening.rereads:
                self._link.emit(events.ConversationReread(0, 0, 0.0))
            else:
                self._link.emit(events.ConversationResumed(0))

    def use_adapters(self, adapters: tuple[str, ...]) -> None:
        """Report that no adapters are used.

        Raises:
            Refusal: Adapters are requested.
        """
        if adapters:
            raise Refusal("adapters work only with models on this machine (/lora off)")
        self._link.emit(events.AdaptersChanged(()))

    def call_tools(self, calls: tuple[ToolCall, ...], settled: Mapping[str, str]) -> None:
        """Run calls on this machine."""
        meter = self._link.status.meter
        n_ctx = 0 if self._open is None else self._open.n_ctx
        try:
            self._tools.call(calls, settled, n_ctx, _shorten)
        finally:
            self.report_free(meter)

    def reply(self, request: Request) -> None:
        """Send a request and report its reply."""
        if request.options.adapters:
            self.use_adapters(request.options.adapters)
        opened = self._open
        if opened is None:
            raise Refusal("no model is loaded")
        if request.n_answers > 1:
            raise Refusal(
                f"{opened.model.host} writes one answer at a time "
                "(/regen without a number asks for one)"
            )

        prefix: RemotePrefix | None = None
        if request.continuation is not None:
            prefix = _remote_prefix(request.continuation)
        tools: Sequence[Mapping[str, Any]] = ()
        body: dict[str, Any]
        if request.plain is not None:
            path = COMPLETION_PATH
            body = {"prompt": request.plain}
        else:
            started_tools = self._tools.started(has_form=request.options.form is not None)
            if started_tools is None:
                self.report_free()
                return
            tools = started_tools
            path = CHAT_PATH
            body = self._chat_fields(request, opened.model, prefix)
            if tools and (request.may_call or request.has_results):
                body["tools"] = list(tools)
                if not request.may_call:
                    body["tool_choice"] = "none"
        body = {"model": opened.model.name, **body, **_option_fields(request.options)}

        exchange = self._exchange(opened.model, opened.key)
        turn = RemoteTurn(
            self._link,
            exchange,
            path,
            body,
            prefix,
            self._options.emits_pieces,
            tools,
            request.may_call,
        )
        try:
            with self._link.running(exchange, turn.written):
                is_answered = turn.run()
            if is_answered and request.plain is None:
                self._used_tokens = turn.meter.prompt_tokens + turn.meter.tokens
        finally:
            self.report_free(turn.meter)

    def _chat_fields(
        self, request: Request, model: RemoteModel, prefix: RemotePrefix | None
    ) -> dict[str, Any]:
        """Return the fields of a conversation up to the position where the reply continues."""
        setting = self._options.settings.date_in_prompt
        prompt_messages = named_dates(request.messages, setting, has_own_date=True)
        contents = self._picture_parts.contents_of(prompt_messages)
        messages = messages_of(prompt_messages, model, contents)
        if prefix is None:
            return {"messages": messages, **_thinking_fields(request.options)}

        messages.append({"role": "assistant", "content": prefix.sent_text})
        if prefix.is_thought:
            fields = _thinking_fields(request.options)
        else:
            # llama-server continues an answer only if there is no thought before it.
            fields = {"chat_template_kwargs": {"enable_thinking": False}}
        return {
            "messages": messages,
            **fields,
            "add_generation_prompt": False,
            "continue_final_message": True,
        }


def _thinking_fields(options: SessionOptions) -> dict[str, Any]:
    """Return the fields for more or less thinking; empty if the server decides."""
    thinking = ThinkingMode.parse(options.thinking or AUTO)
    if thinking.level:
        return {"reasoning_effort": thinking.level}
    if thinking.is_on is None:
        return {}
    return {"chat_template_kwargs": {"enable_thinking": thinking.is_on}}


def _option_fields(options: SessionOptions) -> dict[str, Any]:
    """Return the fields for the user's options; the server decides about the rest."""
    fields: dict[str, Any] = {
        _API_NAMES.get(name, name): value for name, value in sorted(options.sampling.items())
    }
    if fields.get("seed", 0) < 0:
        del fields["seed"]
    if fields.get("dry_penalty_last_n") == 0:
        fields["dry_penalty_last_n"] = -1
    if not fields.get("max_tokens", 1):
        del fields["max_tokens"]
    fields |= _form_fields(options.form)
    return {**fields, "stream": True, "stream_options": {"include_usage": True}}


def _remote_prefix(continuation: Continuation) -> RemotePrefix:
    """Return the beginning of a continued reply, as the user may have edited it."""
    thinking = continuation.thinking
    if continuation.edited is None:
        return RemotePrefix(continuation.reply.text, thinking)
    if thinking is not None and not thinking.is_closed:  # The user has edited the thought.
        return RemotePrefix("", replace(thinking, text=continuation.edited))
    return RemotePrefix(continuation.edited, thinking)


def _form_fields(form: AnswerForm | None) -> dict[str, Any]:
    """Return the fields for the form of a reply. Servers without such a form refuse them."""
    if form is None:
        return {}
    if form.syntax == GRAMMAR:
        return {"grammar": form.text}
    if form.syntax == REGEX:
        return {"response_format": {"type": "regex", "pattern": form.text}}
    schema = {"name": "answer", "schema": json.loads(form.text)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _choose(place: RemoteModel, models: Sequence[ServerModel]) -> ServerModel:
    """Return the model with the requested name, or the only one that contains it in its name.

    Without a name, it is the first one for chats: servers list models for embeddings, too.

    Raises:
        Refusal: No model or several models match.
    """
    if not models:
        raise Refusal(f"{place.host}: has no model")
    if not place.name:
        return next((model for model in models if not _OTHER_PURPOSE.search(model.name)), models[0])

    exact_matches = [model for model in models if model.name == place.name]
    if exact_matches:
        return exact_matches[0]
    matches = [model for model in models if place.name.lower() in model.name.lower()]
    if len(matches) == 1:
        return matches[0]

    names = ", ".join(clean_line(model.name, 40) for model in models[:_MAX_NAMES])
    if len(models) > _MAX_NAMES:
        names += f" and {len(models) - _MAX_NAMES} more"
    raise Refusal(f"{place.host}: has no model {clean_line(place.name, 60)} (it has: {names})")


def _unlisted_model(place: RemoteModel, error: StatusError) -> ServerModel:
    """Return the model that the user named, of a server that lists no models.

    Raises:
        StatusError: The user named no model.
    """
    if not place.name:
        raise StatusError(
            f"{error}; if the server does not list its models, name one with --model",
            error.status,
            error.pause_s,
        )
    return ServerModel(place.name)


def _shorten(text: str, max_tokens: int) -> str:
    """Cut a text to about a number of tokens, which only the server could count."""
    n_chars = max_tokens * _TOKEN_CHARS
    if len(text) <= n_chars:
        return text
    return f"{text[:n_chars]}\n[cut: {n_chars} of {len(text)} characters]"


def _notices(opened: _OpenServer) -> tuple[str, ...]:
    """Return a warning if other people can read the conversation on its way."""
    if opened.model.is_private:
        return ()
    key_notice = "; the key is not sent" if opened.key else ""
    return (
        f"{opened.model.host}: your messages are sent unencrypted{key_notice} (https or an SSH "
        "tunnel protects them)",
    )
