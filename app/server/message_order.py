"""The order of a conversation: what clients may send, made into what can be answered.

The API takes messages in any order; chat templates do not. Nothing that somebody said is left out
here, except calls of tools that no one answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.server.api_error import invalid
from engine.prompt.tools.calls import CallResult, ToolCall

Takes = Callable[[tuple[str, ...]], bool]
"""Whether a chat template prints messages of these roles, in this order."""


def arranged(
    said: Sequence[PromptMessage], place: str, message: str = "a message of role tool"
) -> tuple[tuple[PromptMessage, ...], str]:
    """Return the messages to answer, and the beginning of the reply where the last one is the
    assistant's.

    System messages at the beginning become one, and so do neighbouring ones of the assistant. Each
    result is next to its call; one whose call is gone is told as the user's words.

    Args:
        place: of the messages in the request.
        message: how the request gives a call's result.

    Raises:
        ApiError: the conversation ends with calls that have no result.
    """
    found = _joined(_with_results(_joined(said, ASSISTANT), place, message), ASSISTANT)
    n_system = next((at for at, one in enumerate(found) if one.role != SYSTEM), len(found))
    if found and found[-1].role == ASSISTANT:
        begun = found.pop().text
    else:
        begun = ""
    system = "\n\n".join(one.text for one in found[:n_system] if one.text)
    found = [*([PromptMessage(SYSTEM, system)] if system else []), *found[n_system:]]
    return tuple(found) or (PromptMessage(USER, ""),), begun


def _joined(said: Iterable[PromptMessage], role: str) -> list[PromptMessage]:
    """Join neighbouring messages of a role."""
    found: list[PromptMessage] = []
    for one in said:
        if one.role == role and found and found[-1].role == role:
            text = "\n\n".join(text for text in (found[-1].text, one.text) if text)
            found[-1] = replace(found[-1], text=text, calls=found[-1].calls + one.calls)
        else:
            found.append(one)
    return found


def _with_results(said: Sequence[PromptMessage], place: str, message: str) -> list[PromptMessage]:
    """Put results next to their calls: they may come anywhere before the assistant's next
    message."""
    if said and said[-1].calls:
        raise invalid(place, f"ends with calls of tools: each needs {message} with its result")
    found: list[PromptMessage] = []
    starts = [at for at, one in enumerate(said) if one.role == ASSISTANT or at == 0]
    for start, end in zip(starts, [*starts[1:], len(said)], strict=True):
        results = []
        others = []
        unanswered = list(said[start].calls)
        for one in said[start:end]:
            if one.role == TOOL:
                call = _call_of(one, unanswered)
            else:
                call = None
            if call is not None:
                unanswered.remove(call)
                results.append(
                    replace(one, results=(CallResult(call.name, one.text, call.call_id),))
                )
            elif one.role != ASSISTANT:
                others.append(PromptMessage(USER, one.text) if one.role == TOOL else one)
        reply = said[start]
        calls = tuple(one for one in reply.calls if not any(one is other for other in unanswered))
        if reply.role == ASSISTANT and (reply.text or calls or not reply.calls):
            found.append(replace(reply, calls=calls))
        found += results + others
    return found


def _call_of(result: PromptMessage, unanswered: Sequence[ToolCall]) -> ToolCall | None:
    """Return the call that a result answers: the one with its id, or the next one where it names
    none."""
    if result.results:
        wanted = result.results[0].call_id
    else:
        wanted = ""
    if not wanted:
        return next(iter(unanswered), None)
    return next((call for call in unanswered if call.call_id == wanted), None)


def as_taken(said: Sequence[PromptMessage], takes: Takes) -> tuple[PromptMessage, ...]:
    """Return a conversation in an order that a template takes; what it has no place for becomes a
    user's turn."""
    n_system = int(said[0].role == SYSTEM)
    first = list(said[:n_system])
    later = list(said[n_system:])
    if any(one.role == SYSTEM for one in later) and not takes((USER, ASSISTANT, SYSTEM, USER)):
        later = [PromptMessage(USER, one.text) if one.role == SYSTEM else one for one in later]
    if not later and not takes((SYSTEM,)):
        later = [PromptMessage(USER, one.text) for one in first]
        first = []
    if later and later[0].role == ASSISTANT and not takes((ASSISTANT, USER)):
        later = [PromptMessage(USER, ""), *later]
    pairs = {one.role for one, other in pairwise(later) if one.role == other.role}
    if USER in pairs and not takes((USER, USER)):
        later = _joined(later, USER)
    return (*first, *later)


def n_bytes_of(said: Iterable[PromptMessage]) -> int:
    """Return the bytes of what users, tools and the system say: templates print all of it."""
    return sum(len(one.text.encode("utf-8", "replace")) for one in said if one.role != ASSISTANT)
