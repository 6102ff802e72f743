"""Turn with a server: a request and its reply, reported in the same events as a local turn."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.backend.engine_link import EngineLink, WrittenReply
from app.backend.remote.exchange import Exchange
from app.backend.remote.reply_chunks import LENGTH, Figures, ReplyChunk
from app.backend.remote.returned_fields import FieldCollector
from app.backend.remote.tool_calls import CallCollector, write_calls
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

_MIN_ECHO_CHARS = 16
"""Length from which a repeated beginning counts as an echo; a short text may be written twice."""
OPENING_TAG = "<think>\n"
CLOSING_TAG = "\n</think>\n\n"
"""Tags around a thought in the raw text of a reply. Servers send the thought separately."""
_CALL_FORMAT = format_of("<tool_call>")
"""Format of calls in the raw text of a reply. Servers that do not parse calls use it, too."""
_MAX_TOKENS = 1 << 20
"""Limit on the number of tokens that a server is believed to have written."""


@record
class RemotePrefix:
    """Beginning of a reply that is continued."""

    answer: str = ""
    thinking: Thinking | None = None

    @property
    def is_thought(self) -> bool:
        """Whether the answer has not begun."""
        return self.thinking is not None and not self.thinking.is_closed

    @property
    def raw(self) -> str:
        """Text with the thought and its tags."""
        if self.thinking is None:
            return self.answer
        if not self.thinking.is_closed:
            return OPENING_TAG + self.thinking.text
        return OPENING_TAG + self.thinking.text + CLOSING_TAG + self.answer

    @property
    def sent_text(self) -> str:
        """Text that the server continues. Templates leave out a thought that has ended."""
        if self.is_thought:
            return self.raw
        return self.answer


class _EchoFilter:
    """Drops the beginning of a continued reply if the server repeats it."""

    def __init__(self, prefix: str) -> None:
        self._expected = prefix if len(prefix) >= _MIN_ECHO_CHARS else ""
        self._held = ""

    def push(self, text: str) -> str:
        """Return the new text of a piece. Text that may be an echo is held back."""
        if not self._expected:
            return text
        self._held += text
        if self._expected.startswith(self._held) and self._expected != self._held:
            return ""
        return self.flush()

    def flush(self) -> str:
        """Return the text that was held back, without a complete echo."""
        text = self._held.removeprefix(self._expected)
        self._expected = ""
        self._held = ""
        return text


class RemoteTurn:
    """A request and its reply.

    Args:
        link: Connection to the screen.
        exchange: Connection to the server.
        path: Path of the API.
        request: Body of the request.
        prefix: Beginning of a continued reply; None for a new reply.
        emits_pieces: Whether each piece is emitted as the model wrote it, too.
        tools: Tools of the request. A call of another tool is text.
        may_call: Whether the reply may call tools; otherwise its calls are left out.

    Attributes:
        calls: Tool calls at the end of a complete reply.
        meter: Measurements of the reply.
    """

    def __init__(
        self,
        link: EngineLink,
        exchange: Exchange,
        path: str,
        request: Mapping[str, Any],
        prefix: RemotePrefix | None = None,
        emits_pieces: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        may_call: bool = True,
    ) -> None:
        self._link = link
        self._exchange = exchange
        self._path = path
        self._request = request
        self._prefix = prefix or RemotePrefix()
        self._pieces: list[str] = []
        self._is_in_thought = False
        """Whether the last piece was a thought that the server sent separately."""
        self._collected = ReplyCollector()
        self._echo_filter = _EchoFilter(self._prefix.sent_text)
        self._call_collector = CallCollector()
        self._field_collector = FieldCollector()
        self._call_splitter: CallSplitter | None = None
        if tools and _CALL_FORMAT is not None:
            self._call_splitter = CallSplitter(_CALL_FORMAT, tools)
        self._may_call = may_call and self._call_splitter is not None
        self.calls: tuple[ToolCall, ...] = ()
        self.meter = ReplyMeter(0, link.now_s)
        self._emitter = ReplyEmitter(
            self._emit,
            self.meter,
            opening="",
            prefix=None if prefix is None else prefix.raw,
            earlier_thinking=self._prefix.thinking,
            call_splitter=self._call_splitter,
            emits_pieces=emits_pieces,
        )

    @property
    def answer(self) -> str:
        """Clean text of the answer so far, without the thought."""
        return self._collected.text

    def written(self) -> WrittenReply:
        """Return the text of the whole reply so far; its tokens are unknown. Any thread may call
        this."""
        return (), self._prefix.raw + "".join(self._pieces)

    def run(self) -> bool:
        """Send the request and report the reply.

        Returns:
            Whether there is a reply, complete or partial.

        Raises:
            BaseException: The error that prevented any text.
        """
        self._link.update_status(
            activity=Activity.READING,
            since_s=self.meter.started_s,
            meter=self.meter,
            turn_starts=(),
        )
        try:
            for chunk in self._exchange.reply_chunks(self._path, self._request):
                self._take(chunk)
            self._take(ReplyChunk(self._echo_filter.flush()))
            self._write_calls()
        except BaseException as error:
            if not self._exchange.is_cancelled:
                return self._fail(error)

        if self._exchange.is_cancelled:
            self.meter.finish_reason = "cancelled"
            if not self._pieces:
                self._emit(events.PromptStopped())
                return False
        self.meter.finish_reason = self.meter.finish_reason or "stop"
        self._emitter.finish()

        calls_at = 0
        if self.meter.ending is Ending.COMPLETE and self._may_call:
            calls_at = self._find_calls()
        self._emit(
            events.GenerationFinished(
                self.meter.ending,
                self.meter.figures(),
                *self.written(),
                self.calls,
                calls_at,
                self._server_fields(),
                self._may_call,
            )
        )
        return True

    def _server_fields(self) -> ServerFields | None:
        """Return the fields that the server needs back with a complete reply; None if there are
        none."""
        if self.meter.ending is not Ending.COMPLETE:
            return None
        call_fields: tuple[Mapping[str, Any], ...] = ()
        returned = self._call_collector.returned
        if len(returned) == len(self.calls) and any(returned):
            call_fields = tuple(returned)
        message_fields = self._field_collector.fields
        if not message_fields and not call_fields:
            return None
        model = self._exchange.model
        return ServerFields(model.server, model.name, message_fields, call_fields)

    def _write_calls(self) -> None:
        """Write the calls that the server sent separately into the text. The splitter takes them
        out again if they may run."""
        calls, rest = self._call_collector.calls()
        for text in (*rest, write_calls(calls)):
            if text and self._pieces:
                text = "\n" + text
            self._take(ReplyChunk(text))

    def _find_calls(self) -> int:
        """Set the calls of a complete reply, each with an id, and return their position in its
        text."""
        if self._call_splitter is None or not self._call_splitter.calls:
            return 0
        calls = self._call_splitter.calls
        ids: list[str] = []
        separate_calls, _ = self._call_collector.calls()
        if len(separate_calls) == len(calls):
            ids = [call.call_id for call in separate_calls]
        else:
            ids = [secrets.token_hex(5)[:9] for _ in calls]
        self.calls = tuple(
            replace(call, call_id=call_id) for call, call_id in zip(calls, ids, strict=True)
        )
        _, text = self.written()
        return len(text) - self._call_splitter.tail_chars

    def _fail(self, error: BaseException) -> bool:
        """Report a reply that broke off; raise the error if there is no text."""
        self.meter.finish_reason = "error"
        if not self._pieces:
            raise error
        self._emitter.finish()
        finished = events.GenerationFinished(
            self.meter.ending, self.meter.figures(), *self.written()
        )
        self._emit(events.GenerationFailed(events.reason_of(error), finished, error))
        return True

    def _take(self, chunk: ReplyChunk) -> None:
        if chunk.answer:
            chunk = replace(chunk, answer=self._echo_filter.push(chunk.answer))
        text = "".join(self._raw_texts(chunk))
        if chunk.answer or chunk.thought:
            now_s = self._link.now_s()
            if not self.meter.token_times_s:
                self.meter.prefill_s = now_s - self.meter.started_s
            self.meter.token_times_s.append(now_s)
            self._link.update_status(activity=Activity.WRITING)
        if text:
            self._pieces.append(text)
            self._emitter.push(text)

        if chunk.finish:
            self.meter.finish_reason = LENGTH if chunk.finish == LENGTH else "stop"
        if chunk.figures is not None:
            self._take_figures(chunk.figures)
        for call_piece in chunk.calls:
            self._call_collector.push(call_piece)
        self._field_collector.push(chunk.returned)

    def _raw_texts(self, chunk: ReplyChunk) -> Iterator[str]:
        """Yield the text of a chunk, with the tags around a thought."""
        has_answer = bool(self._collected.text.strip() or self._prefix.answer)
        if chunk.thought and not has_answer:
            continues_prefix = self._prefix.thinking is not None and not self._pieces
            if not self._is_in_thought and not continues_prefix:
                yield OPENING_TAG
            yield chunk.thought
            self._is_in_thought = True
        if chunk.answer:
            if self._is_in_thought:
                yield CLOSING_TAG + chunk.answer.lstrip("\n")
            else:
                yield chunk.answer
            self._is_in_thought = False

    def _take_figures(self, figures: Figures) -> None:
        """Use the figures of the server, which knows more than the meter here."""
        meter = self.meter
        meter.prompt_tokens = figures.prompt_tokens or meter.prompt_tokens
        cached_tokens = figures.cached_tokens or meter.reused_tokens
        meter.reused_tokens = min(cached_tokens, meter.prompt_tokens)
        meter.read_tokens = meter.prompt_tokens - meter.reused_tokens
        meter.prefill_s = figures.prefill_s or meter.prefill_s

        # A chunk may have several tokens, which arrived together.
        n_tokens = min(figures.tokens or 0, _MAX_TOKENS)
        times_s = meter.token_times_s
        if times_s and n_tokens:
            meter.token_times_s = [
                times_s[index * len(times_s) // n_tokens] for index in range(n_tokens)
            ]

    def _emit(self, event: events.Event) -> None:
        if isinstance(event, TextEvent):
            self._collected.take(event)
        self._link.emit(event)
