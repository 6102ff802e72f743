"""Editing an earlier message in the prompt: what was sent becomes a new branch."""

from __future__ import annotations

from textual.timer import Timer
from textual.widgets import Static

from app.program.refusals import Refusal
from app.session import commands
from app.session.events import EditCostMeasured
from app.text import figures
from app.tui.chat.core import NOT_IN_CONVERSATION, ChatCore, TurnViews
from app.tui.chat.draft import Draft, draft_of
from app.tui.textual_hacks import call_once
from app.tui.widgets.message_view import MessageView, ReplyView

COST_PAUSE_S = 0.5
"""Seconds after a key before the cost of an edit is asked for."""


class MessageEditing:
    """An earlier message that is being edited in the prompt, if there is one."""

    def __init__(self, core: ChatCore, turn_views: TurnViews) -> None:
        self._core = core
        self._turn_views = turn_views
        self.line = Static(markup=False, id="edit-line")
        """The line above the prompt that says what is edited, and what sending it costs."""
        self.line.display = False
        self._view: MessageView | None = None
        """The message that is edited; None if none is."""
        self.draft_aside = Draft()
        """Draft that was in the prompt before."""
        self._sent: tuple[int, str] | None = None
        """Index and new text of an edit that was sent, until its reply is there."""
        self._timer: Timer | None = None

    @property
    def is_active(self) -> bool:
        """Whether the prompt's text will replace an earlier message."""
        return self._view is not None

    @property
    def is_of_reply(self) -> bool:
        """Whether that message is a reply, in which every character counts."""
        return isinstance(self._view, ReplyView)

    @property
    def has_changes(self) -> bool:
        """Whether the text of the edited message has been changed in the prompt."""
        message = None if self._view is None else self._view.message
        return message is not None and self._text != message.editable_text

    # ---- beginning and ending

    def action_edit(self, argument: str = "") -> None:
        """Edit the last message, the message with this number, or the last reply."""
        with self._core.refusals_said(is_error=False):
            self._begin(commands.message_to_edit(self._core.chat_session.conversation, argument))

    def edit_here(self, view: MessageView) -> None:
        """Edit a message."""
        index = self._core.index_of(view)
        if index is None:
            self._core.say(NOT_IN_CONVERSATION)
        else:
            self._begin(index)

    def edit_question_of(self, view: MessageView) -> None:
        """Edit the question of the turn that a message belongs to."""
        index = self._core.index_of(view)
        if index is None:
            self._core.say(NOT_IN_CONVERSATION)
        else:
            self._begin(index - index % 2)

    def _begin(self, index: int) -> None:
        """Put the message at an index of the conversation into the prompt."""
        core = self._core
        if core.refuses_while_busy():
            return
        conversation = core.chat_session.conversation
        try:
            commands.check_editable(conversation, index)
        except Refusal as refusal:
            key = core.keymap.first_key("message.fork_here")
            can_fork = str(refusal) == commands.GONE
            advice = f": {key} on it continues with a copy" if can_fork else ""
            core.say(f"{refusal}{advice}")
            return

        message = conversation.messages[index]
        self.cancel()
        view = core.transcript.view_of(message)
        if view is None:
            return
        self._view = view
        self.draft_aside = core.prompt.draft
        core.prompt.takes_commands = not self.is_of_reply
        for later_view in core.transcript.messages_from(view):
            later_view.set_replaced(True)
        self._show_in_prompt(message.editable_text)
        core.prompt.focus()
        core.transcript.release_anchor()
        view.scroll_visible(animate=False, top=True)

        send_key = core.keymap.first_key("prompt.send")
        cancel_key = core.keymap.first_key("chat.stop")
        core.edge.set_usual_hint(f"{send_key} send · {cancel_key} cancel")
        self._show_line(commands.edit_title(conversation, index))
        self._ask_for_cost()

    def cancel(self) -> bool:
        """Stop editing, and bring back the draft from before; False if nothing is edited."""
        if self._view is None:
            return False
        for view in self._core.transcript.messages_from(self._view):
            view.set_replaced(False)
        self._end()
        self._core.prompt.show_draft(self.draft_aside)
        self._core.transcript.anchor()
        return True

    def _end(self) -> None:
        """Stop editing, and leave the prompt as it is."""
        self._view = None
        self._core.prompt.takes_commands = True
        self._core.edge.set_usual_hint()
        self._show_line("")

    # ---- sending

    def send(self, text: str, folded: str = "") -> bool:
        """Send the edited message as a new branch; False if it is refused.

        The messages of the other branch stay visible until the reply begins.
        """
        core = self._core
        assert self._view is not None
        index = core.index_of(self._view)
        is_of_reply = self.is_of_reply
        if index is None:
            is_sent = False
        elif is_of_reply:
            is_sent = core.chat_session.submit_edited_reply(text, index // 2)
        else:
            is_sent = core.chat_session.submit_edit(text, index // 2, folded)
        if index is None or not is_sent:
            core.refuses_while_busy()
            return False

        replaced = core.transcript.messages_from(self._view)
        self._end()
        self._sent = index, text
        if not is_of_reply:
            self._turn_views.begin(core.transcript.add_user(text, folded))
        self._turn_views.replace(replaced)
        if not core.prompt.text:
            core.prompt.show_draft(self.draft_aside)
        if is_of_reply:
            core.focus_prompt()
        return True

    def forget_sent(self) -> None:
        """Forget the edit that was sent: it has its reply."""
        self._sent = None

    def edit_again(self) -> bool:
        """Put an edit that got no reply back into the prompt; False if there is none or no room."""
        sent = self._sent
        self._sent = None
        prompt = self._core.prompt
        has_other_draft = bool(prompt.text) and prompt.draft != self.draft_aside
        if sent is None or has_other_draft or self._core.chat_session.queued_texts:
            return False
        index, text = sent
        self._begin(index)
        if self.is_active:
            self._show_in_prompt(text)
        return self.is_active

    def _show_in_prompt(self, text: str) -> None:
        prompt = self._core.prompt
        draft = None
        if not self.is_of_reply:
            draft = prompt.past.find(text)
            draft = draft or draft_of(text)
        prompt.show_draft(draft or Draft(text))

    # ---- the cost

    @property
    def _text(self) -> str:
        text = self._core.prompt.draft.text
        return text if self.is_of_reply else text.strip()

    def follow_draft(self) -> None:
        """Ask for the cost of the edit once the user pauses."""
        if self._view is not None:
            if self._timer is not None:
                self._timer.stop()
            self._timer = call_once(self._core.screen, COST_PAUSE_S, self._ask_for_cost)

    def _ask_for_cost(self) -> None:
        index = self._core.index_of(self._view)
        if index is not None and self._text.strip():
            self._core.chat_session.weigh_edit(self._text, index // 2, self.is_of_reply)

    def show_cost(self, event: EditCostMeasured) -> None:
        """Say how many tokens stay in the other branch, and when the reply would start."""
        index = self._core.index_of(self._view)
        if index is None or event.text != self._text:
            return
        line = commands.edit_title(self._core.chat_session.conversation, index)
        if event.dropped_tokens:
            later = figures.counted(event.dropped_tokens, "token")
            line += f" · keeps {later} in another branch"
        if event.read_s is not None:
            line += f" · starts in about {figures.whole_seconds(event.read_s)}"
        else:
            line += f" · {figures.counted(event.read_tokens, 'token')} to read"
        self._show_line(line)

    def _show_line(self, text: str) -> None:
        self.line.display = bool(text)
        self.line.update(text)
