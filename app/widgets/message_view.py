"""One message in the transcript: who speaks, the text, and below a finished reply its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

if TYPE_CHECKING:
    from app.widgets.reply_body import ReplyBody


class UserView(Horizontal):
    """What the user said."""

    def __init__(self, text: str, folded: str = "") -> None:
        super().__init__(classes="message")
        self.text = text
        self.folded = folded
        """The text with large pastes folded; "" where there are none."""
        self.is_unfolded = False
        self._shown = Static(Content(folded or text), markup=False, classes="user-text")
        self._note = Static(markup=False, classes="message-footer")
        self._note.display = False

    def compose(self) -> ComposeResult:
        """Lay out speaker and text."""
        yield Static(Content("you"), markup=False, classes="speaker -you")
        with Vertical(classes="message-body"):
            yield self._shown
            yield self._note

    def unfold(self, whole: bool) -> None:
        """Show the whole text, or its folded form."""
        if self.folded and whole != self.is_unfolded:
            self.is_unfolded = whole
            self._shown.update(Content(self.text if whole else self.folded))

    def mark(self, note: str) -> None:
        """Show a word below the text, such as "queued"; "" takes it away."""
        self._note.update(Content(note))
        self._note.display = bool(note)


class ReplyView(Horizontal):
    """What the model says."""

    def __init__(self) -> None:
        super().__init__(classes="message")
        # Markdown costs an import that the first frame must not wait for.
        from app.widgets.reply_body import ReplyBody

        self.body: ReplyBody = ReplyBody()
        self.footer = ""
        self._footer = Static(markup=False, classes="message-footer")
        self._footer.display = False

    def compose(self) -> ComposeResult:
        """Lay out speaker, text and footer."""
        yield Static(Content("model"), markup=False, classes="speaker -model")
        with Vertical(classes="message-body"):
            yield self.body
            yield self._footer

    @property
    def text(self) -> str:
        """Everything the model said so far."""
        return self.body.text

    def finish(self, footer: str) -> None:
        """The reply has ended; the footer stays as it is from now on."""
        self.body.finish()
        self.footer = footer if self.text else f"(empty reply) {footer}".rstrip()
        self._footer.update(Content(self.footer))
        self._footer.display = bool(self.footer)


class Note(Static):
    """A line by the program itself, between the messages."""

    def __init__(self, text: str, is_error: bool = False) -> None:
        super().__init__(Content(text), markup=False, classes="note -error" if is_error else "note")
        self.text = text
