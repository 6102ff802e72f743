"""Branches of a conversation: what was edited, answered again or left for another branch stays.

A conversation is a tree of messages of which one path is shown, ``Conversation.messages``. A
message of the path holds the other branches from its place (``ChatMessage.alternatives``), and the
messages of a branch hold theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from app.conversations.conversation import Branch, ChatMessage, Conversation
from app.program.refusals import Refusal
from app.text.record import record

MAX_BRANCHES = 64
"""Limit on the branches from one place."""
MAX_DEPTH = 32
"""Limit on branches within branches."""
_DELETE_SOME = "delete a branch first"


def branches_of(branch: Sequence[ChatMessage]) -> tuple[Branch, ...]:
    """Return a branch and its alternatives, oldest first; empty if the branch is empty."""
    if not branch:
        return ()
    first = branch[0]
    shown = (replace(first, alternatives=(), n_older=0), *branch[1:])
    return (*first.alternatives[: first.n_older], shown, *first.alternatives[first.n_older :])


def keep_as_alternatives(message: ChatMessage, replaced: Sequence[ChatMessage]) -> None:
    """Let a new message keep the branch that it replaces, and the alternatives of that."""
    message.alternatives = branches_of(replaced)
    message.n_older = len(message.alternatives)


def show_branch(conversation: Conversation, index: int, number: int) -> None:
    """Show one of the branches from a place.

    Args:
        index: index of the message in the conversation.
        number: number of the branch, from 0 for the oldest.

    Raises Refusal: the shown messages cannot be kept as a branch.
    """
    check_room(conversation, index, n_new=0)
    branches = list(branches_of(conversation.messages[index:]))
    first, *later = branches.pop(number)
    _replace_from(conversation, index, [_with(first, branches, number), *later])


def delete_branch(conversation: Conversation, index: int) -> None:
    """Delete the shown branch from a place and show the next one, or the one before the last.

    Raises Refusal: there is no other branch to show.
    """
    shown = conversation.messages[index]
    if not shown.alternatives:
        raise Refusal("this message has no other branch")
    branches = list(shown.alternatives)
    number = min(shown.n_older, len(branches) - 1)
    first, *later = branches.pop(number)
    _replace_from(conversation, index, [_with(first, branches, number), *later])


def _with(first: ChatMessage, alternatives: Sequence[Branch], n_older: int) -> ChatMessage:
    return replace(first, alternatives=tuple(alternatives), n_older=n_older)


def _replace_from(conversation: Conversation, index: int, messages: list[ChatMessage]) -> None:
    conversation.messages[index:] = messages
    # What was dropped to make room for the other branch fits again, or is dropped again.
    conversation.drop_summaries_beyond(index)
    if conversation.n_dropped > index:
        conversation.n_dropped = 0
        if conversation.summary is not None:
            conversation.n_dropped = conversation.summary.n_messages
    conversation.drop_gaps()
    conversation.set_sources()
    # The next message is joined to an unanswered one, as after a restart.
    conversation.has_interrupted_turn = conversation.awaits_reply


def check_room(conversation: Conversation, index: int, n_new: int = 1) -> None:
    """Raise Refusal if the messages from a place cannot be kept as another branch.

    Args:
        n_new: number of new branches from there.
    """
    messages = conversation.messages[index:]
    if messages and len(messages[0].alternatives) + n_new >= MAX_BRANCHES:
        raise Refusal(f"this message has {MAX_BRANCHES} branches: {_DELETE_SOME}")
    if _depth(messages) >= MAX_DEPTH:
        raise Refusal(f"branches are within branches {MAX_DEPTH} times: {_DELETE_SOME}")


def _depth(messages: Sequence[ChatMessage]) -> int:
    """Return how many branches are within each other."""
    depths = [_depth(branch) + 1 for message in messages for branch in message.alternatives]
    return max(depths, default=0)


def n_messages_of(branch: Sequence[ChatMessage]) -> int:
    """Return the number of messages of a branch and of all branches within it."""
    return len(branch) + sum(
        n_messages_of(alternative) for message in branch for alternative in message.alternatives
    )


@record
class OtherBranch:
    """A branch that is not shown."""

    index: int
    """Index of its first message in a conversation that shows it."""
    number: int
    """Number among the branches from its place, from 1."""
    n_branches: int
    """Number of branches from its place."""
    messages: Branch


def other_branches(messages: Sequence[ChatMessage], index: int = 0) -> Iterator[OtherBranch]:
    """Yield all branches that are not shown, those within a branch right after it.

    Args:
        index: index of the first message in its conversation.
    """
    for place, message in enumerate(messages, start=index):
        n_branches = len(message.alternatives) + 1
        for n, branch in enumerate(message.alternatives):
            number = n + 1 + (n >= message.n_older)
            yield OtherBranch(place, number, n_branches, branch)
            yield from other_branches(branch, place)


@record
class MessagePlace:
    """Place of a message in the tree of a conversation."""

    steps: tuple[tuple[int, int], ...]
    """Index of a message and number of its branch to show, for each branch that leads there."""
    index: int
    """Index of the message once these branches are shown."""


def find_message(messages: Sequence[ChatMessage], word: str, index: int = 0) -> MessagePlace | None:
    """Return the first message with a word, on the shown path if possible; None if there is none.

    Args:
        index: index of the first message in its conversation.
    """
    word = word.casefold()
    for place, message in enumerate(messages, start=index):
        if word in message.text.casefold():
            return MessagePlace((), place)
    for place, message in enumerate(messages, start=index):
        for n, branch in enumerate(message.alternatives):
            inner_place = find_message(branch, word, place)
            if inner_place is not None:
                step = (place, n + (n >= message.n_older))
                return MessagePlace((step, *inner_place.steps), inner_place.index)
    return None


def show_place(conversation: Conversation, place: MessagePlace) -> None:
    """Show the branches that lead to a message. Raises Refusal: one of them cannot be shown."""
    for index, number in place.steps:
        show_branch(conversation, index, number)
