"""The messages of a request, checked: who says what, in an order that a conversation can have."""

from __future__ import annotations

from typing import Any

from app.server.api_error import ApiError, invalid, unsupported
from app.server.fields import Fields, kind_of
from app.server.tools import read_calls, read_id
from app.text.record import record
from engine.prompt.tools.calls import ToolCall

MOST_MESSAGES = 10_000
SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
_ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}


@record
class Said:
    """A message."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    text: str
    calls: tuple[ToolCall, ...] = ()
    """Of an assistant."""
    call_id: str = ""
    """Of the call whose result this is."""


def read_messages(fields: Fields, is_continued: bool = False) -> tuple[Said, ...]:
    """Return the conversation; several system messages at its beginning become one.

    Args:
        is_continued: whether the last message is the beginning of the reply.

    Raises:
        ApiError: it is none that can be answered.
    """
    items = fields.items("messages", MOST_MESSAGES)
    if not items:
        raise fields.missing("messages", "a list of messages, the last one of the user")
    said = [_read_message(item, f"messages[{at}]") for at, item in enumerate(items)]
    n_system = next((at for at, one in enumerate(said) if one.role != SYSTEM), len(said))
    for at, one in enumerate(said[n_system:], n_system):
        before = said[at - 1].role if at else ""
        if one.role == SYSTEM:
            raise _misplaced(at, "a system message must stand before all others")
        if one.role == ASSISTANT and before not in (USER, TOOL):
            raise _misplaced(at, "an assistant's message must follow a user's or a tool's")
    _check_results(said)
    last, whose = ((ASSISTANT,), "assistant's, which goes on") if is_continued else ((USER, TOOL), "user's or a tool's")
    if said[-1].role not in last:
        raise _misplaced(len(said) - 1, f"the last message must be the {whose}")
    system = "\n\n".join(one.text for one in said[:n_system] if one.text)
    return (*([Said(SYSTEM, system)] if system else []), *said[n_system:])


def _check_results(said: list[Said]) -> None:
    """Refuse results without a call, and calls without a result."""
    open_ids: set[str] = set()
    for at, one in enumerate(said):
        if one.role == TOOL:
            if one.call_id not in open_ids:
                why = "no call before it has this id, or it has a result already"
                raise invalid(f"messages[{at}].tool_call_id", why)
            open_ids.remove(one.call_id)
        elif open_ids:
            raise _misplaced(at, "each call before it needs a message of role tool with its result")
        open_ids |= {call.call_id for call in one.calls}
        if len(open_ids) < len(one.calls):
            raise invalid(f"messages[{at}].tool_calls", "two calls have the same id")
    if open_ids:
        raise _misplaced(len(said) - 1, "each call needs a message of role tool with its result")


def _misplaced(at: int, why: str) -> ApiError:
    return invalid(f"messages[{at}].role", why)


def _read_message(item: Any, place: str) -> Said:
    message = Fields.of(item, place)
    role = message.text("role")
    if role == "function":
        raise unsupported(message.place("role"), f"{role} is not supported (allowed: {', '.join(_ROLES)})")
    if role not in _ROLES:
        raise message.wrong("role", f"one of {', '.join(_ROLES)}") if role else message.missing("role", "user")
    calls = read_calls(message) if role == ASSISTANT else ()
    call_id = read_id(message, "tool_call_id") if role == TOOL else ""
    if role == TOOL:
        message.text("name")  # the call has it
    for name in ("tool_calls", "function_call", "name", "audio", "tool_call_id"):
        if name not in message.taken and message.any(name) not in (None, []):
            raise unsupported(message.place(name), "is not supported")
    for name in ("refusal", "reasoning_content", "annotations"):
        message.any(name)  # parts of an answer of ours that a client sends back; the thought's tokens are kept here
    text = "" if calls and not message.has("content") else _content(message)
    message.refuse_rest()
    return Said(_ROLES[role], text, calls, call_id)


def _content(message: Fields) -> str:
    given = message.required(message.any("content"), "content", "a string or a list of text parts")
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise message.wrong("content", "a string or a list of text parts")
    return "".join(_part(item, f"{message.place('content')}[{at}]") for at, item in enumerate(given))


def _part(item: Any, place: str) -> str:
    part = Fields.of(item, place)
    kind = part.text("type")
    if kind != "text":
        shown = kind_of(kind) if kind is not None else "missing"
        raise unsupported(part.place("type"), f"is {shown}: only text is supported")
    text = part.required(part.text("text"), "text", "a string")
    part.refuse_rest()
    return text
