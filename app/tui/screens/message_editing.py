"""Editing what was said: a message of one's own and ask anew, or a reply and let the model go on from it."""

from __future__ import annotations

from textual.timer import Timer
from textual.widgets import Static

from app.chat.events import PromptWeighed
from app.conversations.conversation import Role
from app.text import figures
from app.tui.draft import Draft
from app.tui.screens.chat_parts import ChatParts
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import MessageView, ReplyView

WEIGHING_PAUSE_S = 0.5
"""Seconds without a key after which an edited text is counted."""
_REPLY = "reply"


class MessageEditing:
    """An earlier message stands in the prompt, to be changed."""

    def __init__(self, parts: ChatParts) -> None:
        self._screen, self._turns, self._keymap = parts.screen, parts.turns, parts.keymap
        self._transcript, self._prompt, self._drafting = parts.transcript, parts.prompt, parts.drafting
        self._notes, self._focus, self._views = parts.notes, parts.focus, parts.views
        self._line = parts.screen.query_one("#edit-line", Static)
        self._edited: MessageView | None = None
        self._draft = Draft("")
        """Draft in the prompt before editing began."""
        self._weighing: Timer | None = None
        self._sent: tuple[int, str] | None = None
        """Of an edited message that was sent: its place, and its new text, until its reply begins."""
        self._line.display = False

    @property
    def is_editing(self) -> bool:
        """Whether what stands in the prompt will take the place of an earlier message."""
        return self._edited is not None

    @property
    def is_editing_reply(self) -> bool:
        """Whether that is a reply: then every character counts."""
        return isinstance(self._edited, ReplyView)

    def edit(self, argument: str = "") -> None:
        """Edit a message: the last one, the one of this number, or the last reply."""
        messages = self._turns.conversation.messages
        questions = [i for i, message in enumerate(messages) if message.role is Role.USER and not message.results]
        if not questions:
            self._notes.note("there is no message to edit yet")
        elif not argument:
            self.begin(questions[-1])
        elif argument.lower() == _REPLY and messages[-1].role is Role.ASSISTANT:
            self.begin(len(messages) - 1)
        elif argument.isdecimal() and 1 <= int(argument) <= len(questions):
            self.begin(questions[int(argument) - 1])
        else:
            numbers = f"a number from 1 to {len(questions)}"
            self._notes.note(f"/edit takes {numbers}, `{_REPLY}` for the last reply, or nothing for your last message")

    def begin(self, index: int) -> None:
        """Let the message at this place of the conversation stand in the prompt."""
        if self._notes.refuses_while_busy():
            return
        if index < self._turns.conversation.n_dropped:
            key = self._keymap.first_key("message.fork_here")
            gone = "the model no longer sees this message"
            self._notes.note(f"{gone}: {key} on it goes on from there with a copy")
            return
        message = self._turns.conversation.messages[index]
        if message.results:
            self._notes.note("results of tools cannot be edited: edit the message before them")
            return
        self.cancel()
        view = self._transcript.view_of(message)
        if view is None:
            return
        self._edited, self._draft = view, self._prompt.draft
        self._drafting.set_paused(True)
        self._prompt.takes_commands = not self.is_editing_reply
        for later in self._views_from(view):
            later.set_replaced(True)
        text = message.editable_text
        self._show_text(text)
        self._prompt.focus()
        self._transcript.release_anchor()
        view.scroll_visible(animate=False, top=True)
        self._notes.set_usual(self._keys())
        self._show_edit_line(self._edit_title(index))
        self._weigh()

    def _keys(self) -> str:
        """Name the keys that end the editing."""
        first_key = self._keymap.first_key
        sends = "goes on from here" if self.is_editing_reply else "asks anew from here"
        return f"{first_key('prompt.send')} {sends} · {first_key('chat.stop')} keeps everything"

    def _edit_title(self, index: int) -> str:
        before = self._turns.conversation.messages[: index + 1]
        number = sum(message.role is Role.USER and not message.results for message in before)
        return f"editing {'reply' if self.is_editing_reply else 'message'} {number}"

    def cancel(self) -> bool:
        """Leave the conversation as it is and bring back what stood in the prompt; False when nothing is edited."""
        if self._edited is None:
            return False
        for view in self._views_from(self._edited):
            view.set_replaced(False)
        self.end()
        self._prompt.show_draft(self._draft)
        self._transcript.anchor()
        return True

    def end(self) -> None:
        """Nothing is edited any more; what stands in the prompt stays."""
        self._edited = None
        self._drafting.set_paused(False)
        self._prompt.takes_commands = True
        self._notes.set_usual()
        self._show_edit_line("")

    def send(self, text: str, folded: str = "") -> bool:
        """Ask, or let the reply go on, in place of what is edited and all after it, seen until a reply begins."""
        assert self._edited is not None
        index, is_reply = self.index_of(self._edited), self.is_editing_reply
        if index is None or not (
            self._turns.submit_edited_reply(text, index // 2)
            if is_reply
            else self._turns.submit_edit(text, index // 2, folded)
        ):
            self._notes.refuses_while_busy()
            return False
        views = self._views_from(self._edited)
        self.end()
        self._sent = index, text
        if not is_reply:
            self._views.ask(self._transcript.add_user(text, folded))
        self._views.replace(views)
        if not self._prompt.text:
            self._prompt.show_draft(self._draft)
        if is_reply:
            self._focus.to_prompt()
        return True

    def keep_unsent(self) -> str:
        """Keep what was written and not asked yet for the next start; returns a line that says so, or ""."""
        return self._drafting.keep_unsent(self._draft if self.is_editing else Draft())

    def note_replied(self) -> None:
        """The edited message has its reply."""
        self._sent = None

    def edit_again(self) -> bool:
        """Let an edited message that was sent for nothing stand in the prompt as before; False where it cannot."""
        sent, self._sent = self._sent, None
        is_writing = bool(self._prompt.text) and self._prompt.draft != self._draft
        if sent is None or is_writing or self._turns.queued_texts:
            return False
        index, text = sent
        self.begin(index)
        if self.is_editing:
            self._show_text(text)
        return self.is_editing

    def _show_text(self, text: str) -> None:
        self._prompt.show_draft((None if self.is_editing_reply else self._prompt.past.find(text)) or Draft(text))

    def _views_from(self, view: MessageView) -> list[MessageView]:
        views = self._transcript.messages()
        return views[views.index(view) :] if view in views else []

    def index_of(self, view: MessageView) -> int | None:
        """Return a message's place in the conversation; None where it is no part of it any more."""
        messages = self._turns.conversation.messages
        return next((index for index, message in enumerate(messages) if message is view.message), None)

    @property
    def _index(self) -> int | None:
        return self.index_of(self._edited) if self._edited is not None else None

    # ---- what it would cost

    @property
    def _edited_text(self) -> str:
        text = self._prompt.draft.text
        return text if self.is_editing_reply else text.strip()

    def weigh_soon(self) -> None:
        """The text in the prompt has changed: find out what it costs once the user pauses."""
        if self._edited is not None:
            if self._weighing is not None:
                self._weighing.stop()
            self._weighing = call_once(self._screen, WEIGHING_PAUSE_S, self._weigh)

    def _weigh(self) -> None:
        index = self._index
        if index is not None and self._edited_text.strip():
            self._turns.weigh_edit(self._edited_text, index // 2, self.is_editing_reply)

    def show_weight(self, weighed: PromptWeighed) -> None:
        """Say what sending it costs."""
        index = self._index
        if index is None or weighed.text != self._edited_text:
            return
        line = self._edit_title(index)
        if weighed.dropped_tokens:
            what = "what follows" if self.is_editing_reply else "its answer"
            line += f": {what} ({figures.counted(weighed.dropped_tokens, 'token')}) is replaced"
        line += ";" if weighed.dropped_tokens else ":"
        if weighed.read_s is not None:
            line += f" starts in about {figures.whole_seconds(weighed.read_s)}"
        else:
            line += f" {figures.counted(weighed.read_tokens, 'token')} to read"
        self._show_edit_line(line)

    def _show_edit_line(self, text: str) -> None:
        self._line.display = bool(text)
        self._line.update(text)
