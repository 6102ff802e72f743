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
from app.conversations.conversation import PastTurn
from app.downloads.refusal import DownloadError
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace, RemoteModel
from app.remote.exchange import Exchange, Listed, find_key
from app.remote.turn import Begun, RemoteTurn
from app.text.clean_text import clean_line
from app.text.record import record
from engine.prompt.thinking_mode import ThinkingMode

CHAT, COMPLETIONS = "/chat/completions", "/completions"
_FIELDS = {"repeat_window": "repeat_last_n", "dry_window": "dry_penalty_last_n"}
"""Names of sampling parameters where the API's differ from the settings'."""
_MOST_NAMED = 6
"""Models that a line names."""


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
    begun: Begun | None = None


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
        elif isinstance(command, commands.Prepare):
            self._wire.idle_work.end()
        elif isinstance(command, commands.Tune):
            self._wire.emit(events.TuningEnded("the model is computed elsewhere, and not by threads of this machine"))
        elif isinstance(command, commands.Think):
            self._think(command)
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
        exchange = self._exchange(path, key)
        try:
            with self._wire.running(exchange):
                found = _chosen(path, exchange.models())
        except DownloadError:
            if exchange.is_cancelled:
                raise Refusal("stopped before the server answered") from None
            raise
        self._seen = path, _Open(replace(path, name=found.name), found.n_ctx, key)

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
        if isinstance(command, commands.Complete):
            path, request = COMPLETIONS, {"prompt": command.text}
        else:
            path, request = CHAT, self._request(asked)
        exchange = self._exchange(opened.model, opened.key)
        request = {"model": opened.model.name, **request, **self._how()}
        turn = RemoteTurn(self._wire, exchange, path, request, asked.begun, self._options.tells_pieces)
        try:
            with self._wire.running(exchange, turn.written):
                is_answered = turn.run()
            if is_answered and not isinstance(command, commands.Complete):
                self._turns = (*asked.before, PastTurn(asked.question, turn.answer))
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
            return _Asked(command.text, kept)
        if isinstance(command, commands.ContinueEdited):
            turns = turns[: max(0, command.n_turn + 1 - self._n_dropped)]
        if not turns:
            return None
        *before, last = turns
        begun = None
        if isinstance(command, commands.Continue):
            begun = Begun(last.reply, command.thinking)
        elif isinstance(command, commands.ContinueEdited):
            begun = Begun(command.text, command.thinking)
            if begun.is_thought and begun.thinking is not None:  # it was the thought that was edited
                begun = Begun("", replace(begun.thinking, text=command.text))
        return _Asked(last.question, tuple(before), begun)

    def _request(self, asked: _Asked) -> dict[str, Any]:
        """Return the conversation up to where the reply goes on."""
        said = [("system", self._system)] if self._system else []
        for turn in asked.before:
            said += [("user", turn.question), ("assistant", turn.reply)]
        said.append(("user", asked.question))
        request: dict[str, Any] = self._thought()
        if asked.begun is not None:
            said.append(("assistant", asked.begun.sent))
            if not asked.begun.is_thought:  # llama-server goes on with an answer only where none is thought before it
                request = {"chat_template_kwargs": {"enable_thinking": False}}
            request |= {"add_generation_prompt": False, "continue_final_message": True}
        return {"messages": [{"role": role, "content": text} for role, text in said], **request}

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


def _notices(opened: _Open) -> tuple[str, ...]:
    """Warn where others can read what is written."""
    if opened.model.is_private:
        return ()
    withheld = "; the key is not sent" if opened.key else ""
    cure = "https, or an SSH tunnel, hides it"
    return (f"{opened.model.host}: what is written goes there unencrypted{withheld} ({cure})",)
