"""One turn with a server: a request and its reply, told in the same events as one of the engine
here."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.backend.engine_link import EngineLink
from app.backend.engine_outbox import WrittenReply
from app.backend.remote.calls import CallCollector, written_calls
from app.backend.remote.exchange import Exchange
from app.backend.remote.pieces import LENGTH, Delta, Figures
from app.backend.remote.returned import FieldCollector
from app.backend.reply import ReplyMeter
from app.backend.reply_text import ReplyCollector, ReplyEmitter, TextEvent
from app.backend.status import Activity
from app.conversations.conversation import Ending
from app.conversations.server_fields import ServerFields
from app.reply.thinking import Thinking
from app.session import events
from app.text.record import record
from engine.prompt.tools.calls import ToolCall
from engine.prompt.tools.formats import format_of
from engine.prompt.tools.split import CallSplitter

_LEAST_ECHO_CHARS = 16
OPENED = "<think>\n"
CLOSED = "\n</think>\n\n"
"""Around a thought that a server tells apart, in the raw text of a reply."""
_CALL_FORMAT = format_of("<tool_call>")
"""In which calls are in the raw text of a reply, and in which servers without a parser of their own
leave them."""


@record
class ReplyBeginning:
    """The beginning of a reply that is continued."""

    answer: str = ""
    thinking: Thinking | None = None

    @property
    def is_thought(self) -> bool:
        """Whether the answer has not begun yet."""
        return self.thinking is not None and not self.thinking.is_closed

    @property
    def raw(self) -> str:
        """The text so far, with its thought."""
        if self.thinking is None:
            return self.answer
        return (
            OPENED + self.thinking.text + (CLOSED + self.answer if self.thinking.is_closed else "")
        )

    @property
    def sent(self) -> str:
        """Text that the server goes on from: templates leave out a thought that has ended."""
        if self.is_thought:
            return self.raw
        return self.answer


class _Echo:
    """The beginning of a reply that is continued, which some servers say again; a short one may
    well come twice."""

    def __init__(self, begun: str) -> None:
        if len(begun) >= _LEAST_ECHO_CHARS:
            self._left = begun
        else:
            self._left = ""
        self._held = ""

    def push(self, text: str) -> str:
        """Return what of a piece is new; it is held back while it may be the echo."""
        if not self._left:
            return text
        self._held += text
        if self._left.startswith(self._held) and self._left != self._held:
            return ""
        return self.flush()

    def flush(self) -> str:
        """Return what was held back, but for a whole echo."""
        new = self._held.removeprefix(self._left)
        self._left = ""
        self._held = ""
        return new


class RemoteTurn:
    """A request and its reply; ``begun``: of one that is continued. ``emits_pieces``: each is
    reported as it came.

    ``tools``: that the request offers; a call of others is text of the reply.
    """

    def __init__(
        self,
        link: EngineLink,
        exchange: Exchange,
        path: str,
        request: Mapping[str, Any],
        begun: ReplyBeginning | None = None,
        emits_pieces: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._link = link
        self._exchange = exchange
        self._path = path
        self._request = request
        self._begun = begun or ReplyBeginning()
        self._pieces: list[str] = []
        self._is_in_thought = False
        """Whether the server has told a thought apart, and nothing else since."""
        self._growing = ReplyCollector()
        self.meter = ReplyMeter(0, link.now_s)
        self._echo = _Echo(self._begun.sent)
        self._collector = CallCollector()
        self._returned = FieldCollector()
        self._splitter = (
            CallSplitter(_CALL_FORMAT, tools) if tools and _CALL_FORMAT is not None else None
        )
        self.calls: tuple[ToolCall, ...] = ()
        """Of tools, with which a whole reply ends."""
        if begun is not None:
            raw = begun.raw
        else:
            raw = None
        self._text = ReplyEmitter(
            self._emit, self.meter, "", raw, self._begun.thinking, self._splitter, emits_pieces
        )

    @property
    def answer(self) -> str:
        """The answer so far, cleaned, without the thought."""
        return self._growing.text

    def written(self) -> WrittenReply:
        """Text of the whole reply so far, without its tokens, which are not known; any thread may
        ask."""
        return (), self._begun.raw + "".join(self._pieces)

    def run(self) -> bool:
        """Answer; True when there is a reply, whole or partial.

        Raises what went wrong before anything came.
        """
        self._link.update_status(
            activity=Activity.READING,
            since_s=self.meter.started_s,
            meter=self.meter,
            turn_starts=(),
        )
        try:
            for piece in self._exchange.pieces(self._path, self._request):
                self._take(piece)
            self._take(Delta(self._echo.flush()))
            self._take_calls()
        except BaseException as error:
            if not self._exchange.is_cancelled:
                return self._fail(error)
        if self._exchange.is_cancelled:
            self.meter.finish_reason = "cancelled"
            if not self._pieces:
                self._emit(events.PromptStopped())
                return False
        self.meter.finish_reason = self.meter.finish_reason or "stop"
        self._text.finish()
        if self.meter.ending is Ending.COMPLETE:
            calls_at = self._find_calls()
        else:
            calls_at = 0
        figures = self.meter.figures()
        fields = self._server_fields()
        self._emit(
            events.GenerationFinished(
                self.meter.ending, figures, *self.written(), self.calls, calls_at, fields
            )
        )
        return True

    def _server_fields(self) -> ServerFields | None:
        """Return what the server needs back of a whole reply; None if it needs nothing."""
        if self.meter.ending is not Ending.COMPLETE:
            return None
        if len(self._collector.returned) == len(self.calls):
            call_fields = tuple(self._collector.returned)
        else:
            call_fields = ()
        if not any(call_fields):
            call_fields = ()
        message = self._returned.fields
        if not message and not call_fields:
            return None
        return ServerFields(
            self._exchange.model.server, self._exchange.model.name, message, call_fields
        )

    def _take_calls(self) -> None:
        """Write the calls that the server told apart into the text, where they are taken out again
        if they may run."""
        calls, others = self._collector.calls()
        for text in (*others, written_calls(calls)):
            self._take(Delta("\n" + text if self._pieces and text else text))

    def _find_calls(self) -> int:
        """Note the calls of a whole reply, each with an id, and return where in its text they
        begin."""
        if self._splitter is not None:
            found = self._splitter.calls
        else:
            found = []
        told, _ = self._collector.calls()
        if len(told) == len(found):
            ids = [one.call_id for one in told]
        else:
            ids = []
        ids += [secrets.token_hex(5)[:9] for _ in found[len(ids) :]]
        self.calls = tuple(
            replace(one, call_id=call_id) for one, call_id in zip(found, ids, strict=True)
        )
        if self._splitter is not None and found:
            return len(self.written()[1]) - self._splitter.tail_chars
        return 0

    def _fail(self, error: BaseException) -> bool:
        self.meter.finish_reason = "error"
        if not self._pieces:
            raise error
        self._text.finish()
        broken_off = events.GenerationFinished(
            self.meter.ending, self.meter.figures(), *self.written()
        )
        self._emit(events.GenerationFailed(events.reason_of(error), broken_off, error))
        return True

    def _take(self, piece: Delta) -> None:
        if piece.answer:
            piece = replace(piece, answer=self._echo.push(piece.answer))
        text = "".join(self._raw(piece))
        if piece.answer or piece.thought:
            if not self.meter.token_times_s:
                self.meter.prefill_s = self._link.now_s() - self.meter.started_s
            self.meter.token_times_s.append(self._link.now_s())
            self._link.update_status(activity=Activity.WRITING)
        if text:
            self._pieces.append(text)
            self._text.push(text)
        if piece.finish:
            if piece.finish == LENGTH:
                self.meter.finish_reason = LENGTH
            else:
                self.meter.finish_reason = "stop"
        if piece.figures is not None:
            self._note(piece.figures)
        for part in piece.calls:
            self._collector.push(part)
        self._returned.push(piece.returned)

    def _raw(self, piece: Delta) -> Iterator[str]:
        """Yield what a piece adds to the text, with the tags that belong around a thought."""
        if piece.thought and not (self._growing.text.strip() or self._begun.answer):
            is_open = self._is_in_thought or (self._begun.thinking is not None and not self._pieces)
            yield piece.thought if is_open else OPENED + piece.thought
            self._is_in_thought = True
        if piece.answer:
            yield CLOSED + piece.answer.lstrip("\n") if self._is_in_thought else piece.answer
            self._is_in_thought = False

    def _note(self, said: Figures) -> None:
        """Take the server's figures; its time for the prompt goes before the one that was measured
        here."""
        times_s = self.meter.token_times_s
        meter = self.meter
        meter.prompt_tokens = said.prompt_tokens or meter.prompt_tokens
        meter.reused_tokens = min(said.cached_tokens or meter.reused_tokens, meter.prompt_tokens)
        meter.read_tokens = meter.prompt_tokens - meter.reused_tokens
        meter.prefill_s = said.prefill_s or meter.prefill_s
        n_tokens = min(said.tokens or 0, MOST_COUNTED)
        if times_s and n_tokens:  # a piece may hold several tokens, which came together then
            meter.token_times_s = [times_s[at * len(times_s) // n_tokens] for at in range(n_tokens)]

    def _emit(self, event: events.Event) -> None:
        if isinstance(event, TextEvent):
            self._growing.take(event)
        self._link.emit(event)


MOST_COUNTED = 1 << 20
"""Tokens of a reply that a server is believed to have written."""
