"""The chat: transcript, prompt, status. Says which helper shows an event, takes a message or carries out an action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Resize, ScreenResume
from textual.screen import Screen
from textual.widgets import Static, TextArea

from app.chat import events
from app.program.bundled_model import is_starter
from app.program.remote_model import ModelPlace
from app.text.clean_text import clean_line
from app.tui.actions import Action
from app.tui.bindings import bindings
from app.tui.messages import EngineReported, LinkChosen, TakeBackRequested, TranscriptScrolled
from app.tui.screens.chat_parts import ChatParts
from app.tui.screens.conversation_flow import ConversationFlow
from app.tui.screens.engine_flow import EngineFlow
from app.tui.screens.message_actions import MessageActions, MessageEditing
from app.tui.screens.model_flow import ModelFlow, how_to_load
from app.tui.screens.prompt_flow import PromptFlow
from app.tui.screens.reply_flow import ReplyFlow
from app.tui.screens.surroundings import Surroundings
from app.tui.textual_hacks import draw_thriftily, note_breakpoints
from app.tui.widgets.message_view import MessageView
from app.tui.widgets.prompt import EDGE_COLUMNS, Prompt, Suggestions, screens_hint
from app.tui.widgets.status_line import ActivityLine, StatusLine
from app.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from app.tui.widgets.performance_strip import PerformanceStrip

SAVE_PERIOD_S = 1.5
"""A kill in the middle of a reply loses no more than that, or half a second more while another screen is shown."""


def _handed_to(find: Callable[[ChatScreen], Callable[..., Any]]) -> Callable[..., Any]:
    """Return an action or a handler that is one of the screen's helpers'."""

    def carry_out(chat: ChatScreen, *arguments: object) -> Any:
        return find(chat)(*arguments)

    return carry_out


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
        """Begin to listen to the engine, once the first frame stands."""
        self._make_helpers()
        self.engine.begin()
        self.set_interval(SAVE_PERIOD_S, self.talks.save_what_comes)
        # What waits for a refresh here and now would not wait for the first frame: the application holds that back.
        self.app.call_later(self.call_after_refresh, self._start_engine)

    def _make_helpers(self) -> None:
        parts = ChatParts(self, self._around)
        self.transcript, self.prompt, self.drafting = parts.transcript, parts.prompt, parts.drafting
        self.notes, self.focus_at = parts.notes, parts.focus
        self.prompt.waiting = self.transcript.waiting
        self.prompt.show_offered = self.query_one(Suggestions).show
        self.engine = EngineFlow(parts)
        self.editing = MessageEditing(parts)
        self.replies = ReplyFlow(parts, self.editing)
        self.talks = ConversationFlow(parts, self.editing)
        self.models = ModelFlow(parts, self.talks, self.replies)
        self.acting = MessageActions(parts, self.editing, self.talks.fork_at)
        self.sending = PromptFlow(parts, self.editing, self._carry_out, self.engine.show_edge)
        self._shown_by = _event_handlers(self)

    def _start_engine(self) -> None:
        self._bridge.start()
        self.engine.measure_memory()
        self.drafting.load_history()
        if self._model_path is None:
            self.note(how_to_load(self._keymap))
        else:
            is_resumed = self.talks.resume_last(self._model_path)
            if not is_resumed and is_starter(str(self._model_path)):
                self.models.greet()
            self.models.load(self._model_path, keeps=is_resumed, rereads=False)
        if line := self.drafting.bring_back_unsent():
            self.note(line)
        self.call_later(self.sending.done)

    @on(EngineReported)
    async def show_event(self, reported: EngineReported) -> None:
        """Let those who wait for it show what the engine has reported."""
        for show in self._shown_by[type(reported.event)]:
            shown = show(reported.event)
            if shown is not None:
                await shown
        self.engine.show_edge()

    @on(TextArea.Changed)
    def follow_prompt(self, event: TextArea.Changed) -> None:
        """List the commands that fit what is typed, and find out what it costs."""
        text = event.text_area.text
        self.drafting.offer()
        self.drafting.note_change()
        self.engine.note_typed(text)
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
            self.replies.stop()

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

    note = _handed_to(lambda chat: chat.notes.note)
    on_prompt_submitted = _handed_to(lambda chat: chat.sending.take)
    on_message_left = _handed_to(lambda chat: chat.focus_at.leave_message)
    on_message_key_pressed = _handed_to(lambda chat: chat.acting.act_on_message)
    action_focus_older = _handed_to(lambda chat: partial(chat.focus_at.step, -1))
    action_focus_newer = _handed_to(lambda chat: partial(chat.focus_at.step, 1))
    action_unfold = _handed_to(lambda chat: chat.transcript.toggle_folds)
    action_new = _handed_to(lambda chat: chat.talks.new)
    action_system = _handed_to(lambda chat: chat.talks.start_with_system)
    action_persona = _handed_to(lambda chat: chat.talks.start_with_persona)
    action_rename = _handed_to(lambda chat: chat.talks.rename)
    action_save = _handed_to(lambda chat: chat.talks.export)
    action_model = _handed_to(lambda chat: chat.models.open_wanted)
    action_set = _handed_to(lambda chat: partial(chat.models.choose, chat._bridge.generation))
    action_schema = _handed_to(lambda chat: partial(chat.models.choose, chat._bridge.form))
    action_tools = _handed_to(lambda chat: chat.replies.choose_tools)
    action_threads = _handed_to(lambda chat: chat.models.wish_threads)
    action_edit = _handed_to(lambda chat: chat.editing.edit)
    action_regenerate = _handed_to(lambda chat: chat.acting.regenerate)
    action_continue_reply = _handed_to(lambda chat: chat.acting.continue_reply)
    action_copy = _handed_to(lambda chat: chat.acting.copy)
    action_read = _handed_to(lambda chat: chat.sending.attach_wanted)
    action_take_back = _handed_to(lambda chat: chat.sending.take_back)
    action_external_editor = _handed_to(lambda chat: chat.sending.edit_externally)


def _event_handlers(chat: ChatScreen) -> dict[type, tuple[Callable[[Any], Awaitable[None] | None], ...]]:
    """Who shows what, by the kind of event."""
    replies, talks, models = chat.replies, chat.talks, chat.models
    return {
        events.ModelLoaded: (models.show_model, replies.tell_of_server),
        events.ModelFailed: (models.show_load_failure,),
        events.ModelKept: (models.show_kept_model,),
        events.ConversationReread: (models.end_rereading,),
        events.ConversationTakenUp: (talks.tell_taken_up,),
        events.TextGenerated: (replies.show_growth,),
        events.ThoughtGenerated: (replies.show_growth,),
        events.ThinkingFinished: (replies.show_growth,),
        events.ReplyReopened: (replies.show_growth,),
        events.GenerationFinished: (
            talks.tidy,
            talks.announce_full_context,
            replies.finish_reply,
            replies.ask_about_calls,
            models.tell_machine,
            talks.want_title,
        ),
        events.TitleWritten: (talks.take_title,),
        events.GenerationFailed: (replies.show_failure,),
        events.PromptCounted: (chat.drafting.note_count,),
        events.PromptStopped: (replies.show_stop,),
        events.PromptRefused: (replies.give_back,),
        events.PromptWeighed: (chat.editing.show_weight,),
        events.TurnsDropped: (talks.tell_dropped,),
        events.ThreadsChanged: (models.show_threads,),
        events.ThinkingChosen: (models.show_thinking,),
        events.MemoryMeasured: (models.tell_machine,),
        events.TuningDoubted: (models.doubt_tuning,),
        events.TuningEnded: (models.end_tuning,),
        events.ToolsTold: (replies.tell_of_tools,),
        events.ToolsAnswered: (replies.show_results,),
    }
