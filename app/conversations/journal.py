"""Saves the live conversation: compares it with what is written, and writes what is missing in a
thread of its own.

Neither screen nor engine ever waits for a disk. What cannot be written stays in memory, in order,
and is tried again every few seconds and with everything new. The journal, in the screen's thread,
compares the messages that were written with those of the conversation, by identity: so it need not
know what happened to them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import takewhile
from pathlib import Path

from app.conversations.conversation import ChatMessage, Conversation, Role
from app.conversations.locks import StoreError
from app.conversations.state_files import drop_oldest_states
from app.conversations.store import (
    Change,
    LoadedConversation,
    OpenConversation,
    Store,
    add_piece,
    keep_messages,
    mark_used,
    now_text,
    put_message,
    set_columns,
    title_of,
    touch,
)
from app.program.refusals import log_without_text
from app.program.settings import NEW, Settings
from app.text.record import record

RETRY_S = 5.0
SYNC_S = 2.0
"""Longest time that a growing reply stays unsynced; a kill loses none of it, a power cut may."""
_MOST_LAST_TRIES = 2
SWITCH_PATIENCE_S = 1.0
"""Limit on the wait for the disk when going to another conversation."""


@record
class PartialReply:
    """The running reply as far as it is written: its text as the screen has it, ids and raw text as
    the engine has."""

    text: str = ""
    thought: str = ""
    ids: tuple[int, ...] = ()
    raw: str = ""
    is_edited: bool = False


class SaverThread:
    """Changes one conversation on the disk until it is closed."""

    def __init__(self, held: OpenConversation) -> None:
        self.open_conversation = held
        self._condition = threading.Condition()
        self._changes: list[tuple[Change, bool]] = []
        """Not on the disk yet, in order, and whether they are to outlive a power cut."""
        self._n_failed = 0
        """How many there were in the last try, where that failed."""
        self._unsynced_s: float | None = None
        """Since when something is on the disk that a power cut might lose."""
        self._is_leaving = self._is_closing = self._is_over = False
        self._n_last_tries = 0
        self.trouble = ""
        """Why nothing is saved at present; "" while all is well."""
        self._thread = threading.Thread(target=self._run, name="jalopy-saver", daemon=True)
        self._thread.start()

    @property
    def has_unsaved(self) -> bool:
        """Whether something is in memory only."""
        with self._condition:
            return bool(self._changes)

    def add(self, change: Change, is_durable: bool = True) -> None:
        """Have a change made soon; a durable one with all before it outlives a power cut."""
        with self._condition:
            self._changes.append((change, is_durable))
            self._condition.notify_all()

    def leave(self, patience_s: float) -> bool:
        """End once everything is saved, however often that must be tried; False, and not waited
        for, if that fails."""
        give_up_s = time.monotonic() + patience_s
        with self._condition:
            self._is_leaving = True
            self._condition.notify_all()
            while (
                not (self._is_over or self.trouble) and (left_s := give_up_s - time.monotonic()) > 0
            ):
                self._condition.wait(left_s)
            if not self._is_over:
                return False
        self._thread.join(patience_s)
        return not self.has_unsaved

    def close(self, patience_s: float) -> bool:
        """Write what waits and end; False if something is still not saved after ``patience_s``."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        self._thread.join(patience_s)
        return not self.has_unsaved

    def wait_until_saved(self, patience_s: float, waits_for_room: bool = True) -> bool:
        """Wait until all is saved; False if that takes too long, or fails where nothing
        ``waits_for_room``."""
        give_up_s = time.monotonic() + patience_s
        with self._condition:
            while self._changes:
                left_s = give_up_s - time.monotonic()
                has_failed = self._n_failed == len(self._changes)
                if left_s <= 0 or self._is_over or (has_failed and not waits_for_room):
                    return False
                self._condition.wait(left_s)
        return True

    # ---- the saver's thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._save()
        finally:
            with self._condition:
                self._is_over = True
                self._condition.notify_all()
            self.open_conversation.close()

    def _wait(self) -> bool:
        """Wait for something to do; False when it is time to end."""
        with self._condition:
            while not self._is_closing:
                if self.trouble:
                    self._condition.wait(RETRY_S)
                    return True
                if self._changes or self._is_leaving:
                    return self._has_work
                if self._unsynced_s is None:
                    left_s = None
                else:
                    left_s = SYNC_S - (time.monotonic() - self._unsynced_s)
                if left_s is not None and left_s <= 0:
                    return True
                self._condition.wait(left_s)
            return self._has_work and self._n_last_tries < _MOST_LAST_TRIES

    @property
    def _has_work(self) -> bool:
        return bool(self._changes) or self._unsynced_s is not None

    def _save(self) -> None:
        with self._condition:
            taken = list(self._changes)
            self._n_last_tries += self._is_closing
            is_ending = self._is_leaving or self._is_closing
        now_s = time.monotonic()
        is_due = self._unsynced_s is not None and now_s - self._unsynced_s >= SYNC_S
        is_durable = is_ending or is_due or any(is_durable for _, is_durable in taken)
        try:
            self.open_conversation.apply([change for change, _ in taken] or [touch], is_durable)
        except Exception as error:
            self.trouble = _cause_of(error)
            self._n_failed = len(taken)
        else:
            self.trouble = ""
            self._n_failed = 0
            if is_durable:
                self._unsynced_s = None
            else:
                self._unsynced_s = self._unsynced_s or now_s
            with self._condition:
                del self._changes[: len(taken)]
        with self._condition:
            self._condition.notify_all()


