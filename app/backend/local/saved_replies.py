"""Tokens of replies that clients send back without them.

The saved states have the tokens of every conversation, so a reply's tokens are found there after a
restart, or when another session continues the conversation. Tokens with the same text and the same
calls are the reply's, its thought included. The last words of a reply may be missing: a reply that
ends at its limit of tokens has one more than the cache, and a killed server saves no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.backend.local.edited_reply import text_of
from app.conversations.conversation import PromptMessage
from app.reply.parser import ReplyParser
from engine.prompt.thinking import opened_by
from engine.prompt.tools.calls import ToolCall
from engine.prompt.tools.split import CallSplitter

if TYPE_CHECKING:
    from engine import Model
    from engine.prompt.chat_prompt import ChatPrompt


def as_written(
    message: PromptMessage,
    candidates: Iterable[Sequence[int]],
    model: Model,
    chat: ChatPrompt,
    tags: Collection[int],
) -> PromptMessage | None:
    """Return a reply with its tokens, if they are among the candidates; None if they are not.

    Args:
        message: the reply as the client sends it.
        candidates: tokens that once followed the prompt of the reply; the end may be missing.
        model: the model.
        chat: conversation whose last prompt is that of the reply.
        tags: control tokens that are part of the text.
    """
    text = message.text.strip()
    best: PromptMessage | None = None
    for ids in candidates:
        raw = text_of(model.tokenizer, ids, tags)
        parser = ReplyParser(opened_by(chat.opening), _call_splitter(model, chat))
        pieces = (parser.feed(raw), parser.finish())
        answer = "".join(piece.answer for piece in pieces).strip()
        calls = (*pieces[0].calls, *pieces[1].calls)
        if _without_ids(calls) != _without_ids(message.calls):
            continue
        if answer == text:
            calls_at = len(raw) - parser.call_chars
            return replace(message, ids=tuple(ids), raw=raw, calls_at=calls_at)
        is_beginning = bool(answer) and not calls and text.startswith(answer)
        if is_beginning and raw.endswith(answer) and (best is None or len(raw) > len(best.raw)):
            best = _completed(message, ids, raw, text.removeprefix(answer), model)
    return best


def _completed(
    message: PromptMessage, ids: Sequence[int], raw: str, rest: str, model: Model
) -> PromptMessage:
    """Return a reply whose last words were not saved with the tokens of these words."""
    rest_ids = model.tokenizer.encode_text(rest, after_special=False)
    return replace(message, ids=(*ids, *rest_ids), raw=raw + rest, calls_at=len(raw + rest))


def _call_splitter(model: Model, chat: ChatPrompt) -> CallSplitter | None:
    call_format = model.chat_template.call_format
    if call_format is None or not chat.tools:
        return None
    return CallSplitter(call_format, chat.tools)


def _without_ids(calls: Sequence[ToolCall]) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.values) for call in calls]
