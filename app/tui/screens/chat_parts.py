"""What helpers of the chat share: its widgets, the program's words, the focus, and the views of the running turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer

from app.chat.turns import SENT_TOGETHER, Turns
from app.program.bundled_model import WHAT_IT_IS
from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text
from app.tui.keymap import Keymap
from app.tui.messages import MessageLeft
from app.tui.screens.drafting import Drafting
from app.tui.screens.surroundings import Surroundings
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import MessageView, Note, ReplyView, ToolView, UserView
from app.tui.widgets.prompt import Prompt, prompt_hint
from app.tui.widgets.transcript import Transcript

FIRST_QUESTION = "What is the capital of Peru?"
NOTE_S = 8.0


def busy_line(keymap: Keymap, place: str = "") -> str:
    """Say that nothing can be done now, and which key ends that in the chat."""
    return ": ".join(filter(None, ("the engine is busy", keymap.hint("chat.stop", f"{place}stops it"))))


def greeting(keymap: Keymap) -> str:
    """Return what a first start begins with."""
    gets = keymap.key_or_command("app.get"), "gets a real model, while you chat"
    hello = f"Hello! All of this is computed on your own machine. {WHAT_IT_IS}."
    return welcome_text(keymap, hello, ("type", FIRST_QUESTION), gets)


def welcome_text(keymap: Keymap, what_this_is: str, *things: tuple[str, str]) -> str:
    """Return what a chat begins with: what this is, and things to try, each with its key; the speed is the last."""
    things = *things, (keymap.first_key("app.performance") or "/stats", "shows the speed")
    widest = max(len(key) for key, _ in things)
    return "\n".join([what_this_is, "", "Try:", *(f"  {key:<{widest}}  {what}" for key, what in things)])


NOT_PART = "this message is not part of the conversation"
"""It was not sent, was taken back, or its turn came to nothing."""


class Notes:
    """The program's words: lines in the transcript, and words at the prompt's edge."""

    def __init__(
        self, screen: Screen[Any], transcript: Transcript, prompt: Prompt, turns: Turns, keymap: Keymap
    ) -> None:
        self._screen, self._transcript, self._prompt, self._turns = screen, transcript, prompt, turns
        self._keymap = keymap
        self._usual = prompt_hint(keymap)
        self._passing: Timer | None = None

    def note(self, text: str, is_error: bool = False, kind: str = "") -> Note:
        """Say something between the messages; where the user is not at their end, at the prompt's edge as well."""
        note = self._transcript.add(Note(clean_text(text), "error" if is_error else kind))
        if isinstance(self._screen.focused, MessageView) or self._transcript.is_scrolled_up:
            self.hint_for(NOTE_S, clean_line(text, 300))
        return note

    @contextmanager
    def telling_refusals(self, is_error: bool = True) -> Iterator[None]:
        """Say why something was refused, and do no more of it."""
        try:
            yield
        except Refusal as refusal:
            self.note(str(refusal), is_error)

    def note_busy(self) -> None:
        """Say that the engine is busy, and what ends that."""
        self.note(busy_line(self._keymap))

    def refuses_while_busy(self) -> bool:
        """Whether the engine is busy; then a line says so."""
        if self._turns.is_busy:
            self.note_busy()
        return self._turns.is_busy

    def hint(self, text: str = "") -> None:
        """Show a word at the prompt's edge; "" brings the usual one back."""
        self._prompt.border_title = Content(text or self._usual)

    def set_usual(self, text: str = "") -> None:
        """Set the usual word; "" shows the keys that send."""
        self._usual = text or prompt_hint(self._keymap)
        self.hint()

    def hint_for(self, seconds: float, text: str) -> None:
        """Show a passing word there."""
        self.hint(text)
        if self._passing is not None:
            self._passing.stop()
        self._passing = call_once(self._screen, seconds, self._end_passing)

    def hint_keys_of(self, view: MessageView) -> None:
        """Name the keys that do something on this message."""
        is_reply, is_tool = isinstance(view, ReplyView), isinstance(view, ToolView)
        is_last = view.message is not None and view.message is self._turns.last_message
        has_thought = isinstance(view, ReplyView) and view.thinking.display
        places = view.places if isinstance(view, ReplyView) else None
        words = {
            "message.show_place": f"shows {places[0].shown}" if places else "",
            "message.copy_message": "copy",
            "message.copy_code": "copy code" if is_reply and "```" in view.text else "",
            "message.continue_here": "goes on" if is_last and self._turns.can_continue else "",
            "message.regenerate_here": "again" if is_reply else "",
            "message.edit_here": "" if is_tool else "edit",
            "message.fork_here": "fork",
            "message.toggle_thinking": "all of it" if is_tool else "thinking" if has_thought else "",
            "chat.stop": "back",
        }
        self.hint(" · ".join(filter(None, (self._keymap.hint(key, word) for key, word in words.items() if word))))

    def _end_passing(self) -> None:
        focused = self._screen.focused
        if isinstance(focused, MessageView):
            self.hint_keys_of(focused)
        else:
            self.hint()


