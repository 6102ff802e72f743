"""Replies in the dialect of ``/v1/responses``, and the events of their streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.server.dialects.openai_reply import remarks
from app.server.message_fields import joined_name
from app.server.reply_task import Finish, PromptAccepted, ReplyEvent, ReplyPiece
from engine.prompt.tools.calls import ToolCall

_ID_PREFIXES = {"answer": "msg", "thought": "rs", "call": "fc"}
"""Prefixes of ids, by the type of item."""


class ResponseEncoder:
    """Encodes one reply for ``/v1/responses``."""

    ends_with_done = False
    is_ndjson = False

    def __init__(self, request: CompletionRequest, model_id: str) -> None:
        self._namespaces: Mapping[str, str] = {}
        if request.tools is not None:
            self._namespaces = request.tools.namespaces
        self._response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": request.max_tokens or None,
            "model": model_id,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": request.sampling.get("temperature"),
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": request.sampling.get("top_p"),
            "truncation": "disabled",
            "usage": None,
            "metadata": {},
        }
        self._n_events = 0
        self._items: list[_Item] = []

    def encode_replies(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return the response with the only reply."""
        piece, finish = replies[0]
        self._add(piece)
        return self._finished_response(finish)

    def encode_event(self, event: ReplyEvent, index: int = 0) -> list[dict[str, Any]]:
        """Return the events that the stream sends for an event of the reply."""
        match event:
            case PromptAccepted():
                return self._begin_response()
            case ReplyPiece():
                return self._add(event)
            case Finish():
                events: list[dict[str, Any]] = []
                if not self._items:  # An empty answer is an item, too.
                    events = self._begin(_Item("answer"))
                events += self._close_last_item()
                response = self._finished_response(event)
                return [*events, self._event(f"response.{response['status']}", response=response)]

    def encode_silence(self) -> list[dict[str, Any]]:
        """Return an event: for clients that wait, comments do not count."""
        return self._begin_response() or [self._progress_event("in_progress")]

    def _begin_response(self) -> list[dict[str, Any]]:
        """Return the first two events; an empty list if they were sent."""
        if self._n_events:
            return []
        return [self._progress_event("created"), self._progress_event("in_progress")]

    def _progress_event(self, name: str) -> dict[str, Any]:
        return self._event(f"response.{name}", response=dict(self._response))

    def encode_error(self, error: ApiError) -> dict[str, Any]:
        """Return the event that ends a stream after an error."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _add(self, piece: ReplyPiece) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for item_type, text in (("thought", piece.thought), ("answer", piece.answer)):
            if not text:
                continue
            if not self._items or self._items[-1].type != item_type:
                events += self._close_last_item()
                events += self._begin(_Item(item_type))
            item = self._items[-1]
            item.texts.append(text)
            events.append(
                self._content_event(
                    f"response.{item.content_type}.delta", delta=text, **item.event_fields
                )
            )

        for call in piece.calls:
            events += self._close_last_item()
            events += self._begin(_Item("call", call, self._namespaces.get(call.name, "")))
            events.append(
                self._item_event("response.function_call_arguments.delta", delta=call.arguments)
            )
        return events

    def _begin(self, item: _Item) -> list[dict[str, Any]]:
        self._items.append(item)
        index = len(self._items) - 1
        added = self._event(
            "response.output_item.added", output_index=index, item=item.encode(is_done=False)
        )
        if item.call:
            return [added]
        return [added, self._content_event("response.content_part.added", part=item.content())]

    def _close_last_item(self) -> list[dict[str, Any]]:
        if not self._items:
            return []
        item = self._items[-1]
        index = len(self._items) - 1
        if item.call:
            ends = [
                self._item_event(
                    "response.function_call_arguments.done",
                    name=item.name,
                    arguments=item.call.arguments,
                )
            ]
        else:
            ends = [
                self._content_event(
                    f"response.{item.content_type}.done", text=item.text, **item.event_fields
                ),
                self._content_event("response.content_part.done", part=item.content()),
            ]
        done = self._event(
            "response.output_item.done", output_index=index, item=item.encode(is_done=True)
        )
        return [*ends, done]

    def _finished_response(self, finish: Finish) -> dict[str, Any]:
        is_cut = finish.reason == "length"
        return {
            **self._response,
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            **remarks(finish),
            "output": [item.encode(is_done=True) for item in self._items],
            "usage": {
                "input_tokens": finish.prompt_tokens,
                "input_tokens_details": {"cached_tokens": finish.cached_tokens},
                "output_tokens": finish.tokens,
                "output_tokens_details": {"reasoning_tokens": finish.thought_tokens},
                "total_tokens": finish.prompt_tokens + finish.tokens,
            },
        }

    def _content_event(self, event_type: str, **values: Any) -> dict[str, Any]:
        return self._item_event(event_type, content_index=0, **values)

    def _item_event(self, event_type: str, **values: Any) -> dict[str, Any]:
        index = len(self._items) - 1
        item_id = self._items[index].id
        return self._event(event_type, item_id=item_id, output_index=index, **values)

    def _event(self, event_type: str, **values: Any) -> dict[str, Any]:
        self._n_events += 1
        return {"type": event_type, "sequence_number": self._n_events - 1, **values}


class _Item:
    """A thought, an answer or a call in the output."""

    def __init__(self, item_type: str, call: ToolCall | None = None, namespace: str = "") -> None:
        self.type = item_type
        self.call = call
        self.namespace = namespace
        self.id = f"{_ID_PREFIXES[item_type]}_{secrets.token_hex(16)}"
        self.texts: list[str] = []
        self.content_type = "reasoning_text"
        self.event_fields: dict[str, Any] = {}
        """Additional fields of the events of an answer."""
        if item_type == "answer":
            self.content_type = "output_text"
            self.event_fields = {"logprobs": []}

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def name(self) -> str:
        """Name of the called tool in its namespace; "" without a call."""
        if self.call is None:
            return ""
        if self.namespace:
            return self.call.name.removeprefix(joined_name(self.namespace, ""))
        return self.call.name

    def content(self) -> dict[str, Any]:
        """Return the only content part."""
        fields = {"type": self.content_type, "text": self.text, **self.event_fields}
        if self.type == "answer":
            fields["annotations"] = []
        return fields

    def encode(self, is_done: bool) -> dict[str, Any]:
        """Return the item, without its text unless it is done."""
        header = {"id": self.id, "status": "completed" if is_done else "in_progress"}
        if self.call:
            fields = {
                "type": "function_call",
                **header,
                "call_id": self.call.call_id,
                "name": self.name,
                "arguments": self.call.arguments if is_done else "",
            }
            if self.namespace:
                fields["namespace"] = self.namespace
            return fields

        content = [self.content()] if is_done else []
        if self.type == "answer":
            return {"type": "message", **header, "role": "assistant", "content": content}
        return {"type": "reasoning", **header, "summary": [], "content": content}
