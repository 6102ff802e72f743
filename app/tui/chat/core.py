"""The session and widgets that the parts of the chat share, and the program's lines in it."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer

from app.backend.engine_thread import EngineThread
from app.conversations.journal import open_storage
from app.program.background import in_background
from app.program.refusals import Refusal, shown_line
from app.program.settings import Settings
from app.session.chat_session import ChatSession
from app.session.events import Event
from app.session.line_of import SENT_TOGETHER, Hints, line_of
from app.session.request import date_to_name
from app.session.running import Phase
from app.text.clean_text import clean_line, clean_text
from app.tui.chat.document_prefetcher import DocumentPrefetcher
from app.tui.chat.hand_tuning import HandTuning
from app.tui.chat.transcript import Transcript
from app.tui.keymap import Keymap
from app.tui.live_settings import LiveSettings
from app.tui.textual_hacks import call_once
from app.tui.widgets.call_question import CallQuestion
from app.tui.widgets.message_view import MessageView, Note, ReplyView, ToolView, UserView
from app.tui.widgets.prompt import Prompt, prompt_hint

HINT_S = 8.0
"""Seconds that a line of the program stays at the prompt's edge."""
CONTINUE_OFFER = "/continue resumes"
ANSWERS_OFFER = "/answers shows others"
NO_REPLY = "The last message has no reply. /regen answers it; another message is sent with it"
NOT_IN_CONVERSATION = "this message is not part of the conversation"
"""Reason to refuse an action on a message that was not sent, was taken back or got no reply."""


class ChatCore:
    """The session, the engine, the keys and the widgets of a chat.

    The parts of the chat also write the program's lines with it.
    """

    transcript: Transcript
    prompt: Prompt
    edge: PromptEdge

    def __init__(
        self, screen: Screen[None], live: LiveSettings, keymap: Keymap, engine_thread: EngineThread
    ) -> None:
        self.screen = screen
        """The chat's screen, which runs timers and background work."""
        self.live = live
        self.keymap = keymap
        self.engine_thread = engine_thread
        self.storage = open_storage(live.now)
        self.chat_session = ChatSession(
            engine_thread,
            live.now.system_prompt or None,
            self.storage.journal,
            today=lambda: date_to_name(self.settings),
        )
        self.hand_tuning = HandTuning(engine_thread, self.chat_session)
        self.documents = DocumentPrefetcher(engine_thread, self.chat_session, self.storage, live)

    def add_widgets(self, transcript: Transcript, prompt: Prompt) -> None:
        """Add the widgets that every part uses, once the screen has made them."""
        self.transcript = transcript
        self.prompt = prompt
        self.edge = PromptEdge(self)

    @property
    def settings(self) -> Settings:
        """The settings in effect, which the settings screen may change."""
        return self.live.now

    # ---- lines of the program

    def say(self, text: str, is_error: bool = False, style: str = "") -> Note:
        """Write a line into the transcript.

        If the user is not at the end of the transcript, the prompt's edge shows the line too.
        """
        note = self.transcript.add(Note(clean_text(text), "error" if is_error else style))
        if isinstance(self.screen.focused, MessageView) or self.transcript.is_scrolled_up:
            self.edge.hint_for(HINT_S, clean_line(text, 300))
        return note

    def say_event(self, event: Event, is_restored: bool = False) -> None:
        """Say the line about an event, if it has one.

        Args:
            is_restored: whether the event ended the turn and the conversation is as it was before.
        """
        model = self.chat_session.model
        larger_context = ""
        if model is not None and model.context_may_grow:
            larger_context = "a larger context_size"
        hints = Hints(self.keymap.key_or_command("app.tune"), larger_context)
        line = line_of(event, hints, is_restored)
        if line is not None:
            self.say(line.text, line.is_error)

    @contextmanager
    def refusals_said(self, is_error: bool = True) -> Iterator[None]:
        """Catch a ``Refusal`` of the enclosed steps, and say its reason."""
        try:
            yield
        except Refusal as refusal:
            self.say(str(refusal), is_error)

    def say_no_model(self) -> None:
        """Say how to open a model."""
        self.say(f"No model is loaded. {self.lists_models} lists models; /model PATH opens a file")

    @property
    def lists_models(self) -> str:
        """The key or the command that lists models."""
        key = self.keymap.first_key("app.models")
        if key:
            return f"{key} or /models"
        return "/models"

    def busy_line(self, location: str = "") -> str:
        """Return a line that says that the engine is busy, and which key stops it.

        Args:
            location: where the key works, such as "in the chat ".
        """
        stop = self.keymap.hint("chat.stop", f"{location}stops it")
        return ": ".join(filter(None, ("the engine is busy", stop)))

    async def find_model(self, name: str) -> Path | None:
        """Return the file of a model by its name or path; None, and say why, if it cannot be used.

        Only the beginning of the file is checked.
        """
        find = partial(_find_model, name, self.settings.model_directories)
        try:
            path = await wrap_future(in_background(find, "model"))
            await wrap_future(self.engine_thread.glance_at(path))
        except Exception as error:
            self.say(shown_line(error), is_error=True)
            return None
        return path

    def refuses_while_busy(self) -> bool:
        """Return whether the engine is busy, and say so if it is."""
        if self.chat_session.is_busy:
            self.say(self.busy_line())
        return self.chat_session.is_busy

    # ---- messages and the focus

    def index_of(self, view: MessageView | None) -> int | None:
        """Return the index of a view's message in the conversation; None if it is not there."""
        if view is None:
            return None
        for index, message in enumerate(self.chat_session.conversation.messages):
            if message is view.message:
                return index
        return None

    def focus_prompt(self) -> None:
        """Go to the prompt, and to the end of the transcript."""
        self.edge.hint()
        self.prompt.focus()
        self.transcript.anchor()


