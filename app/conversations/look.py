"""Listing and searching in a thread of its own, for a screen that looks at the result now and then.

A list reads summaries only. A search reads the logs too, the newest first, and remembers their text for the next
letter that is typed.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial

from app.conversations.conversation import Conversation
from app.conversations.log_file import LogRefusedError
from app.conversations.store import Entry, Store
from app.program.background import in_background
from app.program.refusals import log_without_text
from app.text.clean_text import clean_line
from app.text.record import record

_SHOW_PERIOD_S = 0.2
_MOST_REMEMBERED_CHARS = 32 << 20
_SNIPPET_CHARS = 160


@record
class Found:
    """Result so far, the conversation used last first."""

    hits: tuple[Entry, ...] = ()
    n_searched: int = 0
    n_all: int = 0
    """How many texts were searched, and are to be."""
    is_done: bool = False
    trouble: str = ""
    """Why it ended early; "" if it did not."""


@dataclass
class Texts:
    """Texts of conversations, kept while a screen is open; only one search at a time may use it."""

    by_log: dict[tuple[str, int], str] = field(default_factory=dict)
    n_chars: int = 0

    def of(self, store: Store, entry: Entry) -> str:
        """Return the text of a conversation, read if it is not known."""
        key = entry.id, entry.log_bytes
        if key in self.by_log:
            return self.by_log[key]
        try:
            text = text_of(store.read(entry.id).conversation)
        except (LogRefusedError, OSError):
            text = ""
        if self.n_chars + len(text) <= _MOST_REMEMBERED_CHARS:
            self.by_log[key] = text
            self.n_chars += len(text)
        return text


def text_of(conversation: Conversation) -> str:
    """Return everything that was said, the system prompt first."""
    return "\n".join([conversation.system or "", *(message.text for message in conversation.messages)])


def row_matches(entry: Entry, words: list[str]) -> bool:
    """Whether title, model and day have all words."""
    summary = entry.summary
    row = f"{entry.id} {summary.title} {summary.model} {summary.changed}".casefold()
    return all(word in row for word in words)


def snippet_of(text: str, words: list[str]) -> str:
    """Return the place of the first word, if all words are in the text; "" if not."""
    folded = text.casefold()
    if not words or not all(word in folded for word in words):
        return ""
    at = max(0, folded.find(words[0]) - _SNIPPET_CHARS // 3)
    piece = text[at : at + _SNIPPET_CHARS]
    return clean_line(" ".join(piece.split()), _SNIPPET_CHARS) or words[0]


class Look:
    """One look at all conversations. ``filter_text``: words that must be in the title or in the text; "" for all."""

    def __init__(self, store: Store, filter_text: str = "", texts: Texts | None = None) -> None:
        self._store, self._texts = store, texts or Texts()
        self._words = filter_text.casefold().split()
        self._is_wanted = True
        self._ending: Future[None] | None = None
        self.found = Found()

    def start(self, after: Look | None = None) -> Look:
        """Begin; the result is ``found``, at any time. ``after``: an earlier one with the same texts, ended first."""
        if after is not None:
            after.cancel()
        self._ending = in_background(partial(self._run, after), "conversations")
        return self

    def cancel(self) -> None:
        """End after the conversation that is being read."""
        self._is_wanted = False

    def run(self) -> Found:
        """Look in the caller's thread."""
        self._look()
        return self.found

    def _run(self, after: Look | None) -> None:
        if after is not None and after._ending is not None:
            wait([after._ending])
        try:
            self._look()
        except Exception as error:
            log_without_text(error)
            self.found = replace(self.found, is_done=True, trouble=f"internal error: {type(error).__name__}")

    def _look(self) -> None:
        entries = sorted(self._store.entries(), key=lambda entry: entry.last_use, reverse=True)
        if not self._words:
            self.found = Found(tuple(entries), is_done=True)
            return
        hits = {entry.id: entry for entry in entries if row_matches(entry, self._words)}
        shown_s = time.monotonic()
        for n, entry in enumerate(entries):
            if not self._is_wanted:
                return
            if entry.id not in hits and (snippet := snippet_of(self._texts.of(self._store, entry), self._words)):
                hits[entry.id] = replace(entry, snippet=snippet)
            if time.monotonic() - shown_s > _SHOW_PERIOD_S:
                shown_s = time.monotonic()
                self.found = Found(_in_order(entries, hits), n + 1, len(entries))
        self.found = Found(_in_order(entries, hits), len(entries), len(entries), is_done=True)


def _in_order(entries: list[Entry], hits: dict[str, Entry]) -> tuple[Entry, ...]:
    return tuple(hits[entry.id] for entry in entries if entry.id in hits)
