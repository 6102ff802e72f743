"""Commands carried out by a server that speaks the API of OpenAI: each turn sends the conversation, which is kept here.

What concerns the engine here (threads, its cache, reading ahead, dropping what has no room) is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.chat import commands, events, opening
from app.chat.answer_form import GRAMMAR, REGEX, AnswerForm
from app.chat.options import ChatOptions
from app.chat.reply import ReplyMeter
from app.chat.status import Activity, EngineStatus
from app.chat.wire import Wire
from app.chat.worker_tools import EngineTools
from app.conversations.conversation import PastTurn
from app.downloads.refusal import DownloadError, StatusError
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace, RemoteModel
from app.remote.exchange import Exchange
from app.remote.keys import find_key
from app.remote.listing import Listed, models_of
from app.remote.messages import messages_of
from app.remote.turn import RemoteTurn, ReplyBeginning
from app.text.clean_text import clean_line
from app.text.record import record
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.tools.calls import CallResult

CHAT, COMPLETIONS = "/chat/completions", "/completions"
_VERSION = "/v1"
_FIELDS = {"repeat_window": "repeat_last_n", "dry_window": "dry_penalty_last_n"}
"""Names of sampling parameters where the API's differ from the settings'."""
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


@record
class _Asked:
    """A turn before its reply."""

    question: str
    before: tuple[PastTurn, ...]
    begun: ReplyBeginning | None = None
    results: tuple[CallResult, ...] = ()
    """Of calls of the last turn before, in place of the question."""


class RemoteWorker:
    """Talks to servers."""

    def __init__(
        self,
        wire: Wire,
        options: ChatOptions,
        sampling: Callable[[], Mapping[str, float]],
        exchange: Callable[[RemoteModel, str], Exchange] = Exchange,
    ) -> None:
        self._wire, self._options, self._sampling, self._exchange = wire, options, sampling, exchange
        self._tools = EngineTools(wire, options)
        self._open: _Open | None = None
        self._system: str | None = None
        self._turns: tuple[PastTurn, ...] = ()
        self._n_dropped = 0
        """Turns at the conversation's beginning that had left an engine's context."""
        self._used_tokens = 0
        self._seen: tuple[ModelPlace, _Open] | None = None
        """What was looked at last."""

    @property
    def is_open(self) -> bool:
        """Whether a server answered."""
        return self._open is not None

    def obey(self, command: commands.Command) -> None:
        """Carry a command out."""
        if isinstance(command, commands.Load):
            self._load(command)
        elif isinstance(command, commands.OpenConversation):
            self._begin(command)
            if command.turns:
                self._wire.emit(events.ConversationTakenUp(0))
        elif isinstance(command, commands.IDLE_WORK):
            self._wire.idle_work.end()
        elif isinstance(command, commands.Tune):
            self._wire.emit(events.TuningEnded("the model is computed elsewhere, and not by threads of this machine"))
        elif isinstance(command, commands.Think):
            self._think(command)
        elif isinstance(command, commands.CallTools):
            self._call(command)
        elif isinstance(command, commands.Turn):
            self._take_turn(command)

    def settle(self, meter: ReplyMeter | None = None) -> None:
        """Say that the thread is free."""
        opened = self._open
        if opened is None:
            self._wire.status = EngineStatus()
            return
        status = EngineStatus(Activity.READY, meter=meter, server=opened.model.host)
        self._wire.status = replace(status, n_ctx=opened.n_ctx, context_used=self._used_tokens)

    def unload(self) -> None:
        """Forget the server."""
        self._open, self._wire.thinking = None, ""
        self.settle()

    def look_at(self, path: ModelPlace) -> None:
        """Ask which models there are, and choose. Raises Refusal or DownloadError: it is not there, or unknown."""
        assert isinstance(path, RemoteModel)
        self._wire.status = EngineStatus(Activity.LOADING, clean_line(path.stem, 40), since_s=self._wire.now_s())
        key = find_key(path.host)
        places = [path]
        if not path.server.endswith(_VERSION):  # an address without its last part is a usual mistake
            places.append(replace(path, server=path.server + _VERSION))
        for place in places:
            exchange = self._exchange(place, key)
            try:
                with self._wire.running(exchange):
                    found = _chosen(path, models_of(exchange))
                break
            except DownloadError as error:
                if exchange.is_cancelled:
                    raise Refusal("stopped before the server answered") from None
                if not isinstance(error, StatusError) or error.status not in _UNLISTED:
                    raise
                if place is places[-1]:
                    place, found = path, _unlisted(path, error)
        self._seen = path, _Open(replace(place, name=found.name), found.n_ctx, key)

    def _load(self, command: commands.Load) -> None:
        assert isinstance(command.path, RemoteModel)
        if self._seen is None or self._seen[0] is not command.path:
            self.look_at(command.path)
        assert self._seen is not None
        self._open = opened = self._seen[1]
        self._seen = None
        place = opened.model
        self._begin(command.said if command.keeps else commands.OpenConversation(command.said.system))
        self._wire.thinking = str(ThinkingMode.parse(opening.recall_thinking(self._options.settings, place)))
        if self._options.generation is not None:
            self._options.generation.recall(place)
        name = clean_line(place.name, 60)
        self._wire.emit(
            events.ModelLoaded(
                name, "", str(place), opened.n_ctx, 0, 0, _notices(opened), place.name, self._wire.thinking, place.host
            )
        )
        if self._turns:
            self._wire.emit(events.ConversationReread(0, 0, 0.0) if command.rereads else events.ConversationTakenUp(0))

    def _think(self, command: commands.Think) -> None:
        if self._open is None:
            return
        thinking = ThinkingMode.parse(command.mode)
        self._wire.thinking = str(thinking)
        trouble = opening.remember_thinking(self._open.model, self._wire.thinking)
        if thinking.budget_tokens is not None:
            trouble = "a server is only told to think, not how long"
        self._wire.emit(events.ThinkingChosen(self._wire.thinking, trouble or ""))

    def _call(self, command: commands.CallTools) -> None:
        meter, n_ctx = self._wire.status.meter, self._open.n_ctx if self._open is not None else 0
        try:
            self._tools.call(command, n_ctx, _within)
        finally:
            self.settle(meter)

    def _begin(self, said: commands.OpenConversation) -> None:
        self._system, self._turns, self._n_dropped, self._used_tokens = said.system, said.turns, said.n_dropped, 0
        self.settle()

    def _take_turn(self, command: commands.Turn) -> None:
        opened = self._open
        asked = _Asked("", self._turns) if isinstance(command, commands.Complete) else self._asked(command)
        if opened is None or asked is None:
            reason = "no model is loaded" if opened is None else "no reply to continue or answer again"
            self._wire.emit(events.GenerationFailed(reason))
            return
        tools: Sequence[Mapping[str, Any]] = ()
        request: dict[str, Any]
        if isinstance(command, commands.Complete):
            path, request = COMPLETIONS, {"prompt": command.text}
        else:
            started = self._tools.started()
            if started is None:
                self.settle()
                return
            tools = started
            path, request = CHAT, self._request(asked)
            if tools:
                request["tools"] = list(tools)
        exchange = self._exchange(opened.model, opened.key)
        request = {"model": opened.model.name, **request, **self._how()}
        turn = RemoteTurn(self._wire, exchange, path, request, asked.begun, self._options.tells_pieces, tools)
        try:
            with self._wire.running(exchange, turn.written):
                is_answered = turn.run()
            if is_answered and not isinstance(command, commands.Complete):
                raw = turn.written()[1]
                told = PastTurn(asked.question, turn.answer, raw=raw, calls=turn.calls, results=asked.results)
                self._turns = (*asked.before, told)
                self._used_tokens = turn.meter.prompt_tokens + turn.meter.tokens
        finally:
            self.settle(turn.meter)

    def _asked(
        self, command: commands.Ask | commands.Regenerate | commands.Continue | commands.ContinueEdited
    ) -> _Asked | None:
        """Return what a command asks for; None where there is no reply that it could concern."""
        turns = self._turns
        if isinstance(command, commands.Ask):
            kept = turns if command.keep_turns is None else turns[: max(0, command.keep_turns - self._n_dropped)]
            if command.answered is None or not kept:
                return _Asked(command.text, kept)
            called = replace(kept[-1], calls=command.answered.calls)
            return _Asked(command.text, (*kept[:-1], called), results=command.answered.results)
        if isinstance(command, commands.ContinueEdited):
            turns = turns[: max(0, command.n_turn + 1 - self._n_dropped)]
        if not turns:
            return None
        *before, last = turns
        begun = None
        if isinstance(command, commands.Continue):
            begun = ReplyBeginning(last.reply, command.thinking)
        elif isinstance(command, commands.ContinueEdited):
            begun = ReplyBeginning(command.text, command.thinking)
            if begun.is_thought and begun.thinking is not None:  # it was the thought that was edited
                begun = ReplyBeginning("", replace(begun.thinking, text=command.text))
        return _Asked(last.question, tuple(before), begun, last.results)

    def _request(self, asked: _Asked) -> dict[str, Any]:
        """Return the conversation up to where the reply goes on."""
        messages = messages_of(self._system, asked.before, asked.question, asked.results)
        request: dict[str, Any] = self._thought()
        if asked.begun is not None:
            messages.append({"role": "assistant", "content": asked.begun.sent})
            if not asked.begun.is_thought:  # llama-server goes on with an answer only where none is thought before it
                request = {"chat_template_kwargs": {"enable_thinking": False}}
            request |= {"add_generation_prompt": False, "continue_final_message": True}
        return {"messages": messages, **request}

    def _thought(self) -> dict[str, Any]:
        """Return the fields that ask for more or less thinking; what is left to the server has none."""
        thinking = ThinkingMode.parse(self._wire.thinking)
        if thinking.level:
            return {"reasoning_effort": thinking.level}
        return {} if thinking.is_on is None else {"chat_template_kwargs": {"enable_thinking": thinking.is_on}}

    def _how(self) -> dict[str, Any]:
        """Return what the user has set; the rest is the server's choice."""
        given = {_FIELDS.get(name, name): value for name, value in sorted(self._sampling().items())}
        given = {name: value for name, value in given.items() if not (name == "seed" and value < 0)}
        if given.get("dry_penalty_last_n") == 0:
            given["dry_penalty_last_n"] = -1
        if not given.get("max_tokens", 1):
            del given["max_tokens"]
        form = self._options.form.form if self._options.form is not None else None
        return {**given, **_form_fields(form), "stream": True, "stream_options": {"include_usage": True}}


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


