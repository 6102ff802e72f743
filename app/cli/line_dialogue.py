"""The line mode's side of a conversation: what is asked of it, and the lines that say what became
of that.

The answers go to stdout, everything else to stderr. No Textual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from app.backend.local.context_room import ANNOUNCED_SHARE
from app.cli.idle_summary import IdleSummary
from app.cli.interrupts import interrupt_stops
from app.cli.output import ProgressLine, ReplyOutput, write_reply
from app.conversations.conversation import Ending
from app.conversations.list_rows import moment_text
from app.conversations.locks import NO_LOCKS
from app.conversations.reply_lines import AGAINST_LOOPS, sources_line, whole_footer
from app.conversations.store import LoadedConversation
from app.program import notices
from app.program.refusals import say
from app.program.settings import AUTO
from app.session import events
from app.session.headless import HeadlessChat, NothingToDoError
from app.session.line_of import empty_reply_line, line_of
from app.session.reply_options import describe_options, describe_thinking
from app.session.system_commands import starting_line
from app.text import figures
from app.text.clean_text import clean_line
from app.text.figures import count, size


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


def lines_about(event: events.Event, headless: HeadlessChat) -> Iterator[str]:
    """Yield the lines about an event of a conversation."""
    line = line_of(event, is_restored=headless.is_restored)
    if line is not None:
        yield line.text
    last = headless.chat_session.last_message
    if isinstance(event, events.ToolsAnswered) and last is not None:
        yield from last.folded.splitlines()  # One line for each call, with its result.


class Dialogue:
    """Conversation with a model in line mode. Each turn ends in a line, never in a crash.

    Attributes:
        was_interrupted: whether Ctrl-C came since the last line was read: the next one quits.
        has_left: whether the user wants to leave.

    Args:
        compact: value of the setting ``compact``.
        is_typed: whether a user types the lines at a terminal.
    """

    def __init__(
        self, headless: HeadlessChat, progress: ProgressLine, compact: str, is_typed: bool
    ) -> None:
        self.headless = headless
        self._progress = progress
        self._compact = compact
        self._idle_summary = IdleSummary(headless, progress, compact, is_typed)
        self._announced_id = self._said_trouble = ""
        self._has_warned_of_locks = self._is_announced = False
        """Whether it was said what a full context will mean."""
        self.was_interrupted = self.has_left = False

    # ---- conversations and models

    def begin(
        self,
        system: str | None,
        sampling: Mapping[str, float] | None = None,
        persona: str = "",
    ) -> None:
        """Start a new conversation, as ``ChatSession.start_new`` does."""
        self._announced_id = ""
        self._is_announced = False
        self.say_all(self.headless.begin(system, sampling, persona))

    def begin_next(self, line: str, *, is_private: bool = False) -> None:
        """Start a new conversation, as ``ChatSession.start_next`` does, and say a line."""
        self._announced_id = ""
        self._is_announced = False
        self.say_all(self.headless.begin_next(is_private))
        say(line)
        self.say_start()

    def say_start(self) -> None:
        """Say which system prompt begins the conversation, if it is remembered for the model."""
        if line := starting_line(self.headless.engine_thread, self.headless.chat_session):
            say(line)

    def show_resumed(self, opened: LoadedConversation, told: list[events.Event]) -> None:
        """Say which saved conversation goes on, and what its model made of it."""
        saved = opened.saved
        last = saved.conversation.last_reply
        conversation = saved.conversation
        self._announced_id = self.headless.chat_session.journal.id
        n = len(conversation.messages)
        day = moment_text(saved.changed) or "an unknown day"
        which = f"conversation {int(opened.id)}: {saved.title}"
        chat_session = self.headless.chat_session
        if options := describe_options(
            chat_session.conversation.options, self.headless.engine_thread.settings
        ):
            which += f" · with {options}"
        say(
            f"{which} · {figures.counted(n, 'message')}, from {day} · /new starts another, "
            "jalopy sessions lists all"
        )
        if opened.notice:
            say(f"jalopy: {opened.notice}")
        if saved.unanswered_replacement:
            say(
                "sent in place of an earlier message, "
                f"but not answered: {clean_line(saved.unanswered_replacement, 200)}"
            )
        elif conversation.awaits_reply:
            shown = clean_line(conversation.messages[-1].text, 200)
            say(f"not answered yet (/regen asks again, another message goes with it): {shown}")
        elif last is not None and last.ending is Ending.INTERRUPTED:
            say("the last answer was cut off when the program ended (/regen gives another)")
        for text in saved.queued_texts:
            say(f"queued, but not sent before Jalopy closed: {clean_line(text, 200)}")
        self.say_all(iter(told))

    def switch_model(self, path: Path) -> None:
        """Open another model, which reads the conversation first."""
        with interrupt_stops(self._stop):
            self.say_all(self.headless.switch_model(path))
        if self.headless.chat_session.model is None:
            say("no model is loaded: /model PATH opens one")

    # ---- turns

    def turn(
        self,
        begin: Callable[[], Iterator[events.Event]],
    ) -> None:
        """Write one answer.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed a second time.
            OSError: stdout cannot be written.
        """
        with interrupt_stops(self._stop):
            try:
                turn_events = begin()
            except NothingToDoError as error:
                say(str(error))
                return
            self._say_saving()
            ending = write_reply(turn_events, ReplyOutput(), self._progress, self.say_event)
        if ending is not None:
            self.say_event(ending)
        self._say_trouble()
        if isinstance(ending, events.GenerationFinished):
            self._idle_summary.begin()

    def end_idle_summary(self, is_needed: bool = False) -> None:
        """End the summary that began after the last reply, and say the lines about it.

        Args:
            is_needed: whether a message follows.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed a second time.
        """
        for event in self._idle_summary.end(is_needed):
            self.say_event(event)

    def _stop(self) -> None:
        self.was_interrupted = True
        self.headless.stop()

    # ---- lines

    def say_all(self, events_: Iterator[events.Event]) -> None:
        """Say the lines about events as they arrive."""
        for event in events_:
            self._progress.clear()
            self.say_event(event)
        self._progress.clear()

    def say_event(self, event: events.Event) -> None:
        """Say the lines about an event, if it has any."""
        for line in lines_about(event, self.headless):
            say(line)
        match event:
            case events.TurnsDropped():
                self._is_announced = False
            case events.ModelLoaded():
                n_threads = self.headless.engine_thread.status.threads
                for line in (*event.notices, model_line(event, n_threads)):
                    say(f"jalopy: {line}")
                self.say_start()
            case events.GenerationFinished():
                self._say_finished(event)

    def _say_finished(self, event: events.GenerationFinished) -> None:
        empty_line = empty_reply_line(self.headless.chat_session.conversation)
        if empty_line:
            say(empty_line)
        say(whole_footer(event.figures, event.ending))
        if event.ending is Ending.REPEATED:
            say(AGAINST_LOOPS)
        reply = self.headless.chat_session.conversation.last_reply
        if reply is not None and reply.sources:
            say(sources_line(reply.sources))
        self._announce_full_context()

    def _say_saving(self) -> None:
        """Say once that the conversation is saved, and as which; or why it is not."""
        journal = self.headless.chat_session.journal
        if not journal.trouble and journal.id and journal.id != self._announced_id:
            self._announced_id = journal.id
            say(f"saved as conversation {int(journal.id)} (jalopy sessions lists all)")
        self._say_trouble()

    def say_notices(self) -> None:
        """Say which files were mended or cannot be used."""
        store = self.headless.store
        if store is not None:
            mended = store.take_chat_notice()
        else:
            mended = ""
        for line in filter(None, [mended, *notices.take_all()]):
            say(f"jalopy: {line}")

    def _say_trouble(self) -> None:
        self.say_notices()
        trouble = self.headless.chat_session.journal.trouble
        if trouble and trouble != self._said_trouble:
            say(
                f"jalopy: conversation not saved: {trouble}. "
                "It goes on here, and saving is tried again."
            )
        self._said_trouble = trouble
        if self.headless.chat_session.journal.is_unlocked and not self._has_warned_of_locks:
            self._has_warned_of_locks = True
            say(f"jalopy: {NO_LOCKS}")

    def _announce_full_context(self) -> None:
        used = self.headless.engine_thread.status.context_used
        n_ctx = self.headless.engine_thread.status.n_ctx
        model = self.headless.chat_session.model
        if not self._is_announced and ANNOUNCED_SHARE * n_ctx <= used < n_ctx:
            self._is_announced = True
            say(
                figures.context_nearly_full(
                    used, n_ctx, model is not None and model.context_may_grow, self._compact
                )
            )
