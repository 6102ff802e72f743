"""Response bodies of the API: whole, or as the chunks and events of a stream."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.server.reply_task import Finish, Happening, PromptTaken, ReplyPiece, TokenChance
from engine.prompt.tools.calls import ToolCall


class CompletionBody:
    """Writes the replies to one request as chat and text completions give them."""

    ends_with_done = True
    """Whether a stream's last event says so."""
    in_lines = False
    """Whether a stream has objects alone, one in a line; else they are server-sent events."""
    still_here = None
    """What says that a stream goes on; None for a comment."""

    def __init__(self, order: CompletionRequest, model_id: str) -> None:
        self._order = order
        if order.is_chat:
            kind = "chat.completion"
        else:
            kind = "text_completion"
        self._whole = {
            "id": f"{'chatcmpl' if order.is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model_id,
        }
        self._chunk = {**self._whole, "object": f"{kind}.chunk" if order.is_chat else kind}
        if order.tells_usage:
            self._chunk["usage"] = None
        self._n_chars = Counter[int]()
        self._n_calls = Counter[int]()
        """Of each answer, by its index."""
        self._ended: list[Finish] = []

    def whole(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return the replies in one object: all of each, and its end."""
        choices = [
            self._whole_choice(at, piece, ended) for at, (piece, ended) in enumerate(replies)
        ]
        return {
            **self._whole,
            "choices": choices,
            "usage": self._usage([ended for _, ended in replies]),
        }

    def _whole_choice(self, at: int, piece: ReplyPiece, ended: Finish) -> dict[str, Any]:
        content: dict[str, Any] = {"text": piece.answer}
        if self._order.is_chat:
            content = {"message": {"role": "assistant", "content": piece.answer, "refusal": None}}
            if piece.thought:
                content["message"]["reasoning_content"] = piece.thought
            if piece.calls:
                content["message"] |= {
                    "content": piece.answer or None,
                    "tool_calls": [_call(it) for it in piece.calls],
                }
        return self._choice(at, content, piece.chances, ended.reason) | remarks(ended)

    def events(self, happening: Happening, at: int) -> list[dict[str, Any]]:
        """Return what a stream tells of a happening to the answer with this index; of the last end
        the number of tokens, too, where that is asked for."""
        is_chat = self._order.is_chat
        if isinstance(happening, PromptTaken):
            if is_chat:
                return [self._piece(at, {"delta": {"role": "assistant", "content": ""}})]
            return []
        if isinstance(happening, ReplyPiece):
            content: dict[str, Any] = (
                {"delta": self._delta(at, happening)} if is_chat else {"text": happening.answer}
            )
            return [self._piece(at, content, happening.chances)]
        if is_chat:
            content = {"delta": {}}
        else:
            content = {"text": ""}
        events = [self._piece(at, content | remarks(happening), (), happening.reason)]
        self._ended.append(happening)
        if self._order.tells_usage and len(self._ended) == self._order.n_replies:
            events.append({**self._chunk, "choices": [], "usage": self._usage(self._ended)})
        return events

    def _piece(
        self,
        at: int,
        content: dict[str, Any],
        chances: Sequence[TokenChance] = (),
        reason: str | None = None,
    ) -> dict[str, Any]:
        return {**self._chunk, "choices": [self._choice(at, content, chances, reason)]}

    def _delta(self, at: int, piece: ReplyPiece) -> dict[str, Any]:
        parts = {"content": piece.answer, "reasoning_content": piece.thought}
        delta: dict[str, Any] = {name: text for name, text in parts.items() if text}
        if piece.calls:
            delta["tool_calls"] = [
                {"index": n, **_call(it)} for n, it in enumerate(piece.calls, self._n_calls[at])
            ]
            self._n_calls[at] += len(piece.calls)
        return delta

    def _usage(self, ends: Sequence[Finish]) -> dict[str, Any]:
        """Return the tokens of all replies; those of a prompt count once."""
        prompt_tokens = sum(ended.prompt_tokens for ended in ends) // self._order.n_answers
        tokens = sum(ended.tokens for ended in ends)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
            "prompt_tokens_details": {"cached_tokens": min(ended.cached_tokens for ended in ends)},
            "completion_tokens_details": {
                "reasoning_tokens": sum(ended.thought_tokens for ended in ends)
            },
        }

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return what ends a stream that broke off."""
        return error.body()

    def _choice(
        self, at: int, content: dict[str, Any], chances: Sequence[TokenChance], reason: str | None
    ) -> dict[str, Any]:
        wants = self._order.n_logprobs is not None
        logprobs: dict[str, Any] | None = None
        if wants and self._order.is_chat and (chances or reason is not None):
            logprobs = {
                "content": [_chance(one, with_top=True) for one in chances],
                "refusal": None,
            }
        elif wants and not self._order.is_chat:
            logprobs = self._text_chances(at, chances)
        return {"index": at, **content, "logprobs": logprobs, "finish_reason": reason}

    def _text_chances(self, at: int, chances: Sequence[TokenChance]) -> dict[str, Any]:
        offsets = []
        for one in chances:
            offsets.append(self._n_chars[at])
            self._n_chars[at] += len(one.text)
        return {
            "tokens": [one.text for one in chances],
            "token_logprobs": [one.logprob for one in chances],
            "top_logprobs": [
                {other.text: other.logprob for other in reversed(one.top)} for one in chances
            ],
            "text_offset": offsets,
        }


def remarks(ended: Finish) -> dict[str, Any]:
    """Return what is odd about a reply: that it was ended since it repeated itself, by vLLM's name;
    and why what looks like a call is none."""
    if ended.n_repeated_chars:
        repeated = {"stop_reason": "repetition"}
    else:
        repeated = {}
    return repeated | ({"not_a_call": ended.call_doubt} if ended.call_doubt else {})


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _chance(chance: TokenChance, with_top: bool = False) -> dict[str, Any]:
    if with_top:
        top = {"top_logprobs": [_chance(other) for other in chance.top]}
    else:
        top = {}
    return {
        "token": chance.text,
        "logprob": chance.logprob,
        "bytes": list(chance.raw) or None,
        **top,
    }
