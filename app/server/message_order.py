"""Order of a conversation: arranges the messages of a request as chat templates expect them.

The API accepts messages in any order; chat templates do not. Every text stays; only tool calls
without a result are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from app.conversations.conversation import ASSISTANT, SYSTEM, TOOL, USER, PromptMessage
from app.server.api_error import invalid
from engine.prompt.tools.calls import CallResult, ToolCall

AcceptsRoles = Callable[[tuple[str, ...]], bool]
"""Whether a chat template accepts messages of these roles in this order."""


def arrange_messages(
    messages: Sequence[PromptMessage], path: str, result_message: str = "a message of role tool"
) -> tuple[tuple[PromptMessage, ...], str]:
    """Arrange the messages of a request.

    System messages at the beginning are joined, and so are neighbouring messages of the assistant.
    Each result follows its call. A result without a call becomes a message of the user.

    Args:
        messages: The messages as the request has them.
        path: Path of the messages in the request.
        result_message: Name of a message with a result, for the error.

    Returns:
        The messages to answer, and the beginning of the reply: the text of the last message if it
        is the assistant's, otherwise "".

    Raises:
        ApiError: The conversation ends with calls that have no result.
    """
    joined = _join_neighbours(messages, ASSISTANT)
    if joined and joined[-1].calls:
        raise invalid(path, f"ends with tool calls: each needs {result_message} with its result")

    arranged = _join_neighbours(_place_results(joined), ASSISTANT)
    n_system = next(
        (index for index, message in enumerate(arranged) if message.role != SYSTEM), len(arranged)
    )
    reply_prefix = ""
    if arranged and arranged[-1].role == ASSISTANT:
        reply_prefix = arranged.pop().text

    system = "\n\n".join(message.text for message in arranged[:n_system] if message.text)
    arranged = arranged[n_system:]
    if system:
        arranged.insert(0, PromptMessage(SYSTEM, system))
    if not arranged:
        arranged = [PromptMessage(USER, "")]
    return tuple(arranged), reply_prefix


def _join_neighbours(messages: Iterable[PromptMessage], role: str) -> list[PromptMessage]:
    """Join neighbouring messages of a role."""
    joined: list[PromptMessage] = []
    for message in messages:
        if message.role == role and joined and joined[-1].role == role:
            previous = joined[-1]
            text = "\n\n".join(text for text in (previous.text, message.text) if text)
            joined[-1] = replace(
                previous,
                text=text,
                calls=previous.calls + message.calls,
                pictures=previous.pictures + message.pictures,
            )
        else:
            joined.append(message)
    return joined


def _place_results(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Put results directly after their calls.

    In a request they may come anywhere before the assistant's next message.
    """
    arranged: list[PromptMessage] = []
    starts = [
        index for index, message in enumerate(messages) if message.role == ASSISTANT or index == 0
    ]
    for start, end in pairwise([*starts, len(messages)]):
        arranged += _place_results_of_turn(messages[start:end])
    return arranged


def _place_results_of_turn(turn: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Arrange a message, which is the assistant's unless the conversation starts with it, and those
    before the assistant's next one."""
    unanswered = list(turn[0].calls)
    results: list[PromptMessage] = []
    texts: list[PromptMessage] = []
    for message in turn:
        call: ToolCall | None = None
        if message.role == TOOL:
            call = _answered_call(message, unanswered)
        if call is not None:
            unanswered.remove(call)
            result = CallResult(call.name, message.text, call.call_id)
            results.append(replace(message, results=(result,)))
        elif message.role == TOOL:
            texts.append(PromptMessage(USER, message.text))
        elif message.role != ASSISTANT:
            texts.append(message)

    reply = turn[0]
    if reply.role != ASSISTANT:
        return results + texts
    answered = tuple(
        call for call in reply.calls if not any(call is missing for missing in unanswered)
    )
    if reply.text or answered or not reply.calls:
        return [replace(reply, calls=answered), *results, *texts]
    return results + texts


def _answered_call(result: PromptMessage, unanswered: Sequence[ToolCall]) -> ToolCall | None:
    """Return the call with the id of a result, or the next call if the result has no id."""
    call_id = result.results[0].call_id if result.results else ""
    if not call_id:
        return next(iter(unanswered), None)
    return next((call for call in unanswered if call.call_id == call_id), None)


def fit_template(
    messages: Sequence[PromptMessage], accepts: AcceptsRoles
) -> tuple[PromptMessage, ...]:
    """Return the messages in an order that the chat template accepts.

    System messages that the template cannot place become messages of the user.
    """
    n_system = int(messages[0].role == SYSTEM)
    system = list(messages[:n_system])
    rest = list(messages[n_system:])

    has_later_system = any(message.role == SYSTEM for message in rest)
    if has_later_system and not accepts((USER, ASSISTANT, SYSTEM, USER)):
        rest = [
            PromptMessage(USER, message.text) if message.role == SYSTEM else message
            for message in rest
        ]
    if not rest and not accepts((SYSTEM,)):
        rest = [PromptMessage(USER, message.text) for message in system]
        system = []
    if rest and rest[0].role == ASSISTANT and not accepts((ASSISTANT, USER)):
        rest = [PromptMessage(USER, ""), *rest]

    has_user_pair = any(first.role == second.role == USER for first, second in pairwise(rest))
    if has_user_pair and not accepts((USER, USER)):
        rest = _join_neighbours(rest, USER)
    return (*system, *rest)


def count_bytes(messages: Iterable[PromptMessage]) -> int:
    """Return the bytes of all messages that templates print in full: those of users, tools and the
    system."""
    return sum(
        len(message.text.encode("utf-8", "replace"))
        for message in messages
        if message.role != ASSISTANT
    )
