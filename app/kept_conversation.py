"""A conversation that is saved as it goes on, where there is no screen: for ``jalopy run --session`` and the line mode.

What the chat's screen and its engine's thread do together for saving, resuming and a full context happens here in one
object. Lines go to stderr. No Textual.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app import figures
from app.answer_output import AnswerOutput
from app.clean_text import TextCleaner, clean_text
from app.context_room import NoRoomError, Prompt, make_room, reply_room
from app.conversation import ChatMessage, Conversation
from app.conversations.journal import Journal, Partial
from app.conversations.lock import NO_LOCKS
from app.conversations.quota import drop_oldest_states
from app.conversations.recent import model_key
from app.conversations.store import Opened, Store
from app.past_turns import take_over
from app.refusals import say
from app.reply import Reply
from app.saved_states import SavedStates, StateFiles
from app.thinking import Thinking, ThinkingSplitter, opened_by, tag_ids
from engine.cached_tokens import common_prefix

FLUSH_PERIOD_S = 1.5
SAVING_PATIENCE_S = 10.0
_CLOSING_PATIENCE_S = 1.0
"""Where something else ends the program: a signal's exit code comes within two seconds."""


class KeptConversation:
    """One conversation with one model at a time; all but ``end`` in one thread at a time, mostly the engine's.

    Args:
        store: where it is saved; None saves nothing.
        name: what lines on stderr begin with.

    Attributes:
        conversation: what was said.
        journal: saves it.
    """

    def __init__(self, store: Store | None, name: str = "jalopy") -> None:
        self._store, self._name = store, name
        self.journal = Journal(store)
        self.conversation = Conversation()
        self._place = SimpleNamespace(state_path=None, state_file=None, state_trouble="")
        self._files: StateFiles | None = None
        self._states = SavedStates(self._place, None)
        self._quota_bytes = 0
        self._lock = threading.RLock()
        """Held while the journal is told something: the program may end while a reply is written."""
        self._text: _ReplyText | None = None
        """Of the running reply."""
        self._replaced: list[ChatMessage] = []
        """What the running turn takes the place of; it comes back if no reply does."""
        self._settled: Reply | None = None
        self._is_kept = False
        """The reply that ended last, and whether the conversation has it."""
        self._told_trouble = ""
        self._has_told_no_locks = False
        self._is_over = False

    # ---- which conversation

    def begin(self, system: str | None, title: str = "") -> None:
        """A new conversation; its first message puts it on the disk."""
        with self._lock:
            self.journal.begin(title=title)
            self.conversation = Conversation(system or None)

    def claim(self) -> None:
        """Take the title of a new conversation before anything is said in it."""
        with self._lock:
            self.journal.claim(self.conversation, SAVING_PATIENCE_S)
        self._tell_trouble()

    def adopt(self, opened: Opened) -> None:
        """Go on with one that was opened; one without a log is copied by its next message."""
        with self._lock:
            self.journal.adopt(opened)
            self.conversation = opened.saved.conversation

    def note_model(self, model: Any, session: Any, files: StateFiles | None, quota_bytes: int) -> None:
        """A model is there, with an empty session.

        Args:
            files: how the state of the cache is kept; None keeps none.
            quota_bytes: what the states of all conversations may take.
        """
        self.journal.note_model(f"{model.name} {model.quantization}", model_key(Path(model.path)))
        self._files, self._quota_bytes = files, quota_bytes
        self._states = SavedStates(self._place, files)
        self._states.note_opened(model, session)

    def tell(self, chat: Any, tokenizer: Any) -> None:
        """Tell a model's conversation what was said before, and bring the state of the cache back."""
        self._states.leave()
        chat.start(self.conversation.system)
        turns = self.conversation.turns()
        take_over(chat, tokenizer, turns, tag_ids(tokenizer.control_texts))
        self._place.state_path = self.journal.state_path
        if not turns:
            if self.conversation.system:
                self._states.begin_with(chat.opening_ids(""))
            return
        back = self._states.bring_back(self.journal.state_path, chat.opening_ids(""))
        if back.trouble:
            say(f"{self._name}: {back.trouble}")
        elif back.tokens:
            say(f"resumed {figures.count(back.tokens)} tokens in {figures.seconds(back.seconds)}")

    # ---- turns

    def fit(self, chat: Any, session: Any, build: Callable[[], Prompt]) -> tuple[list[int], Any]:
        """Build a prompt; where the context is full, its oldest whole turns go, and a line says so.

        Returns:
            The prompt's ids, and the conversation without this turn, for ``chat.restore``.

        Raises:
            NoRoomError: the message alone is too long; nothing has changed.
        """
        try:
            fitted = make_room(chat, session.n_ctx, reply_room(session.n_ctx), lambda _: build())
        except NoRoomError:
            if self.conversation.unanswered is None:
                raise
            self.conversation.is_cut_off = False
            fitted = make_room(chat, session.n_ctx, reply_room(session.n_ctx), lambda _: build())
            say("the message before, which was not answered, is left out: both together do not fit the context")
        ids = fitted.prompt.ids
        if fitted.dropped_turns:
            session.shift_towards(ids)  # what stays moves down in the cache: only what is new must be read
            unread = len(ids) - min(common_prefix(session.tokens, ids), len(ids) - 1)
            self.conversation.n_dropped += 2 * fitted.dropped_turns
            say(figures.dropped_turns(fitted.dropped_turns, fitted.dropped_tokens, unread, None))
        return ids, fitted.before

    def to_send(self, text: str) -> str:
        """Return a message with the one before it that the end of the program left unanswered, if there is one."""
        return self.conversation.with_unanswered(text)[0]

    def note_asked(self, text: str) -> None:
        """The user sent a message, and it fits: it is saved before anything is computed."""
        if self.conversation.unanswered is not None:
            say("the message before was not answered: both are sent together")
        with self._lock:
            self.conversation.add_user(self.to_send(clean_text(text)))
            self.journal.note_asked(self.conversation, is_replacing=False)
        self.journal.settle(SAVING_PATIENCE_S, waits_for_room=False)
        self._tell_trouble()

    def note_asked_again(self) -> None:
        """The last message is answered again; the reply it has stays until the new one begins."""
        with self._lock:
            self._replaced = [self.conversation.drop_reply()]
            self.journal.note_asked(self.conversation, is_replacing=True)

    def watch(self, reply: Reply, opening: str, output: AnswerOutput | None) -> AnswerOutput:
        """Return an output that also saves what has come of a reply, now and then.

        Args:
            opening: the last words of the prompt, which may open a thinking block.
        """
        self._text = _ReplyText(reply, opening)
        return _SavingOutput(self._take, self._save_some, lambda: self._save_whole(reply), output)

    def note_progress(self) -> None:
        """The cache has grown: between two tokens or blocks of a prompt."""
        self._place.state_path = self.journal.state_path
        self._states.note_progress()

    def finish(self, reply: Reply) -> bool:
        """The reply has ended; False where there is nothing of it, and all is as it was before it."""
        with self._lock:
            if self._is_over:
                return False
            is_kept = self._settle(reply)
        self.note_progress()
        self._tell_trouble()
        return is_kept

    # ---- leaving

    def close_states(self) -> None:
        """Let the state of the cache be saved to its end; the session is closed next."""
        self._states.note_closing(SAVING_PATIENCE_S)

    def end(self, is_hurried: bool = False) -> str:
        """Save everything, what there is of a running reply too; returns why that failed, or "".

        Args:
            is_hurried: something else ends the program.
        """
        patience_s = _CLOSING_PATIENCE_S if is_hurried else SAVING_PATIENCE_S
        with self._lock:
            self._flush()
            self._is_over = True
            trouble = self.journal.close(patience_s)
        if self._store is not None and self._files is not None and not is_hurried:
            drop_oldest_states(self._store, self._files.prefixes, self._quota_bytes, self._place.state_file)
        return trouble

    # ---- saving

    def _take(self, piece: str) -> bool:
        """More of the running reply; False where the program ends, and nothing is shown any more."""
        with self._lock:
            if self._is_over:
                return False
            assert self._text is not None
            self._text.push(piece)
            return True

    def _save_some(self) -> None:
        with self._lock:
            self._flush()
        self.note_progress()

    def _save_whole(self, reply: Reply) -> None:
        with self._lock:
            if not self._is_over:
                self._settle(reply)
        self.journal.settle(SAVING_PATIENCE_S, waits_for_room=False)

    def _settle(self, reply: Reply) -> bool:
        """The reply takes its place in the conversation, once; False where there is nothing of it."""
        if self._settled is reply:
            return self._is_kept
        text, self._text = self._text, None
        self._settled, self._is_kept = reply, text is not None and bool(reply.ids or reply.text)
        if text is not None and self._is_kept:
            thinking, answer = text.finish()
            message = self.conversation.add_reply(answer, reply.meter.ending, reply.meter.figures(), thinking)
            message.ids, message.raw = tuple(reply.ids), reply.text
        else:
            self.conversation.messages += self._replaced
        self._replaced = []
        self.journal.note_settled(self.conversation)
        return self._is_kept

    def _flush(self) -> None:
        text = self._text
        if text is not None and not self._is_over and text.answer + text.thought:
            partial = Partial(text.answer, text.thought, tuple(text.reply.ids), text.reply.text)
            self.journal.flush(self.conversation, partial)

    def _tell_trouble(self) -> None:
        trouble = self.journal.trouble
        if trouble and trouble != self._told_trouble:
            say(f"{self._name}: conversation not saved: {trouble}. It goes on here, and saving is tried again.")
        self._told_trouble = trouble
        if self.journal.is_unlocked and not self._has_told_no_locks:
            self._has_told_no_locks = True
            say(f"{self._name}: {NO_LOCKS}")


