"""Editing what was said: a message of one's own and ask anew, or a reply and let the model go on from it."""

from __future__ import annotations

from textual import on
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static, TextArea

from app import figures
from app._textual_hacks import call_once
from app.conversation import Ending, ReplyFigures, Role
from app.draft import Draft
from app.events import PromptWeighed
from app.keymap import Keymap
from app.screens.drafting import PromptHabits
from app.screens.reply_flow import ReplyFlow
from app.widgets.message_view import MessageView, ReplyView

WEIGHING_PAUSE_S = 0.5
"""An edited text is counted when the user has not typed for so long."""
_REPLY = "reply"


def busy_line(keymap: Keymap, place: str = "") -> str:
    """Say that nothing can be done now, and which key ends that in the chat."""
    return ": ".join(filter(None, ("the engine is busy", keymap.hint("chat.stop", f"{place}stops it"))))


class MessageEditing(ReplyFlow):
    """The part of the chat where an earlier message stands in the prompt, to be changed."""

    _habits: PromptHabits

    def __init__(self) -> None:
        super().__init__()
        self._edited: MessageView | None = None
        self._draft = Draft("")
        """What stood in the prompt before the editing began."""
        self._weighing: Timer | None = None
        self._sent: tuple[int, str] | None = None
        """Of an edited message that was sent: its place, and its new text, until its reply begins."""

    @property
    def is_editing(self) -> bool:
        """Whether what stands in the prompt will take the place of an earlier message."""
        return self._edited is not None

    @property
    def is_editing_reply(self) -> bool:
        """Whether that is a reply: then every character counts."""
        return isinstance(self._edited, ReplyView)

    def hint(self, text: str = "") -> None:
        """Show a word at the prompt's edge; "" brings the usual one back."""
        raise NotImplementedError

    def action_edit(self, argument: str = "") -> None:
        """Edit a message: the last one, the one of this number, or the last reply."""
        messages = self.turns.conversation.messages
        questions = [i for i, message in enumerate(messages) if message.role is Role.USER]
        if not questions:
            self.note("there is no message to edit yet")
        elif not argument:
            self._begin_edit(questions[-1])
        elif argument.lower() == _REPLY and messages[-1].role is Role.ASSISTANT:
            self._begin_edit(len(messages) - 1)
        elif argument.isdecimal() and 1 <= int(argument) <= len(questions):
            self._begin_edit(questions[int(argument) - 1])
        else:
            self.note(
                f"/edit takes a number from 1 to {len(questions)}, `{_REPLY}` for the last reply, or nothing for your "
                "last message"
            )

    def _begin_edit(self, index: int) -> None:
        if self._refuses_while_busy():
            return
        if index < self.turns.conversation.n_dropped:
            key = self._habits.keymap.first_key("message.fork_here")
            self.note(f"this message is no part of the context any more: {key} on it goes on from there with a copy")
            return
        self.cancel_edit()
        message = self.turns.conversation.messages[index]
        view = self.transcript.view_of(message)
        if view is None:
            return
        self._edited, self._draft = view, self.prompt.draft
        self.drafting.set_paused(True)
        for later in self._views_from(view):
            later.set_replaced(True)
        text = message.editable_text
        self.prompt.show_draft((None if self.is_editing_reply else self.prompt.past.find(text)) or Draft(text))
        self.prompt.focus()
        self.transcript.release_anchor()
        view.scroll_visible(animate=False, top=True)
        self.hint()
        self._show_edit_line(self._edit_title(index))
        self._weigh()

    def edit_hint(self) -> str:
        """Name the keys that end the editing."""
        first_key = self._habits.keymap.first_key
        sends = "goes on from here" if self.is_editing_reply else "asks anew from here"
        return f"{first_key('prompt.send')} {sends} · {first_key('chat.stop')} keeps everything"

    def _edit_title(self, index: int) -> str:
        return f"editing {'reply' if self.is_editing_reply else 'message'} {index // 2 + 1}"

    def cancel_edit(self) -> bool:
        """Leave the conversation as it is and bring back what stood in the prompt; False when nothing is edited."""
        if self._edited is None:
            return False
        for view in self._views_from(self._edited):
            view.set_replaced(False)
        self._end_edit()
        self.prompt.show_draft(self._draft)
        self.transcript.anchor()
        return True

    def _end_edit(self) -> None:
        self._edited = None
        self.drafting.set_paused(False)
        self.hint()
        self._show_edit_line("")

    def _send_edit(self, text: str, folded: str = "") -> bool:
        """Ask in place of the edited message and all after it; what goes stays visible until a reply begins."""
        assert self._edited is not None
        index = self._index_of(self._edited)
        if index is None or not self.turns.submit_edit(text, index // 2, folded):
            self._refuses_while_busy()
            return False
        views = self._views_from(self._edited)
        self._end_edit()
        self._sent = index, text
        self._asked = self.transcript.add_user(text, folded)
        self._asked.message = self.turns.conversation.messages[-1]
        self._replace(views)
        self._bring_draft_back()
        return True

    def _send_edited_reply(self, text: str) -> bool:
        """Go on with the edited reply, from this text, in place of it and all after it."""
        assert self._edited is not None
        index = self._index_of(self._edited)
        if index is None or not self.turns.submit_edited_reply(text, index // 2):
            self._refuses_while_busy()
            return False
        views = self._views_from(self._edited)
        self._end_edit()
        self._sent = index, text
        self._replace(views)
        self._bring_draft_back()
        self._go_to_prompt()
        return True

    def _bring_draft_back(self) -> None:
        if not self.prompt.text:
            self.prompt.show_draft(self._draft)

    def _finish(
        self, ending: Ending, reply_figures: ReplyFigures, ids: tuple[int, ...] = (), raw: str = ""
    ) -> ReplyView:
        self._sent = None
        return super()._finish(ending, reply_figures, ids, raw)

    def _leave_unanswered(self) -> bool:
        """The turn has no reply; what was edited stands in the prompt again, to be sent once more or given up."""
        is_restored = super()._leave_unanswered()
        self.edit_again()
        return is_restored

    def edit_again(self) -> bool:
        """Let an edited message that was sent for nothing stand in the prompt as before; False where it cannot."""
        sent, self._sent = self._sent, None
        is_writing = bool(self.prompt.text) and self.prompt.draft != self._draft
        if sent is None or is_writing or self.turns.n_queued:
            return False
        index, text = sent
        self._begin_edit(index)
        if self.is_editing:
            self.prompt.show_draft((None if self.is_editing_reply else self.prompt.past.find(text)) or Draft(text))
        return self.is_editing

    def _views_from(self, view: MessageView) -> list[MessageView]:
        views = self.transcript.messages()
        return views[views.index(view) :] if view in views else []

    def _index_of(self, view: MessageView) -> int | None:
        messages = self.turns.conversation.messages
        return next((index for index, message in enumerate(messages) if message is view.message), None)

    def _go_to_prompt(self) -> None:
        self.hint()
        self.prompt.focus()
        self.transcript.anchor()

    def _refuses_while_busy(self) -> bool:
        if self.turns.is_busy:
            self._note_busy()
        return self.turns.is_busy

    def _note_busy(self) -> None:
        self.note(busy_line(self._habits.keymap))

    # ---- what it would cost

    @property
    def _edited_text(self) -> str:
        """What would be sent now."""
        text = self.prompt.draft.text
        return text if self.is_editing_reply else text.strip()

    @on(TextArea.Changed)
    def _weigh_soon(self) -> None:
        if self._edited is None:
            return
        if self._weighing is not None:
            self._weighing.stop()
        self._weighing = call_once(self, WEIGHING_PAUSE_S, self._weigh)

    def _weigh(self) -> None:
        index = self._index_of(self._edited) if self._edited is not None else None
        if index is not None and self._edited_text.strip():
            self.turns.weigh_edit(self._edited_text, index // 2, self.is_editing_reply)

    def _show_weight(self, weighed: PromptWeighed) -> None:
        index = self._index_of(self._edited) if self._edited is not None else None
        if index is None or weighed.text != self._edited_text:
            return
        line = f"{self._edit_title(index)}: {figures.count(weighed.kept_tokens)} cached tokens stay"
        if weighed.dropped_tokens:
            line += f", {figures.count(weighed.dropped_tokens)} go"
        line += f"; {figures.count(weighed.read_tokens)} to read"
        if weighed.read_s is not None:
            line += f", about {figures.whole_seconds(weighed.read_s)}"
        self._show_edit_line(line)

    def _show_edit_line(self, text: str) -> None:
        line = self.query_one("#edit-line", Static)
        line.display = bool(text)
        line.update(Content(text))
