"""Replies in OpenAI's dialect: chat and text completions, and the chunks of their streams."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.server.reply_task import Finish, PromptAccepted, ReplyEvent, ReplyPiece, TokenChance
from engine.prompt.tools.calls import ToolCall


class CompletionEncoder:
    """Encodes replies for ``/v1/chat/completions`` and ``/v1/completions``."""

    ends_with_done = True
    is_ndjson = False

    def __init__(self, request: CompletionRequest, model_id: str) -> None:
        self._request = request
        if request.is_chat:
            id_prefix = "chatcmpl"
            object_type = "chat.completion"
            chunk_type = "chat.completion.chunk"
        else:
            id_prefix = "cmpl"
            object_type = "text_completion"
            chunk_type = "text_completion"

        self._header: dict[str, Any] = {
            "id": f"{id_prefix}-{secrets.token_hex(12)}",
            "object": object_type,
            "created": int(time.time()),
            "model": model_id,
        }
        self._chunk_header: dict[str, Any] = {**self._header, "object": chunk_type}
        if request.includes_usage:
            self._chunk_header["usage"] = None

        self._n_chars = Counter[int]()
        """Number of characters sent, by the index of the reply."""
        self._n_calls = Counter[int]()
        """Number of calls sent, by the index of the reply."""
        self._finishes: list[Finish] = []

    def encode_replies(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return a completion with all replies."""
        choices = [
            self._reply_choice(index, piece, finish)
            for index, (piece, finish) in enumerate(replies)
        ]
        usage = self._usage([finish for _, finish in replies])
        return {**self._header, "choices": choices, "usage": usage}

    def _reply_choice(self, index: int, piece: ReplyPiece, finish: Finish) -> dict[str, Any]:
        if not self._request.is_chat:
            content: dict[str, Any] = {"text": piece.answer}
        else:
            message: dict[str, Any] = {
                "role": "assistant",
                "content": piece.answer,
                "refusal": None,
            }
            if piece.thought:
                message["reasoning_content"] = piece.thought
            if piece.calls:
                message["content"] = piece.answer or None
                message["tool_calls"] = [_encode_call(call) for call in piece.calls]
            content = {"message": message}
        return self._choice(index, content, piece.chances, finish.reason) | remarks(finish)

    def encode_event(self, event: ReplyEvent, index: int) -> list[dict[str, Any]]:
        """Return the chunks for an event."""
        is_chat = self._request.is_chat
        match event:
            case PromptAccepted():
                if not is_chat:
                    return []
                return [self._chunk(index, {"delta": {"role": "assistant", "content": ""}})]

            case ReplyPiece():
                if is_chat:
                    content: dict[str, Any] = {"delta": self._delta(index, event)}
                else:
                    content = {"text": event.answer}
                return [self._chunk(index, content, event.chances)]

            case Finish():
                content = {"delta": {}} if is_chat else {"text": ""}
                chunks = [self._chunk(index, content | remarks(event), (), event.reason)]
                self._finishes.append(event)
                is_last = len(self._finishes) == self._request.n_replies
                if self._request.includes_usage and is_last:
                    usage = self._usage(self._finishes)
                    chunks.append({**self._chunk_header, "choices": [], "usage": usage})
                return chunks

    def encode_silence(self) -> list[dict[str, Any]]:
        """Return an empty list: a comment keeps clients waiting."""
        return []

    def _chunk(
        self,
        index: int,
        content: dict[str, Any],
        chances: Sequence[TokenChance] = (),
        reason: str | None = None,
    ) -> dict[str, Any]:
        return {**self._chunk_header, "choices": [self._choice(index, content, chances, reason)]}

    def _delta(self, index: int, piece: ReplyPiece) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if piece.answer:
            delta["content"] = piece.answer
        if piece.thought:
            delta["reasoning_content"] = piece.thought
        if piece.calls:
            delta["tool_calls"] = [
                {"index": call_index, **_encode_call(call)}
                for call_index, call in enumerate(piece.calls, self._n_calls[index])
            ]
            self._n_calls[index] += len(piece.calls)
        return delta

    def _usage(self, finishes: Sequence[Finish]) -> dict[str, Any]:
        """Return the tokens of all replies; those of a prompt count once."""
        prompt_tokens = sum(finish.prompt_tokens for finish in finishes) // self._request.n_answers
        tokens = sum(finish.tokens for finish in finishes)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
            "prompt_tokens_details": {
                "cached_tokens": min(finish.cached_tokens for finish in finishes)
            },
            "completion_tokens_details": {
                "reasoning_tokens": sum(finish.thought_tokens for finish in finishes)
            },
        }

    def encode_error(self, error: ApiError) -> dict[str, Any]:
        """Return the error object that ends a stream."""
        return error.body()

    def _choice(
        self,
        index: int,
        content: dict[str, Any],
        chances: Sequence[TokenChance],
        reason: str | None,
    ) -> dict[str, Any]:
        logprobs: dict[str, Any] | None = None
        if self._request.n_logprobs is not None:
            if not self._request.is_chat:
                logprobs = self._text_logprobs(index, chances)
            elif chances or reason is not None:
                logprobs = {
                    "content": [_encode_chance(chance, with_top=True) for chance in chances],
                    "refusal": None,
                }
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _text_logprobs(self, index: int, chances: Sequence[TokenChance]) -> dict[str, Any]:
        offsets = []
        for chance in chances:
            offsets.append(self._n_chars[index])
            self._n_chars[index] += len(chance.text)
        return {
            "tokens": [chance.text for chance in chances],
            "token_logprobs": [chance.logprob for chance in chances],
            "top_logprobs": [
                {top.text: top.logprob for top in reversed(chance.top)} for chance in chances
            ],
            "text_offset": offsets,
        }


def remarks(finish: Finish) -> dict[str, Any]:
    """Return additional fields of an unusual end.

    ``stop_reason`` (vLLM's name) says that the reply was ended because it repeated itself.
    ``not_a_call`` says why text that looks like a call is not one.
    """
    fields: dict[str, Any] = {}
    if finish.n_repeated_chars:
        fields["stop_reason"] = "repetition"
    if finish.call_doubt:
        fields["not_a_call"] = finish.call_doubt
    return fields


def _encode_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _encode_chance(chance: TokenChance, with_top: bool = False) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "token": chance.text,
        "logprob": chance.logprob,
        "bytes": list(chance.raw) or None,
    }
    if with_top:
        fields["top_logprobs"] = [_encode_chance(top) for top in chance.top]
    return fields
