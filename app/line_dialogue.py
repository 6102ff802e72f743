"""One conversation of the line mode: what can be asked of it, and the lines that say what became of that.

The answers go to stdout, everything else to stderr. No Textual.
"""

from collections.abc import Callable
from typing import Any

from app import engine_access, figures
from app.answer_output import AnswerOutput, stream_answer
from app.clean_text import clean_line
from app.context_room import ANNOUNCED_SHARE, NoRoomError, Prompt
from app.conversation import Ending
from app.conversations.rows import moment_text
from app.conversations.store import Opened
from app.engine_thread import EngineThread
from app.figures import count, reply_footer
from app.kept_conversation import KeptConversation
from app.progress_line import ProgressLine
from app.refusals import exit_code_of, say
from app.reply import Clock, Reply, StopButton
from app.settings import Settings
from app.thinking import tag_ids
from engine.errors import EngineError


class Dialogue:
    """One conversation with one model: what the line mode can ask for. Each turn ends in a line, never in a crash."""

    def __init__(
        self,
        engine: EngineThread,
        tokenizer: Any,
        messages: Any,
        session: Any,
        settings: Settings,
        progress: ProgressLine,
        clock: Clock,
        kept: KeptConversation,
    ) -> None:
        self._engine, self._tokenizer, self._chat, self._session = engine, tokenizer, messages, session
        self._settings, self._progress, self._clock = settings, progress, clock
        self._kept = kept
        self._told_id = ""
        """Of the conversation that was said to be saved."""
        self._is_announced = False
        """Whether it was said what a full context will mean."""
        self._running: Reply | None = None
        self.system_prompt = ""
        self.was_interrupted = False
        """Whether Ctrl-C came since the last line was read: the next one quits."""

    def begin(self, system_prompt: str) -> None:
        """Start a new conversation."""
        self.system_prompt = system_prompt
        self._kept.begin(system_prompt)
        self._told_id, self._is_announced = "", False
        self._tell()

    def resume(self, opened: Opened) -> None:
        """Go on with a saved conversation."""
        saved = opened.saved
        conversation, last = saved.conversation, saved.conversation.last_reply
        self._kept.adopt(opened)
        self.system_prompt, self._told_id, self._is_announced = conversation.system or "", self._kept.journal.id, False
        n, day = len(conversation.messages), moment_text(saved.changed) or "an unknown day"
        messages = "1 message" if n == 1 else f"{count(n)} messages"
        which = f"conversation {int(opened.id)}: {saved.shown_title}"
        say(f"{which} · {messages}, from {day} · /new starts another, jalopy sessions lists all")
        if opened.notice:
            say(f"jalopy: {opened.notice}")
        if saved.unsent:
            say(f"sent in place of an earlier message, but not answered: {clean_line(saved.unsent, 200)}")
        elif conversation.awaits_reply:
            shown = clean_line(conversation.messages[-1].text, 200)
            say(f"not answered yet (/regen asks again, another message goes with it): {shown}")
        elif last is not None and last.ending is Ending.INTERRUPTED:
            say("the last answer was cut off when the program ended (/regen gives another)")
        for text in saved.waiting:
            say(f"sent, but its turn did not come any more: {clean_line(text, 200)}")
        self._tell()

    def ask(self, text: str) -> None:
        """Answer a message."""
        kept = self._kept
        self._turn(lambda: Prompt(list(self._chat.add_user(kept.to_send(text)))), lambda: kept.note_asked(text))

    def regenerate(self) -> None:
        """Answer the last message again, or at last."""
        conversation = self._kept.conversation
        if conversation.awaits_reply:
            unanswered, is_cut_off = conversation.messages[-1], conversation.is_cut_off
            conversation.is_cut_off = False
            self.ask(unanswered.text)
            conversation.is_cut_off = is_cut_off and conversation.messages[-1] is unanswered  # it was not sent
        elif not self._chat.messages or self._chat.messages[-1].role != "assistant":
            say("there is no answer to give again")
        elif not self._turn(self._prompt_again, self._kept.note_asked_again):
            say("the earlier answer stays")

    def end(self, is_hurried: bool) -> bool:
        """Save everything; False if that failed.

        Args:
            is_hurried: the engine may still be at work, and nobody waits for it.
        """
        if self._running is not None:
            self._running.cancel()
        if not is_hurried:
            self._engine.run(self._kept.close_states)
        unsaved = self._kept.end(is_hurried)
        if unsaved:
            say(f"jalopy: conversation not saved: {unsaved}")
        return not unsaved

    def _prompt_again(self) -> Prompt:
        self._chat.take_reply()
        return Prompt(list(self._chat.prompt_ids()))

    def _turn(self, build: Callable[[], Prompt], note: Callable[[], None]) -> bool:
        """Generate one reply; False where none comes, and the conversation is as it was.

        Args:
            build: brings the conversation to where the reply begins.
            note: saves what is asked, once it is known to fit.

        Raises:
            KeyboardInterrupt: a second Ctrl-C did not wait for the first.
            OSError: stdout cannot be written.
        """
        button = StopButton()

        def stop() -> None:
            self.was_interrupted = True
            button.press()

        is_kept = False
        try:
            is_kept = self._engine.run(lambda: self._answer(build, note, button), stop)
        except Exception as error:
            if exit_code_of(error) is None or isinstance(error, OSError):
                raise
            self._progress.clear()
            say(str(error) or "not enough memory for this turn (/new needs less)")
        return is_kept

    def _tell(self) -> None:
        """Tell the model what was said; what its template refuses is said, and said again by every message."""
        try:
            self._engine.run(lambda: self._kept.tell(self._chat, self._tokenizer))
        except EngineError as error:
            say(str(error))

    # ---- the engine's thread

    def _answer(self, build: Callable[[], Prompt], note: Callable[[], None], button: StopButton) -> bool:
        try:
            ids, before = self._kept.fit(self._chat, self._session, build)
        except NoRoomError as error:
            needed, room = count(error.needed_tokens), count(self._session.n_ctx)
            say(f"not sent: with room for an answer this message needs {needed} tokens, but the context holds {room}")
            return False
        is_kept = False
        try:
            note()
            self._tell_where()
            reply = self._running = self._reply(ids, button)
            is_kept = self._stream(reply)
        finally:
            self._running = None
            if not is_kept:
                self._chat.restore(before)
        return is_kept

    def _reply(self, ids: list[int], button: StopButton) -> Reply:
        reply = Reply(
            self._session,
            ids,
            engine_access.make_sampling(self._settings, self._session.model),
            max_tokens=self._settings.sampling.max_tokens,
            stop=self._chat.stops,
            spelled=tag_ids(self._tokenizer.control_texts),
            on_prompt_progress=lambda done, total: self._note_progress(reply, done, total),
            clock=self._clock,
        )
        button.guard(reply)
        return reply

    def _note_progress(self, reply: Reply, done: int, total: int) -> None:
        self._progress.show_prompt(done, total, reply.meter.prefill_s)
        self._kept.note_progress()

    def _stream(self, reply: Reply) -> bool:
        """Write the reply as it comes; False where there is nothing of it."""
        is_kept = False
        try:
            stream_answer(reply, self._kept.watch(reply, self._chat.opening, AnswerOutput()), self._progress)
        finally:
            self._progress.clear()
            is_kept = self._kept.finish(reply)
            if is_kept:
                self._chat.add_reply(list(reply.ids), reply.text)
        if not reply.text.strip():
            say("(empty answer)")
        say(reply_footer(reply.meter.figures(), reply.meter.ending))
        self._announce_full_context()
        return is_kept

    def _tell_where(self) -> None:
        """Say once that the conversation is saved, and as which; nothing while it is not."""
        conversation_id = self._kept.journal.id
        if self._kept.journal.trouble:
            return
        if conversation_id and conversation_id != self._told_id:
            self._told_id = conversation_id
            say(f"saved as conversation {int(conversation_id)} (jalopy sessions lists all)")

    def _announce_full_context(self) -> None:
        used, n_ctx = self._session.length, self._session.n_ctx
        if not self._is_announced and ANNOUNCED_SHARE * n_ctx <= used < n_ctx:
            self._is_announced = True
            say(figures.context_nearly_full(used, n_ctx))
