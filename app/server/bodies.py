"""Response bodies of the API: whole, or as the chunks and events of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from app.server.api_error import ApiError
from app.server.job import Ended, Happening, PromptTaken, ReplyPiece, TokenChance
from app.server.order import Order
from engine.prompt.tools.calls import ToolCall


class CompletionBody:
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

    def whole(self, pieces: Iterable[ReplyPiece], ended: Ended) -> dict[str, Any]:
        """Return the reply in one object."""
        piece = reduce(ReplyPiece.joined, pieces, ReplyPiece())
        if ended.n_repeated_chars and self._order.n_logprobs is None:
            piece = piece.without_end(ended.n_repeated_chars)
        content: dict[str, Any] = {"text": piece.answer}
        if self._order.is_chat:
            content = {"message": {"role": "assistant", "content": piece.answer, "refusal": None}}
            if piece.thought:
                content["message"]["reasoning_content"] = piece.thought
            if piece.calls:
                content["message"] |= {"content": piece.answer or None, "tool_calls": [_call(it) for it in piece.calls]}
        choice = self._choice(content, piece.chances, ended.reason) | remarks(ended)
        return {**self._whole, "choices": [choice], "usage": _usage(ended)}

    def events(self, happening: Happening) -> list[dict[str, Any]]:
        """Return what a stream tells of a happening; of the end the number of tokens, too, where that is asked for."""
        is_chat = self._order.is_chat
        if isinstance(happening, PromptTaken):
            return [self._piece({"delta": {"role": "assistant", "content": ""}})] if is_chat else []
        if isinstance(happening, ReplyPiece):
            content: dict[str, Any] = {"delta": self._delta(happening)} if is_chat else {"text": happening.answer}
            return [self._piece(content, happening.chances)]
        content = {"delta": {}} if is_chat else {"text": ""}
        events = [self._piece(content | remarks(happening), (), happening.reason)]
        if self._order.tells_usage:
            events.append({**self._chunk, "choices": [], "usage": _usage(happening)})
        return events

    def _piece(
        self, content: dict[str, Any], chances: Sequence[TokenChance] = (), reason: str | None = None
    ) -> dict[str, Any]:
        return {**self._chunk, "choices": [self._choice(content, chances, reason)]}

    def _delta(self, piece: ReplyPiece) -> dict[str, Any]:
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


def remarks(ended: Ended) -> dict[str, Any]:
    """Return what is odd about a reply: that it was ended since it repeated itself, by vLLM's name; and why what looks
    like a call is none."""
    repeated = {"stop_reason": "repetition"} if ended.n_repeated_chars else {}
    return repeated | ({"not_a_call": ended.call_doubt} if ended.call_doubt else {})


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
