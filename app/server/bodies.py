"""Response bodies of the API: whole, or as the chunks and events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from app.server.api_error import ApiError
from app.server.job import Begun, Ended, Happening, Piece, TokenChance
from app.server.order import Order
from engine.prompt.tools.calls import ToolCall


class ReplyBody:
    """Writes one reply as chat and text completions give it."""

    ends_with_done = True
    """Whether a stream's last event says so."""

    def __init__(self, order: Order, model_id: str) -> None:
        self._order = order
        kind = "chat.completion" if order.is_chat else "text_completion"
        self._whole = {
            "id": f"{'chatcmpl' if order.is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model_id,
        }
        self._chunk = {**self._whole, "object": f"{kind}.chunk" if order.is_chat else kind}
        if order.tells_usage:
            self._chunk["usage"] = None
        self._n_chars = self._n_calls = 0

    def whole(self, pieces: Iterable[Piece], ended: Ended) -> dict[str, Any]:
        """Return the reply in one object."""
        piece = reduce(Piece.joined, pieces, Piece())
        if ended.n_repeated_chars and self._order.n_logprobs is None:
            piece = piece.without_end(ended.n_repeated_chars)
        content: dict[str, Any] = {"text": piece.answer}
        if self._order.is_chat:
            content = {"message": {"role": "assistant", "content": piece.answer, "refusal": None}}
            if piece.thought:
                content["message"]["reasoning_content"] = piece.thought
            if piece.calls:
                content["message"] |= {"content": piece.answer or None, "tool_calls": [_call(it) for it in piece.calls]}
        choice = self._choice(content, piece.chances, ended.reason) | _why(ended)
        return {**self._whole, "choices": [choice], "usage": _usage(ended)}

    def events(self, happening: Happening) -> list[dict[str, Any]]:
        """Return what a stream tells of a happening; of the end the number of tokens, too, where that is asked for."""
        is_chat = self._order.is_chat
        if isinstance(happening, Begun):
            return [self._piece({"delta": {"role": "assistant", "content": ""}})] if is_chat else []
        if isinstance(happening, Piece):
            content: dict[str, Any] = {"delta": self._delta(happening)} if is_chat else {"text": happening.answer}
            return [self._piece(content, happening.chances)]
        content = {"delta": {}} if is_chat else {"text": ""}
        events = [self._piece(content | _why(happening), (), happening.reason)]
        if self._order.tells_usage:
            events.append({**self._chunk, "choices": [], "usage": _usage(happening)})
        return events

    def _piece(
        self, content: dict[str, Any], chances: Sequence[TokenChance] = (), reason: str | None = None
    ) -> dict[str, Any]:
        return {**self._chunk, "choices": [self._choice(content, chances, reason)]}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        parts = {"content": piece.answer, "reasoning_content": piece.thought}
        delta: dict[str, Any] = {name: text for name, text in parts.items() if text}
        if piece.calls:
            delta["tool_calls"] = [{"index": at, **_call(it)} for at, it in enumerate(piece.calls, self._n_calls)]
            self._n_calls += len(piece.calls)
        return delta

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return what ends a stream that broke off."""
        return error.body()

    def _choice(self, content: dict[str, Any], chances: Sequence[TokenChance], reason: str | None) -> dict[str, Any]:
        wants = self._order.n_logprobs is not None
        logprobs: dict[str, Any] | None = None
        if wants and self._order.is_chat and (chances or reason is not None):
            logprobs = {"content": [_chance(one, with_top=True) for one in chances], "refusal": None}
        elif wants and not self._order.is_chat:
            logprobs = self._text_chances(chances)
        return {"index": 0, **content, "logprobs": logprobs, "finish_reason": reason}

    def _text_chances(self, chances: Sequence[TokenChance]) -> dict[str, Any]:
        offsets = []
        for one in chances:
            offsets.append(self._n_chars)
            self._n_chars += len(one.text)
        return {
            "tokens": [one.text for one in chances],
            "token_logprobs": [one.logprob for one in chances],
            "top_logprobs": [{other.text: other.logprob for other in reversed(one.top)} for one in chances],
            "text_offset": offsets,
        }


class ResponseBody:
    """Writes one reply as ``/v1/responses`` gives it: one object, or a stream of events that build it up."""

    ends_with_done = False

    def __init__(self, order: Order, model_id: str) -> None:
        self._response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}", "object": "response", "created_at": int(time.time()),
            "status": "in_progress", "error": None, "incomplete_details": None, "instructions": None,
            "max_output_tokens": order.max_tokens, "model": model_id, "output": [], "parallel_tool_calls": True,
            "previous_response_id": None, "reasoning": {"effort": None, "summary": None}, "store": False,
            "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
            "top_p": None, "truncation": "disabled", "usage": None, "metadata": {},
        }  # fmt: skip
        self._response |= {name: value for name, value in order.sampling if name in ("temperature", "top_p")}
        self._n_events = 0
        self._items: list[_Item] = []

    def whole(self, pieces: Iterable[Piece], ended: Ended) -> dict[str, Any]:
        """Return the reply in one object."""
        if ended.n_repeated_chars:
            pieces = [reduce(Piece.joined, pieces, Piece()).without_end(ended.n_repeated_chars)]
        for piece in pieces:
            self._add(piece)
        self._close_last()
        return self._finished(ended)

    def events(self, happening: Happening) -> list[dict[str, Any]]:
        """Return what a stream tells of a happening."""
        if isinstance(happening, Begun):
            return [
                self._event(f"response.{name}", response=dict(self._response)) for name in ("created", "in_progress")
            ]
        if isinstance(happening, Piece):
            return self._add(happening)
        events = [] if self._items else self._begin("answer")  # an empty answer is one too
        events += self._close_last()
        finished = self._finished(happening)
        return [*events, self._event(f"response.{finished['status']}", response=finished)]

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return the event that ends a stream which broke off."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _add(self, piece: Piece) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for kind, text in (("thought", piece.thought), ("answer", piece.answer)):
            if not text:
                continue
            if not self._items or self._items[-1].kind != kind:
                events += [*self._close_last(), *self._begin(kind)]
            item = self._items[-1]
            item.texts.append(text)
            events.append(self._of_part(f"response.{item.name}.delta", delta=text, **item.more))
        return events

    def _begin(self, kind: str) -> list[dict[str, Any]]:
        item = _Item(kind)
        self._items.append(item)
        at = len(self._items) - 1
        return [
            self._event("response.output_item.added", output_index=at, item=item.body(is_done=False)),
            self._of_part("response.content_part.added", part=item.part()),
        ]

    def _close_last(self) -> list[dict[str, Any]]:
        if not self._items:
            return []
        item, at = self._items[-1], len(self._items) - 1
        return [
            self._of_part(f"response.{item.name}.done", text=item.text, **item.more),
            self._of_part("response.content_part.done", part=item.part()),
            self._event("response.output_item.done", output_index=at, item=item.body(is_done=True)),
        ]

    def _finished(self, ended: Ended) -> dict[str, Any]:
        is_cut = ended.reason == "length"
        return {
            **self._response,
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            **_why(ended),
            "output": [item.body(is_done=True) for item in self._items],
            "usage": {
                "input_tokens": ended.prompt_tokens,
                "input_tokens_details": {"cached_tokens": ended.cached_tokens},
                "output_tokens": ended.tokens,
                "output_tokens_details": {"reasoning_tokens": ended.thought_tokens},
                "total_tokens": ended.prompt_tokens + ended.tokens,
            },
        }

    def _of_part(self, kind: str, **values: Any) -> dict[str, Any]:
        at = len(self._items) - 1
        return self._event(kind, item_id=self._items[at].id, output_index=at, content_index=0, **values)

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **values}


class _Item:
    """A thought or an answer in the output."""

    def __init__(self, kind: str) -> None:
        self.kind, self.texts = kind, list[str]()
        is_answer = kind == "answer"
        self.id = f"{'msg' if is_answer else 'rs'}_{secrets.token_hex(16)}"
        self.name = "output_text" if is_answer else "reasoning_text"
        self.more: dict[str, Any] = {"logprobs": []} if is_answer else {}
        """Fields that an answer's events have without being asked for."""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def part(self) -> dict[str, Any]:
        """Return its one part."""
        return {"type": self.name, "text": self.text, **self.more, **({"annotations": []} if self.more else {})}

    def body(self, is_done: bool) -> dict[str, Any]:
        """Return it, without its text while that comes."""
        content = [self.part()] if is_done else []
        status = "completed" if is_done else "in_progress"
        if self.kind == "answer":
            return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}
        return {"type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content}


def _why(ended: Ended) -> dict[str, Any]:
    """Return what says that a reply was ended since it repeated itself, by vLLM's name; nothing for any other end."""
    return {"stop_reason": "repetition"} if ended.n_repeated_chars else {}


def _usage(ended: Ended) -> dict[str, Any]:
    return {
        "prompt_tokens": ended.prompt_tokens,
        "completion_tokens": ended.tokens,
        "total_tokens": ended.prompt_tokens + ended.tokens,
        "prompt_tokens_details": {"cached_tokens": ended.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": ended.thought_tokens},
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chance(chance: TokenChance, with_top: bool = False) -> dict[str, Any]:
    top = {"top_logprobs": [_chance(other) for other in chance.top]} if with_top else {}
    return {"token": chance.text, "logprob": chance.logprob, "bytes": list(chance.raw) or None, **top}
