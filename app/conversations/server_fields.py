"""Fields of a reply that a server needs back, such as its reasoning and signatures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from app.text.record import record
from engine.prompt.tools.calls import MAX_CALLS, is_deep

MOST_CHARS = 1 << 19
"""Limit on all fields of a reply as JSON."""
_MOST_NAME_CHARS = 4096


@record
class ServerFields:
    """Fields of a reply as JSON values.

    They are opaque and never shown, and belong to one model of one server.
    """

    server: str
    """Address of the server."""
    model: str
    """Name of the model."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the message."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """Fields of each tool call at the end of the reply; empty if no call has any."""


def fields_of(values: Any) -> ServerFields | None:
    """Return the fields saved with a reply; None if there are none or they are unsound."""
    if not isinstance(values, dict):
        return None
    server = values.get("server")
    model = values.get("model")
    message = values.get("message")
    calls = values.get("calls")
    if not (isinstance(server, str) and isinstance(model, str) and isinstance(message, dict)):
        return None
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return None
    is_small = (
        len(server) <= _MOST_NAME_CHARS
        and len(model) <= _MOST_NAME_CHARS
        and len(calls) <= MAX_CALLS
    )
    if not is_small or is_deep([message, calls]) or len(json.dumps([message, calls])) > MOST_CHARS:
        return None
    return ServerFields(server, model, message, tuple(calls))
