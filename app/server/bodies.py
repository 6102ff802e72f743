"""Response bodies of the API: whole or as the chunks of a stream, for chat and for text completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from app.server.api_error import ApiError
from app.server.job import Begun, Ended, Happening, Piece, TokenChance
from app.server.order import Order
from engine.prompt.tools.calls import ToolCall


class ReplyBody:
    """Writes one reply as JSON objects."""

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
        pieces = list(pieces)
        answer = "".join(piece.answer for piece in pieces)
        thought = "".join(piece.thought for piece in pieces)
        chances = tuple(chance for piece in pieces for chance in piece.chances)
        content: dict[str, Any] = {"text": answer}
        if self._order.is_chat:
            content = {"message": {"role": "assistant", "content": answer, "refusal": None}}
            if thought:
                content["message"]["reasoning_content"] = thought
            calls = [_call(call) for piece in pieces for call in piece.calls]
            if calls:
                content["message"] |= {"content": answer or None, "tool_calls": calls}
        return {**self._whole, "choices": [self._choice(content, chances, ended.reason)], "usage": usage(ended)}

    def opening(self) -> dict[str, Any] | None:
        """Return the first piece of a stream, None where there is none before the text."""
        if not self._order.is_chat:
            return None
        delta = {"delta": {"role": "assistant", "content": ""}}
        return {**self._chunk, "choices": [self._choice(delta, (), None)]}

    def piece(self, piece: Piece) -> dict[str, Any]:
        """Return the next piece of a stream."""
        content: dict[str, Any] = {"text": piece.answer}
        if self._order.is_chat:
            parts = {"content": piece.answer, "reasoning_content": piece.thought}
            content = {"delta": {name: text for name, text in parts.items() if text}}
            if piece.calls:
                content["delta"]["tool_calls"] = self._numbered(piece)
        return {**self._chunk, "choices": [self._choice(content, piece.chances, None)]}

    def _numbered(self, piece: Piece) -> list[dict[str, Any]]:
        first = self._n_calls
        self._n_calls += len(piece.calls)
        return [{"index": first + at, **_call(call)} for at, call in enumerate(piece.calls)]

    def last(self, ended: Ended) -> list[dict[str, Any]]:
        """Return what ends a stream: the reason, and the number of tokens where that is asked for."""
        content: dict[str, Any] = {"delta": {}} if self._order.is_chat else {"text": ""}
        pieces = [{**self._chunk, "choices": [self._choice(content, (), ended.reason)]}]
        if self._order.tells_usage:
            pieces.append({**self._chunk, "choices": [], "usage": usage(ended)})
        return pieces

    def events(self, happening: Happening) -> list[dict[str, Any]]:
        """Return what a stream tells of a happening."""
        if isinstance(happening, Begun):
            opening = self.opening()
            return [opening] if opening is not None else []
        return [self.piece(happening)] if isinstance(happening, Piece) else self.last(happening)

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return what ends a stream that broke off."""
        return error.body()

    def _choice(self, content: dict[str, Any], chances: Sequence[TokenChance], reason: str | None) -> dict[str, Any]:
        wants = self._order.n_logprobs is not None
        logprobs: dict[str, Any] | None = None
        if wants and self._order.is_chat and (chances or reason is not None):
            logprobs = {"content": [_chat_chance(one) for one in chances], "refusal": None}
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


def usage(ended: Ended) -> dict[str, Any]:
    """Return the number of tokens of a reply."""
    return {
        "prompt_tokens": ended.prompt_tokens,
        "completion_tokens": ended.tokens,
        "total_tokens": ended.prompt_tokens + ended.tokens,
        "prompt_tokens_details": {"cached_tokens": ended.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": ended.thought_tokens},
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chat_chance(chance: TokenChance) -> dict[str, Any]:
    return {**_one_chance(chance), "top_logprobs": [_one_chance(other) for other in chance.top]}


def _one_chance(chance: TokenChance) -> dict[str, Any]:
    return {"token": chance.text, "logprob": chance.logprob, "bytes": list(chance.raw) or None}