class MessageFocus:
    """Moves the focus between the prompt and the messages."""

    def __init__(self, screen: Screen[Any], transcript: Transcript, prompt: Prompt, notes: Notes) -> None:
        self._screen, self._transcript, self._prompt, self._notes = screen, transcript, prompt, notes

    def to_prompt(self) -> None:
        """Go to the prompt, and to the end of the transcript."""
        self._notes.hint()
        self._prompt.focus()
        self._transcript.anchor()

    def step(self, step: int) -> None:
        """Go down by ``step`` messages, up if negative; below the newest message is the prompt."""
        views, focused = self._transcript.messages(), self._screen.focused
        at = views.index(focused) if isinstance(focused, MessageView) and focused in views else len(views)
        if at + step >= len(views):
            self.to_prompt()
            return
        if at + step < 0 and self._transcript.show_earlier():
            views, n_shown = self._transcript.messages(), len(views)
            at += len(views) - n_shown
        if at + step >= 0:
            self._transcript.release_anchor()
            views[at + step].focus()
            self._notes.hint_keys_of(views[at + step])

    def leave_message(self, message: MessageLeft) -> None:
        """Go to the prompt, with what was typed to do so."""
        self.to_prompt()
        if message.event is not None:
            self._prompt.post_message(message.event)

    def to_stopped(self, view: ReplyView) -> None:
        """Go to a reply that Esc stopped, where its keys act, unless the user is writing the next message."""
        if self._screen.focused is self._prompt and not self._prompt.text:
            view.hesitates = True
            view.focus(scroll_visible=False)  # what is being read stays in sight
            self._notes.hint_keys_of(view)


GOES_ON = "/continue goes on"
OTHERS = "/answers shows others"


class TurnViews:
    """One turn at a time."""

    def __init__(self, transcript: Transcript, turns: Turns, note: Callable[[str], object]) -> None:
        self._transcript, self._turns, self._note = transcript, turns, note
        self._reply: ReplyView | None = None
        self.asked: UserView | None = None
        self._replaced: list[MessageView] = []
        """Messages that are removed when the running reply begins, and stay if it does not."""
        self._joined: MessageView | None = None
        """The unanswered message that the running turn's message was sent with."""

    @property
    def edited_question(self) -> UserView | None:
        """The message of the turn, if it takes the place of an earlier one."""
        return self.asked if self._replaced and isinstance(self._replaced[0], UserView) else None

    def ask(self, view: UserView) -> None:
        """The turn of this message begins, and of the unanswered one that goes with it, if there is one."""
        self._transcript.end_offers()
        self.asked, view.message = view, self._turns.last_message
        before = self._turns.joined
        self._joined = self._transcript.view_of(before) if before is not None else None
        if before is not None:
            self._note(SENT_TOGETHER)
        if isinstance(self._joined, UserView):
            self._joined.message = self._turns.last_message
            self._joined.mark("sent with the next message")

    def part(self) -> None:
        """The message was not sent, and the one that would have gone with it is what it was."""
        if isinstance(self._joined, UserView):
            self._joined.message = self._turns.last_message
            self._joined.mark("not answered")
        self._joined = None

    def replace(self, views: list[MessageView]) -> None:
        """Mark what the turn that begins now takes the place of."""
        self._transcript.end_offers()
        self._replaced = views
        for view in views:
            view.set_replaced(True)

    def growing_reply(self) -> ReplyView:
        """Return the reply's view; its first word takes the place of what it replaces."""
        if self._reply is None:
            self._transcript.drop(self._replaced)
            self._replaced.clear()
            self._reply = self._transcript.add(ReplyView())
        return self._reply

    def keep_replaced(self) -> None:
        """No reply comes: what it would have replaced stays."""
        for view in self._replaced:
            view.set_replaced(False)
        self._replaced.clear()

    def end(self) -> None:
        """The turn is over."""
        self._reply = self.asked = self._joined = None

    def forget(self) -> None:
        """Another conversation is shown."""
        self.asked, self._joined, self._replaced = None, None, []


class ChatParts:
    """The mounted widgets of the chat, and those who know one thing about them."""

    def __init__(self, screen: Screen[Any], around: Surroundings) -> None:
        self.screen, self.around = screen, around
        self.turns, self.bridge, self.keymap = around.turns, around.bridge, around.keymap
        self.transcript, self.prompt = screen.query_one(Transcript), screen.query_one(Prompt)
        self.drafting = Drafting(self.prompt, around)
        self.notes = Notes(screen, self.transcript, self.prompt, around.turns, around.keymap)
        self.focus = MessageFocus(screen, self.transcript, self.prompt, self.notes)
        self.views = TurnViews(self.transcript, around.turns, self.notes.note)
