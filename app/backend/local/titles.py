"""A short title for a conversation, which its model writes while nothing is asked.

The request goes after the conversation that the cache holds and is forgotten again: the next turn
reads nothing again. Where a template would write the earlier turns in another way for it, as some
do with thoughts, there is no title.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from app.reply.thinking import ThinkingSplitter
from app.session import samplers
from app.text.clean_text import clean_line, clean_text
from engine.errors import Cancelled
from engine.prompt.thinking_mode import ThinkingMode
from engine.prompt.thought_markers import opened_by

if TYPE_CHECKING:
    from app.backend.engine_link import EngineLink
    from engine import Session
    from engine.prompt.chat_prompt import ChatPrompt

MOST_TOKENS = 12
MOST_COLUMNS = 40
MOST_S = 10.0
"""Nothing is begun that would take longer, and what does is broken off."""
REQUEST = (
    "Write a title of two to five words for this conversation, in its language. Write nothing but "
    "the title."
)
_LABEL = re.compile(r"^(?:title|titel|titre|título|titolo)\s*:\s*", re.IGNORECASE)
_MARKS = " \t\"'`*#_“”„«»‘’.:,;-"
_LEAST_LETTERS = 3


def write_title(
    link: EngineLink, session: Session, chat: ChatPrompt, prefill_tps: float, decode_tps: float
) -> str:
    """Return a title for the conversation; "" where none came of it, or something else is wanted
    first.

    Args:
        prefill_tps: of the last turn, to know how long it would take; 0 for unknown, as the next.
        decode_tps: of the last reply.
    """
    held = session.tokens
    ids, opening_words = _request(chat)
    unread = len(ids) - len(held)
    if not held or ids[: len(held)] != held or len(ids) + MOST_TOKENS > session.n_ctx:
        return ""
    is_slow = (
        min(prefill_tps, decode_tps) <= 0
        or unread / prefill_tps + MOST_TOKENS / decode_tps > MOST_S
    )
    if is_slow or link.inbox.idle_work.is_dropped:
        return ""
    ends_s = link.now_s() + MOST_S

    def give_way(*_: int) -> None:
        if link.inbox.idle_work.is_dropped or link.now_s() > ends_s:
            session.cancel()

    text = ""
    with session.restoring(), link.inbox.idle_work.computing(session) as is_wanted:
        if not is_wanted:
            return ""
        try:
            session.prefill(ids, on_progress=give_way)
        except Cancelled:
            return ""
        for generated in session.generate(samplers.greedy_sampling(), MOST_TOKENS, chat.stops):
            text += generated.text
            give_way()
    is_whole = session.finish_reason == "stop"
    if is_whole or session.finish_reason == "length":
        return title_in(text, opening_words, is_whole)
    return ""


def _request(chat: ChatPrompt) -> tuple[list[int], str]:
    """Return the prompt that asks for a title, and its last words; the conversation is as
    before."""
    saved = chat.save()
    thinking = chat.thinking
    chat.thinking = ThinkingMode(False)
    try:
        return list(chat.add_user(REQUEST)), chat.opening
    finally:
        chat.thinking = thinking
        chat.restore(saved)


def title_in(text: str, opening_words: str = "", is_whole: bool = True) -> str:
    """Return the title in what a model wrote, as one clean line; "" for none.

    Cut off, it ends with a whole word.
    """
    splitter = ThinkingSplitter(opened_by(opening_words))
    answer = clean_text(splitter.push(text).answer + splitter.flush().answer)
    lines = [line for line in answer.splitlines() if line.strip(_MARKS)]
    if lines:
        line = " ".join(lines[0].split())
    else:
        line = ""
    if not is_whole and len(lines) == 1:
        line = line.rpartition(" ")[0]
    title = _LABEL.sub("", line.strip(_MARKS)).strip(_MARKS)
    while _columns(title) > MOST_COLUMNS:
        title = (title.rpartition(" ")[0] or title[:-1]).rstrip(_MARKS)
    if sum(map(str.isalpha, title)) >= _LEAST_LETTERS:
        return clean_line(title)
    return ""


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