def _find_model(name: str, directories: Sequence[str]) -> Path:
    from app.models.library.find_by_name import named_model  # not needed for the first frame

    return named_model(name, directories)


class PromptEdge:
    """The words on the prompt's frame: a hint above the prompt, and keys below it."""

    screens_hint = ""
    """Keys of other screens, as many as fit."""
    is_asking = False
    """Whether a tool call waits for the user's answer."""
    shows_unseen = False
    """Whether the edge names the key that leads to new text out of sight."""
    is_reading_files = False
    """Whether the key that stops the reply would stop the reading of files instead."""

    def __init__(self, core: ChatCore) -> None:
        self._core = core
        self._usual_hint = prompt_hint(core.keymap)
        self._stop_hint = core.keymap.hint("chat.stop", "stops the reply")
        self._timer: Timer | None = None
        """Timer that ends a passing hint."""

    def hint(self, text: str = "") -> None:
        """Show a hint; "" shows the usual one, unless a search of the history has its own."""
        if not text and self._core.prompt.is_searching:
            return
        self._core.prompt.border_title = Content(text or self._usual_hint)

    def set_usual_hint(self, text: str = "") -> None:
        """Change the usual hint; "" names the keys that send."""
        self._usual_hint = text or prompt_hint(self._core.keymap)
        self.hint()

    def hint_for(self, seconds: float, text: str) -> None:
        """Show a hint for a while."""
        self.hint(text)
        if self._timer is not None:
            self._timer.stop()
        self._timer = call_once(self._core.screen, seconds, self._end_passing_hint)

    def _end_passing_hint(self) -> None:
        focused = self._core.screen.focused
        if isinstance(focused, MessageView):
            self.hint_message_keys(focused)
        elif isinstance(focused, CallQuestion):
            self.hint_question_keys()
        else:
            self.hint()

    def hint_question_keys(self) -> None:
        """Say what keys do while the question of a tool has the focus; it names the answers."""
        self.hint("other letters begin a message")

    def hint_message_keys(self, view: MessageView) -> None:
        """Name the keys that act on a message."""
        words = {}
        if view.message is not None and view.message.n_older:
            words["message.older_branch"] = "previous branch"
        if view.message is not None and view.message.n_older < len(view.message.alternatives):
            words["message.newer_branch"] = "next branch"
        words |= {"message.copy_message": "copy", "message.fork_here": "fork", "chat.stop": "back"}
        if isinstance(view, ReplyView):
            words["message.regenerate_here"] = "again"
            if view.places:
                words["message.show_place"] = f"shows {view.places[0].shown}"
            if "```" in view.text:
                words["message.copy_code"] = "copy code"
            if view.thinking.display:
                words["message.toggle_thinking"] = "thinking"
        if isinstance(view, ToolView):
            words["message.toggle_thinking"] = "unfold"
        else:
            words["message.edit_here"] = "edit"
        chat_session = self._core.chat_session
        is_last = view.message is not None and view.message is chat_session.last_message
        if is_last and chat_session.can_continue:
            words["message.continue_here"] = "continue"
        hints = (
            self._core.keymap.hint(action_id, words[action_id])
            for action_id in _MESSAGE_KEYS
            if action_id in words
        )
        self.hint(" · ".join(filter(None, hints)))

    def show_keys(self) -> None:
        """Show keys that stop the reply and lead to text out of sight, else keys of screens."""
        core = self._core
        is_answering = core.chat_session.is_answering
        stop = ""
        has_other_use = self.is_reading_files or isinstance(core.screen.focused, MessageView)
        if core.chat_session.phase is Phase.COMPACTING and not has_other_use:
            stop = core.keymap.hint("chat.stop", "stops the summary")
        elif self.is_asking and not has_other_use:
            stop = core.keymap.hint("chat.stop", "refuses the call")
        elif not has_other_use and (is_answering or core.chat_session.is_calling):
            stop = self._stop_hint
        below = ""
        # While nothing is written, only a layout changes heights.
        self.shows_unseen = core.transcript.has_unseen and (is_answering or self.shows_unseen)
        if self.shows_unseen:
            key = "End"
            if core.prompt.text:
                key = core.keymap.first_key("prompt.to_end")
            below = "new text below"
            if key:
                below = f"new text below ({key})"
        core.prompt.show_keys("" if is_answering else self.screens_hint, stop, below)


