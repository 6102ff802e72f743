"""Answers to one message, next to each other where the screen is wide: they grow, and the user goes
on with one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events as input_events
from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from app.backend.reply_text import ReplyCollector, TextEvent
from app.conversations import reply_lines as lines
from app.conversations.conversation import ChatMessage, Ending, ReplyFigures
from app.reply.thinking import Thinking
from app.session import events
from app.tui.bindings import bindings
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.figure_lines import KeyLine, ScreenTitle
from app.tui.widgets.message_view import ThinkingView
from app.tui.widgets.reply_body import ReplyBody


class AnswerColumn(VerticalScroll, can_focus=True):
    """One answer."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._head = Static(str(number), classes="answer-head")
        self._foot = Static(markup=False, classes="answer-foot")
        self._thought = ThinkingView()
        self._body = ReplyBody()
        self._growing = ReplyCollector()
        self._thought.display = False
        self.has_ended = False
        """Whether there is an answer to go on with."""
        super().__init__(self._head, self._thought, self._body, self._foot)

    def take(self, event: events.Event) -> None:
        """Show what is told of the answer."""
        if isinstance(event, events.GenerationFailed):
            self._foot.update(event.reason)
            event = event.broken_off or event
        if isinstance(event, events.TextGenerated):
            self._body.append(event.text)
        elif isinstance(event, events.ThoughtGenerated):
            self._think(event.text)
        elif isinstance(event, events.GenerationFinished):
            self.end(event.figures, event.ending)
        if isinstance(event, TextEvent):
            self._growing.take(event)
        if isinstance(event, events.ThinkingFinished):
            self._end_thought(self._growing.thinking)

    def show(self, message: ChatMessage) -> None:
        """Show an answer that was there before."""
        if message.thinking is not None:
            self._think(message.thinking.text)
            self._end_thought(message.thinking)
        self._body.append(message.text)
        self.end(message.figures, message.ending)

    def end(self, figures: ReplyFigures | None, ending: Ending) -> None:
        """It is whole, or as far as it came."""
        self.has_ended = True
        self._body.finish()
        self._foot.update(lines.reply_footer(figures, ending, False))

    def _think(self, text: str) -> None:
        self._thought.display = True
        self._thought.append(text)

    def _end_thought(self, thinking: Thinking | None) -> None:
        self._thought.display = thinking is not None
        if thinking is not None:
            self._thought.finish(thinking)

    def on_focus(self) -> None:
        """Mark it by shape, since colour may be missing."""
        self._head.update(f"{self._number} <")

    def on_blur(self) -> None:
        """Take the mark away."""
        self._head.update(str(self._number))


class AnswersScreen(Screen[int | None]):
    """Dismissed with the place of the chosen answer among those that there are, or with None for
    the first.

    Args:
        n: answers that are written; each is told by ``tell``, until ``finish``.
        stop: ends those that are written.
        messages: answers that are there already, in place of those.
    """

    CSS_PATH = "answers.tcss"
    BINDINGS = bindings("answers")
    AUTO_FOCUS = "AnswerColumn"

    def __init__(
        self,
        n: int,
        keymap: Keymap,
        stop: Callable[[], object],
        messages: Sequence[ChatMessage] = (),
    ) -> None:
        super().__init__()
        self._keymap = keymap
        self._stop = stop
        self._messages = messages
        self._columns = [AnswerColumn(at + 1) for at in range(n)]
        self._runs = not messages
        self._chosen: int | None = None

    def compose(self) -> ComposeResult:
        """Lay out title, answers and keys."""
        yield ScreenTitle("Answers")
        with Container(id="answers"):
            yield from self._columns
        yield KeyLine()

    def on_mount(self) -> None:
        """Show what is there."""
        for column, message in zip(self._columns, self._messages, strict=False):
            column.show(message)
        self._show_keys()

    def tell(self, at: int, event: events.Event) -> None:
        """Show what is told of an answer."""
        self._columns[at].take(event)

    def finish(self) -> None:
        """All have ended."""
        self._runs = False
        if self._chosen is not None:
            self._choose(self._chosen)
        self._show_keys()

    def on_key(self, event: input_events.Key) -> None:
        """Take the answer of a number."""
        if event.character is not None and event.character in "123456789"[: len(self._columns)]:
            event.stop()
            self._choose(int(event.character) - 1)

    def action_choose(self) -> None:
        """Take the answer that has the focus."""
        if isinstance(self.focused, AnswerColumn):
            self._choose(self._columns.index(self.focused))

    def action_leave(self) -> None:
        """Stop; where nothing is written any more, go back."""
        if self._runs:
            self._stop()
        else:
            dismiss_once(self)

    def _choose(self, at: int) -> None:
        if self._runs:  # what is there of it by then
            self._chosen = at
            self._stop()
        elif self._columns[at].has_ended:
            dismiss_once(self, sum(column.has_ended for column in self._columns[:at]))

    def _show_keys(self) -> None:
        if self._runs:
            context = "are written together"
        else:
            context = "the conversation goes on with one"
        self.query_one(ScreenTitle).tell(context)
        first_key = self._keymap.first_key
        self.query_one(KeyLine).tell(
            [
                (f"1-{len(self._columns)}", "goes on with it"),
                (first_key("answers.choose"), "with the marked one"),
                (first_key("answers.leave"), "stops" if self._runs else "keeps the first"),
            ]
        )
