"""The answers screen: several replies to one message side by side, of which the user chooses."""

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
    """Column with one reply.

    Args:
        number: number that chooses the reply.
        model: name of the model; "" if all replies are of the same one.
    """

    def __init__(self, number: int, model: str) -> None:
        self._title = f"{number} {model}".rstrip()
        self._head = Static(self._title, markup=False, classes="answer-head")
        self._foot = Static(markup=False, classes="answer-foot")
        self._thinking_view = ThinkingView()
        self._body = ReplyBody()
        self._growing = ReplyCollector()
        self._thinking_view.display = False
        self.has_ended = False
        """Whether the reply has ended and can be chosen."""
        super().__init__(self._head, self._thinking_view, self._body, self._foot)

    def take(self, event: events.Event) -> None:
        """Show an event of the reply."""
        if isinstance(event, events.GenerationFailed):
            self._foot.update(event.reason)
            event = event.partial_reply or event
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
        """Show a saved reply."""
        if message.thinking is not None:
            self._think(message.thinking.text)
            self._end_thought(message.thinking)
        self._body.append(message.text)
        self.end(message.figures, message.ending)

    def end(self, figures: ReplyFigures | None, ending: Ending) -> None:
        """End the reply and show its figures."""
        self.has_ended = True
        self._body.finish()
        self._foot.update(lines.reply_footer(figures, ending, False))

    def _think(self, text: str) -> None:
        self._thinking_view.display = True
        self._thinking_view.append(text)

    def _end_thought(self, thinking: Thinking | None) -> None:
        self._thinking_view.display = thinking is not None
        if thinking is not None:
            self._thinking_view.finish(thinking)

    def on_focus(self) -> None:
        """Mark the focused reply with a character, since colour may be missing."""
        self._head.update(f"{self._title} <")

    def on_blur(self) -> None:
        """Remove the mark."""
        self._head.update(self._title)


class AnswersScreen(Screen[int | None]):
    """Screen to choose a reply; dismissed with its index, or with None for the first.

    Args:
        n: number of replies; events arrive through ``add_event`` until ``finish``.
        stop: stops the running replies.
        messages: complete replies for the first columns; if there are n, none is running.
        models: names of the models of all columns; empty if there is only one model.
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
        models: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._keymap = keymap
        self._stop = stop
        self._messages = messages
        names = models or [""] * n
        self._columns = [AnswerColumn(index + 1, names[index]) for index in range(n)]
        self._is_running = len(messages) < n
        self._are_new = self._is_running
        self._chosen: int | None = None

    def compose(self) -> ComposeResult:
        """Lay out title, answers and keys."""
        yield ScreenTitle("Answers")
        with Container(id="answers"):
            yield from self._columns
        yield KeyLine()

    def on_mount(self) -> None:
        """Show saved replies and the keys."""
        for column, message in zip(self._columns, self._messages, strict=False):
            column.show(message)
        self._show_keys()

    def add_event(self, index: int, event: events.Event) -> None:
        """Show an event of one of the replies."""
        self._columns[index].take(event)

    def finish(self) -> None:
        """End the screen's running state: all replies have ended."""
        self._is_running = False
        if self._chosen is not None:
            self._choose(self._chosen)
        self._show_keys()

    def on_key(self, event: input_events.Key) -> None:
        """Choose a reply by its number."""
        if event.character is not None and event.character in "123456789"[: len(self._columns)]:
            event.stop()
            self._choose(int(event.character) - 1)

    def action_choose(self) -> None:
        """Choose the focused reply."""
        if isinstance(self.focused, AnswerColumn):
            self._choose(self._columns.index(self.focused))

    def action_leave(self) -> None:
        """Stop running replies, or close the screen if none is running."""
        if self._is_running:
            self._stop()
        else:
            dismiss_once(self)

    def _choose(self, index: int) -> None:
        if self._is_running:  # choose what it has written by the time it stops
            self._chosen = index
            self._stop()
        elif self._columns[index].has_ended:
            dismiss_once(self, sum(column.has_ended for column in self._columns[:index]))

    def _show_keys(self) -> None:
        if self._is_running:
            context = "being written" if self._messages else "written together"
            leave = "stop"
        else:
            context = "choose one to continue with"
            leave = "keep the first" if self._are_new else "back"
        self.query_one(ScreenTitle).set_content(context)
        first_key = self._keymap.first_key
        self.query_one(KeyLine).set_content(
            [
                (f"1-{len(self._columns)} or {first_key('answers.choose')}", "choose"),
                (first_key("answers.leave"), leave),
            ]
        )
