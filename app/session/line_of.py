"""The line that tells a user about an event, the same in the chat, the line mode and ``run``."""

from __future__ import annotations

from app.conversations.conversation import Conversation, Ending, Role
from app.machine.tuning.threads_in_use import ChoiceOrigin, describe
from app.session import events
from app.session.adapters import described
from app.text import figures
from app.text.figures import count
from app.text.record import record

SENT_TOGETHER = "the message before was not answered: both are sent together"
LEFT_OUT = (
    "the message before, which was not answered, is left out: both together do not fit the context"
)
WORTH_A_LINE_TOKENS = 32
"""Fewer unread tokens are not mentioned."""


@record
class EventLine:
    """A line about an event."""

    text: str
    is_error: bool = False


@record
class Hints:
    """Ways to do something about an event, as the user's interface offers them."""

    tune: str = "jalopy tune MODEL"
    """Key or command that measures threads."""
    larger_context: str = "a larger --ctx"
    """Way to get a larger context; empty if the model has none."""


SHELL_HINTS = Hints()


def line_of(
    event: events.Event, hints: Hints = SHELL_HINTS, is_restored: bool = False
) -> EventLine | None:
    """Return the line about an event; None if the event needs none.

    Args:
        is_restored: whether the event ended the turn and the conversation is as it was before.
    """
    match event:
        case events.ModelFailed():
            return EventLine(event.reason, is_error=True)
        case events.ModelSwitchFailed(is_open=True):
            return EventLine(f"{event.reason}; the previous model stays open", is_error=True)
        case events.ModelSwitchFailed():
            return EventLine(f"{event.reason}; opening the previous model again", is_error=True)
        case events.ConversationResumed():
            return _of_phrases(resumed_phrases(event), event.trouble)
        case events.ConversationReread():
            return _of_phrases(_reread_phrases(event), event.trouble)
        case events.TurnsDropped():
            return EventLine(
                figures.dropped_turns(
                    event.n_turns, event.n_tokens, event.read_tokens, event.read_s
                )
            )
        case events.ConversationCompacted():
            return EventLine(compacted_line(event))
        case events.CompactionEnded():
            if event.trouble:
                return EventLine(f"not summarized: {event.trouble}", is_error=True)
            return EventLine("stopped: nothing is summarized, and the conversation is as it was")
        case events.MessagesJoined():
            return EventLine(SENT_TOGETHER)
        case events.PendingMessageLeftOut():
            return EventLine(LEFT_OUT)
        case events.PromptRefused():
            return _of_refusal(event, hints)
        case events.PromptStopped():
            return _of_stop(is_restored)
        case events.GenerationFailed():
            return _of_failure(event, is_restored)
        case events.AnswersBegun() if event.trouble:
            return EventLine(f"answers written together: {event.n}; for more, {event.trouble}")
        case events.ThreadsChanged():
            return _of_threads(event)
        case events.AdaptersChanged():
            if event.trouble:
                return EventLine(event.trouble, is_error=True)
            return EventLine(
                f"{described(event.adapters) or 'no adapter'} from the next message on"
            )
        case events.TuningDoubted():
            return EventLine(f"{event.reason}: {hints.tune} measures again")
        case events.TuningEnded() if event.trouble:
            return EventLine(f"threads could not be measured: {event.trouble}", is_error=True)
        case events.EmptyReplyRepeated():
            return EventLine("the model wrote nothing: asking once more, without tools")
        case events.ToolsNotice():
            return EventLine(event.line, event.is_fault)
    return None


def compacted_line(event: events.ConversationCompacted) -> str:
    """Return a line about a summary that the model reads from now on."""
    return (
        f"The model now reads a summary of the first {event.n_messages} messages: "
        f"about {count(event.n_summary_tokens)} tokens instead of {count(event.n_tokens)}. "
        "Their text stays here. /compact show shows the summary, /compact undo removes it."
    )


def empty_reply_line(conversation: Conversation, advice: str = "/regen asks again") -> str:
    """Return a line on a last reply that is complete but has no text; "" for any other.

    Args:
        advice: what the user can do, besides asking in other words.
    """
    reply = conversation.messages[-1] if conversation.messages else None
    if reply is None or reply.role is not Role.ASSISTANT or reply.ending is not Ending.COMPLETE:
        return ""
    if reply.text.strip() or reply.calls:
        return ""
    fault = "the model wrote nothing"
    if reply.thinking is not None:
        fault = "the model thought, but wrote no answer"
    elif conversation.n_rounds:
        fault = "the model wrote nothing about the results of the tools"
    return f"{fault}: {advice}, or ask in other words"


def resumed_phrases(event: events.ConversationResumed) -> list[str]:
    """Return what to say about the cache of a saved conversation; empty if it needs no words."""
    phrases = []
    if event.restored_tokens:
        phrases.append(figures.back(event.restored_tokens, event.restored_s, event.read_s))
    unread = event.total_tokens - event.ready_tokens
    if unread >= WORTH_A_LINE_TOKENS:
        phrases.append(f"{count(unread)} tokens will be read with your next message")
    return phrases


def _reread_phrases(event: events.ConversationReread) -> list[str]:
    phrases = []
    total = count(event.total_tokens)
    if event.restored_tokens:
        phrases.append(f"{count(event.restored_tokens)} of {total} tokens were already read")
    newly_read = event.read_tokens - event.restored_tokens
    if event.trouble:
        return phrases
    if event.read_tokens < event.total_tokens:
        phrases.append(
            f"read {count(event.read_tokens)} of {total} tokens of the conversation; "
            "the rest will be read with your next message"
        )
    elif newly_read:
        phrases.append(
            f"read the conversation again: {count(newly_read)} tokens in "
            f"{figures.seconds(event.read_s)}"
        )
    return phrases


def _of_phrases(phrases: list[str], trouble: str) -> EventLine | None:
    if trouble:
        phrases = [*phrases, trouble]
    if not phrases:
        return None
    return EventLine(" · ".join(phrases), is_error=bool(trouble))


def _of_refusal(event: events.PromptRefused, hints: Hints) -> EventLine:
    cure = "Shorten it"
    if hints.larger_context:
        cure += f", or use {hints.larger_context}"
    return EventLine(
        f"Not sent: with room for a reply, this message alone needs {count(event.needed_tokens)} "
        f"tokens; the context holds {count(event.n_ctx)}. {cure}.",
        is_error=True,
    )


def _of_stop(is_restored: bool) -> EventLine:
    if is_restored:
        return EventLine("stopped before the reply began; the conversation is as it was")
    return EventLine(
        "stopped before the reply began (/regen asks again; another message replaces this one)"
    )


def _of_failure(event: events.GenerationFailed, is_restored: bool) -> EventLine:
    if event.partial_reply is not None:
        consequence = ""
    elif is_restored:
        consequence = " (the conversation is as it was)"
    else:
        consequence = " (/regen asks again)"
    return EventLine(f"{event.reason}{consequence}", is_error=True)


def _of_threads(event: events.ThreadsChanged) -> EventLine:
    previous = event.before.now
    now = event.in_use.now
    line = f"now {describe(now)}"
    if previous != now:
        line += f" (was {describe(previous)})"
    if event.in_use.is_saved:
        line += ", saved for this machine and model"
    elif event.in_use.origin is not ChoiceOrigin.START:
        line += ", for this run only"
    if event.trouble:
        line += f"; {event.trouble}"
    return EventLine(line, is_error=bool(event.trouble))