def _cause_of(error: Exception) -> str:
    """Say why something was not saved; a bug goes to the log and is named by its type."""
    if isinstance(error, StoreError):
        return str(error)
    log_without_text(error)
    return f"internal error: {type(error).__name__}"


class Journal:
    """Saves one conversation at a time; without a store nothing.

    ``clock_text``: the wall time, for display.
    """

    def __init__(
        self, store: Store | None = None, clock_text: Callable[[], str] = now_text
    ) -> None:
        self._store = store
        self.clock_text = clock_text
        self._saver: SaverThread | None = None
        self._former: list[SaverThread] = []
        """Of conversations that were left, until all of them is saved: they go on trying."""
        self._written: list[ChatMessage] = []
        self._waiting: list[str] = []
        self._n_dropped = 0
        """The messages on the disk, those that wait for their turn, and how many left the
        context."""
        self.title = ""
        self._forked_from = ""
        self._flushed = PartialReply()
        self._is_trying = False
        self._model = self._written_model = ("", "")
        """Name and path of who answers from now on, and of whom the disk says that."""
        self._is_new = False
        """Whether nothing was ever said in it: then nothing of it stays."""

    # ---- which conversation

    def begin(self, forked_from: str = "", title: str = "") -> None:
        """A conversation that is not on disk: its first message will put it there, with all that is
        before it."""
        self._leave()
        self._written = []
        self._waiting = []
        self._n_dropped = 0
        self._written_model = ("", "")
        self.title = title
        self._forked_from = forked_from

    def claim(self, conversation: Conversation, patience_s: float) -> None:
        """Put the conversation on the disk before anything is said: who looks for its title finds
        it in use."""
        if self._store is not None and self._saver is None:
            self._create(conversation)
            self.wait_until_saved(patience_s, waits_for_room=False)

    def resume(self, opened: LoadedConversation) -> None:
        """Go on with a conversation that was opened; one that is held elsewhere is copied by its
        next message."""
        saved = opened.saved
        held = opened.open_conversation
        if held is None or self._store is None:
            self.begin(opened.id, saved.title and f"{saved.title} (copy)")
            return
        self._leave()
        self._written = list(saved.conversation.messages)
        self._waiting = list(saved.waiting)
        self.title = saved.title
        self._forked_from = saved.forked_from
        self._n_dropped = saved.conversation.n_dropped
        self._written_model = (saved.model, saved.model_path)
        self._saver = SaverThread(held)
        if saved.has_pieces:
            self._add(
                put_message(len(self._written) - 1, self._written[-1], saved.changed),
                is_durable=False,
            )

    def set_model(self, name: str, path: str) -> None:
        """Note the name and path of the model that answers from now on."""
        self._model = (name, path)

    @property
    def id(self) -> str:
        """The conversation's id; "" before it is on disk."""
        if self._saver is not None:
            return self._saver.open_conversation.id
        return ""

    @property
    def state_path(self) -> Path | None:
        """The conversation's name for who keeps states: its id below the store's directory; None
        before it is saved."""
        if self._store is not None:
            root = self._store.root
        else:
            root = None
        if root is not None and self.id:
            return root / self.id
        return None

    @property
    def trouble(self) -> str:
        """Why something is not saved; "" if all is well."""
        savers = [*self._former, self._saver]
        return next((saver.trouble for saver in savers if saver is not None and saver.trouble), "")

    @property
    def saves(self) -> bool:
        """Whether what happens is on the disk or will be, as far as is known."""
        return self._store is not None and not self.trouble

    @property
    def is_unlocked(self) -> bool:
        """Whether files cannot be locked where the conversation is kept."""
        return self._saver is not None and not self._saver.open_conversation.is_locked

    # ---- what happens

    def save_question(self, conversation: Conversation, is_replacing: bool) -> None:
        """The user sent a message. In place of others, it counts when its reply begins."""
        if self._store is not None and not is_replacing:
            self._catch_up(conversation)
        elif self._saver is not None and conversation.awaits_reply:
            written = set(map(id, self._written))
            is_new = any(id(message) not in written for message in conversation.messages)
            if is_new:
                text = conversation.messages[-1].text
            else:
                text = ""
            self._add(set_columns(unsent=text), is_durable=bool(text))
            self._is_trying = True

    def save_pending(self, conversation: Conversation, texts: Sequence[str]) -> None:
        """These messages wait for their turn, which may not come before the program is killed."""
        if self._store is None or list(texts) == self._waiting:
            return
        self._waiting = list(texts)
        if self._saver is None:
            self._create(conversation, texts[0])
            self._catch_up(conversation)
            self._save_model()
            self._add(mark_used)
        self._add(set_columns(waiting=json.dumps(self._waiting)))

    def flush(self, conversation: Conversation, partial: PartialReply) -> None:
        """Save the running reply as far as it is written."""
        before = self._flushed
        if self._store is None or (partial.text, partial.thought) == (before.text, before.thought):
            return
        if not partial.text.startswith(before.text) or not partial.thought.startswith(
            before.thought
        ):
            return
        self._catch_up(conversation)
        more = add_piece(
            partial.text[len(before.text) :],
            partial.thought[len(before.thought) :],
            partial.ids[len(before.ids) :],
            partial.raw[len(before.raw) :],
            partial.is_edited,
        )
        self._flushed = partial
        self._add(more, is_durable=False)

    def save_turn_end(self, conversation: Conversation) -> None:
        """The turn is over: there is a reply, or everything is as it was, or the question stays."""
        if self._store is None:
            return
        if self._is_trying:
            self._add(set_columns(unsent=""), is_durable=False)
        self._catch_up(conversation)
        self._is_trying = False
        self._flushed = PartialReply()

    def save_n_dropped(self, conversation: Conversation) -> None:
        """Other messages are part of the context now."""
        if self._saver is not None and conversation.n_dropped != self._n_dropped:
            self._n_dropped = conversation.n_dropped
            self._add(set_columns(n_dropped=self._n_dropped))

    def save_adapters(self, conversation: Conversation) -> None:
        """Other adapters change the model."""
        if self._saver is not None:
            self._add(set_columns(adapters=json.dumps(conversation.adapters)))

    def needs_title(self, conversation: Conversation) -> bool:
        """Whether its title is still the beginning of the first message."""
        return self._saver is not None and self.title == _first_words(conversation)

    def rename(self, title: str) -> bool:
        """Give the conversation a title; False before it is on disk."""
        if self._saver is None:
            return False
        self.title = title
        self._add(set_columns(title=title))
        return True

    def abandon(self) -> None:
        """Leave the conversation, which will be deleted: what of it is not saved is given up."""
        if self._saver is not None:
            self._saver.close(SWITCH_PATIENCE_S)
        self._waiting = []
        self.begin()

    def wait_until_saved(self, patience_s: float, waits_for_room: bool = True) -> bool:
        """Wait until all is saved; False if that takes longer, or fails where nothing waits for
        room on the disk."""
        return self._saver is None or self._saver.wait_until_saved(patience_s, waits_for_room)

    def close(self, patience_s: float) -> str:
        """Save what is not saved and end; returns why that failed, or ""."""
        savers = [saver for saver in (self._saver, *self._former) if saver is not None]
        give_up_s = time.monotonic() + patience_s
        failed = [
            saver for saver in savers if not saver.close(max(0.0, give_up_s - time.monotonic()))
        ]
        self._drop_new()
        if failed:
            return failed[0].trouble or "the disk does not answer"
        return ""

    # ---- changes

    def _leave(self) -> None:
        self._former = [saver for saver in self._former if saver.has_unsaved]
        if self._saver is not None:
            if not self._saver.leave(SWITCH_PATIENCE_S):
                self._former.append(self._saver)
            self._drop_new()
            self._saver = None
        self._is_trying = False
        self._flushed = PartialReply()

    def _drop_new(self) -> None:
        """Delete a conversation that was begun and left with nothing in it; no one holds it."""
        if self._is_new and not self._waiting and self._store is not None and self.id:
            with suppress(StoreError):
                self._store.delete(self.id)
        self._is_new = False

    def _catch_up(self, conversation: Conversation) -> None:
        """Write what the conversation has and the disk has not."""
        messages = conversation.messages
        if self._saver is None:
            if not messages:
                return
            self._create(conversation)
        pairs = zip(messages, self._written, strict=False)
        n_shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        new = messages[n_shared:]
        is_shorter = len(messages) < len(self._written)
        if new:
            self._save_model()
        elif is_shorter:
            self._add(keep_messages(n_shared), is_durable=False)
        self._written = list(messages)
        self._is_new = self._is_new and not messages
        changes: list[Change] = []
        for place, message in enumerate(new, start=n_shared):
            if message.role is Role.USER and message.text in self._waiting[:1]:
                del self._waiting[0]
                changes.append(set_columns(waiting=json.dumps(self._waiting)))
            if not message.is_missing:  # a place that nothing is written to says the same
                changes.append(put_message(place, message, self.clock_text()))
            if message is messages[-1] and conversation.awaits_reply:
                changes.append(mark_used)
        if changes:
            self._add(_all_of(changes))
        self.save_n_dropped(conversation)

    def _save_model(self) -> None:
        if self._model not in (self._written_model, ("", "")):
            self._written_model = self._model
            self._add(
                set_columns(model=self._model[0], model_path=self._model[1]), is_durable=False
            )

    def _create(self, conversation: Conversation, waiting: str = "") -> None:
        assert self._store is not None
        self._saver = SaverThread(self._store.create())
        self._is_new = True
        first = _first_words(conversation, waiting)
        self.title = self.title or (f"{first} (copy)" if self._forked_from else first)
        now = self.clock_text()
        origin = int(self._forked_from or 0)
        head = set_columns(
            title=self.title, system=conversation.system, began=now, changed=now, forked_from=origin
        )
        self._add(head, is_durable=False)
        if conversation.adapters:
            self.save_adapters(conversation)

    def _add(self, change: Change, is_durable: bool = True) -> None:
        assert self._saver is not None
        self._saver.add(change, is_durable)


