"""Ollama's ``/api/chat`` and ``/api/generate``: the same orders in other words, and their answers
in lines of JSON.

Source: docs/api.md of Ollama, and its package for Python. Durations are in nanoseconds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from app.conversations.conversation import SYSTEM, USER, PromptMessage
from app.server.api_error import ApiError
from app.server.completion_request import (
    NEUTRAL,
    CompletionRequest,
    read_effort,
    read_limit,
    read_stops,
    refuse_unsupported,
    take_model,
)
from app.server.fields import Fields, whole_text
from app.server.form_fields import read_form
from app.server.message_fields import MOST_MESSAGES, read_messages, read_tools
from app.server.message_order import arranged
from app.server.reply_task import Finish, Happening, PromptTaken, ReplyPiece
from app.server.sampling_fields import read_sampling

_NEUTRAL: dict[str, Any] = {"suffix": "", "template": "", "images": []}
_NO_TIME = re.compile(r"[-+]?(0+|(0+\.?0*(h|m|s|ms|us|µs|μs|ns))+)")
"""Durations of Go that are none, as ``keep_alive`` has them."""


def chat_order(fields: Fields, only: str) -> CompletionRequest:
    """Read a request for ``/api/chat``; ``only``: see ``take_model``.

    Raises ApiError: it is wrong.
    """
    fields = fields.opened()
    if not fields.items("messages", MOST_MESSAGES):
        return _order(fields, only)
    messages, begun = arranged(read_messages(fields), "messages")
    return _order(fields, only, messages=messages, begun=begun, tools=read_tools(fields))


def generate_order(fields: Fields, only: str) -> CompletionRequest:
    """Read a request for ``/api/generate``; ``only``: see ``take_model``.

    Raises ApiError: it is wrong.
    """
    fields = fields.opened()
    refuse_unsupported(fields, _NEUTRAL)
    prompt = _text(fields, "prompt")
    system = _text(fields, "system")
    if fields.flag("raw") or not prompt:
        return _order(fields, only, prompt=prompt)
    said = PromptMessage(USER, prompt)
    return _order(
        fields, only, messages=(PromptMessage(SYSTEM, system), said) if system else (said,)
    )


def _text(fields: Fields, name: str) -> str:
    text = fields.any(name)
    if text is not None and not isinstance(text, str):
        raise fields.wrong(name, "a string")
    return whole_text(text or "")


def _order(fields: Fields, only: str, **own: Any) -> CompletionRequest:
    refuse_unsupported(fields, NEUTRAL)
    options = fields.table("options") or Fields({})
    think = fields.any("think")
    order = CompletionRequest(
        **own,
        model=take_model(fields, only),
        unloads=closes_model(fields),
        sampling=read_sampling(options),
        max_tokens=read_limit(options, "num_predict"),
        stops=read_stops(options),
        thinking=("on" if think else "off")
        if isinstance(think, bool)
        else read_effort(fields, "think"),
        form=read_form(fields),
        is_streamed=fields.flag("stream", True),
    )
    options.ignore_rest()
    fields.ignore_rest()
    return order


def closes_model(fields: Fields) -> bool:
    """Whether ``keep_alive`` closes the model after the answer.

    How long others keep it is for the server's owner.
    """
    kept = fields.any("keep_alive")
    if isinstance(kept, str):
        return _NO_TIME.fullmatch(kept.strip()) is not None
    return type(kept) in (int, float) and kept == 0


class ChatBody:
    """Writes one reply as ``/api/chat`` gives it: one object, or a stream of them, the last of
    which is done."""

    ends_with_done = False
    in_lines = True

    def __init__(self, order: CompletionRequest, model_id: str) -> None:
        self._model_id = model_id
        self._since_s = time.monotonic()

    @property
    def still_here(self) -> dict[str, Any]:
        """What says that a stream goes on: clients take no empty line."""
        return self._chunk(ReplyPiece())

    def whole(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return the only reply in one object."""
        return self._chunk(*replies[0])

    def events(self, happening: Happening, at: int = 0) -> list[dict[str, Any]]:
        """Return what a stream tells of a happening."""
        if isinstance(happening, PromptTaken):
            return []
        if isinstance(happening, ReplyPiece):
            return [self._chunk(happening)]
        return [self._chunk(ReplyPiece(), happening)]

    def broken(self, error: ApiError) -> dict[str, Any]:
        """Return what ends a stream that broke off."""
        return {"error": error.message}

    def _chunk(self, piece: ReplyPiece, ended: Finish | None = None) -> dict[str, Any]:
        chunk = {
            "model": self._model_id,
            "created_at": as_time(time.time()),
            **self._said(piece),
            "done": bool(ended),
        }
        if ended is None:
            return chunk
        total_s = time.monotonic() - self._since_s
        return chunk | {
            "done_reason": "stop" if ended.reason == "tool_calls" else ended.reason,
            "total_duration": _ns(total_s),
            # with the time in line, as theirs
            "load_duration": _ns(max(0.0, total_s - ended.read_s - ended.write_s)),
            "prompt_eval_count": ended.prompt_tokens,
            "prompt_eval_duration": _ns(ended.read_s),
            "eval_count": ended.tokens,
            "eval_duration": _ns(ended.write_s),
        }  # fmt: skip

    def _said(self, piece: ReplyPiece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.answer}
        if piece.thought:
            message["thinking"] = piece.thought
        if piece.calls:
            functions = [
                {"name": one.name, "arguments": json.loads(one.arguments)} for one in piece.calls
            ]
            message["tool_calls"] = [{"function": one} for one in functions]
        return {"message": message}


class GenerateBody(ChatBody):
    """Writes one reply as ``/api/generate`` gives it."""

    def _said(self, piece: ReplyPiece) -> dict[str, Any]:
        return {"response": piece.answer, **({"thinking": piece.thought} if piece.thought else {})}


def as_time(seconds: float) -> str:
    """Return a time since the epoch as the API writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