def _chosen(wanted: RemoteModel, listed: Sequence[Listed]) -> Listed:
    """Return the model of this name, the only one with it in its name, or the first. Raises Refusal: there is none."""
    if not listed:
        raise Refusal(f"{wanted.host}: has no model")
    exact = [one for one in listed if wanted.name in ("", one.name)]
    like = [one for one in listed if wanted.name.lower() in one.name.lower()]
    if exact or len(like) == 1:
        return (exact or like)[0]
    names = ", ".join(clean_line(one.name, 40) for one in listed[:_MOST_NAMED])
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    raise Refusal(f"{wanted.host}: has no model {clean_line(wanted.name, 60)} (it has: {names}{more})")


def _unlisted(wanted: RemoteModel, error: StatusError) -> Listed:
    """Return the model that the user named, of a server that lists none. Raises DownloadError: there is no name."""
    if not wanted.name:
        words = f"{error}; where a server does not list its models, name one with --model"
        raise StatusError(words, error.status, error.pause_s)
    return Listed(wanted.name)


def _within(text: str, room: int) -> str:
    """Cut a text to about a number of tokens, which only the server could count."""
    n_chars = room * _TOKEN_CHARS
    return text if len(text) <= n_chars else f"{text[:n_chars]}\n[cut: {n_chars} of {len(text)} characters]"


def _notices(opened: _Open) -> tuple[str, ...]:
    """Warn where others can read what is written."""
    if opened.model.is_private:
        return ()
    withheld = "; the key is not sent" if opened.key else ""
    cure = "https, or an SSH tunnel, hides it"
    return (f"{opened.model.host}: what is written goes there unencrypted{withheld} ({cure})",)
