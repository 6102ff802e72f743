"""Saves the live conversation in a thread of its own, so that no screen and no engine waits for a
disk.

The journal runs in the screen's thread. It compares the messages of the conversation with those it
has written, by identity, and adds changes to a queue. Changes that cannot be written stay in the
queue, in order, and are tried again every few seconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import takewhile
from pathlib import Path

from app.conversations.conversation import Branch, ChatMessage, Conversation, Role, Summary
from app.conversations.locks import StoreError
from app.conversations.mark_rows import Marks, put_context, put_marks
from app.conversations.session_options import SessionOptions, options_to_json
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
    put_branches,
    put_message,
    set_columns,
    title_of,
    touch,
)
from app.documents.pictures import PICTURES, REFERENCE_START
from app.program.refusals import log_without_text
from app.program.settings import NEW, Settings
from app.text.record import record

RETRY_S = 5.0
SYNC_S = 2.0
"""Longest time for which a growing reply is not synced. A kill loses nothing of it, a power cut
may.
"""
_MAX_CLOSING_TRIES = 2
SWITCH_PATIENCE_S = 1.0
"""Limit on waiting for the disk when another conversation is opened."""


@record
class PartialReply:
    """The part of a running reply that is written so far: text and thinking from the screen, ids
    and raw text from the engine.
    """

    text: str = ""
    thought: str = ""
    ids: tuple[int, ...] = ()
    raw: str = ""
    is_edited: bool = False
    alternatives: tuple[Branch, ...] = ()
    """Branches that stay next to the reply, oldest first."""


class SaverThread:
    """Thread that saves changes of one conversation until it is closed."""

    def __init__(self, open_conversation: OpenConversation) -> None:
        self.open_conversation = open_conversation
        self._condition = threading.Condition()
        self._changes: list[tuple[Change, bool]] = []
        """Changes to save, in order, and whether they must survive a power cut."""
        self._n_failed = 0
        """Number of changes in the last attempt if it failed; 0 if it succeeded."""
        self._unsynced_s: float | None = None
        """Time of the first change that a power cut may lose; None if there is none."""
        self._is_leaving = self._is_closing = self._is_over = False
        self._n_closing_tries = 0
        self.trouble = ""
        """Reason why nothing can be saved; "" if saving works."""
        self._thread = threading.Thread(target=self._run, name="jalopy-saver", daemon=True)
        self._thread.start()

    @property
    def has_unsaved(self) -> bool:
        """Whether some changes are only in memory."""
        with self._condition:
            return bool(self._changes)

    def add(self, change: Change, is_durable: bool = True) -> None:
        """Add a change to save. A durable change and all before it survive a power cut."""
        with self._condition:
            self._changes.append((change, is_durable))
            self._condition.notify_all()

    def leave(self, patience_s: float) -> bool:
        """End the thread when everything is saved, and return whether it is.

        Returns False at once if saving fails; the thread keeps trying.
        """
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
        """Save the remaining changes, end, and return whether everything is saved."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        self._thread.join(patience_s)
        return not self.has_unsaved

    def wait_until_saved(self, patience_s: float, waits_for_room: bool = True) -> bool:
        """Wait until everything is saved; return False after ``patience_s``.

        Args:
            waits_for_room: whether to keep waiting when saving fails.
        """
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
        """Wait for work; return False when the thread must end."""
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
            return self._has_work and self._n_closing_tries < _MAX_CLOSING_TRIES

    @property
    def _has_work(self) -> bool:
        return bool(self._changes) or self._unsynced_s is not None

    def _save(self) -> None:
        with self._condition:
            changes = list(self._changes)
            self._n_closing_tries += self._is_closing
            is_ending = self._is_leaving or self._is_closing
        now_s = time.monotonic()
        is_due = self._unsynced_s is not None and now_s - self._unsynced_s >= SYNC_S
        is_durable = is_ending or is_due or any(is_durable for _, is_durable in changes)
        try:
            self.open_conversation.apply([change for change, _ in changes] or [touch], is_durable)
        except Exception as error:
            self.trouble = _cause_of(error)
            self._n_failed = len(changes)
        else:
            self.trouble = ""
            self._n_failed = 0
            if is_durable:
                self._unsynced_s = None
            else:
                self._unsynced_s = self._unsynced_s or now_s
            with self._condition:
                del self._changes[: len(changes)]
        with self._condition:
            self._condition.notify_all()


def _cause_of(error: Exception) -> str:
    """Describe why something was not saved. A bug is logged and named by its type."""
    if isinstance(error, StoreError):
        return str(error)
    log_without_text(error)
    return f"internal error: {type(error).__name__}"


