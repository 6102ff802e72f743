"""Several answers to one message: shown side by side while they are written, and chosen from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, cast

from app.conversations.branches import branches_of
from app.conversations.conversation import ChatMessage
from app.session.events import AnswerEvent, AnswersBegun
from app.tui.chat.core import ChatCore
from app.tui.screens import make_screen
from app.tui.textual_hacks import dismiss_once

MOST_COLUMNS = 9
"""Limit on the answers that are shown side by side; a key with one digit chooses each."""

if TYPE_CHECKING:
    from app.tui.screens.answers import AnswersScreen


class AnswerChoice:
    """The screen with several answers to one message.

    Args:
        ask_next: sends the next message that waits for its turn.
        show_branch: shows the branch from the message at an index that has a number.
    """

    def __init__(
        self,
        core: ChatCore,
        ask_next: Callable[[], None],
        show_branch: Callable[[int, int], Awaitable[object]],
    ) -> None:
        self._core = core
        self._ask_next = ask_next
        self._show_branch = show_branch
        self._screen: AnswersScreen | None = None
        self._first_saved: int | None = None
        """Number of the first branch on the screen; None if new answers are shown."""

    @property
    def is_open(self) -> bool:
        """Whether the answers are shown."""
        return self._screen is not None

    async def action_answers(self) -> None:
        """Choose among the answers to the last message."""
        message = self._core.chat_session.last_message
        if self._core.refuses_while_busy():
            return
        if message is None or not message.alternatives:
            line = "Only one answer so far; /regen 2 adds two"
            self._core.say(line)
            return
        answers = [branch[0] for branch in branches_of([message])]
        self._first_saved = max(0, len(answers) - MOST_COLUMNS)
        del answers[: self._first_saved]
        models = [answer.model for answer in answers]
        if len(set(models)) == 1:
            models = []
        await self._show(len(answers), answers, models)

    async def begin(self, event: AnswersBegun) -> None:
        """Show answers that are about to be written."""
        self._core.say_event(event)
        if event.n > 1:
            self._first_saved = None
            running = self._core.chat_session.running
            compared = running.compared if running is not None else None
            if compared is None:
                await self._show(event.n)
            else:
                await self._show(event.n, [compared], [compared.model, event.other_model])

    async def _show(
        self,
        n_answers: int,
        answers: Sequence[ChatMessage] = (),
        models: Sequence[str] = (),
    ) -> None:
        stop = self._core.chat_session.stop
        screen = make_screen("answers", n_answers, self._core.keymap, stop, answers, models)
        self._screen = cast("AnswersScreen", screen)
        await self._core.screen.app.push_screen(self._screen, self._choose)

    def grow(self, event: AnswerEvent) -> None:
        """Show more of one answer."""
        if self._screen is not None:
            self._screen.add_event(event.index, event.event)

    def finish(self) -> None:
        """Let the user choose: all answers are written."""
        if self._screen is not None:
            self._screen.finish()

    def dismiss(self) -> None:
        """Close the screen: there is nothing to choose."""
        if self._screen is not None:
            self._screen.finish()  # screens above it may be left first
            dismiss_once(self._screen)

    async def _choose(self, index: int | None) -> None:
        """Continue with the chosen answer; None is the one that the chat shows already."""
        self._screen = None
        conversation = self._core.chat_session.conversation
        shown = self._core.chat_session.last_message
        if index is not None and shown is not None:
            first = self._first_saved
            if first is None:  # the chat shows the first of the new answers
                first = shown.n_older
            if first + index != shown.n_older:
                await self._show_branch(len(conversation.messages) - 1, first + index)
        self._ask_next()
