"""Ollama's dialect for text: ``/api/chat`` and ``/api/generate``, whose replies are lines of JSON.

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
from app.conversations.pictures import MARK, Picture
from app.server.api_error import ApiError, invalid
from app.server.completion_request import (
    NEUTRAL,
    CompletionRequest,
    read_effort,
    read_limit,
    read_model_name,
    read_stop_strings,
    read_suffix,
    refuse_unsupported,
)
from app.server.fields import Fields, replace_surrogates
from app.server.form_fields import read_form
from app.server.message_fields import MAX_MESSAGES, read_messages, read_tools
from app.server.message_order import arrange_messages
from app.server.picture_fields import read_images
from app.server.reply_task import Finish, PromptAccepted, ReplyEvent, ReplyPiece
from app.server.sampling_fields import read_sampling
from engine.prompt.infill import InfillText

_NEUTRAL: dict[str, Any] = {"template": ""}
"""Unsupported parameters of ``/api/generate``, each with the value that has no effect."""
_ZERO_DURATION = re.compile(r"[-+]?(0+|(0+\.?0*(h|m|s|ms|us|µs|μs|ns))+)")
"""Durations of zero, as Go writes them."""


def read_chat_request(fields: Fields, served_model: str) -> CompletionRequest:
    """Read a request for ``/api/chat``.

    Args:
        fields: Fields of the request.
        served_model: See ``read_model_name``.

    Raises:
        ApiError: A field is wrong.
    """
    fields = fields.unwrapped()
    if not fields.array("messages", MAX_MESSAGES):
        return _read_request(fields, served_model)
    messages, reply_prefix = arrange_messages(read_messages(fields), "messages")
    return _read_request(
        fields,
        served_model,
        messages=messages,
        reply_prefix=reply_prefix,
        tools=read_tools(fields),
    )


def read_generate_request(fields: Fields, served_model: str) -> CompletionRequest:
    """Read a request for ``/api/generate``.

    Args:
        fields: Fields of the request.
        served_model: See ``read_model_name``.

    Raises:
        ApiError: A field is wrong.
    """
    fields = fields.unwrapped()
    refuse_unsupported(fields, _NEUTRAL)
    prompt = _read_text(fields, "prompt")
    suffix = read_suffix(fields)
    if suffix:
        fields.mark_read("raw")
        infill = InfillText(prompt, suffix)
        return _read_request(fields, served_model, prompt=prompt, infill=infill)
    system = _read_text(fields, "system")
    pictures: list[Picture] = []
    read_images(fields, pictures)
    if pictures and (fields.flag("raw") or not prompt):
        raise invalid("images", "needs a prompt, and no raw")
    if fields.flag("raw") or not prompt:
        return _read_request(fields, served_model, prompt=prompt)

    text = MARK * len(pictures) + prompt
    messages = [PromptMessage(USER, text, pictures=tuple(pictures))]
    if system:
        messages.insert(0, PromptMessage(SYSTEM, system))
    return _read_request(fields, served_model, messages=tuple(messages))


def _read_text(fields: Fields, name: str) -> str:
    text = fields.value(name)
    if text is not None and not isinstance(text, str):
        raise fields.wrong_value(name, "a string")
    return replace_surrogates(text or "")


def _read_request(fields: Fields, served_model: str, **values: Any) -> CompletionRequest:
    """Read the fields that both paths share."""
    refuse_unsupported(fields, NEUTRAL)
    options = fields.nested("options") or Fields({})
    request = CompletionRequest(
        **values,
        model=read_model_name(fields, served_model),
        unloads_model=unloads_model(fields),
        sampling=read_sampling(options),
        max_tokens=read_limit(options, "num_predict"),
        stop_strings=read_stop_strings(options),
        thinking=_read_thinking(fields),
        form=read_form(fields),
        is_streamed=fields.flag("stream", True),
    )
    options.ignore_rest()
    fields.ignore_rest()
    return request


def _read_thinking(fields: Fields) -> str | None:
    thinks = fields.value("think")
    if isinstance(thinks, bool):
        return "on" if thinks else "off"
    return read_effort(fields, "think")


def unloads_model(fields: Fields) -> bool:
    """Whether ``keep_alive`` closes the model after the reply.

    Other durations have no effect: the owner of the server sets how long models stay open.
    """
    keep_alive = fields.value("keep_alive")
    if isinstance(keep_alive, str):
        return _ZERO_DURATION.fullmatch(keep_alive.strip()) is not None
    return type(keep_alive) in (int, float) and keep_alive == 0


class OllamaChatEncoder:
    """Encodes one reply for ``/api/chat``."""

    ends_with_done = False
    is_ndjson = True

    def __init__(self, request: CompletionRequest, model_id: str) -> None:
        self._model_id = model_id
        self._start_s = time.monotonic()

    def encode_replies(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return an object with the only reply."""
        piece, finish = replies[0]
        return self._encode(piece, finish)

    def encode_event(self, event: ReplyEvent, index: int = 0) -> list[dict[str, Any]]:
        """Return the objects that a stream sends for an event."""
        match event:
            case PromptAccepted():
                return []
            case ReplyPiece():
                return [self._encode(event)]
            case Finish():
                return [self._encode(ReplyPiece(), event)]

    def encode_silence(self) -> list[dict[str, Any]]:
        """Return an empty piece: clients do not accept empty lines."""
        return [self._encode(ReplyPiece())]

    def encode_error(self, error: ApiError) -> dict[str, Any]:
        """Return the object that ends a stream after an error."""
        return {"error": error.message}

    def _encode(self, piece: ReplyPiece, finish: Finish | None = None) -> dict[str, Any]:
        fields = {
            "model": self._model_id,
            "created_at": format_time(time.time()),
            **self._content(piece),
            "done": finish is not None,
        }
        if finish is None:
            return fields

        total_s = time.monotonic() - self._start_s
        # Ollama counts the time in the queue as loading, too.
        load_s = max(0.0, total_s - finish.prefill_s - finish.decode_s)
        return fields | {
            "done_reason": "stop" if finish.reason == "tool_calls" else finish.reason,
            "total_duration": _nanoseconds(total_s),
            "load_duration": _nanoseconds(load_s),
            "prompt_eval_count": finish.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(finish.prefill_s),
            "eval_count": finish.tokens,
            "eval_duration": _nanoseconds(finish.decode_s),
        }

    def _content(self, piece: ReplyPiece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.answer}
        if piece.thought:
            message["thinking"] = piece.thought
        if piece.calls:
            message["tool_calls"] = [
                {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}
                for call in piece.calls
            ]
        return {"message": message}


class OllamaGenerateEncoder(OllamaChatEncoder):
    """Encodes one reply for ``/api/generate``."""

    def _content(self, piece: ReplyPiece) -> dict[str, Any]:
        content = {"response": piece.answer}
        if piece.thought:
            content["thinking"] = piece.thought
        return content


def format_time(seconds: float) -> str:
    """Return a time since the epoch in the format of the API."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
