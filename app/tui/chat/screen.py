"""The chat: its screen, what each event of the engine changes there, and tools, which run only with
a yes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, cast

from textual import on
from textual.events import Resize, ScreenResume
from textual.widgets import TextArea

from app.backend.reply_text import TextEvent
from app.backend.status import Activity, EngineStatus
from app.conversations.conversation import ChatMessage, Conversation, Ending
from app.conversations.reply_lines import AGAINST_LOOPS
from app.documents.read import Document
from app.machine.sensors.page_faults import DiskRate
from app.program.bundled_model import is_starter
from app.session import commands, events
from app.session.chat_session import TurnOutcome
from app.text import figures
from app.text.clean_text import clean_line
from app.tools.toolbox import MOST_ROUNDS, TOO_MANY_ROUNDS
from app.tui.bindings import bindings
from app.tui.chat.chat_view import GOES_ON, OTHERS
from app.tui.chat.messages import EngineReported, LinkChosen, TranscriptScrolled
from app.tui.chat.model_flow import ModelFlow
from app.tui.chat.sending import Sending
from app.tui.screens import make_screen
from app.tui.speed.watch import TypingRhythm
from app.tui.textual_hacks import dismiss_once, tell_desktop
from app.tui.widgets.message_view import MessageView, ReplyView, ToolView, UserView
from app.tui.widgets.prompt import EDGE_COLUMNS, screens_hint
from engine.prompt.tools.calls import ToolCall

if TYPE_CHECKING:
    from app.tui.screens.answers import AnswersScreen
    from app.tui.widgets.performance_strip import PerformanceStrip

SAVE_PERIOD_S = 1.5
"""A kill in the middle of a reply loses no more than that, or half a second more while another
screen is shown."""
SHELF_PERIOD_S = 2.0
"""How often it is looked whether a document may be read."""
DRAIN_PERIOD_S = 0.1
STATUS_EVERY = 2
"""While a reply is written the status line changes with every second drain, which is as often as
anyone reads it."""
REST_EVERY = 10
"""Looks, of which one is a whole one, while nothing runs and nothing has come."""
UNSEEN_PERIOD_S = 0.5
"""How often what a reply brings is taken in while another screen is shown."""
MEMORY_PERIOD_S = 1.0
LONG_REPLY_S = 20.0
"""A user who waits for longer may look at something else meanwhile."""
_FREEING = (
    events.ModelLoaded
    | events.ModelKept
    | events.ConversationReread
    | events.TuningEnded
    | events.AdaptersChanged
)
"""Events after which the engine may be free, other than the end of a turn."""


class EngineFlow:
    """Hands events to the chat, and shows the status, with how far a download is, at an affordable
    pace."""

    def __init__(self, chat: ChatScreen) -> None:
        self._chat = chat
        self._engine_thread = chat.engine_thread
        self._clock = chat.engine_thread.now_s
        self._numbers = count(1)
        self._pace = chat.performance.pace
        self._rhythm = TypingRhythm()
        self._rss_bytes = self._n_drains = 0
        self._disk_rate = DiskRate()
        self._disk_bytes_per_s = 0.0
        self._shown = EngineStatus(), 0, ""
        self._n_rests = 0
        self._show_status()
        chat.set_interval(DRAIN_PERIOD_S, self.drain)
        chat.set_interval(MEMORY_PERIOD_S, self.measure_memory)

    def note_typed(self, text: str) -> None:
        """The text in the prompt has changed: while somebody types, a reply is drawn right after a
        painted key."""
        self._rhythm.note_text(text, self._clock())
        if self._is_writing_on:
            self._chat.call_after_refresh(self._drain_after_key)

    def measure_memory(self) -> None:
        """Look what the process takes of memory, and of the disk."""
        import psutil  # not with the module: the first frame would wait for it

        with suppress(psutil.Error, OSError):  # without /proc no one tells
            self._rss_bytes = psutil.Process().memory_info().rss
        self._disk_bytes_per_s = self._disk_rate.since_last(self._clock()) or 0.0

    def drain(self) -> None:
        """Show what came, unless no one would miss it by now."""
        if self._is_at_rest:
            self._n_rests = self._n_rests + 1
        else:
            self._n_rests = 0
        if self._n_rests % REST_EVERY:
            return
        self._chat.show_edge()  # compares words: it need not wait for a frame
        is_writing_on = self._is_writing_on
        if not (is_writing_on and self._may_wait()):
            self._show_what_came(is_writing_on)

    @property
    def _is_at_rest(self) -> bool:
        chat_session = self._chat.chat_session
        if (
            chat_session.is_answering
            or chat_session.is_calling
            or self._chat.tells_below
            or self._engine_thread.has_events()
        ):
            return False
        status, *others = self._shown
        is_still = status.activity is Activity.READY and status is self._engine_thread.status
        return is_still and others == [self._rss_bytes, self._chat.downloads.word()]

    def _may_wait(self) -> bool:
        """Whether no one misses what the reply has brought by now."""
        now_s = self._clock()
        if not self._chat.is_current:
            return not self._rhythm.is_due(now_s, UNSEEN_PERIOD_S)
        return self._pace.leaves_out(next(self._numbers)) or self._rhythm.is_typing(now_s)

    def _drain_after_key(self) -> None:
        now_s = self._clock()
        is_due = self._rhythm.is_typing(now_s) and self._rhythm.is_due(
            now_s, DRAIN_PERIOD_S * self._pace.divisor
        )
        if self._is_writing_on and is_due:
            self._show_what_came(True)

    @property
    def _is_writing_on(self) -> bool:
        return self._engine_thread.status.activity is Activity.WRITING is self._shown[0].activity

    def _show_what_came(self, is_writing_on: bool) -> None:
        for event in self._engine_thread.drain():
            self._chat.post_message(EngineReported(event))
        self._rhythm.note_drawn(self._clock())
        self._n_drains += 1
        if not is_writing_on or self._n_drains % STATUS_EVERY == 0:
            self._show_status()

    def _show_status(self) -> None:
        self._shown = self._engine_thread.status, self._rss_bytes, self._chat.downloads.word()
        self._chat.activity_line.show(self._shown[0], self._clock())
        self._chat.status_line.show(*self._shown, self._disk_bytes_per_s)


class ChatScreen(Sending, ModelFlow):
    """The screen that everything else is reached from."""

    CSS_PATH = "screen.tcss"
    BINDINGS = bindings("chat")
    AUTO_FOCUS = "Prompt"

    engine: EngineFlow
    _strip: PerformanceStrip | None = None
    """There is none until the user asks for it: every first frame would import, style and lay it
    out."""
    _answers: AnswersScreen | None = None
    """Shows several answers to one message, while they are written or chosen from."""
    _was_shown = _focuses_stopped = False
    """Whether the screen was shown before, and whether the reply that is being stopped gets the
    focus."""
    _agreed: frozenset[tuple[str, str]] = frozenset()
    """Servers and tools that are not asked about any more in ``_agreed_in``."""
    _agreed_in: Conversation | None = None

    def on_screen_resume(self, event: ScreenResume) -> None:
        """The first time every widget has just been styled."""
        event.refresh_styles = event.refresh_styles and self._was_shown
        self._was_shown = True

    def on_mount(self) -> None:
        """Begin to listen to the engine, once the first frame is drawn."""
        self.engine = EngineFlow(self)
        self.set_interval(SAVE_PERIOD_S, self.save_what_comes)
        self.set_interval(SHELF_PERIOD_S, self._go_on_with_shelf)
        # What waits for a refresh here and now would not wait for the first frame: the application
        # holds that back.
        self.app.call_later(self.call_after_refresh, self._start_engine)

    def _start_engine(self) -> None:
        self.engine_thread.start()
        self.engine.measure_memory()
        self.load_history()
        unsent = self.bring_back_unsent()
        if self.model_path is None:
            self.note_no_model()
        else:
            is_resumed = self.resume_last(self.model_path)
            if not is_resumed and is_starter(str(self.model_path)):
                self.greet()
            self.load(self.model_path, keeps=is_resumed, rereads=False)
        if unsent:
            self.note(unsent)
        self.call_later(self.go_on_with_held)

    def on_resize(self, event: Resize) -> None:
        """Let the strip lie flat on a narrow screen."""
        if self._strip is not None:
            self._strip.fit(event.size.width)
        self.screens_hint = screens_hint(self.keymap, event.size.width - EDGE_COLUMNS)
        self.show_edge()

    @on(TextArea.Changed)
    def follow_prompt(self, event: TextArea.Changed) -> None:
        """Let those who wait for it know what is typed."""
        self.note_draft()
        self.engine.note_typed(event.text_area.text)
        self.shelf.give_way()
        self.weigh_edit_soon()

    @on(TranscriptScrolled)
    def scroll_transcript(self, message: TranscriptScrolled) -> None:
        """Move the transcript by pages, or to its end."""
        self.transcript.go(message.pages)
        self.show_edge()

    @on(LinkChosen)
    def show_link(self, message: LinkChosen) -> None:
        """Show where a link leads."""
        self.note(f"link: {clean_line(message.address, 500)}")

    # ---- what the engine reports

    @on(EngineReported)
    async def show_event(self, reported: EngineReported) -> None:
        """Show what the engine has reported."""
        event = reported.event
        outcome = self.chat_session.handle(event)
        if isinstance(event, TextEvent):
            self._show_growth(event)
        elif isinstance(event, events.ModelLoaded):
            await self.show_model(event, outcome.is_new)
            self._tell_of_server(event)
            self.note_model()
        elif isinstance(event, events.GenerationFailed):
            self._show_failure(event, outcome.is_restored)
        elif isinstance(event, events.PromptStopped):
            self._show_stop(outcome.is_restored)
        elif isinstance(event, events.PromptRefused):
            self._give_back(event, outcome)
        elif isinstance(event, events.GenerationFinished):
            self._finish_reply(event)
        elif isinstance(event, events.AnswersBegun):
            if event.trouble:
                self.note(f"answers written together: {event.n}, for more {event.trouble}")
            if event.n > 1:
                await self._show_answers(event.n)
        elif isinstance(event, events.AnswerTold):
            if self._answers is not None:
                self._answers.tell(event.at, event.event)
        elif isinstance(event, events.AnswersFinished):
            self._finish_answers()
        elif isinstance(event, events.ToolsAnswered):
            self._show_results()
        elif isinstance(event, events.ToolsTold):
            self.note(event.line, is_error=event.is_fault)
        elif isinstance(event, events.DocumentRead):
            self.shelf.note(event)
            self.tidy()
            self._go_on_with_shelf()
        elif isinstance(event, events.PromptCounted):
            self.note_count(event)
        elif isinstance(event, events.PromptWeighed):
            self.show_weight(event)
        elif isinstance(event, events.ConversationTakenUp):
            self.tell_taken_up(event)
        elif isinstance(event, events.TurnsDropped):
            self.tell_dropped(event)
        else:
            self.show_change(event)
        if isinstance(event, _FREEING):
            self.ask_next()
        self.show_edge()

    # ---- a reply, from its first word to its figures

    def _show_growth(
        self,
        event: events.TextGenerated
        | events.ThoughtGenerated
        | events.ThinkingFinished
        | events.ReplyReopened,
    ) -> None:
        """Let the answer or the thinking grow, or fold that; a reply that goes on comes again from
        its beginning."""
        if isinstance(event, events.TextGenerated):
            self.growing_reply().body.append(event.text)
        elif isinstance(event, events.ThoughtGenerated):
            self.growing_reply().think(event.text)
        elif isinstance(event, events.ThinkingFinished):
            self.growing_reply().finish_thinking(self.chat_session.thinking)
        self.chat_session.save_partial()  # written by the keeper before the screen is drawn

    def _finish_reply(self, event: events.GenerationFinished) -> None:
        """Freeze the reply with its figures; ask what its end makes possible."""
        view = self._end_reply()
        is_long = event.figures.duration_s >= LONG_REPLY_S
        if self.settings.notify == "on" and is_long and not self.app.app_focus:
            tell_desktop(self.app)
        if event.ending is Ending.REPEATED:
            self.note(AGAINST_LOOPS)
        self.ask_next()
        self.find_places_soon(view)
        if (
            event.ending is Ending.STOPPED
            and self._focuses_stopped
            and not self.chat_session.is_busy
        ):
            self.call_after_refresh(self.focus_stopped, view)
        self._focuses_stopped = False
        self.note_reply(event)
        self._ask_about_calls()
        self.tell_machine(event)
        self.tell_of_real_one()
        self.want_title()
        # maybe by files
        if any(message.folded for message in self.chat_session.conversation.messages[-2:]):
            self.shelf.note_change()

    def _end_reply(self) -> ReplyView:
        self.tidy()
        self.announce_full_context()
        self.note_replied()
        view = self.growing_reply()
        message = self.chat_session.last_message
        assert message is not None
        view.finish(message)
        view.offer(
            GOES_ON if self.chat_session.can_continue else OTHERS if message.alternatives else ""
        )
        # When the last pass of its Markdown is done, and with it the number of widgets known.
        self.call_after_refresh(self.transcript.slim)
        self.end_turn()
        return view

    def _show_failure(self, event: events.GenerationFailed, is_restored: bool) -> None:
        """Say why there is no reply, or only half of one; the chat goes on."""
        if is_restored:
            consequence = " (the conversation is as it was)"
        else:
            consequence = " (/regen asks again)"
        if event.broken_off is not None:
            self._end_reply()
            consequence = ""
        else:
            self._end_unanswered(is_restored)
        self.note(f"{event.reason}{consequence}", is_error=True)
        self.ask_next()

    def _show_stop(self, is_restored: bool) -> None:
        """Say that the question stays unanswered, or the conversation as it was."""
        self._end_unanswered(is_restored)
        if is_restored:
            self.note("stopped before anything new came; the conversation is as it was")
        else:
            self.note(
                "stopped before the reply began "
                "(/regen asks again; another message takes its place)"
            )
        self.ask_next()

    def _give_back(self, event: events.PromptRefused, outcome: TurnOutcome) -> None:
        """Return a message that does not fit to where it came from."""
        needed = figures.count(event.needed_tokens)
        n_ctx = figures.count(event.n_ctx)
        if isinstance(self.asked, ToolView):
            self._end_unanswered(outcome.is_restored)
            self.note(
                f"the tools' results need {needed} tokens; the context holds {n_ctx}", is_error=True
            )
            self.ask_next()
            return
        asked = self.asked
        edited = self.edited_question
        self.keep_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        elif not outcome.returned_text:  # it stood there before, and stays
            self._end_unanswered(outcome.is_restored)
        else:
            if asked is not None:
                asked.mark("not sent")
            self.part_joined()
            self.prompt.give_back(outcome.returned_text)
        self.asked = None
        model = self.chat_session.model
        if model is not None and model.context_may_grow:
            larger = ", or choose a larger context_size"
        else:
            larger = ""
        self.note(
            f"Not sent: this message alone, with the system prompt and room for a reply, "
            f"needs {needed} tokens; "
            f"the context holds {n_ctx}. Shorten it{larger}.",
            is_error=True,
        )
        self.ask_next()

    def _end_unanswered(self, is_restored: bool) -> None:
        """A turn has ended without a reply; ``is_restored``: what the reply would have replaced is
        back."""
        if self._answers is not None:  # there is nothing to choose
            self._answers.finish()  # what is above it may be left first
            dismiss_once(self._answers)
        edited = self.edited_question
        self.keep_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        elif self.asked is not None and not is_restored:
            self.asked.mark("not answered")
        self.end_turn()
        self.edit_again()
        if (
            is_restored
            and self.chat_session.can_continue
            and (replies := self.transcript.replies())
        ):
            replies[-1].offer(GOES_ON)

    def _take_edit_back(self, edited: UserView) -> None:
        self.transcript.drop([edited])
        if not self.edit_again():
            self.prompt.give_back(edited.text)

    def action_stop(self) -> None:
        """Leave a message or the editing; else stop the reply, which gets the focus, or what else
        runs."""
        if isinstance(self.focused, MessageView):
            self.focus_prompt()
        elif not self.stop_reading() and not self.cancel_edit():
            self._focuses_stopped = self.chat_session.is_answering
            self.chat_session.stop()

    # ---- several answers to one message, and the choice among them

    async def action_answers(self) -> None:
        """Choose among the answers to the last message."""
        last = self.chat_session.last_message
        if self.refuses_while_busy():
            return
        if last is None or not last.alternatives:
            self.note("there is one answer to the last message (/regen 2 writes two more)")
            return
        messages = (last, *last.alternatives)
        await self._show_answers(len(messages), messages)

    async def _show_answers(self, n: int, messages: Sequence[ChatMessage] = ()) -> None:
        screen = make_screen("answers", n, self.keymap, self.chat_session.stop, messages)
        self._answers = cast("AnswersScreen", screen)
        await self.app.push_screen(self._answers, self._choose_answer)

    def _finish_answers(self) -> None:
        """All have ended: show the first in the chat, as it is the reply unless the user chooses
        another."""
        view = self.growing_reply()
        message = self.chat_session.last_message
        assert message is not None
        view.finish_thinking(message.thinking)
        view.body.append(message.text)
        self._end_reply()
        if self._answers is not None:
            self._answers.finish()
        else:
            self.ask_next()
        self.want_title()

    def _choose_answer(self, place: int | None) -> None:
        self._answers = None
        before = self.chat_session.last_message
        if place and before is not None and self.chat_session.choose(place - 1):
            chosen = self.chat_session.last_message
            assert chosen is not None
            view = ReplyView.of(chosen)
            view.offer(GOES_ON if self.chat_session.can_continue else OTHERS)
            self.transcript.put_in_place(self.transcript.view_of(before), view)
        self.ask_next()

    # ---- tools: nothing runs without a yes of the user

    def action_tools(self, wanted: str = "") -> None:
        """List the servers, or turn them on or off."""
        with self.telling_refusals():
            self.note(commands.choose_tools(self.engine_thread, wanted))
        self._tell_of_server(self.chat_session.model)

    def _tell_of_server(self, model: events.ModelLoaded | None) -> None:
        """Say where the results of tools go while a server computes the answers."""
        if (
            model is not None
            and model.server
            and self.engine_thread.tools is not None
            and self.engine_thread.tools.is_on
        ):
            self.note(f"what tools return goes to {model.server}, which computes the answers")

    def _ask_about_calls(self) -> None:
        """The reply has ended: if it ends with calls, ask about each."""
        reply = self.chat_session.last_message
        if reply is None or not self.chat_session.is_calling:
            return
        if self.chat_session.conversation.n_rounds >= MOST_ROUNDS:
            self.chat_session.end_without_reply()
            self.note(TOO_MANY_ROUNDS)
            self.ask_next()
        else:
            self.run_worker(self._run_allowed(reply), group="tools")

    async def _run_allowed(self, reply: ChatMessage) -> None:
        allowed = [call.call_id for call in reply.calls if await self._may_run(call)]
        self.chat_session.run_calls(frozenset(allowed))

    async def _may_run(self, call: ToolCall) -> bool:
        box = self.engine_thread.tools
        if box is None or box.runs_always(call.name):
            return True
        server = box.owner_of(call.name)
        if self._agreed_in is not self.chat_session.conversation:
            self._agreed_in = self.chat_session.conversation
            self._agreed = frozenset()
        if (server, call.name) in self._agreed:
            return True
        question = make_screen("question", server, call, self.keymap, self.engine_thread.now_s)
        answer = await self.app.push_screen_wait(question)
        if answer == "always":
            self._agreed |= {(server, call.name)}
        return answer is not None

    def _show_results(self) -> None:
        """Show the results; the model reads them and answers."""
        message = self.chat_session.last_message
        assert message is not None
        self.show_asked(self.transcript.add(ToolView(message.text, message.folded)))

    # ---- what is next to the chat

    def action_toggle_strip(self) -> None:
        """Show or hide the speed strip next to the chat."""
        if self._strip is None:
            from app.tui.widgets.performance_strip import PerformanceStrip

            self._strip = PerformanceStrip(self.performance)
            self.query_one("#middle").mount(self._strip)
        self._strip.toggle()

    def _go_on_with_shelf(self) -> None:
        self.shelf.go_on(is_quiet=not self.prompt.text)

    async def ask_about(self, document: Document | str) -> None:
        """Begin a conversation that a document of the shelf goes with, or the file of one."""
        if not self.refuses_while_busy():
            if not self.chat_session.conversation.is_empty:
                await self.action_new()
            if isinstance(document, str):
                self.attach(document)
            else:
                self.bring(document)
            self.focus_prompt()
