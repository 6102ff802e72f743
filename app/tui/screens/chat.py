"""The chat: transcript, prompt, status. Says which helper shows an event, takes a message or carries out an action."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import DescendantFocus, Resize, ScreenResume
from textual.screen import Screen
from textual.widgets import Static, TextArea

from app.chat import commands, events
from app.chat.reply_text import TextEvent
from app.chat.status import Activity, EngineStatus
from app.chat.tools import MOST_ROUNDS, TOO_MANY_ROUNDS
from app.chat.turns import Taken
from app.conversations.conversation import ChatMessage, Conversation, Ending
from app.conversations.lines import AGAINST_LOOPS
from app.documents.read import Document
from app.machine.page_faults import DiskRate
from app.program.bundled_model import is_starter
from app.program.remote_model import ModelPlace
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.actions import Action
from app.tui.bindings import bindings
from app.tui.messages import (
    EmptySent,
    EngineReported,
    LinkChosen,
    MessageLeft,
    PromptSubmitted,
    TakeBackRequested,
    TranscriptScrolled,
)
from app.tui.screens.answer_choice import AnswerChoice
from app.tui.screens.chat_parts import GOES_ON, OTHERS, ChatParts
from app.tui.screens.conversation_flow import ConversationFlow
from app.tui.screens.message_actions import MessageActions, MessageEditing
from app.tui.screens.model_flow import ModelFlow, how_to_load
from app.tui.screens.sending import Sending
from app.tui.screens.surroundings import Surroundings, make_screen
from app.tui.speed.watch import TypingRhythm
from app.tui.textual_hacks import draw_thriftily, note_breakpoints, tell_desktop
from app.tui.widgets.message_view import MessageKeyPressed, MessageView, Note, ReplyView, ToolView, UserView
from app.tui.widgets.prompt import EDGE_COLUMNS, Prompt, Suggestions, screens_hint
from app.tui.widgets.status_line import ActivityLine, StatusLine
from app.tui.widgets.transcript import Transcript
from engine.prompt.tools.calls import ToolCall

if TYPE_CHECKING:
    from app.tui.widgets.performance_strip import PerformanceStrip

SAVE_PERIOD_S = 1.5
"""A kill in the middle of a reply loses no more than that, or half a second more while another screen is shown."""


SHELF_PERIOD_S = 2.0
"""How often it is looked whether a document may be read."""
DRAIN_PERIOD_S = 0.1
STATUS_EVERY = 2
"""While a reply is written the status line changes with every second drain, which is as often as anyone reads it."""
REST_EVERY = 10
"""Looks, of which one is a whole one, while nothing runs and nothing has come."""
UNSEEN_PERIOD_S = 0.5
"""How often what a reply brings is taken in while another screen is shown."""
MEMORY_PERIOD_S = 1.0
LONG_REPLY_S = 20.0
"""A user who waits for longer may look at something else meanwhile."""
_FREEING = (
    events.ModelLoaded | events.ModelKept | events.ConversationReread | events.TuningEnded | events.AdaptersChanged
)
"""Events after which the engine may be free, other than the end of a turn."""


class EngineFlow:
    """Hands events to the screen, and shows the status, with how far a download is, at an affordable pace."""

    def __init__(self, parts: ChatParts) -> None:
        self._parts = parts
        self._clock, self._pace = self._parts.bridge.now_s, self._parts.around.watch.pace
        self._numbers, self._rhythm = count(1), TypingRhythm()
        self._rss_bytes = self._n_drains = 0
        self._disk_rate, self._disk_bytes_per_s = DiskRate(), 0.0
        self._shown = EngineStatus(), 0, ""
        self._n_rests = 0
        self._tells_below = False
        self.screens_hint = ""
        """The keys of other screens that the prompt's edge has room for."""

    def begin(self) -> None:
        """Look from now on."""
        self._show_status()
        self._parts.screen.set_interval(DRAIN_PERIOD_S, self.drain)
        self._parts.screen.set_interval(MEMORY_PERIOD_S, self.measure_memory)

    def note_typed(self, text: str) -> None:
        """The text in the prompt has changed: while somebody types, a reply is drawn right after a painted key."""
        self._rhythm.note_text(text, self._clock())
        if self._is_writing_on:
            self._parts.screen.call_after_refresh(self._drain_after_key)

    def measure_memory(self) -> None:
        """Look what the process takes of memory, and of the disk."""
        import psutil  # not with the module: the first frame would wait for it

        with suppress(psutil.Error, OSError):  # without /proc no one tells
            self._rss_bytes = psutil.Process().memory_info().rss
        self._disk_bytes_per_s = self._disk_rate.since_last(self._clock()) or 0.0

    def drain(self) -> None:
        """Show what came, unless no one would miss it by now."""
        self._n_rests = self._n_rests + 1 if self._is_at_rest else 0
        if self._n_rests % REST_EVERY:
            return
        self.show_edge()  # compares words: it need not wait for a frame
        is_writing_on = self._is_writing_on
        if not (is_writing_on and self._may_wait()):
            self._show_what_came(is_writing_on)

    @property
    def _is_at_rest(self) -> bool:
        if (
            self._parts.turns.is_answering
            or self._parts.turns.is_calling
            or self._tells_below
            or self._parts.bridge.has_news()
        ):
            return False
        status, *others = self._shown
        is_still = status.activity is Activity.READY and status is self._parts.bridge.status
        return is_still and others == [self._rss_bytes, self._parts.around.downloads.word()]

    def _may_wait(self) -> bool:
        """Whether no one misses what the reply has brought by now."""
        now_s = self._clock()
        if not self._parts.screen.is_current:
            return not self._rhythm.is_due(now_s, UNSEEN_PERIOD_S)
        return self._pace.leaves_out(next(self._numbers)) or self._rhythm.is_typing(now_s)

    def _drain_after_key(self) -> None:
        now_s = self._clock()
        is_due = self._rhythm.is_typing(now_s) and self._rhythm.is_due(now_s, DRAIN_PERIOD_S * self._pace.divisor)
        if self._is_writing_on and is_due:
            self._show_what_came(True)

    @property
    def _is_writing_on(self) -> bool:
        return self._parts.bridge.status.activity is Activity.WRITING is self._shown[0].activity

    def _show_what_came(self, is_writing_on: bool) -> None:
        for event in self._parts.bridge.drain():
            self._parts.screen.post_message(EngineReported(event))
        self._rhythm.note_drawn(self._clock())
        self._n_drains += 1
        if not is_writing_on or self._n_drains % STATUS_EVERY == 0:
            self._show_status()

    def _show_status(self) -> None:
        self._shown = self._parts.bridge.status, self._rss_bytes, self._parts.around.downloads.word()
        self._parts.screen.query_one(ActivityLine).show(self._shown[0], self._clock())
        self._parts.screen.query_one(StatusLine).show(*self._shown, self._disk_bytes_per_s)

    def show_edge(self) -> None:
        """Name at the prompt's edge what stops the running reply, and what leads to text out of sight; else screens."""
        runs = self._parts.turns.is_answering or self._parts.turns.is_calling
        stop = self._parts.keymap.hint("chat.stop", "stops the reply") if runs else ""
        below = ""
        # While nothing is written, a height changes by a layout only.
        self._tells_below = self._parts.transcript.has_unseen and (self._parts.turns.is_answering or self._tells_below)
        if self._tells_below:
            key = "End" if not self._parts.prompt.text else self._parts.keymap.first_key("prompt.to_end")
            below = f"new text below ({key})" if key else "new text below"
        self._parts.prompt.show_keys("" if self._parts.turns.is_answering else self.screens_hint, stop, below)


