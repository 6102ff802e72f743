"""The parts of a full context: system prompt, summary, documents, pictures, messages, replies."""

from __future__ import annotations

from collections.abc import Iterator

from app.conversations.conversation import Conversation, Role
from app.documents.pictures import about_tokens_in
from app.documents.read import about_tokens
from app.session.compaction import tokens_of
from app.text.figures import count
from app.text.glyphs import choose_glyphs
from app.text.record import record

SYSTEM_PROMPT = "system prompt"
SUMMARY = "summary"
DOCUMENTS = "documents, pastes"
PICTURE_PART = "pictures"
QUESTIONS = "your messages"
TOOL_RESULTS = "tool results"
REPLIES = "replies"
_PARTS = (SYSTEM_PROMPT, SUMMARY, DOCUMENTS, PICTURE_PART, QUESTIONS, TOOL_RESULTS, REPLIES)
_FREE = "free"
_BAR_CELLS = 20
_NAME_WIDTH = max(map(len, _PARTS))
_COUNT_WIDTH = 9


@record
class ContextPart:
    """A part of the context."""

    name: str
    n_tokens: int


def parts_of(conversation: Conversation, n_used: int) -> list[ContextPart]:
    """Return the parts of the context that are not empty, with about as many tokens as are used.

    Only the sum is measured; it is shared in proportion to estimates.
    """
    estimates = dict.fromkeys(_PARTS, 0)
    for name, n_tokens in _estimates(conversation):
        estimates[name] += n_tokens
    total = sum(estimates.values())
    if not total:
        return []
    return [
        ContextPart(name, round(n_used * n_tokens / total))
        for name, n_tokens in estimates.items()
        if n_tokens
    ]


def _estimates(conversation: Conversation) -> Iterator[tuple[str, int]]:
    if conversation.system:
        yield SYSTEM_PROMPT, about_tokens(conversation.system)
    if conversation.summary is not None:
        yield SUMMARY, about_tokens(conversation.summary.text)
    for message in conversation.messages[conversation.n_dropped :]:
        n_tokens = tokens_of(message)
        if message.role is Role.ASSISTANT:
            yield REPLIES, n_tokens
            continue
        if message.results:
            yield TOOL_RESULTS, n_tokens
            continue
        n_typed = n_tokens
        if message.folded:
            n_typed = min(n_tokens, about_tokens(message.folded))
        yield QUESTIONS, n_typed
        yield DOCUMENTS, n_tokens - n_typed
        yield PICTURE_PART, about_tokens_in(message.text)


def describe_context(conversation: Conversation, n_used: int, n_ctx: int) -> str:
    """Return what fills the context: a line with the sum, and one with a bar for each part."""
    share = round(100 * n_used / n_ctx)
    lines = [f"Context: {count(n_used)} of {count(n_ctx)} tokens are used ({share} %)"]
    parts = parts_of(conversation, n_used)
    for part in (*parts, ContextPart(_FREE, max(0, n_ctx - n_used))):
        lines.append(_line(part, n_ctx))
    if conversation.n_dropped:
        what = "are not read"
        if conversation.summary is not None:
            what = "are read as a summary (/compact show shows it)"
        lines.append(f"The first {conversation.n_dropped} messages {what}")
    return "\n".join(lines)


def _line(part: ContextPart, n_ctx: int) -> str:
    glyphs = choose_glyphs()
    n_cells = min(_BAR_CELLS, round(_BAR_CELLS * part.n_tokens / n_ctx))
    sign = glyphs.full
    about = "~"
    if part.name == _FREE:
        sign = glyphs.empty
        about = ""
    elif part.n_tokens:
        n_cells = max(1, n_cells)
    figure = f"{about}{count(part.n_tokens)}"
    return f"  {part.name:<{_NAME_WIDTH}} {figure:>{_COUNT_WIDTH}}  {sign * n_cells}".rstrip()
