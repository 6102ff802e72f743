"""The chat's screen: makes the parts of the chat, and passes keys, commands and events to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import DescendantFocus, Resize, ScreenResume
from textual.screen import Screen
from textual.widgets import Static, TextArea

from app.backend.engine_thread import EngineThread
from app.documents.read import Document
from app.models.downloads.background import BackgroundDownload
from app.program.bundled_model import is_starter
from app.program.remote_model import ModelPlace
from app.text.clean_text import clean_line
from app.tui.actions import ACTIONS, Action
from app.tui.bindings import bindings
from app.tui.chat.answer_choice import AnswerChoice
from app.tui.chat.branch_actions import BranchActions
from app.tui.chat.compacting import CompactionPart
from app.tui.chat.composer import Composer
from app.tui.chat.conversation_flow import ConversationFlow
from app.tui.chat.conversation_upkeep import ConversationUpkeep
from app.tui.chat.core import ChatCore, TurnViews
from app.tui.chat.editing import MessageEditing
from app.tui.chat.events import EngineFeed, EventDisplay
from app.tui.chat.find import FindText
from app.tui.chat.message_actions import MessageActions
from app.tui.chat.messages import (
    EmptySubmitted,
    EngineReported,
    LinkChosen,
    MessageBlurred,
    TranscriptScrolled,
)
from app.tui.chat.model_panel import ModelPanel
from app.tui.chat.tool_calls import ToolCalls
from app.tui.chat.transcript import Transcript
from app.tui.chat.welcome import Welcome
from app.tui.keymap import Keymap
from app.tui.live_settings import LiveSettings
from app.tui.speed.watch import PerformanceWatch
from app.tui.widgets.call_question import CallQuestion
from app.tui.widgets.message_view import MessageKeyPressed, MessageView, ReplyView
from app.tui.widgets.prompt import EDGE_COLUMNS, Prompt, screens_hint
from app.tui.widgets.status_line import ActivityLine, StatusLine

if TYPE_CHECKING:
    from app.tui.widgets.performance_strip import PerformanceStrip

SAVE_PERIOD_S = 1.5
"""Seconds between two checks for trouble with saving, and between two saves of several answers
written together. A single reply is also saved whenever new text is shown."""
DOCUMENTS_PERIOD_S = 2.0
"""Seconds between two looks whether a document may be read ahead."""


class ChatScreen(Screen[None]):
    """The screen of the chat, from which all others are reached.

    An action ``chat.NAME`` is the method ``action_NAME`` of one of the parts.
    """

    CSS_PATH = "screen.tcss"
    BINDINGS = bindings("chat")
    AUTO_FOCUS = "Prompt"

    def __init__(
        self,
        live: LiveSettings,
        keymap: Keymap,
        engine_thread: EngineThread,
        performance: PerformanceWatch,
        downloads: BackgroundDownload,
        model_path: ModelPlace | None,
    ) -> None:
        super().__init__()
        self.performance = performance
        self.downloads = downloads
        self.core = ChatCore(self, live, keymap, engine_thread)
        self._model_path = model_path
        self._strip: PerformanceStrip | None = None
        """The speed strip; None until the user asks for it, to keep the first frame fast."""
        self._was_shown = False

    # ---- the parts

    def compose(self) -> ComposeResult:
        """Make the parts, and yield the widgets from top to bottom."""
        core = self.core
        self.activity_line = ActivityLine(id="activity")
        self.status_line = StatusLine(id="status", hint=core.keymap.hint("app.help", "help"))
        self.transcript = Transcript(id="transcript")
        self.prompt = Prompt(id="prompt", keymap=core.keymap)
        core.add_widgets(self.transcript, self.prompt)

        self.turn_views = TurnViews(core)
        self.editing = MessageEditing(core, self.turn_views)
        self.composer = Composer(
            core, self.turn_views, self.editing, self.activity_line, self.carry_out
        )
        self.find = FindText(core)
        self.messages = MessageActions(core, self.turn_views, self.editing)
        self.conversations = ConversationFlow(
            core,
            self.turn_views,
            self.editing,
            show_options=lambda: self.models.show_name(),
            begin_loading=lambda: self.models.begin_for_saved(),
            find=self.find.begin,
        )
        self.upkeep = ConversationUpkeep(core)
        self.welcome = Welcome(core)
        self.models = ModelPanel(core, self.conversations, self.messages, self.welcome)
        self.branches = BranchActions(core, self.editing, self.conversations)
        self.answers = AnswerChoice(core, self.composer.ask_next, self.branches.show)
        self.tools = ToolCalls(core, self.turn_views)
        self.compaction = CompactionPart(core)
        self.events = EventDisplay(
            core,
            self.turn_views,
            self.composer,
            self.editing,
            self.messages,
            self.conversations,
            self.upkeep,
            self.models,
            self.welcome,
            self.answers,
            self.tools,
            self.performance,
            self.compaction,
            continue_reading=self._read_documents,
        )

        with Horizontal(id="title-bar"):
            yield Static("jalopy", markup=False, id="program")
            yield self.models.name
        with Horizontal(id="middle"):
            yield self.transcript
        yield self.composer
        yield self.status_line

    def on_mount(self) -> None:
        """Begin to listen to the engine, and start it once the first frame is drawn."""
        self.feed = EngineFeed(
            self.core, self.performance, self.downloads, self.activity_line, self.status_line
        )
        self.set_interval(SAVE_PERIOD_S, self.upkeep.save)
        self.set_interval(DOCUMENTS_PERIOD_S, self._read_documents)
        # Called here, call_after_refresh would not wait for the first frame: the application holds
        # that back.
        self.app.call_later(self.call_after_refresh, self._start_engine)

    def _start_engine(self) -> None:
        self.core.engine_thread.start()
        self.feed.measure_machine()
        self.composer.load_history()
        drafts_line = self.composer.restore_drafts()
        if self._model_path is None:
            self.core.say_no_model()
        else:
            is_resumed = self.conversations.resume_last(
                self._model_path, self.composer.draft_conversation
            )
            if not is_resumed and is_starter(str(self._model_path)):
                self.welcome.greet()
            self.models.load(self._model_path, keeps=is_resumed, rereads=False)
        if drafts_line:
            self.core.say(drafts_line)
        self.composer.is_started.set()

    # ---- actions

    async def action_act(self, name: str) -> None:
        """Carry out the action ``chat.NAME`` for a key, a click or the palette."""
        action = ACTIONS[f"chat.{name}"]
        if action.needs_argument:
            self.prompt.begin_command(action.command)
        else:
            await self.carry_out(action)

    async def carry_out(self, action: Action, argument: str = "") -> None:
        """Carry out an action of the application or the chat."""
        if action.shows:
            await self.app.run_action(action.call)
            return
        if action.scope == "app":
            method = getattr(self.app, f"action_{action.name}")
        else:
            method = self.method_of_part(f"action_{action.name}")
        outcome = method(argument) if action.argument else method()
        if outcome is not None:
            await outcome

    @property
    def parts(self) -> tuple[object, ...]:
        """The parts that have methods of actions."""
        return (
            self,
            self.composer,
            self.composer.pictures,
            self.editing,
            self.messages,
            self.conversations,
            self.models,
            self.branches,
            self.answers,
            self.tools,
            self.find,
            self.compaction,
        )

    def method_of_part(self, name: str) -> Callable[..., Any]:
        """Return the method with this name of the part that has one."""
        for part in self.parts:
            method: Callable[..., Any] | None = getattr(part, name, None)
            if method is not None:
                return method
        raise AttributeError(f"no part of the chat has a method {name}")

    def action_stop(self) -> None:
        """Leave a focused message, a search or an edit; else stop reading files, refuse a tool
        call, or stop the reply."""
        if isinstance(self.focused, MessageView):
            self.core.focus_prompt()
        elif self.find.leave():
            return
        elif not (
            self.composer.attachments.stop_reading()
            or self.composer.shell.stop()
            or self.editing.cancel()
            or self.tools.refuse()
        ):
            self.events.stop_reply()

    def action_toggle_strip(self) -> None:
        """Show or hide the speed strip next to the chat."""
        if self._strip is None:
            from app.tui.widgets.performance_strip import PerformanceStrip

            self._strip = PerformanceStrip(self.performance)
            self.query_one("#middle").mount(self._strip)
        self._strip.toggle()

    # ---- messages of widgets

    @on(EngineReported)
    async def show_event(self, message: EngineReported) -> None:
        """Show an event of the engine."""
        await self.events.show(message.event)

    @on(TextArea.Changed)
    def follow_prompt(self, message: TextArea.Changed) -> None:
        """Let a growing reply wait for the keys."""
        self.feed.follow_typing(message.text_area.text)

    @on(EmptySubmitted)
    async def open_offered(self) -> None:
        """Open the conversation that the chat has offered."""
        await self.conversations.open_offered()

    @on(MessageKeyPressed)
    async def act_on_message(self, message: MessageKeyPressed) -> None:
        """Carry out an action ``message.NAME``: it is the method NAME of a part."""
        outcome = self.method_of_part(message.name)(message.view)
        if outcome is not None:
            await outcome

    @on(MessageBlurred)
    def leave_message(self, message: MessageBlurred) -> None:
        """Go to the prompt, and hand it the key that led there."""
        self.core.focus_prompt()
        if message.event is not None:
            self.prompt.post_message(message.event)

    @on(DescendantFocus)
    def follow_focus(self, event: DescendantFocus) -> None:
        """Name the keys that work now, and look for the passages that a focused reply is from."""
        self.core.edge.show_keys()
        if isinstance(event.widget, CallQuestion):
            self.core.edge.hint_question_keys()
        if isinstance(event.widget, ReplyView):
            self.messages.find_places_soon(event.widget)

    @on(TranscriptScrolled)
    def scroll_transcript(self, message: TranscriptScrolled) -> None:
        """Scroll the transcript by pages, or to its end."""
        self.transcript.scroll_pages(message.pages)
        self.core.edge.show_keys()

    @on(LinkChosen)
    def show_link(self, message: LinkChosen) -> None:
        """Show the address of a link."""
        self.core.say(f"link: {clean_line(message.address, 500)}")

    def on_screen_resume(self, event: ScreenResume) -> None:
        """Style the widgets again, except the first time, when they have just been styled."""
        event.refresh_styles = event.refresh_styles and self._was_shown
        if self._was_shown:
            self.feed.resume()
        self._was_shown = True

    def on_resize(self, event: Resize) -> None:
        """Fit the speed strip and the keys at the prompt's edge to the width."""
        if self._strip is not None:
            self._strip.fit(event.size.width)
        columns = event.size.width - EDGE_COLUMNS
        self.core.edge.screens_hint = screens_hint(self.core.keymap, columns)
        self.core.edge.show_keys()

    # ---- documents

    def _read_documents(self) -> None:
        """Let the engine read the next document while nothing is typed."""
        self.core.documents.continue_reading(is_quiet=not self.prompt.text)

    async def ask_about(self, document: Document | str) -> None:
        """Start a conversation with a document that was read before, or with a file."""
        if self.core.refuses_while_busy():
            return
        if not self.core.chat_session.conversation.is_empty:
            await self.conversations.action_new()
        if isinstance(document, str):
            self.composer.attach(document)
        else:
            self.composer.attach_document(document)
        self.core.focus_prompt()
