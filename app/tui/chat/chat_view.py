"""What the chat shows, for all that acts on it: its widgets, the program's words, the views of the
running turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from app.backend.engine_thread import EngineThread
from app.conversations.journal import open_storage
from app.models.downloads.background import BackgroundDownload
from app.program.refusals import Refusal
from app.program.remote_model import ModelPlace
from app.program.settings import Settings
from app.session.chat_session import SENT_TOGETHER, ChatSession
from app.text.clean_text import clean_line, clean_text
from app.tui.chat.document_prefetcher import DocumentPrefetcher
from app.tui.keymap import Keymap
from app.tui.live_settings import LiveSettings
from app.tui.speed.watch import PerformanceWatch
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import MessageView, Note, ReplyView, ToolView, UserView
from app.tui.widgets.prompt import Prompt, Suggestions, prompt_hint
from app.tui.widgets.status_line import ActivityLine, StatusLine
from app.tui.widgets.transcript import Transcript

NOTE_S = 8.0
GOES_ON = "/continue goes on"
OTHERS = "/answers shows others"
NOT_PART = "this message is not part of the conversation"
"""It was not sent, was taken back, or its turn came to nothing."""


class ChatView(Screen[None]):
    """The base of the chat. What acts on it is next to it, by what it does."""

    screens_hint = ""
    """The keys of other screens that the prompt's edge has room for."""
    tells_below = False
    """Whether the prompt's edge names what leads to text out of sight."""
    asked: UserView | None = None
    """The message of the running turn."""
    _growing: ReplyView | None = None
    _replaced: Sequence[MessageView] = ()
    """Messages that are removed when the running reply begins, and stay if it does not."""
    _joined: MessageView | None = None
    """The unanswered message that the running turn's message was sent with."""
    _passing: Timer | None = None

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
        self.live = live
        self.keymap = keymap
        self.engine_thread = engine_thread
        self.performance = performance
        self.downloads = downloads
        self.model_path = model_path
        self.storage = open_storage(live.now)
        self.chat_session = ChatSession(
            engine_thread, live.now.system_prompt or None, self.storage.journal
        )
        self.shelf = DocumentPrefetcher(engine_thread, self.chat_session, self.storage, live)
        self._usual_hint = prompt_hint(keymap)

    @property
    def settings(self) -> Settings:
        """Those in effect; the settings screen may change them."""
        return self.live.now

    def compose(self) -> ComposeResult:
        """Lay out the screen from top to bottom."""
        self.model_name = Static(markup=False, id="model-name")
        self.edit_line = Static(markup=False, id="edit-line")
        self.edit_line.display = False
        self.transcript = Transcript(id="transcript")
        self.prompt = Prompt(id="prompt", keymap=self.keymap)
        suggestions = Suggestions(self.keymap.first_key("prompt.complete"), id="suggestions")
        self.prompt.waiting = self.transcript.waiting
        self.prompt.show_offered = suggestions.show
        self.activity_line = ActivityLine(id="activity")
        self.status_line = StatusLine(id="status", hint=self.keymap.hint("app.help", "help"))
        with Horizontal(id="title-bar"):
            yield Static("jalopy", markup=False, id="program")
            yield self.model_name
        with Horizontal(id="middle"):
            yield self.transcript
        yield from (suggestions, self.activity_line, self.edit_line, self.prompt, self.status_line)

    # ---- the program's words: lines in the transcript, and at the prompt's edge

    def note(self, text: str, is_error: bool = False, kind: str = "") -> Note:
        """Say something between the messages; where the user is not at their end, at the prompt's
        edge as well."""
        note = self.transcript.add(Note(clean_text(text), "error" if is_error else kind))
        if isinstance(self.focused, MessageView) or self.transcript.is_scrolled_up:
            self.hint_for(NOTE_S, clean_line(text, 300))
        return note

    @contextmanager
    def telling_refusals(self, is_error: bool = True) -> Iterator[None]:
        """Say why something was refused, and do no more of it."""
        try:
            yield
        except Refusal as refusal:
            self.note(str(refusal), is_error)

    def busy_line(self, place: str = "") -> str:
        """Say that nothing can be done now, and which key ends that in the chat."""
        return ": ".join(
            filter(None, ("the engine is busy", self.keymap.hint("chat.stop", f"{place}stops it")))
        )

    def refuses_while_busy(self) -> bool:
        """Whether the engine is busy; then a line says so."""
        if self.chat_session.is_busy:
            self.note(self.busy_line())
        return self.chat_session.is_busy

    @property
    def lists_models(self) -> str:
        """The key or the command that lists models."""
        key = self.keymap.first_key("app.models")
        if key:
            return f"{key} or /models"
        return "/models"

    def note_no_model(self) -> None:
        """Say what a chat without a model needs."""
        shows = f"{self.lists_models} shows what is on this machine and what fits"
        self.note(f"No model is loaded: {shows}; /model PATH opens a file")

    def hint(self, text: str = "") -> None:
        """Show a word at the prompt's edge; "" brings the usual one back."""
        self.prompt.border_title = Content(text or self._usual_hint)

    def set_usual_hint(self, text: str = "") -> None:
        """Set the usual word; "" shows the keys that send."""
        self._usual_hint = text or prompt_hint(self.keymap)
        self.hint()

    def hint_for(self, seconds: float, text: str) -> None:
        """Show a passing word there."""
        self.hint(text)
        if self._passing is not None:
            self._passing.stop()
        self._passing = call_once(self, seconds, self._end_passing)

    def _end_passing(self) -> None:
        if isinstance(self.focused, MessageView):
            self.hint_keys_of(self.focused)
        else:
            self.hint()

    def hint_keys_of(self, view: MessageView) -> None:
        """Name the keys that do something on this message."""
        is_reply = isinstance(view, ReplyView)
        is_tool = isinstance(view, ToolView)
        is_last = view.message is not None and view.message is self.chat_session.last_message
        has_thought = isinstance(view, ReplyView) and view.thinking.display
        if isinstance(view, ReplyView):
            places = view.places
        else:
            places = None
        words = {
            "message.show_place": f"shows {places[0].shown}" if places else "",
            "message.copy_message": "copy",
            "message.copy_code": "copy code" if is_reply and "```" in view.text else "",
            "message.continue_here": "goes on"
            if is_last and self.chat_session.can_continue
            else "",
            "message.regenerate_here": "again" if is_reply else "",
            "message.edit_here": "" if is_tool else "edit",
            "message.fork_here": "fork",
            "message.toggle_thinking": "all of it"
            if is_tool
            else "thinking"
            if has_thought
            else "",
            "chat.stop": "back",
        }
        self.hint(
            " · ".join(
                filter(None, (self.keymap.hint(key, word) for key, word in words.items() if word))
            )
        )

    def show_edge(self) -> None:
        """Name at the prompt's edge what stops the running reply, and what leads to text out of
        sight; else screens."""
        is_answering = self.chat_session.is_answering
        if is_answering or self.chat_session.is_calling:
            stop = self.keymap.hint("chat.stop", "stops the reply")
        else:
            stop = ""
        below = ""
        # While nothing is written, a height changes by a layout only.
        self.tells_below = self.transcript.has_unseen and (is_answering or self.tells_below)
        if self.tells_below:
            if not self.prompt.text:
                key = "End"
            else:
                key = self.keymap.first_key("prompt.to_end")
            if key:
                below = f"new text below ({key})"
            else:
                below = "new text below"
        self.prompt.show_keys("" if is_answering else self.screens_hint, stop, below)

    def focus_prompt(self) -> None:
        """Go to the prompt, and to the end of the transcript."""
        self.hint()
        self.prompt.focus()
        self.transcript.anchor()

    # ---- the views of the running turn

    @property
    def edited_question(self) -> UserView | None:
        """The message of the turn, if it takes the place of an earlier one."""
        if self._replaced and isinstance(self._replaced[0], UserView):
            return self.asked
        return None

    def show_asked(self, view: UserView) -> None:
        """The turn of this message begins, and of the unanswered one that goes with it, if there is
        one."""
        self.transcript.end_offers()
        self.asked = view
        view.message = self.chat_session.last_message
        before = self.chat_session.joined_message
        if before is not None:
            self._joined = self.transcript.view_of(before)
        else:
            self._joined = None
        if before is not None:
            self.note(SENT_TOGETHER)
        self._mark_joined("sent with the next message")

    def part_joined(self) -> None:
        """The message was not sent, and the one that would have gone with it is what it was."""
        self._mark_joined("not answered")
        self._joined = None

    def _mark_joined(self, what: str) -> None:
        if isinstance(self._joined, UserView):
            self._joined.message = self.chat_session.last_message
            self._joined.mark(what)

    def show_replaced(self, views: Sequence[MessageView]) -> None:
        """Mark what the turn that begins now takes the place of."""
        self.transcript.end_offers()
        self._replaced = views
        for view in views:
            view.set_replaced(True)

    def keep_replaced(self) -> None:
        """No reply comes: what it would have replaced stays."""
        for view in self._replaced:
            view.set_replaced(False)
        self._replaced = ()

    def growing_reply(self) -> ReplyView:
        """Return the reply's view; its first word takes the place of what it replaces."""
        if self._growing is None:
            self.transcript.drop(self._replaced)
            self._replaced = ()
            self._growing = self.transcript.add(ReplyView())
        return self._growing

    def end_turn(self) -> None:
        """The turn is over."""
        self._growing = self.asked = self._joined = None

    def forget_turn(self) -> None:
        """Another conversation is shown."""
        self.asked = None
        self._joined = None
        self._replaced = ()
