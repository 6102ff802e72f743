"""``jalopy run --session``: one more turn of a saved conversation, from the shell. No Textual."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app import exit_codes
from app.answer_output import AnswerOutput
from app.clean_text import clean_line, clean_text
from app.conversation import Conversation
from app.conversations.journal import Journal, Partial
from app.conversations.keeper import cause_of
from app.conversations.log_file import LogRefusedError
from app.conversations.recent import model_key
from app.conversations.replay import MOST_TITLE_CHARS
from app.conversations.store import Opened, Store
from app.figures import count, seconds
from app.past_turns import take_over
from app.refusals import Refusal, say
from app.reply import Reply
from app.saved_states import SavedStates, StateFiles
from app.thinking import Thinking, ThinkingSplitter, opened_by, tag_ids

FLUSH_PERIOD_S = 1.5
SAVING_PATIENCE_S = 10.0


def open_session(name: str, system: str, store: Store | None = None) -> RunSession:
    """Open the conversation with this number or title, or begin one with this title.

    Raises:
        Refusal: it is in use or cannot be used.
    """
    store = store or Store()
    journal = Journal(store)
    number = f"{int(name):06d}" if name.isdecimal() and len(name) < 12 else ""
    found = number if number in store.ids() else store.find(name)
    if found is None:
        journal.begin(title=clean_line(" ".join(name.split()), MOST_TITLE_CHARS))
        return RunSession(journal, Conversation(system or None))
    opened = _open(store, found, name)
    journal.adopt(opened)
    conversation = opened.saved.conversation
    if system and system != conversation.system:
        say("jalopy run: the conversation goes on with the system prompt that it began with")
    return RunSession(journal, conversation)


def _open(store: Store, conversation_id: str, name: str) -> Opened:
    shown = clean_line(name, 40)
    try:
        opened = store.open(conversation_id)
    except (LogRefusedError, OSError) as error:
        raise Refusal(f"jalopy run: conversation {shown}: {cause_of(error)}", exit_codes.IO_ERROR) from None
    if opened.log is None:
        reason = opened.notice.partition(":")[0]
        raise Refusal(f"jalopy run: conversation {shown}: {reason} (close it there first)", exit_codes.IO_ERROR)
    if opened.notice:
        say(f"jalopy run: {opened.notice}")
    return opened


class RunSession:
    """One turn of a conversation; all but ``end`` in the engine's thread."""

    def __init__(self, journal: Journal, conversation: Conversation) -> None:
        self._journal, self._conversation = journal, conversation
        self._place = SimpleNamespace(state_path=None, state_trouble="")
        self._states = SavedStates(self._place, None)
        self._flushed_s = 0.0

    def use_states(self, files: StateFiles | None) -> None:
        """Keep the state of the cache in this way."""
        self._states = SavedStates(self._place, files)

    def tell(self, chat: Any, tokenizer: Any) -> None:
        """Tell a model's conversation what was said before."""
        chat.start(self._conversation.system)
        take_over(chat, tokenizer, self._conversation.turns(), tag_ids(tokenizer.control_texts))

    def begin(self, model: Any, session: Any, ids: Sequence[int], prompt: str) -> None:
        """The prompt fits: save it, and bring the cache back."""
        self._journal.note_model(f"{model.name} {model.quantization}", model_key(Path(model.path)))
        self._conversation.add_user(clean_text(prompt))
        self._journal.note_asked(self._conversation, is_replacing=False)
        self._journal.settle(SAVING_PATIENCE_S)
        self._states.note_opened(model, session)
        self._place.state_path = self._journal.state_path
        back = self._states.bring_back(self._place.state_path, ids)
        if back.trouble:
            say(f"jalopy run: {back.trouble}")
        elif back.tokens:
            say(f"resumed {count(back.tokens)} tokens in {seconds(back.seconds)}")

    def watch(self, reply: Reply, output: AnswerOutput | None) -> AnswerOutput:
        """Return an output that also saves what has come, now and then."""
        return _SavingOutput(self, reply, output)

    def save_partial(self, reply: Reply) -> None:
        """Save what there is of the reply, if that was not done a moment ago."""
        now_s = time.monotonic()
        if now_s - self._flushed_s >= FLUSH_PERIOD_S:
            self._flushed_s = now_s
            text = reply.text
            self._journal.flush(self._conversation, Partial(clean_text(text), "", tuple(reply.ids), text))
        self._states.note_progress()

    def finish(self, reply: Reply, opening: str) -> None:
        """The reply has ended, whatever there is of it."""
        if reply.ids or reply.text:
            splitter = ThinkingSplitter(opened_by(opening))
            pieces = splitter.push(clean_text(reply.text)), splitter.flush()
            thought, text = "".join(one.thought for one in pieces), "".join(one.answer for one in pieces)
            thinking = Thinking(thought, is_closed=not splitter.is_thinking) if thought.strip() else None
            message = self._conversation.add_reply(text, reply.meter.ending, reply.meter.figures(), thinking)
            message.ids, message.raw = tuple(reply.ids), reply.text
        self._journal.note_settled(self._conversation)
        self._states.note_progress()
        self._states.note_closing(SAVING_PATIENCE_S)

    def end(self) -> str:
        """Save everything; returns why that failed, or ""."""
        return self._journal.close(SAVING_PATIENCE_S)


class _SavingOutput(AnswerOutput):
    def __init__(self, saved: RunSession, reply: Reply, output: AnswerOutput | None) -> None:
        self._saved, self._reply, self._output = saved, reply, output

    def write(self, piece: str) -> None:
        if self._output is not None:
            self._output.write(piece)
        self._saved.save_partial(self._reply)

    def end(self) -> None:
        if self._output is not None:
            self._output.end()