class Journal:
    """Saves one conversation at a time; saves nothing without a store.

    Args:
        clock_text: returns the wall time for display.
    """

    def __init__(
        self, store: Store | None = None, clock_text: Callable[[], str] = now_text
    ) -> None:
        self._all_saved = store
        """Store of all conversations; None if none is saved."""
        self.is_private = False
        """Whether nothing of the conversation is saved, although others are."""
        self.clock_text = clock_text
        self._saver: SaverThread | None = None
        self._earlier_savers: list[SaverThread] = []
        """Threads of earlier conversations that are still saving."""
        self._written: list[ChatMessage] = []
        self._queued_texts: list[str] = []
        self._n_dropped = 0
        self._summaries: tuple[Summary, ...] = ()
        """State of the database: messages, queued messages, how many messages left the context,
        and summaries.
        """
        self.marks = Marks()
        """Pin and tags of the conversation."""
        self.title = ""
        self._forked_from = ""
        self._reply_given_to_saver = PartialReply()
        """Part of the running reply that the saver already has."""
        self._awaits_first_token = False
        self._model = self._written_model = ("", "")
        """Name and path of the model that writes the next reply, and of the model in the
        database.
        """
        self._is_new = False
        """Whether the conversation never had a message. It is deleted then."""

    # ---- the conversation

    @property
    def _store(self) -> Store | None:
        """Store of the conversation; None if it is not saved."""
        if self.is_private:
            return None
        return self._all_saved

    def begin(self, forked_from: str = "", title: str = "", *, is_private: bool = False) -> None:
        """Begin a conversation. It is saved with its first message, unless it is private."""
        self._leave()
        self.is_private = is_private
        self._written = []
        self._queued_texts = []
        self._n_dropped = 0
        self._summaries = ()
        self.marks = Marks()
        self._written_model = ("", "")
        self.title = title
        self._forked_from = forked_from

    def claim(self, conversation: Conversation, patience_s: float) -> None:
        """Save the conversation before its first message, so that other programs find its title in
        use.
        """
        if self._store is not None and self._saver is None:
            self._create(conversation)
            self.wait_until_saved(patience_s, waits_for_room=False)

    def resume(self, opened: LoadedConversation) -> None:
        """Continue an opened conversation.

        If another program uses it, the next message makes a copy.
        """
        saved = opened.saved
        open_conversation = opened.open_conversation
        self.is_private = False
        if open_conversation is None or self._store is None:
            self.begin(opened.id, saved.title and f"{saved.title} (copy)")
            return
        self._leave()
        self._written = list(saved.conversation.messages)
        self._queued_texts = list(saved.queued_texts)
        self.title = saved.title
        self._forked_from = saved.forked_from
        self._n_dropped = saved.conversation.n_dropped
        self._summaries = saved.conversation.summaries
        self.marks = saved.marks
        self._written_model = (saved.model, saved.model_path)
        self._saver = SaverThread(open_conversation)
        for position, message in enumerate(self._written[saved.n_rows :], start=saved.n_rows):
            self._add(put_message(position, message, saved.changed), is_durable=False)
        if saved.n_rows < len(self._written):
            self._add(put_context(self._n_dropped, self._summaries), is_durable=False)

    def set_model(self, name: str, path: str) -> None:
        """Set the name and path of the model that writes the next reply."""
        self._model = (name, path)

    @property
    def id(self) -> str:
        """Id of the conversation; "" before it is saved."""
        if self._saver is not None:
            return self._saver.open_conversation.id
        return ""

    @property
    def state_path(self) -> Path | None:
        """Path that identifies the conversation to saved states: its id below the store's
        directory.

        None before it is saved.
        """
        if self._store is not None:
            root = self._store.root
        else:
            root = None
        if root is not None and self.id:
            return root / self.id
        return None

    @property
    def trouble(self) -> str:
        """Reason why something is not saved; "" if saving works."""
        savers = [*self._earlier_savers, self._saver]
        return next((saver.trouble for saver in savers if saver is not None and saver.trouble), "")

    @property
    def saves(self) -> bool:
        """Whether the conversation is saved, as far as is known."""
        return self._store is not None and not self.trouble

    @property
    def is_unlocked(self) -> bool:
        """Whether the conversation is saved where files cannot be locked."""
        return self._saver is not None and not self._saver.open_conversation.is_locked

    # ---- events of the chat

    def save_question(self, conversation: Conversation, is_replacing: bool) -> None:
        """Save the message that the user sent.

        If it replaces other messages, it counts when its reply begins.
        """
        if self._store is not None and not is_replacing:
            self._catch_up(conversation)
        elif self._saver is not None and conversation.awaits_reply:
            written = set(map(id, self._written))
            is_new = any(id(message) not in written for message in conversation.messages)
            if is_new:
                text = conversation.messages[-1].text
            else:
                text = ""
            changes = [*_picture_changes(text), set_columns(unsent=text)]
            self._add(_all_of(changes), is_durable=bool(text))
            self._awaits_first_token = True

    def save_queue(self, conversation: Conversation, texts: Sequence[str]) -> None:
        """Save the queued messages, in case the program is killed first."""
        if self._store is None or list(texts) == self._queued_texts:
            return
        self._queued_texts = list(texts)
        if self._saver is None:
            self._create(conversation, texts[0])
            self._catch_up(conversation)
            self._save_model()
            self._add(mark_used)
        pictures = [change for text in texts for change in _picture_changes(text)]
        self._add(_all_of([*pictures, set_columns(waiting=json.dumps(self._queued_texts))]))

    def save_partial(self, conversation: Conversation, partial: PartialReply) -> None:
        """Save what is new in the running reply."""
        saved_part = self._reply_given_to_saver
        if self._store is None or (partial.text, partial.thought) == (
            saved_part.text,
            saved_part.thought,
        ):
            return
        if not partial.text.startswith(saved_part.text) or not partial.thought.startswith(
            saved_part.thought
        ):
            return
        self._catch_up(conversation, partial.alternatives)
        change = add_piece(
            partial.text[len(saved_part.text) :],
            partial.thought[len(saved_part.thought) :],
            partial.ids[len(saved_part.ids) :],
            partial.raw[len(saved_part.raw) :],
            partial.is_edited,
        )
        self._reply_given_to_saver = partial
        self._add(change, is_durable=False)

    def save_answers(self, conversation: Conversation, message: ChatMessage) -> None:
        """Save several replies as far as they are written.

        Args:
            message: the first reply; the others are among its alternatives.
        """
        if self._store is not None and self._written[-1:] != [message]:
            self._catch_up(replace(conversation, messages=[*conversation.messages, message]))

    def save_turn_end(self, conversation: Conversation) -> None:
        """Save the end of a turn: a reply, the earlier state, or a question without a reply."""
        if self._store is None:
            return
        if self._awaits_first_token:
            self._add(set_columns(unsent=""), is_durable=False)
        self._catch_up(conversation)
        self._awaits_first_token = False
        self._reply_given_to_saver = PartialReply()

    def save_context(self, conversation: Conversation) -> None:
        """Save how many messages left the context, and the summaries of them."""
        if self._saver is not None:
            for change in self._context_changes(conversation):
                self._add(change)

    def _context_changes(self, conversation: Conversation) -> list[Change]:
        context = (conversation.n_dropped, conversation.summaries)
        if context == (self._n_dropped, self._summaries):
            return []
        self._n_dropped, self._summaries = context
        return [put_context(*context)]

    def change_marks(self, marks: Marks) -> bool:
        """Set the pin and the tags. Returns False before the conversation is saved."""
        if self._saver is None:
            return False
        self.marks = marks
        self._add(put_marks(marks))
        return True

    def save_options(self, conversation: Conversation) -> None:
        """Save the system prompt, and the other choices in the column made for adapters."""
        if self._saver is not None:
            options = options_to_json(conversation.options)
            self._add(set_columns(system=conversation.system, adapters=options))

    def needs_title(self, conversation: Conversation) -> bool:
        """Whether the title is still the beginning of the first message."""
        return self._saver is not None and self.title == _first_words(conversation)

    def rename(self, title: str) -> bool:
        """Set the title. Returns False before the conversation is saved."""
        if self._saver is None:
            return False
        self.title = title
        self._add(set_columns(title=title))
        return True

    def abandon(self) -> None:
        """Leave a conversation that will be deleted. Unsaved changes are lost."""
        if self._saver is not None:
            self._saver.close(SWITCH_PATIENCE_S)
        self._queued_texts = []
        self.begin()

    def wait_until_saved(self, patience_s: float, waits_for_room: bool = True) -> bool:
        """Wait until everything is saved; return False after ``patience_s``.

        Args:
            waits_for_room: whether to keep waiting when saving fails.
        """
        return self._saver is None or self._saver.wait_until_saved(patience_s, waits_for_room)

    def close(self, patience_s: float) -> str:
        """Save what is not saved and end; return why that failed, or ""."""
        savers = [saver for saver in (self._saver, *self._earlier_savers) if saver is not None]
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
        self._earlier_savers = [saver for saver in self._earlier_savers if saver.has_unsaved]
        if self._saver is not None:
            if not self._saver.leave(SWITCH_PATIENCE_S):
                self._earlier_savers.append(self._saver)
            self._drop_new()
            self._saver = None
        self._awaits_first_token = False
        self._reply_given_to_saver = PartialReply()

    def _drop_new(self) -> None:
        """Delete a conversation that was begun and left without a message."""
        if self._is_new and not self._queued_texts and self._store is not None and self.id:
            with suppress(StoreError):
                self._store.delete(self.id)
        self._is_new = False

    def _catch_up(self, conversation: Conversation, alternatives: Sequence[Branch] = ()) -> None:
        """Save what the conversation has and the database does not.

        Args:
            alternatives: branches that stay next to the reply that is being written.
        """
        messages = conversation.messages
        if self._saver is None:
            if not messages:
                return
            self._create(conversation)
        pairs = zip(messages, self._written, strict=False)
        n_shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        unsaved = messages[n_shared:]
        changes: list[Change] = []
        is_shorter = len(messages) < len(self._written)
        if unsaved:
            self._save_model()
        elif is_shorter:
            changes = [
                keep_messages(n_shared),
                put_branches(n_shared, alternatives),
                *self._context_changes(conversation),
            ]
            self._add(_all_of(changes), is_durable=False)
        self._written = list(messages)
        self._is_new = self._is_new and not messages
        changes = []
        for position, message in enumerate(unsaved, start=n_shared):
            if message.role is Role.USER and message.text in self._queued_texts[:1]:
                del self._queued_texts[0]
                changes.append(set_columns(waiting=json.dumps(self._queued_texts)))
            if not message.is_missing:  # a place that nothing is written to says the same
                changes += _picture_changes(message.text)
                changes.append(put_message(position, message, self.clock_text()))
            if message is messages[-1] and conversation.awaits_reply:
                changes.append(mark_used)
        changes += self._context_changes(conversation)
        if changes:
            self._add(_all_of(changes))

    def _save_model(self) -> None:
        if self._model not in (self._written_model, ("", "")):
            self._written_model = self._model
            self._add(
                set_columns(model=self._model[0], model_path=self._model[1]), is_durable=False
            )

    def _create(self, conversation: Conversation, first_queued: str = "") -> None:
        assert self._store is not None
        self._saver = SaverThread(self._store.create())
        self._is_new = True
        first = _first_words(conversation, first_queued)
        self.title = self.title or (f"{first} (copy)" if self._forked_from else first)
        now = self.clock_text()
        origin = int(self._forked_from or 0)
        head = set_columns(
            title=self.title, system=conversation.system, began=now, changed=now, forked_from=origin
        )
        self._add(head, is_durable=False)
        if conversation.options != SessionOptions():
            self.save_options(conversation)

    def _add(self, change: Change, is_durable: bool = True) -> None:
        assert self._saver is not None
        self._saver.add(change, is_durable)


