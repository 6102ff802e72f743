"""Compaction: the model summarizes the oldest turns, and then reads its summary in their place.

The messages stay in the conversation. The model is asked after the turns that it summarizes, whose
beginning the cache still has. The user's own words are not left to it: they are quoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.backend.reply_text import ReplyCollector
from app.conversations.conversation import USER, ChatMessage, Conversation, PromptMessage, Role
from app.conversations.session_options import SessionOptions
from app.documents.read import about_tokens
from app.program.refusals import Refusal
from app.session.request import Request, dated
from app.text.clean_text import clean_text

OFF = "off"
ASK = "ask"
ON = "on"
"""Values of the setting ``compact``."""
UNDO = "undo"
SHOW = "show"
USAGE = f"/compact takes nothing, `{UNDO}` or `{SHOW}`"
REQUEST = (
    "Stop here. Your task now: list the important facts of this conversation as short points, in "
    "its language, with all names, numbers, decisions and open questions. Use at most 200 words, "
    "write nothing else, and do not answer anything new."
)
"""Request for a summary. Small models write points better than prose, and some refuse the word
"summary".
"""
FULL_SHARE = 0.7
"""Share of the context above which the setting "on" summarizes in idle time."""
REMAINING_SHARE = 4
"""The newest turns stay as they are: one part in this many of what the model reads."""
LEAST_TOKENS = 150
"""Fewer tokens are not worth a summary."""
MOST_SUMMARY_TOKENS = 400
MOST_QUOTE_CHARS = 300
"""Limit on a quoted message."""
QUOTES_SHARE = 10
"""Quotes take at most one part in this many of the tokens that they replace."""
_CHARS_PER_TOKEN = 4
_MESSAGE_TOKENS = 6
"""Tokens of a message in addition to those of its text."""
_TEMPERATURE = 0.2
_QUOTES_HEADING = "The user's messages there, word for word:"


@dataclass
class Compaction:
    """A summary that is being written."""

    n_messages: int
    """Number of messages at the beginning that it will replace."""
    n_tokens: int
    """Estimated number of tokens of the messages and the summary that it replaces."""
    is_automatic: bool = False
    """Whether the program began it, and a message of the user ends it."""
    reply: ReplyCollector = field(default_factory=ReplyCollector)


def begin_compaction(conversation: Conversation, is_automatic: bool = False) -> Compaction:
    """Return the compaction of a conversation's oldest turns.

    Raises Refusal: there is too little to summarize.
    """
    n_messages = n_to_replace(conversation)
    replaced = conversation.messages[conversation.n_dropped : n_messages]
    n_tokens = sum(map(tokens_of, replaced))
    if n_tokens < LEAST_TOKENS:
        raise Refusal(
            "nothing to summarize yet: the last turn stays as it is, and there is too little "
            "before it"
        )
    if conversation.summary is not None:
        n_tokens += about_tokens(conversation.summary.text)
    return Compaction(n_messages, n_tokens, is_automatic)


def n_to_replace(conversation: Conversation) -> int:
    """Return the number of messages at the beginning that a summary would replace.

    They end before a question of the user, and the last turn is not among them.
    """
    first = conversation.n_dropped
    messages = conversation.messages
    sizes = [tokens_of(message) for message in messages[first:]]
    n_messages = None
    n_remaining = 0
    for index in range(len(messages) - 1, first - 1, -1):
        n_remaining += sizes[index - first]
        message = messages[index]
        if message.role is not Role.USER or message.results:
            continue
        if n_messages is not None and n_remaining * REMAINING_SHARE > sum(sizes):
            break
        n_messages = index
    if n_messages is None:
        return first
    return n_messages


def tokens_of(message: ChatMessage) -> int:
    """Estimate the tokens of a message, without pictures."""
    if message.ids:
        return len(message.ids)
    return about_tokens(message.text) + _MESSAGE_TOKENS


def request_of(
    compaction: Compaction, conversation: Conversation, options: SessionOptions
) -> Request:
    """Return the request for a summary, which ends with the messages that it replaces."""
    beginning = replace(conversation, messages=conversation.messages[: compaction.n_messages])
    messages = dated(
        (*beginning.prompt_messages(), PromptMessage(USER, REQUEST)), conversation.options.date
    )
    max_tokens = min(MOST_SUMMARY_TOKENS, max(64, compaction.n_tokens // 2))
    sampling = {**options.sampling, "max_tokens": max_tokens, "temperature": _TEMPERATURE}
    options = replace(options, sampling=sampling, thinking=OFF, form=None)
    return Request(messages, may_call=False, options=options)


def summary_text(compaction: Compaction, conversation: Conversation) -> str:
    """Return the text of the summary that was written, with the user's words.

    Raises Refusal: it is of no use.
    """
    written = clean_text(compaction.reply.text).strip()
    if not written:
        raise Refusal("the model wrote no summary")
    budget = max(MOST_QUOTE_CHARS, compaction.n_tokens * _CHARS_PER_TOKEN // QUOTES_SHARE)
    quotes = quotes_of(conversation.messages[: compaction.n_messages], budget)
    text = "\n\n".join(filter(None, (written, quotes)))
    if about_tokens(text) >= compaction.n_tokens:
        raise Refusal("the summary is not shorter than the messages")
    return text


def quotes_of(messages: Sequence[ChatMessage], most_chars: int) -> str:
    """Return the user's words in messages, the newest if there is no room for all.

    A long message is cut, and the files and pastes in it are only named.
    """
    quotes: list[str] = []
    n_left_out = 0
    for message in reversed(messages):
        if message.role is not Role.USER or message.results or message.is_missing:
            continue
        quote = f'- "{_cut(message.folded or message.text)}"'
        if most_chars < len(quote):
            most_chars = 0
            n_left_out += 1
            continue
        most_chars -= len(quote)
        quotes.append(quote)
    if not quotes:
        return ""
    if n_left_out:
        quotes.append(f"- ({n_left_out} earlier)")
    return "\n".join((_QUOTES_HEADING, *reversed(quotes)))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    if len(text) <= MOST_QUOTE_CHARS:
        return text
    return text[:MOST_QUOTE_CHARS].rpartition(" ")[0] + " ..."
