"""Replies in Anthropic's dialect, and the events of their streams."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.server.reply_task import Finish, PromptAccepted, ReplyEvent, ReplyPiece
from engine.prompt.tools.calls import ToolCall

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
"""Reasons of the dialect, by those of a finish, if they differ from ``end_turn``."""


class MessageEncoder:
    """Encodes one reply for ``/v1/messages``."""

    ends_with_done = False
    is_ndjson = False

    def __init__(self, request: CompletionRequest, model_id: str) -> None:
        self._header: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model_id,
        }
        self._open_type = ""
        """Type of the block that is being sent; "" between two blocks."""
        self._n_blocks = 0

    def encode_replies(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return the message with the only reply."""
        piece, finish = replies[0]
        blocks: list[dict[str, Any]] = []
        if piece.thought:
            blocks.append({"type": "thinking", "thinking": piece.thought, "signature": ""})
        if piece.answer:
            blocks.append({"type": "text", "text": piece.answer})
        blocks += [
            {**_call_block(call), "input": json.loads(call.arguments)} for call in piece.calls
        ]
        return {**self._header, "content": blocks, **_end(finish), "usage": _usage(finish)}

    def encode_event(self, event: ReplyEvent, index: int = 0) -> list[dict[str, Any]]:
        """Return the events that the stream sends for an event of the reply."""
        match event:
            case PromptAccepted():
                message = {
                    **self._header,
                    "content": [],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": _usage(event),
                }
                return [{"type": "message_start", "message": message}]
            case ReplyPiece():
                events = self._add_text("thinking", event.thought)
                events += self._add_text("text", event.answer)
                for call in event.calls:
                    events += self._close_block()
                    events += self._open_block("tool_use", {**_call_block(call), "input": {}})
                    events.append(self._delta("input_json_delta", "partial_json", call.arguments))
                return events
            case Finish():
                return [
                    *self._close_block(),
                    {"type": "message_delta", "delta": _end(event), "usage": _usage(event)},
                    {"type": "message_stop"},
                ]

    def encode_silence(self) -> list[dict[str, Any]]:
        """Return the event by which clients know that the server is at work."""
        return [{"type": "ping"}]

    def encode_error(self, error: ApiError) -> dict[str, Any]:
        """Return the event that ends a stream after an error."""
        return error.anthropic_body()

    def _add_text(self, block_type: str, text: str) -> list[dict[str, Any]]:
        """Return the events for text of a block, which begins unless it is open."""
        if not text:
            return []
        events: list[dict[str, Any]] = []
        if self._open_type != block_type:
            events = self._close_block()
            block = {"type": block_type, block_type: ""}
            if block_type == "thinking":
                block["signature"] = ""
            events += self._open_block(block_type, block)
        return [*events, self._delta(f"{block_type}_delta", block_type, text)]

    def _open_block(self, block_type: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        self._open_type = block_type
        return [{"type": "content_block_start", "index": self._n_blocks, "content_block": block}]

    def _close_block(self) -> list[dict[str, Any]]:
        if not self._open_type:
            return []
        events = []
        if self._open_type == "thinking":
            events.append(self._delta("signature_delta", "signature", ""))
        events.append({"type": "content_block_stop", "index": self._n_blocks})
        self._open_type = ""
        self._n_blocks += 1
        return events

    def _delta(self, delta_type: str, name: str, text: str) -> dict[str, Any]:
        return {
            "type": "content_block_delta",
            "index": self._n_blocks,
            "delta": {"type": delta_type, name: text},
        }


def _call_block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": call.name}


def _end(finish: Finish) -> dict[str, Any]:
    """Return the fields that say why the reply ended."""
    if finish.stop_string:
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop_string}
    return {
        "stop_reason": _STOP_REASONS.get(finish.reason, "end_turn"),
        "stop_sequence": None,
    }


def _usage(event: PromptAccepted | Finish) -> dict[str, Any]:
    """Return the numbers of tokens; those from the cache do not count as input."""
    tokens = 0
    if isinstance(event, Finish):
        tokens = event.tokens
    return {
        "input_tokens": event.prompt_tokens - event.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": event.cached_tokens,
        "output_tokens": tokens,
    }
