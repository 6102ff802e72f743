"""Actions on messages: copy, continue, answer again, edit and ask again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.chat.generation import THINK_USAGE as USAGE
from app.tui.screens.chat_parts import ChatParts
from app.tui.screens.copying import Copying
from app.tui.screens.message_editing import MessageEditing
from app.tui.screens.notes import NOT_PART
from app.tui.widgets.message_view import MessageKeyPressed, MessageView, ReplyView, ToolView, UserView


class MessageActions:
    """Acts on messages; ``fork`` goes on with a copy of the conversation that ends with one."""

    def __init__(
        self,
        parts: ChatParts,
        editing: MessageEditing,
        copying: Copying,
        fork: Callable[[MessageView], Awaitable[None]],
    ) -> None:
        self._turns, self._transcript, self._views = parts.turns, parts.transcript, parts.views
        self._notes, self._focus, self._editing = parts.notes, parts.focus, editing
        self.by_name: dict[str, Callable[[MessageView], Awaitable[None] | None]] = {
            "copy_message": copying.copy_message,
            "copy_code": copying.copy_next_block,
            "continue_here": self._continue_at,
            "regenerate_here": self._regenerate_at,
            "edit_here": self._edit_at,
            "fork_here": fork,
            "toggle_thinking": self._toggle_thinking,
        }
        """What a key on a message does, by the name of its action."""

    async def act_on_message(self, pressed: MessageKeyPressed) -> None:
        """Do what a key on a message asks for."""
        outcome = self.by_name[pressed.name](pressed.view)
        if outcome is not None:
            await outcome

    def _toggle_thinking(self, view: MessageView) -> None:
        if isinstance(view, ToolView):
            view.unfold(not view.is_unfolded)
        elif not (isinstance(view, ReplyView) and view.toggle_thinking()):
            self._notes.note("there is no thinking in this message")

    def toggle_last_thinking(self) -> None:
        """Show or fold what the model thought before the newest reply."""
        views = self._transcript.replies()
        if not views or not views[-1].toggle_thinking():
            self._notes.note(f"there is no thinking in the last reply ({USAGE})")

    def _continue_at(self, view: MessageView) -> None:
        if view.message is self._turns.last_message:
            self.continue_reply()
        else:
            self._notes.note("only the last reply can go on")

    def _regenerate_at(self, view: MessageView) -> None:
        users = [one for one in self._transcript.messages() if isinstance(one, UserView)]
        is_unanswered = view in users[-1:] and self._turns.conversation.awaits_reply
        if is_unanswered or view.message is self._turns.last_message:
            self.regenerate()
        else:
            self._edit_at(view, is_question=True)

    def _edit_at(self, view: MessageView, is_question: bool = False) -> None:
        """Edit a message, or the question that it answers."""
        index = self._editing.index_of(view)
        if index is None:
            self._notes.note(NOT_PART)
        else:
            self._editing.begin(index - index % 2 if is_question else index)

    # ---- going on and answering again

    def continue_reply(self) -> None:
        """Go on with the last reply where it was stopped."""
        if self._notes.refuses_while_busy():
            return
        view = self._last_view()
        if not self._turns.continue_reply():
            self._notes.note("there is no unfinished reply at the end" if self._turns.model else "no model is loaded")
            return
        self._editing.cancel()
        self._views.replace([view] if view is not None else [])
        self._focus.to_prompt()

    def regenerate(self) -> None:
        """Answer the last message again."""
        if self._notes.refuses_while_busy():
            return
        view, awaits_reply = self._last_view(), self._turns.conversation.awaits_reply
        if not self._turns.regenerate():
            self._notes.note("there is nothing to answer again" if self._turns.model else "no model is loaded")
            return
        self._editing.cancel()
        if awaits_reply:
            asked = self._views.asked = view if isinstance(view, UserView) else None
            if asked is not None:
                asked.mark("")
                asked.message = self._turns.last_message
        else:
            self._views.replace([view] if view is not None else [])
        self._focus.to_prompt()

    def _last_view(self) -> MessageView | None:
        last = self._turns.last_message
        return self._transcript.view_of(last) if last is not None else None
