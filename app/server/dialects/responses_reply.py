"""Response bodies of ``/v1/responses``: one object, or a stream of events that build it up."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.server.dialects.openai_reply import remarks
from app.server.reply_task import Finish, Happening, PromptTaken, ReplyPiece
from engine.prompt.tools.calls import ToolCall

_PREFIXES = {"answer": "msg", "thought": "rs", "call": "fc"}
"""Of ids, by the kind of item."""


class ResponseBody:
    """Writes one reply as ``/v1/responses`` gives it: one object, or a stream of events that build
    it up."""

    ends_with_done = in_lines = False
    still_here = None

    def __init__(self, order: CompletionRequest, model_id: str) -> None:
        self._response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}", "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress", "error": None, "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": order.max_tokens or None, "model": model_id, "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
            "tools": [],
            "top_p": None, "truncation": "disabled", "usage": None, "metadata": {},
        }  # fmt: skip
        self._response |= {
            name: value
            for name, value in order.sampling.items()
            if name in ("temperature", "top_p")
        }
        self._n_events = 0
        self._items: list[_Item] = []

    def whole(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return the only reply in one object."""
        self._add(replies[0][0])
        return self._finished(replies[0][1])

    def events(self, happening: Happening, at: int = 0) -> list[dict[str, Any]]:
        """Return what a stream tells of a happening."""
        if isinstance(happening, PromptTaken):
            return [
                self._event(f"response.{name}", response=dict(self._response))
                for name in ("created", "in_progress")
            ]
        if isinstance(happening, ReplyPiece):
            return self._add(happening)
        # an empty answer is one too
        if self._items:
            events = []
        else:
            events = self._begin(_Item("answer"))
        events += self._close_last()
        finished = self._finished(happening)
        return [*events, self._event(f"response.{finished['status']}", response=finished)]

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return the event that ends a stream which broke off."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _add(self, piece: ReplyPiece) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for kind, text in (("thought", piece.thought), ("answer", piece.answer)):
            if not text:
                continue
            if not self._items or self._items[-1].kind != kind:
                events += [*self._close_last(), *self._begin(_Item(kind))]
            item = self._items[-1]
            item.texts.append(text)
            events.append(self._of_part(f"response.{item.name}.delta", delta=text, **item.more))
        for call in piece.calls:
            events += [*self._close_last(), *self._begin(_Item("call", call))]
            events.append(
                self._of_item("response.function_call_arguments.delta", delta=call.arguments)
            )
        return events

    def _begin(self, item: _Item) -> list[dict[str, Any]]:
        self._items.append(item)
        at = len(self._items) - 1
        added = self._event(
            "response.output_item.added", output_index=at, item=item.body(is_done=False)
        )
        if item.call:
            return [added]
        return [added, self._of_part("response.content_part.added", part=item.part())]

    def _close_last(self) -> list[dict[str, Any]]:
        if not self._items:
            return []
        item = self._items[-1]
        at = len(self._items) - 1
        if item.call:
            name = item.call.name
            arguments = item.call.arguments
            ends = [
                self._of_item(
                    "response.function_call_arguments.done", name=name, arguments=arguments
                )
            ]
        else:
            ends = [
                self._of_part(f"response.{item.name}.done", text=item.text, **item.more),
                self._of_part("response.content_part.done", part=item.part()),
            ]
        return [
            *ends,
            self._event("response.output_item.done", output_index=at, item=item.body(is_done=True)),
        ]

    def _finished(self, ended: Finish) -> dict[str, Any]:
        is_cut = ended.reason == "length"
        return {
            **self._response,
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            **remarks(ended),
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
        return self._of_item(kind, content_index=0, **values)

    def _of_item(self, kind: str, **values: Any) -> dict[str, Any]:
        at = len(self._items) - 1
        return self._event(kind, item_id=self._items[at].id, output_index=at, **values)

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **values}


class _Item:
    """A thought, an answer or a call in the output."""

    def __init__(self, kind: str, call: ToolCall | None = None) -> None:
        self.texts = list[str]()
        self.kind = kind
        self.call = call
        self.id = f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"
        if kind == "answer":
            self.name = "output_text"
        else:
            self.name = "reasoning_text"
        self.more: dict[str, Any] = {"logprobs": []} if kind == "answer" else {}
        """Fields that an answer's events have without being asked for."""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def part(self) -> dict[str, Any]:
        """Return its one part."""
        return {
            "type": self.name,
            "text": self.text,
            **self.more,
            **({"annotations": []} if self.more else {}),
        }

    def body(self, is_done: bool) -> dict[str, Any]:
        """Return it, without its text while that comes."""
        status = {"id": self.id, "status": "completed" if is_done else "in_progress"}
        if self.call:
            if is_done:
                arguments = self.call.arguments
            else:
                arguments = ""
            named = {"call_id": self.call.call_id, "name": self.call.name, "arguments": arguments}
            return {"type": "function_call", **status, **named}
        if is_done:
            content = [self.part()]
        else:
            content = []
        if self.kind == "answer":
            return {"type": "message", **status, "role": "assistant", "content": content}
        return {"type": "reasoning", **status, "summary": [], "content": content}