def _all_of(changes: Sequence[Change]) -> Change:
    """One change that makes all, which no kill comes between."""
    return lambda db, number: [change(db, number) for change in changes]


def _first_words(conversation: Conversation, waiting: str = "") -> str:
    return title_of(
        next((message.folded or message.text for message in conversation.messages), waiting)
    )


@record
class ConversationStorage:
    """The saved conversations."""

    journal: Journal = field(default_factory=Journal)
    """Saves the live one."""
    store: Store | None = None
    """All of them; None where nothing is saved."""
    resume: str = NEW
    """What a start does with the last one, as in the settings."""
    quota_bytes: int = 0
    """Limit on all saved states together; 0 keeps none."""

    def tidy(self) -> None:
        """Delete the states used longest ago that have no room, and look after the database; may
        take seconds."""
        if self.store is not None:
            if self.quota_bytes:
                drop_oldest_states(self.quota_bytes)
            with suppress(StoreError):  # said where it is saved
                self.store.check_and_copy(time.time())


def open_storage(settings: Settings, is_named: bool = False) -> ConversationStorage:
    """Return what the settings want of them; one that the user has named is saved whatever they
    say."""
    if settings.save_conversations == "off" and not is_named:
        return ConversationStorage()
    store = Store()
    return ConversationStorage(
        Journal(store), store, settings.resume, settings.kv_states_quota_bytes
    )
