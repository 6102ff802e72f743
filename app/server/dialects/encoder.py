"""Interface of the reply encoders, one of which each dialect has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.server.reply_task import Finish, ReplyEvent, ReplyPiece


class ReplyEncoder(Protocol):
    """Encodes the replies to one request, as one JSON object or as a stream of objects."""

    ends_with_done: bool
    """Whether ``[DONE]`` ends a stream."""
    is_ndjson: bool
    """Whether a stream has one JSON object per line; otherwise it has server-sent events."""

    def __init__(self, request: CompletionRequest, model_id: str) -> None: ...

    def encode_replies(self, replies: Sequence[tuple[ReplyPiece, Finish]]) -> dict[str, Any]:
        """Return an object with all replies, each given with its end."""

    def encode_event(self, event: ReplyEvent, index: int) -> list[dict[str, Any]]:
        """Return the objects that a stream sends for an event.

        Args:
            event: The event.
            index: Index of the reply.
        """

    def encode_silence(self) -> list[dict[str, Any]]:
        """Return the objects that a silent stream sends to stay open; an empty list for a
        comment."""

    def encode_error(self, error: ApiError) -> dict[str, Any]:
        """Return the object that ends a stream after an error."""
