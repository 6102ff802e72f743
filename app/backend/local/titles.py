"""A short title for a conversation, which its model writes while nothing is requested.

The request follows the conversation in the cache and is removed from it afterwards, so the next
turn reads nothing again. There is no title if the template would render earlier turns differently
for it, as some do with thoughts.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from app.reply.thinking import ThinkingSplitter
from app.session import model_sampling
from app.text.clean_text import clean_line, clean_text
from engine.errors import Cancelled
from engine.prompt.thinking import ThinkingMode, opened_by

if TYPE_CHECKING:
    from app.backend.engine_link import EngineLink
    from engine import Session
    from engine.prompt.chat_prompt import ChatPrompt

MOST_TOKENS = 12
MOST_COLUMNS = 40
MOST_S = 10.0
"""Limit on the seconds that a title may take."""
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
    """Return a title for the conversation; empty if there is none, or if other work comes first.

    Args:
        prefill_tps: prompt tokens per second of the last turn; 0 if unknown.
        decode_tps: tokens per second of the last reply; 0 if unknown.
    """
    cached = session.tokens
    ids, opening_words = _request(chat)
    unread = len(ids) - len(cached)
    if not cached or ids[: len(cached)] != cached or len(ids) + MOST_TOKENS > session.n_ctx:
        return ""
    is_slow = (
        min(prefill_tps, decode_tps) <= 0
        or unread / prefill_tps + MOST_TOKENS / decode_tps > MOST_S
    )
    if is_slow or link.inbox.idle_work.is_dropped:
        return ""
    ends_s = link.now_s() + MOST_S

    def check_limits(*_: int) -> None:
        if link.inbox.idle_work.is_dropped or link.now_s() > ends_s:
            session.cancel()

    text = ""
    with session.restoring(), link.inbox.idle_work.computing(session) as may_compute:
        if not may_compute:
            return ""
        try:
            session.prefill(ids, on_progress=check_limits)
        except Cancelled:
            return ""
        for generated in session.generate(
            model_sampling.greedy_sampling(), MOST_TOKENS, chat.stops
        ):
            text += generated.text
            check_limits()
    is_whole = session.finish_reason == "stop"
    if is_whole or session.finish_reason == "length":
        return title_in(text, opening_words, is_whole)
    return ""


def _request(chat: ChatPrompt) -> tuple[list[int], str]:
    """Return the prompt that requests a title, and its last words; the conversation stays."""
    chat_state = chat.save()
    thinking = chat.thinking
    chat.thinking = ThinkingMode(False)
    try:
        return list(chat.add_user(REQUEST)), chat.opening
    finally:
        chat.thinking = thinking
        chat.restore(chat_state)


def title_in(text: str, opening_words: str = "", is_whole: bool = True) -> str:
    """Return the title in a model's text as one clean line; empty if there is none.

    Args:
        is_whole: whether the text is complete; otherwise the title ends with a whole word.
    """
    splitter = ThinkingSplitter(opened_by(opening_words))
    answer = clean_text(splitter.push(text).answer + splitter.flush().answer)
    lines = [line for line in answer.splitlines() if line.strip(_MARKS)]
    line = ""
    if lines:
        line = " ".join(lines[0].split())
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
