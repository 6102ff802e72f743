"""Compares the live conversation with its log and adds the missing records.

Compares the messages that were written with those of the conversation, by identity: so it need not know what happened
to them. Lives in the screen's thread; the keeper writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import takewhile
from pathlib import Path

from app.conversations.conversation import ChatMessage, Conversation, Role
from app.conversations.keeper import Keeper
from app.conversations.log_file import LogRefusedError
from app.conversations.records import Record, checksum_of
from app.conversations.replay import NOTHING, Saved, head_record, linked, message_record, title_of
from app.conversations.store import STATE_NAME, Opened, Store, now_text
from app.conversations.summary import summary_of
from app.program.settings import Settings
from app.text.record import record

SWITCH_PATIENCE_S = 1.0
"""Limit on the wait for the disk when going to another conversation."""


@record
class Partial:
    """The running reply as far as it is written: its text as the screen has it, ids and raw text as the engine has."""

    text: str = ""
    thought: str = ""
    ids: tuple[int, ...] = ()
    raw: str = ""
    is_edited: bool = False


class Journal:
    """Saves one conversation at a time; without a store nothing. ``clock_text``: the wall time, for display."""

    def __init__(self, store: Store | None = None, clock_text: Callable[[], str] = now_text) -> None:
        self._store, self.clock_text = store, clock_text
        self._keeper: Keeper | None = None
        self._former: list[Keeper] = []
        """Of conversations that were left, until all of them is saved: they go on trying."""
        self._saved = Saved()
        """What the log says."""
        self._flushed = Partial()
        self._parts_link = NOTHING
        """Link of the written parts of the running reply."""
        self._is_trying = False
        self._model = ("", "")
        """Name and path of who answers from now on."""
        self._is_new = False
        """Whether nothing was ever said in it: then nothing of it stays."""

    # ---- which conversation

    def begin(self, forked_from: str = "", title: str = "") -> None:
        """A conversation that is not on disk: its first message will put it there, with all that stands before it."""
        self._leave()
        self._saved = Saved(title=title, forked_from=forked_from)

    def claim(self, conversation: Conversation, patience_s: float) -> None:
        """Put the conversation on the disk before anything is said: whoever looks for its title finds it in use."""
        if self._store is not None and self._keeper is None:
            self._create(conversation)
            self.settle(patience_s, waits_for_room=False)

    def adopt(self, opened: Opened) -> None:
        """Go on with a conversation that was opened; one without a log is copied by its next message."""
        if opened.log is None or self._store is None:
            self.begin(opened.id, opened.saved.title and f"{opened.saved.title} (copy)")
            return
        self._leave()
        log, saved = opened.log, opened.saved
        written = replace(saved.conversation, messages=list(saved.conversation.messages))
        self._saved = replace(saved, title=saved.shown_title, conversation=written, waiting=list(saved.waiting))
        self._keeper = Keeper(lambda: log, log)
        if not saved.has_head:
            self._keeper.add(head_record(saved.conversation.system, self.clock_text()), is_durable=False)
        if saved.is_end_lost:  # or what comes next would stand behind this as if nothing had been between them
            self._keeper.add({**self._first(len(written.messages), "keep"), "lost": True}, is_durable=False)

    def note_model(self, name: str, path: str) -> None:
        """Note the name and path of the model that answers from now on."""
        self._model = (name, path)

    @property
    def id(self) -> str:
        """The conversation's id; "" before it is on disk."""
        return self._path.name if self._path is not None else ""

    @property
    def state_path(self) -> Path | None:
        """Prefix of the file names of its cache states; None before it is on disk."""
        return self._path / STATE_NAME if self._path is not None else None

    @property
    def title(self) -> str:
        """Title in the list."""
        return self._saved.title

    @property
    def trouble(self) -> str:
        """Why something is not saved; "" if all is well."""
        keepers = [*self._former, self._keeper]
        return next((keeper.trouble for keeper in keepers if keeper is not None and keeper.trouble), "")

    @property
    def saves(self) -> bool:
        """Whether what happens is on the disk or will be, as far as is known."""
        return self._store is not None and not self.trouble

    @property
    def is_unlocked(self) -> bool:
        """Whether another program could go on with the same conversation, unnoticed."""
        log = self._keeper.log if self._keeper is not None else None
        return log is not None and not log.is_locked

    # ---- what happens

    def note_asked(self, conversation: Conversation, is_replacing: bool) -> None:
        """The user sent a message. In place of others, it counts when its reply begins."""
        if self._store is not None and not is_replacing:
            self._catch_up(conversation)
        elif self._keeper is not None and conversation.awaits_reply:
            written = set(map(id, self._written))
            is_new = any(id(message) not in written for message in conversation.messages)
            text = conversation.messages[-1].text if is_new else ""
            self._add(conversation, {"k": "try", "text": text}, is_durable=bool(text))
            self._is_trying = True

    def note_waiting(self, conversation: Conversation, texts: Sequence[str]) -> None:
        """These messages wait for their turn, which may not come before the program is killed."""
        saved = self._saved
        if self._store is None or list(texts) == saved.waiting:
            return
        order = 0
        if self._keeper is None:
            self._create(conversation, texts[0])
            self._catch_up(conversation)
            self._write_model(conversation)
            order = self._count_use()
        n = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(texts, saved.waiting, strict=False)))
        for place, text in enumerate(texts[n:], start=n):
            saved.waiting = list(texts[: place + 1])
            self._add(conversation, {"k": "wait", "n": place, "text": text, "order": order})
        if len(saved.waiting) > len(texts):
            saved.waiting = list(texts)
            self._add(conversation, {"k": "wait", "n": len(texts)})

    def flush(self, conversation: Conversation, partial: Partial) -> None:
        """Save the running reply as far as it is written."""
        before = self._flushed
        if self._store is None or (partial.text, partial.thought) == (before.text, before.thought):
            return
        if not partial.text.startswith(before.text) or not partial.thought.startswith(before.thought):
            return
        self._catch_up(conversation)
        record: Record = {
            "k": "part",
            "on": self._saved.links[-1],
            "after": self._parts_link if before.text or before.thought else NOTHING,
            "text": partial.text[len(before.text) :],
            "thought": partial.thought[len(before.thought) :],
            "ids": list(partial.ids[len(before.ids) :]),
            "raw": partial.raw[len(before.raw) :],
            "edited": partial.is_edited,
        }
        self._flushed = partial
        line = self._add(conversation, record, is_durable=False)
        self._parts_link = linked(record["after"], checksum_of(line))

    def note_settled(self, conversation: Conversation) -> None:
        """The turn is over: there is a reply, or everything is as it was, or the question stays."""
        if self._store is None:
            return
        n_shared = self._n_written_of(conversation.messages)
        if self._is_trying and n_shared == len(conversation.messages) == len(self._written):
            self._add(conversation, {"k": "back"}, is_durable=False)
        self._catch_up(conversation)
        self._is_trying, self._flushed = False, Partial()

    def note_dropped(self, conversation: Conversation) -> None:
        """Other messages are part of the context now."""
        written = self._saved.conversation
        if self._keeper is not None and conversation.n_dropped != written.n_dropped:
            written.n_dropped = conversation.n_dropped
            self._add(conversation, self._first(written.n_dropped, "drop"))

    def wants_title(self, conversation: Conversation) -> bool:
        """Whether its title is still the beginning of the first message."""
        return self._keeper is not None and self._saved.title == _first_words(conversation)

    def rename(self, conversation: Conversation, title: str) -> bool:
        """Give the conversation a title; False before it is on disk."""
        if self._keeper is None:
            return False
        self._saved.title = title
        self._add(conversation, {"k": "title", "text": title})
        return True

    def let_go(self) -> None:
        """Leave the conversation, which will be deleted: what of it is not saved is given up."""
        if self._keeper is not None:
            self._keeper.close(SWITCH_PATIENCE_S)
        self._saved.waiting = []
        self.begin()

    def settle(self, patience_s: float, waits_for_room: bool = True) -> bool:
        """Wait until all is saved; False if that takes longer, or fails where nothing waits for room on the disk."""
        return self._keeper is None or self._keeper.settle(patience_s, waits_for_room)

    def wait_written(self, patience_s: float) -> bool:
        """Wait until all outlives a kill of the program; False if that takes too long, or fails."""
        return self._keeper is None or self._keeper.wait_written(patience_s)

    def close(self, patience_s: float) -> str:
        """Save what is not saved and end; returns why that failed, or ""."""
        keepers = [keeper for keeper in (self._keeper, *self._former) if keeper is not None]
        give_up_s = time.monotonic() + patience_s
        failed = [keeper for keeper in keepers if not keeper.close(max(0.0, give_up_s - time.monotonic()))]
        self._drop_new()
        return (failed[0].trouble or "the disk does not answer") if failed else ""

    # ---- records

    @property
    def _path(self) -> Path | None:
        log = self._keeper.log if self._keeper is not None else None
        return log.path.parent if log is not None else None

    def _leave(self) -> None:
        self._former = [keeper for keeper in self._former if keeper.has_unsaved]
        if self._keeper is not None:
            if not self._keeper.leave(SWITCH_PATIENCE_S):
                self._former.append(self._keeper)
            self._drop_new()
            self._keeper = None
        self._is_trying, self._flushed = False, Partial()

    def _drop_new(self) -> None:
        """Delete a conversation that was begun and left with nothing in it; its log is closed."""
        if self._is_new and not self._saved.waiting and self._store is not None and self.id:
            with suppress(LogRefusedError, OSError):
                self._store.delete(self.id)
        self._is_new = False

    def _catch_up(self, conversation: Conversation) -> None:
        """Write what the conversation has and the log has not."""
        messages, saved = conversation.messages, self._saved
        if self._keeper is None:
            if not messages:
                return
            self._create(conversation)
        n_shared = self._n_written_of(messages)
        new = messages[n_shared:]
        if n_shared < len(self._written):
            # A question in place of an unanswered one says so itself: a kill between two records would lose both.
            is_one_for_one = n_shared + 1 == len(self._written) and new
            if not (is_one_for_one and self._written[-1].role is new[0].role is Role.USER):
                self._add(conversation, self._first(n_shared, "keep"), is_durable=False)
            del saved.links[n_shared + 1 :]
        saved.conversation.messages, self._is_new = list(messages), self._is_new and not messages
        if new:
            self._write_model(conversation)
        for message in new:
            if message.role is Role.USER and message.text in saved.waiting[:1]:
                del saved.waiting[0]
            order = self._count_use() if message is messages[-1] and conversation.awaits_reply else 0
            record = {**message_record(message, order, self.clock_text()), "on": saved.links[-1]}
            saved.links.append(linked(saved.links[-1], checksum_of(self._add(conversation, record))))
        self.note_dropped(conversation)

    @property
    def _written(self) -> list[ChatMessage]:
        return self._saved.conversation.messages

    def _n_written_of(self, messages: list[ChatMessage]) -> int:
        """How many of the first messages are those that were written."""
        pairs = zip(messages, self._written, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))

    def _write_model(self, conversation: Conversation) -> None:
        if self._model not in ((self._saved.model, self._saved.model_path), ("", "")):
            self._saved.model, self._saved.model_path = self._model
            self._add(conversation, {"k": "model", "name": self._model[0], "path": self._model[1]}, is_durable=False)

    def _create(self, conversation: Conversation, waiting: str = "") -> None:
        assert self._store is not None
        self._keeper = Keeper(self._store.create)
        saved, self._is_new = self._saved, True
        first = _first_words(conversation, waiting)
        renamed = saved.title or (f"{first} (copy)" if saved.forked_from else "")
        saved.title, saved.began = renamed or first, self.clock_text()
        self._add(conversation, head_record(conversation.system, saved.began, saved.forked_from), is_durable=False)
        if renamed:
            self._add(conversation, {"k": "title", "text": renamed}, is_durable=False)

    def _count_use(self) -> int:
        assert self._store is not None
        order = self._store.note_use(self.id, self._model[1])
        self._saved.order = max(order, self._saved.order)
        return order

    def _first(self, n_messages: int, kind: str) -> Record:
        """A record that names the first n messages."""
        return {"k": kind, "n": n_messages, "on": self._saved.links[min(n_messages, len(self._saved.links) - 1)]}

    def _add(self, conversation: Conversation, record: Record, is_durable: bool = True) -> bytes:
        assert self._keeper is not None
        model, model_path = self._model if any(self._model) else (self._saved.model, self._saved.model_path)
        told = replace(self._saved, conversation=conversation, changed=self.clock_text())
        self._keeper.summary = summary_of(replace(told, model=model, model_path=model_path))
        return self._keeper.add(record, is_durable)


def _first_words(conversation: Conversation, waiting: str = "") -> str:
    return title_of(next((message.folded or message.text for message in conversation.messages), waiting))


@record
class AtHand:
    """The saved conversations."""

    journal: Journal = field(default_factory=Journal)
    """Saves the live one."""
    store: Store | None = None
    """All of them; None where nothing is saved."""
    resumes: bool = False
    """Whether to go on with the last one at the start."""
    quota_bytes: int = 0
    """Limit on all saved states together; 0 keeps none."""


def conversations_at_hand(settings: Settings, is_named: bool = False) -> AtHand:
    """Return what the settings want of them; one that the user has named is saved whatever they say."""
    if settings.save_conversations == "off" and not is_named:
        return AtHand()
    store = Store()
    return AtHand(Journal(store), store, settings.resume == "last", settings.kv_states_quota_bytes)