class _ReplyText:
    """A reply's text as it is saved: cleaned, the thinking apart; it only ever grows."""

    def __init__(self, reply: Reply, opening: str) -> None:
        self.reply, self.answer, self.thought = reply, "", ""
        self._cleaner, self._splitter = TextCleaner(), ThinkingSplitter(opened_by(opening))

    def push(self, piece: str) -> None:
        """More of it, as it was generated."""
        self._add(self._cleaner.push(piece))

    def finish(self) -> tuple[Thinking | None, str]:
        """Return the thinking, and the answer."""
        self._add(self._cleaner.flush())
        rest = self._splitter.flush()
        self.thought, self.answer = self.thought + rest.thought, self.answer + rest.answer
        is_closed = not self._splitter.is_thinking
        return (Thinking(self.thought, is_closed=is_closed) if self.thought.strip() else None), self.answer

    def _add(self, text: str) -> None:
        split = self._splitter.push(text)
        self.thought, self.answer = self.thought + split.thought, self.answer + split.answer


class _SavingOutput(AnswerOutput):
    def __init__(
        self,
        take: Callable[[str], bool],
        save_some: Callable[[], None],
        save_whole: Callable[[], None],
        output: AnswerOutput | None,
    ) -> None:
        self._take, self._save_some, self._save_whole, self._output = take, save_some, save_whole, output
        self._saved_s = time.monotonic()

    def write(self, piece: str) -> None:
        if not self._take(piece):  # first: whatever ends the program saves all that was shown
            return
        if self._output is not None:
            self._output.write(piece)
        now_s = time.monotonic()
        if now_s - self._saved_s >= FLUSH_PERIOD_S:
            self._saved_s = now_s
            self._save_some()

    def end(self) -> None:
        self._save_whole()  # first: whoever reads the end may stop the program
        if self._output is not None:
            self._output.end()