class ChatScreen(Screen[None]):
    """The screen that everything else is reached from; its helpers are there once it is mounted."""

    CSS_PATH = "chat.tcss"
    BINDINGS = bindings("chat")
    AUTO_FOCUS = "Prompt"

    def __init__(self, around: Surroundings, model_path: ModelPlace | None) -> None:
        super().__init__()
        draw_thriftily(self)
        self._around, self._model_path = around, model_path
        self.turns, self.conversations = around.turns, around.at_hand
        self._bridge, self._keymap = around.bridge, around.keymap
        self._strip: PerformanceStrip | None = None
        """There is none until the user asks for it: every first frame would import, style and lay it out."""
        self._was_shown = False
        self._focuses_stopped = False
        """Whether the reply that is being stopped gets the focus."""
        self._agreed: set[tuple[str, str]] = set()
        """Servers and tools that are not asked about any more in ``_agreed_in``."""
        self._agreed_in: Conversation | None = None

    def compose(self) -> ComposeResult:
        """Lay out the screen from top to bottom."""
        note_breakpoints(self)
        with Horizontal(id="title-bar"):
            yield Static("jalopy", markup=False, id="program")
            yield Static(markup=False, id="model-name")
        with Horizontal(id="middle"):
            yield Transcript(id="transcript")
        keymap = self._keymap
        yield Suggestions(keymap.first_key("prompt.complete"), id="suggestions")
        yield ActivityLine(id="activity")
        yield Static(markup=False, id="edit-line")
        yield Prompt(id="prompt", keymap=keymap)
        yield StatusLine(id="status", hint=keymap.hint("app.help", "help"))

    def on_screen_resume(self, event: ScreenResume) -> None:
        """The first time every widget has just been styled."""
        event.refresh_styles = event.refresh_styles and self._was_shown
        self._was_shown = True

    def on_mount(self) -> None:
        """Begin to listen to the engine, once the first frame is drawn."""
        self._make_helpers()
        self.engine.begin()
        self.set_interval(SAVE_PERIOD_S, self.talks.save_what_comes)
        self.set_interval(SHELF_PERIOD_S, self._go_on_with_shelf)
        # What waits for a refresh here and now would not wait for the first frame: the application holds that back.
        self.app.call_later(self.call_after_refresh, self._start_engine)

    def _make_helpers(self) -> None:
        parts = ChatParts(self, self._around)
        self.transcript, self.prompt, self.drafting = parts.transcript, parts.prompt, parts.drafting
        self.notes, self.focus_at, self.views = parts.notes, parts.focus, parts.views
        self.prompt.waiting = self.transcript.waiting
        self.prompt.show_offered = self.query_one(Suggestions).show
        self.engine = EngineFlow(parts)
        self.editing = MessageEditing(parts)
        self.talks = ConversationFlow(parts, self.editing)
        self.models = ModelFlow(parts, self.talks)
        self.acting = MessageActions(parts, self.editing, self.talks.fork_at)
        self.choosing = AnswerChoice(parts, self._ask_next)
        self.sending = Sending(parts, self.editing, self._carry_out, self.engine.show_edge)

    def _start_engine(self) -> None:
        self._bridge.start()
        self.engine.measure_memory()
        self.drafting.load_history()
        unsent = self.drafting.bring_back_unsent()
        if self._model_path is None:
            self.note(how_to_load(self._keymap))
        else:
            is_resumed = self.talks.resume_last(self._model_path)
            if not is_resumed and is_starter(str(self._model_path)):
                self.models.greet()
            self.models.load(self._model_path, keeps=is_resumed, rereads=False)
        if unsent:
            self.note(unsent)
        self.call_later(self.sending.done)

    @on(EngineReported)
    async def show_event(self, reported: EngineReported) -> None:
        """Let those who wait for it show what the engine has reported."""
        event = reported.event
        taken = self.turns.take(event)
        if isinstance(event, TextEvent):
            self._show_growth(event)
        elif isinstance(event, events.ModelLoaded):
            await self.models.show_model(event, taken.is_new)
            self._tell_of_server(event)
            self.drafting.note_model()
        elif isinstance(event, events.GenerationFailed):
            self._show_failure(event, taken.is_as_before)
        elif isinstance(event, events.PromptStopped):
            self._show_stop(taken.is_as_before)
        elif isinstance(event, events.PromptRefused):
            self._give_back(event, taken)
        elif isinstance(event, events.GenerationFinished):
            self.talks.tidy()
            self.talks.announce_full_context()
            self._finish_reply(event)
            self.sending.note_reply(event)
            self._ask_about_calls()
            self.models.tell_machine(event)
            self.models.tell_of_real_one()
            self.talks.want_title()
            if any(message.folded for message in self.turns.conversation.messages[-2:]):  # maybe by files
                self._around.shelf.note_change()
        elif isinstance(event, (events.AnswersBegun, events.AnswerTold)):
            await self.choosing.note(event)
        elif isinstance(event, events.AnswersFinished):
            self.talks.tidy()
            self.talks.announce_full_context()
            self.choosing.show_first()
            self._finish()
            self.choosing.finish()
            self.talks.want_title()
        elif isinstance(event, events.ToolsAnswered):
            self._show_results()
        elif isinstance(event, events.ToolsTold):
            self._tell_of_tools(event)
        elif isinstance(event, events.DocumentRead):
            self._around.shelf.note(event)
            self.talks.tidy()
            self._go_on_with_shelf()
        elif isinstance(event, events.PromptCounted):
            self.drafting.note_count(event)
            self.sending.note_count(event)
        elif isinstance(event, events.PromptWeighed):
            self.editing.show_weight(event)
        elif isinstance(event, events.ConversationTakenUp):
            self.talks.tell_taken_up(event)
        elif isinstance(event, events.TurnsDropped):
            self.talks.tell_dropped(event)
        else:
            self.models.show_change(event)
        if isinstance(event, _FREEING):
            self._ask_next()
        self.engine.show_edge()

    @on(TextArea.Changed)
    def follow_prompt(self, event: TextArea.Changed) -> None:
        """List the commands that fit what is typed, and find out what it costs."""
        text = event.text_area.text
        self.drafting.offer()
        self.drafting.note_change()
        self.engine.note_typed(text)
        self._around.shelf.give_way()
        self.editing.weigh_soon()

    @on(TranscriptScrolled)
    def scroll(self, message: TranscriptScrolled) -> None:
        """Move the transcript by pages, or to its end."""
        self.transcript.go(message.pages)
        self.engine.show_edge()

    @on(LinkChosen)
    def show_link(self, message: LinkChosen) -> None:
        """Show where a link leads."""
        self.note(f"link: {clean_line(message.address, 500)}")

    @on(DescendantFocus)
    def look_for_places(self, event: DescendantFocus) -> None:
        """Name the places in documents of the reply that the user goes to."""
        if isinstance(event.widget, ReplyView):
            self.run_worker(self.acting.find_places(event.widget), group="places")

    @on(TakeBackRequested)
    async def take_back_into_prompt(self) -> None:
        """Take a message back for a key that meant an empty prompt; one pressed twice takes back one message."""
        if not self.prompt.text:
            await self.sending.take_back()

    def on_resize(self, event: Resize) -> None:
        """Let the strip lie flat on a narrow screen."""
        if self._strip is not None:
            self._strip.fit(event.size.width)
        self.engine.screens_hint = screens_hint(self._keymap, event.size.width - EDGE_COLUMNS)
        self.engine.show_edge()

    # ---- a reply, from its first word to its figures

    def _stop(self) -> None:
        """Stop the reply, whose text so far stays and gets the focus; or stop what else runs."""
        self._focuses_stopped = self.turns.is_answering
        self.turns.stop()

    def _show_growth(
        self, event: events.TextGenerated | events.ThoughtGenerated | events.ThinkingFinished | events.ReplyReopened
    ) -> None:
        """Let the answer or the thinking grow, or fold that; a reply that goes on comes again from its beginning."""
        if isinstance(event, events.TextGenerated):
            self.views.growing_reply().body.append(event.text)
        elif isinstance(event, events.ThoughtGenerated):
            self.views.growing_reply().think(event.text)
        elif isinstance(event, events.ThinkingFinished):
            self.views.growing_reply().finish_thinking(self.turns.growing.thinking)
        self.turns.save_partial()  # written by the keeper before the screen is drawn

    def _finish_reply(self, event: events.GenerationFinished) -> None:
        """Freeze the reply with its figures."""
        view = self._finish()
        is_long = event.figures.duration_s >= LONG_REPLY_S
        if self._around.settings.notify == "on" and is_long and not self.app.app_focus:
            tell_desktop(self.app)
        if event.ending is Ending.REPEATED:
            self.note(AGAINST_LOOPS)
        self._ask_next()
        self.run_worker(self.acting.find_places(view), group="places")
        if event.ending is Ending.STOPPED and self._focuses_stopped and not self.turns.is_busy:
            self.call_after_refresh(self.focus_at.to_stopped, view)
        self._focuses_stopped = False

    def _show_failure(self, event: events.GenerationFailed, is_as_before: bool) -> None:
        """Say why there is no reply, or only half of one; the chat goes on."""
        consequence = " (the conversation is as it was)" if is_as_before else " (/regen asks again)"
        if event.broken_off is not None:
            self._finish()
            consequence = ""
        else:
            self._end_unanswered(is_as_before)
        self.note(f"{event.reason}{consequence}", is_error=True)
        self._ask_next()

    def _show_stop(self, is_as_before: bool) -> None:
        """Say that the question stays unanswered, or the conversation as it was."""
        self._end_unanswered(is_as_before)
        if is_as_before:
            self.note("stopped before anything new came; the conversation is as it was")
        else:
            self.note("stopped before the reply began (/regen asks again; another message takes its place)")
        self._ask_next()

    def _give_back(self, event: events.PromptRefused, taken: Taken) -> None:
        """Return a message that does not fit to where it came from."""
        needed, n_ctx = figures.count(event.needed_tokens), figures.count(event.n_ctx)
        if isinstance(self.views.asked, ToolView):
            self._end_unanswered(taken.is_as_before)
            self.note(f"the tools' results need {needed} tokens; the context holds {n_ctx}", is_error=True)
            self._ask_next()
            return
        asked, edited = self.views.asked, self.views.edited_question
        self.views.keep_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        elif not taken.given_back:  # it stood there before, and stays
            self._end_unanswered(taken.is_as_before)
        else:
            if asked is not None:
                asked.mark("not sent")
            self.views.part()
            self.prompt.give_back(taken.given_back)
        self.views.asked = None
        model = self.turns.model
        larger = ", or choose a larger context_size" if model is not None and model.context_may_grow else ""
        self.note(
            f"Not sent: this message alone, with the system prompt and room for a reply, needs {needed} tokens; "
            f"the context holds {n_ctx}. Shorten it{larger}.",
            is_error=True,
        )
        self._ask_next()

    def _ask_next(self) -> None:
        """The engine may be free: ask what waits longest."""
        if self.turns.ask_next():
            asked = self.transcript.waiting.popleft()
            asked.mark("")
            self.views.ask(asked)
        self.drafting.note_free()

    def _finish(self) -> ReplyView:
        self.editing.note_replied()
        view, message = self.views.growing_reply(), self.turns.last_message
        assert message is not None
        view.finish(message)
        view.offer(GOES_ON if self.turns.can_continue else OTHERS if message.others else "")
        # When the last pass of its Markdown is done, and with it the number of widgets known.
        self.call_after_refresh(self.transcript.slim)
        self.views.end()
        return view

    def _end_unanswered(self, is_restored: bool) -> None:
        """A turn has ended without a reply; ``is_restored``: what the reply would have replaced is back."""
        self.choosing.leave()
        edited = self.views.edited_question
        self.views.keep_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        elif self.views.asked is not None and not is_restored:
            self.views.asked.mark("not answered")
        self.views.end()
        self.editing.edit_again()
        if is_restored and self.turns.can_continue and (replies := self.transcript.replies()):
            replies[-1].offer(GOES_ON)

    def _take_edit_back(self, edited: UserView) -> None:
        self.transcript.drop([edited])
        if not self.editing.edit_again():
            self.prompt.give_back(edited.text)

    # ---- tools: nothing runs without a yes of the user

    def action_tools(self, wanted: str = "") -> None:
        """List the servers, or turn them on or off."""
        with self.notes.telling_refusals():
            self.note(commands.choose_tools(self._bridge, wanted))
        self._tell_of_server(self.turns.model)

    def _tell_of_server(self, model: events.ModelLoaded | None) -> None:
        """Say where the results of tools go while a server computes the answers."""
        if model is not None and model.server and self._bridge.tools is not None and self._bridge.tools.is_on:
            self.note(f"what tools return goes to {model.server}, which computes the answers")

    def _tell_of_tools(self, event: events.ToolsTold) -> None:
        """Show a line: in grey, unless it is about a server's fault."""
        self.note(event.line, is_error=event.is_fault)

    def _ask_about_calls(self) -> None:
        """The reply has ended: if it ends with calls, ask about each."""
        reply = self.turns.last_message
        if reply is None or not self.turns.is_calling:
            return
        if self.turns.conversation.n_rounds >= MOST_ROUNDS:
            self.turns.leave_unanswered()
            self.note(TOO_MANY_ROUNDS)
            self._ask_next()
        else:
            self.run_worker(self._run_allowed(reply), group="tools")

    async def _run_allowed(self, reply: ChatMessage) -> None:
        allowed = [call.call_id for call in reply.calls if await self._may_run(call)]
        self.turns.run_calls(frozenset(allowed))

    async def _may_run(self, call: ToolCall) -> bool:
        box = self._bridge.tools
        if box is None or box.runs_always(call.name):
            return True
        server = box.owner_of(call.name)
        if self._agreed_in is not self.turns.conversation:
            self._agreed_in, self._agreed = self.turns.conversation, set()
        if (server, call.name) in self._agreed:
            return True
        question = make_screen("question", server, call, self._keymap, self._bridge.now_s)
        answer = await self.app.push_screen_wait(question)
        if answer == "always":
            self._agreed.add((server, call.name))
        return answer is not None

    def _show_results(self) -> None:
        """Show the results; the model reads them and answers."""
        message = self.turns.last_message
        assert message is not None
        self.views.ask(self.transcript.add(ToolView(message.text, message.folded)))

    # ---- actions

    async def _carry_out(self, action: Action, argument: str) -> None:
        if action.shows:
            await self.app.run_action(action.call)
            return
        target = self.app if action.scope == "app" else self
        outcome = getattr(target, f"action_{action.name}")(*([argument] if action.argument else []))
        if outcome is not None:
            await outcome

    def action_stop(self) -> None:
        """Leave a message or the editing; else stop what runs."""
        if isinstance(self.focused, MessageView):
            self.focus_at.to_prompt()
        elif not self.editing.cancel():
            self._stop()

    def action_thinking(self, wanted: str = "") -> None:
        """Have the model think more or less; without a word, show or fold its last thought."""
        if wanted:
            self.models.wish_thinking(wanted)
        else:
            self.acting.toggle_last_thinking()

    def action_toggle_strip(self) -> None:
        """Show or hide the speed strip next to the chat."""
        if self._strip is None:
            from app.tui.widgets.performance_strip import PerformanceStrip

            self._strip = PerformanceStrip(self._around.watch)
            self.query_one("#middle").mount(self._strip)
        self._strip.toggle()

    # ---- actions that others carry out

    def note(self, text: str, is_error: bool = False, kind: str = "") -> Note:
        """Say something between the messages."""
        return self.notes.note(text, is_error, kind)

    @on(PromptSubmitted)
    async def send(self, message: PromptSubmitted) -> None:
        """Send a message, or carry out a command."""
        await self.sending.take(message)

    @on(EmptySent)
    async def go_on(self) -> None:
        """Go on with the last conversation, if that was offered; a message on its way here comes first."""
        if not self.prompt.unheeded:
            await self.talks.go_on_with_offered()

    @on(MessageLeft)
    def leave_message(self, message: MessageLeft) -> None:
        """Go back to the prompt."""
        self.focus_at.leave_message(message)

    @on(MessageKeyPressed)
    async def act_on_message(self, pressed: MessageKeyPressed) -> None:
        """Do what a key on a message asks for."""
        await self.acting.act_on_message(pressed)

    def action_focus_older(self) -> None:
        """Go up by a message."""
        self.focus_at.step(-1)

    def action_focus_newer(self) -> None:
        """Go down by a message."""
        self.focus_at.step(1)

    def action_unfold(self) -> None:
        """Show or fold large pastes."""
        self.transcript.toggle_folds()

    async def action_new(self) -> None:
        """Start a new conversation."""
        await self.talks.new()

    async def action_system(self, text: str = "") -> None:
        """Show or set the system prompt."""
        await self.talks.start_with_system(text)

    async def action_persona(self, wanted: str = "") -> None:
        """List the personas, or begin with one."""
        await self.talks.start_with_persona(wanted)

    def action_rename(self, title: str) -> None:
        """Give the conversation a title."""
        self.talks.rename(title)

    def action_save(self, wanted: str = "") -> None:
        """Save the conversation as a file."""
        self.talks.export(wanted)

    def action_model(self, wanted: str = "") -> None:
        """Open another model."""
        self.models.open_wanted(wanted)

    def action_set(self, wanted: str = "") -> None:
        """Show or choose generation parameters."""
        self.models.choose(self._bridge.generation, wanted)

    def action_schema(self, wanted: str = "") -> None:
        """Show or choose the form of answers."""
        self.models.choose(self._bridge.form, wanted)

    def action_lora(self, wanted: str = "") -> None:
        """Show or choose the adapters that change the model."""
        self.models.wish_adapters(wanted)

    def action_threads(self, wanted: str = "") -> None:
        """Show or choose the threads."""
        self.models.wish_threads(wanted)

    def action_edit(self, argument: str = "") -> None:
        """Edit a message."""
        self.editing.edit(argument)

    def action_regenerate(self, wanted: str = "") -> None:
        """Answer the last message again, as many times at once as is wanted."""
        self.acting.regenerate(wanted)

    async def action_answers(self) -> None:
        """Choose among the answers to the last message."""
        await self.choosing.show_again()

    def action_continue_reply(self) -> None:
        """Go on with the last reply."""
        self.acting.continue_reply()

    async def action_copy(self, what: str = "") -> None:
        """Copy the last reply, or a part of it."""
        await self.acting.copy(what)

    async def action_place(self) -> None:
        """Show where in a document the last reply is from."""
        await self.acting.show_last_place()

    def action_read(self, wanted: str) -> None:
        """Attach files to the next message."""
        self.sending.attach_wanted(wanted)

    def _go_on_with_shelf(self) -> None:
        self._around.shelf.go_on(is_quiet=not self.prompt.text)

    async def ask_about(self, document: Document | str) -> None:
        """Begin a conversation that a document of the shelf goes with, or the file of one."""
        if not self.notes.refuses_while_busy():
            if not self.turns.conversation.is_empty:
                await self.talks.new()
            if isinstance(document, str):
                self.sending.attach(document)
            else:
                self.sending.bring(document)
            self.focus_at.to_prompt()

    async def action_take_back(self) -> None:
        """Take the newest message back that waits."""
        await self.sending.take_back()

    def action_external_editor(self) -> None:
        """Write the message in the user's editor."""
        self.sending.edit_externally()