_MESSAGE_KEYS = (
    "message.older_branch",
    "message.newer_branch",
    "message.show_place",
    "message.copy_message",
    "message.copy_code",
    "message.continue_here",
    "message.regenerate_here",
    "message.edit_here",
    "message.fork_here",
    "message.toggle_thinking",
    "chat.stop",
)
"""Actions on a message in the order in which the hint names their keys."""


class TurnViews:
    """Views of the running turn: its message, its reply, and messages that the reply replaces."""

    def __init__(self, core: ChatCore) -> None:
        self._core = core
        self.question: UserView | None = None
        """The user's message or the tool results that the model answers. None between turns, and
        while an answered message is regenerated or a reply is continued."""
        self._reply: ReplyView | None = None
        self._replaced: Sequence[MessageView] = ()
        """Messages that are removed when the reply begins, and stay if there is no reply."""
        self._replaced_notes: Sequence[Note] = ()
        """Notes below them, which are about them and are removed as well."""
        self._joined: MessageView | None = None
        """An earlier unanswered message that was sent along with this turn's message."""

    @property
    def edited_question(self) -> UserView | None:
        """The turn's message if it replaces an earlier message of the user, else None."""
        if self._replaced and isinstance(self._replaced[0], UserView):
            return self.question
        return None

    def begin(self, view: UserView) -> None:
        """Begin the turn of a message, and of an unanswered message that is sent along."""
        chat_session = self._core.chat_session
        self._core.transcript.end_offers()
        self.question = view
        view.message = chat_session.last_message
        self._joined = None
        running = chat_session.running
        if running is not None and running.joined is not None:
            self._joined = self._core.transcript.view_of(running.joined)
            self._core.say(SENT_TOGETHER)
        self._show_joined_as("sent with the next message")

    def unjoin(self) -> None:
        """Mark the message that was sent along as unanswered: this turn's message was refused."""
        self._show_joined_as("not answered")
        self._joined = None

    def _show_joined_as(self, footer: str) -> None:
        if isinstance(self._joined, UserView):
            self._joined.message = self._core.chat_session.last_message
            self._joined.show_footer(footer)

    def replace(self, views: Sequence[MessageView]) -> None:
        """Mark messages that the turn's reply will replace."""
        self._core.transcript.end_offers()
        self._replaced = views
        self._replaced_notes = self._core.transcript.notes_after(views)
        for view in views:
            view.set_replaced(True)

    def restore_replaced(self) -> None:
        """Keep the messages that the reply would have replaced: there is no reply."""
        for view in self._replaced:
            view.set_replaced(False)
        self._replaced = ()
        self._replaced_notes = ()

    def reply(self) -> ReplyView:
        """Return the growing reply; the first call removes the messages that it replaces."""
        if self._reply is None:
            self._core.transcript.drop([*self._replaced, *self._replaced_notes])
            self._replaced = ()
            self._replaced_notes = ()
            self._reply = self._core.transcript.add(ReplyView())
        return self._reply

    def reopen_reply(self) -> None:
        """Show the growing reply from its beginning again: its text comes once more, cut."""
        if self._reply is not None:
            old_view = self._reply
            self._reply = ReplyView()
            self._core.transcript.replace(old_view, self._reply)

    def end(self) -> None:
        """End the turn."""
        self._reply = None
        self.question = None
        self._joined = None

    def forget(self) -> None:
        """Forget the turn's messages: another conversation is shown."""
        self.question = None
        self._joined = None
        self._replaced = ()
        self._replaced_notes = ()