def _picture_changes(text: str) -> list[Change]:
    """Return a change that saves the pictures of a text; none if it names no picture."""
    if REFERENCE_START not in text:
        return []
    return [lambda db, number: PICTURES.save(text)]


def _all_of(changes: Sequence[Change]) -> Change:
    """Return a change that makes all of these; a kill cannot come between them."""
    return lambda db, number: [change(db, number) for change in changes]


def _first_words(conversation: Conversation, first_queued: str = "") -> str:
    return title_of(
        next((message.folded or message.text for message in conversation.messages), first_queued)
    )


@record
class ConversationStorage:
    """Saved conversations, and how the settings use them."""

    journal: Journal = field(default_factory=Journal)
    """Journal of the live conversation."""
    store: Store | None = None
    """Store of all conversations; None if nothing is saved."""
    resume: str = NEW
    """Value of the setting ``resume``."""
    quota_bytes: int = 0
    """Limit on all saved states together; 0 saves none."""

    def tidy(self) -> None:
        """Drop saved states beyond the quota, and check and copy the database; this may take
        seconds.
        """
        if self.store is not None:
            if self.quota_bytes:
                drop_oldest_states(self.quota_bytes)
            with suppress(StoreError):  # the chat reports this when it saves
                self.store.check_and_copy(time.time())


def open_storage(settings: Settings, is_named: bool = False) -> ConversationStorage:
    """Return the storage that the settings ask for.

    A conversation that the user named is always saved.
    """
    if settings.save_conversations == "off" and not is_named:
        return ConversationStorage()
    store = Store()
    return ConversationStorage(
        Journal(store), store, settings.resume, settings.kv_states_quota_bytes
    )
