"""The line mode's side of a conversation: what is asked of it, and the lines that say what became
of that.

The answers go to stdout, everything else to stderr. No Textual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from app.backend.local.context_room import ANNOUNCED_SHARE
from app.cli.interrupts import interrupt_stops
from app.cli.output import AnswerOutput, ProgressLine, write_answer
from app.conversations.conversation import Ending
from app.conversations.list_rows import moment_text
from app.conversations.locks import NO_LOCKS
from app.conversations.reply_lines import AGAINST_LOOPS, sources_line, whole_footer
from app.conversations.store import LoadedConversation
from app.machine.tuning.threads_in_use import describe
from app.program import notices
from app.program.refusals import say
from app.program.settings import AUTO
from app.session import events
from app.session.chat_session import LEFT_OUT, SENT_TOGETHER
from app.session.commands import told_adapters
from app.session.generation import describe_thinking
from app.session.headless import HeadlessChat, NothingToDoError
from app.text import figures
from app.text.clean_text import clean_line
from app.text.figures import count, size

WORTH_A_LINE_TOKENS = 32
"""Fewer tokens that must be read again are not mentioned."""


def model_line(model: events.ModelLoaded, n_threads: int) -> str:
    """Name the model that answers."""
    if model.server:
        if model.n_ctx:
            known = f"context {count(model.n_ctx)} tokens · "
        else:
            known = ""
        return f"{model.name} · {known}computed by {model.server}"
    tokens = f"context {count(model.n_ctx)} tokens ({size(model.kv_bytes)})"
    if model.thinking != AUTO:
        thinking = f" · {describe_thinking(model.thinking)}"
    else:
        thinking = ""
    return f"{model.full_name} · {model.quantization} · {tokens} · {n_threads} threads{thinking}"


def what_happened(event: events.Event, talk: HeadlessChat) -> Iterator[str]:
    """Yield the lines that say what happened next to an answer, wherever there is no screen."""
    if isinstance(event, events.ConversationTakenUp):
        if event.trouble:
            yield event.trouble
        if event.restored_tokens:
            yield figures.back(event.restored_tokens, event.restored_s, event.read_s)
    elif isinstance(event, events.TurnsDropped):
        yield figures.dropped_turns(event.n_turns, event.n_tokens, event.read_tokens, event.read_s)
    elif isinstance(event, events.MessagesJoined):
        yield SENT_TOGETHER
    elif isinstance(event, events.PendingMessageLeftOut):
        yield LEFT_OUT
    elif isinstance(event, events.ToolsTold):
        yield event.line
    elif (
        isinstance(event, events.ToolsAnswered)
        and (last := talk.chat_session.last_message) is not None
    ):
        yield from last.folded.splitlines()  # a line for each call, with its result


class Dialogue:
    """One conversation with one model. Each turn ends in a line, never in a crash.

    Attributes:
        was_interrupted: whether Ctrl-C came since the last line was read: the next one quits.
        has_left: whether the user wants to leave.
    """

    def __init__(self, talk: HeadlessChat, progress: ProgressLine) -> None:
        self.talk = talk
        self._progress = progress
        self._told_id = self._told_trouble = ""
        self._has_told_no_locks = self._is_announced = False
        """Whether it was said what a full context will mean."""
        self.was_interrupted = self.has_left = False

    # ---- conversations and models

    def begin(self, system: str | None) -> None:
        """Start a new conversation."""
        self._told_id = ""
        self._is_announced = False
        self._tell_all(self.talk.begin(system))

    def show_resumed(self, opened: LoadedConversation, told: list[events.Event]) -> None:
        """Say which saved conversation goes on, and what its model made of it."""
        saved = opened.saved
        last = saved.conversation.last_reply
        conversation = saved.conversation
        self._told_id = self.talk.chat_session.journal.id
        n = len(conversation.messages)
        day = moment_text(saved.changed) or "an unknown day"
        which = f"conversation {int(opened.id)}: {saved.title}"
        say(
            f"{which} · {figures.counted(n, 'message')}, from {day} · /new starts another, "
            "jalopy sessions lists all"
        )
        if opened.notice:
            say(f"jalopy: {opened.notice}")
        if saved.unsent:
            say(
                "sent in place of an earlier message, "
                f"but not answered: {clean_line(saved.unsent, 200)}"
            )
        elif conversation.awaits_reply:
            shown = clean_line(conversation.messages[-1].text, 200)
            say(f"not answered yet (/regen asks again, another message goes with it): {shown}")
        elif last is not None and last.ending is Ending.INTERRUPTED:
            say("the last answer was cut off when the program ended (/regen gives another)")
        for text in saved.waiting:
            say(f"queued, but not sent before Jalopy closed: {clean_line(text, 200)}")
        self._tell_all(iter(told))

    def switch_model(self, path: Path) -> None:
        """Open another model, which reads the conversation first."""
        with interrupt_stops(self._stop):
            self._tell_all(self.talk.switch_model(path))
        if self.talk.chat_session.model is None:
            say("no model is loaded: /model PATH opens one")

    # ---- turns

    def turn(
        self,
        begin: Callable[[], Iterator[events.Event]],
        as_before: str = "the conversation is as it was",
    ) -> None:
        """Write one answer; ``as_before`` says that none comes, and that what it would have
        replaced stays.

        Raises:
            KeyboardInterrupt: a second Ctrl-C did not wait for the first.
            OSError: stdout cannot be written.
        """
        with interrupt_stops(self._stop):
            try:
                told = begin()
            except NothingToDoError as nothing:
                say(str(nothing))
                return
            self._tell_saving()
            ending = write_answer(told, AnswerOutput(), self._progress, self.tell)
        if ending is not None:
            self._tell_ending(ending)
        if self.talk.is_restored:
            say(as_before)
        self._tell_trouble()

    def _stop(self) -> None:
        self.was_interrupted = True
        self.talk.stop()

    # ---- lines

    def _tell_all(self, told: Iterator[events.Event]) -> None:
        for event in told:
            self._progress.clear()
            self.tell(event)
        self._progress.clear()

    def tell(self, event: events.Event) -> None:
        """Say what has happened, if that is worth a line."""
        for line in what_happened(event, self.talk):
            say(line)
        if isinstance(event, events.ConversationTakenUp):
            unread = event.total_tokens - event.ready_tokens
            if unread >= WORTH_A_LINE_TOKENS:
                say(f"{count(unread)} tokens of it are read with the next message")
        elif isinstance(event, events.TurnsDropped):
            self._is_announced = False
        elif isinstance(event, events.TuningDoubted):
            say(f"jalopy: {event.reason} (jalopy tune MODEL measures again)")
        elif isinstance(event, events.ThreadsChanged):
            say(event.trouble or f"from now on {describe(event.in_use.now)}")
        elif isinstance(event, events.AdaptersChanged):
            say(told_adapters(event))
        elif isinstance(event, events.ModelLoaded):
            for line in (*event.notices, model_line(event, self.talk.engine_thread.status.threads)):
                say(f"jalopy: {line}")
        elif isinstance(event, (events.ModelFailed, events.ModelKept)):
            if isinstance(event, events.ModelKept):
                stays = "; the model from before stays"
            else:
                stays = ""
            say(f"{event.reason}{stays}")
        elif isinstance(event, events.ConversationReread):
            read = (
                f"{count(event.read_tokens)} of {count(event.total_tokens)} tokens of the "
                f"conversation are read"
            )
            say(event.trouble or read)

    def _tell_ending(self, ending: events.Event) -> None:
        if isinstance(ending, events.PromptRefused):
            needed = count(ending.needed_tokens)
            room = count(ending.n_ctx)
            say(
                f"not sent: with room for an answer this message needs {needed} tokens, "
                f"but the context holds {room}"
            )
        elif isinstance(ending, events.GenerationFailed):
            say(ending.reason)
        elif isinstance(ending, events.PromptStopped):
            say("stopped before the answer began (/regen asks again)")
        elif isinstance(ending, events.GenerationFinished):
            if not ending.raw.strip():
                say("(empty answer)")
            say(whole_footer(ending.figures, ending.ending))
            if ending.ending is Ending.REPEATED:
                say(AGAINST_LOOPS)
            reply = self.talk.chat_session.conversation.last_reply
            if reply is not None and reply.sources:
                say(sources_line(reply.sources))
            self._announce_full_context()

    def _tell_saving(self) -> None:
        """Say once that the conversation is saved, and as which; or why it is not."""
        journal = self.talk.chat_session.journal
        if not journal.trouble and journal.id and journal.id != self._told_id:
            self._told_id = journal.id
            say(f"saved as conversation {int(journal.id)} (jalopy sessions lists all)")
        self._tell_trouble()

    def tell_notices(self) -> None:
        """Say which files were mended or cannot be used."""
        store = self.talk.store
        if store is not None:
            mended = store.take_chat_notice()
        else:
            mended = ""
        for line in filter(None, [mended, *notices.take_all()]):
            say(f"jalopy: {line}")

    def _tell_trouble(self) -> None:
        self.tell_notices()
        trouble = self.talk.chat_session.journal.trouble
        if trouble and trouble != self._told_trouble:
            say(
                f"jalopy: conversation not saved: {trouble}. "
                "It goes on here, and saving is tried again."
            )
        self._told_trouble = trouble
        if self.talk.chat_session.journal.is_unlocked and not self._has_told_no_locks:
            self._has_told_no_locks = True
            say(f"jalopy: {NO_LOCKS}")

    def _announce_full_context(self) -> None:
        used = self.talk.engine_thread.status.context_used
        n_ctx = self.talk.engine_thread.status.n_ctx
        model = self.talk.chat_session.model
        if not self._is_announced and ANNOUNCED_SHARE * n_ctx <= used < n_ctx:
            self._is_announced = True
            say(
                figures.context_nearly_full(
                    used, n_ctx, model is not None and model.context_may_grow
                )
            )
