"""Rounds of tool calls for one message: calls whose result is known without running them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from app.conversations.conversation import Conversation, Role
from app.tools.toolbox import MOST_ROUNDS, TOO_MANY_ROUNDS
from engine.prompt.tools.calls import CallResult, ToolCall

ADVICE = "\n\nAnswer the question with this result, in a sentence."
"""End of a known result. Small models make the same call again without it."""
LAST_ADVICE = "\n\nAnswer the question with the results so far."
"""End of the results after too many rounds."""
MANY = 2
"""Number of earlier calls from which the same call is never run again."""


def settled_results(conversation: Conversation) -> dict[str, str]:
    """Return the results of the last reply's calls that do not run, by their ids.

    No call runs after ``MOST_ROUNDS`` rounds for one message. A call with the same name and
    arguments as one of the round before, or as two earlier ones, has the result of the last. After
    other calls a result may have changed: a file that was written is read again.
    """
    calls = conversation.messages[-1].calls
    if conversation.n_rounds >= MOST_ROUNDS:
        return {call.call_id: TOO_MANY_ROUNDS + LAST_ADVICE for call in calls}
    rounds = list(_earlier_rounds(conversation))
    settled = {}
    for call in calls:
        results = [
            (n_rounds_ago, result)
            for n_rounds_ago, pairs in enumerate(rounds)
            for earlier, result in pairs
            if _key(earlier) == _key(call)
        ]
        if results and (results[0][0] == 0 or len(results) >= MANY):
            settled[call.call_id] = results[0][1].text.removesuffix(ADVICE) + ADVICE
    return settled


def open_calls(conversation: Conversation) -> tuple[ToolCall, ...]:
    """Return the calls of the last reply that run if the user permits them."""
    settled = settled_results(conversation)
    calls = conversation.messages[-1].calls
    return tuple(call for call in calls if call.call_id not in settled)


def is_over(conversation: Conversation) -> bool:
    """Whether no call of the last reply runs, so that the model must answer without tools."""
    return not open_calls(conversation)


def _earlier_rounds(conversation: Conversation) -> Iterator[list[tuple[ToolCall, CallResult]]]:
    """Yield the calls and results of each round since the user's message, newest first."""
    messages = conversation.messages
    for index in range(len(messages) - 2, 0, -2):
        message = messages[index]
        if message.role is not Role.USER or not message.results:
            return
        yield list(zip(messages[index - 1].calls, message.results, strict=False))


def _key(call: ToolCall) -> tuple[str, str]:
    return call.name, json.dumps(call.values, sort_keys=True)
