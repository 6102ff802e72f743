"""Several answers to one message in the chat: their screen while they are written, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from app.chat.events import AnswersBegun, AnswerTold
from app.conversations.conversation import ChatMessage
from app.tui.screens.chat_parts import GOES_ON, OTHERS, ChatParts
from app.tui.screens.surroundings import make_screen
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.message_view import ReplyView

if TYPE_CHECKING:
    from app.tui.screens.answers import AnswersScreen


class AnswerChoice:
    """Shows them. ``go_on``: called when one is chosen, for what waits."""

    def __init__(self, parts: ChatParts, go_on: Callable[[], object]) -> None:
        self._parts, self._go_on = parts, go_on
        self._screen: AnswersScreen | None = None

    async def note(self, event: AnswersBegun | AnswerTold) -> None:
        """They begin, or one has grown or ended."""
        if isinstance(event, AnswersBegun):
            if event.trouble:
                self._parts.notes.note(f"answers written together: {event.n}, for more {event.trouble}")
            if event.n > 1:
                await self._show(event.n)
        elif self._screen is not None:
            self._screen.tell(event.at, event.event)

    def show_first(self) -> None:
        """All have ended: show the first in the chat, as it is the reply unless another is chosen."""
        view, message = self._parts.views.growing_reply(), self._parts.turns.last_message
        assert message is not None
        if message.thinking is not None:
            view.think(message.thinking.text)
            view.finish_thinking(message.thinking)
        view.body.append(message.text)

    def finish(self) -> None:
        """The user may choose."""
        if self._screen is not None:
            self._screen.finish()
        else:
            self._go_on()

    async def show_again(self) -> None:
        """Let the user choose among the answers to the last message."""
        last = self._parts.turns.last_message
        if self._parts.notes.refuses_while_busy():
            return
        if last is None or not last.others:
            self._parts.notes.note("there is one answer to the last message (/regen 2 writes two more)")
            return
        messages = (last, *last.others)
        await self._show(len(messages), messages)

    def leave(self) -> None:
        """No answer came: there is nothing to choose."""
        if self._screen is not None:
            self._screen.finish()  # what is above it may be left first
            dismiss_once(self._screen)

    async def _show(self, n: int, messages: Sequence[ChatMessage] = ()) -> None:
        how = n, self._parts.keymap, self._parts.turns.stop, messages
        self._screen = cast("AnswersScreen", make_screen("answers", *how))
        await self._parts.screen.app.push_screen(self._screen, self._take)

    def _take(self, place: int | None) -> None:
        self._screen, before = None, self._parts.turns.last_message
        if place and before is not None and self._parts.turns.choose(place - 1):
            chosen = self._parts.turns.last_message
            assert chosen is not None
            view = ReplyView.of(chosen)
            view.offer(GOES_ON if self._parts.turns.can_continue else OTHERS)
            self._parts.transcript.put_in_place(self._parts.transcript.view_of(before), view)
        self._go_on()
