"""The prompt: several lines of text, sent with Enter."""

from __future__ import annotations

from textual import events
from textual.strip import Strip
from textual.widgets import TextArea

from app.actions import commands_starting, keys
from app.clean_text import clean_text
from app.messages import PromptSubmitted, TranscriptScrolled

HINT = "Enter sends · ctrl+j new line · / commands"
PLACEHOLDER = "Type here"
PLACEHOLDER_LOADING = "Type here already; it is sent when the engine is ready"
_KEYS = keys("prompt")


class PromptHistory:
    """What was sent before, newest last, and where the user stands in it."""

    def __init__(self, limit: int = 200) -> None:
        self._entries: list[str] = []
        self._limit = limit
        self._position: int | None = None

    def add(self, text: str) -> None:
        """Remember a text, unless it repeats the one before."""
        if not self._entries or self._entries[-1] != text:
            self._entries.append(text)
            del self._entries[: -self._limit]
        self._position = None

    def is_showing(self, text: str) -> bool:
        """Whether the text is the entry the user stands at, unchanged."""
        return self._position is not None and self._entries[self._position] == text

    def older(self) -> str | None:
        """Step back; None at the oldest."""
        position = len(self._entries) if self._position is None else self._position
        if position == 0:
            return None
        self._position = position - 1
        return self._entries[self._position]

    def newer(self) -> str:
        """Step forward; "" behind the newest."""
        if self._position is None or self._position + 1 >= len(self._entries):
            self._position = None
            return ""
        self._position += 1
        return self._entries[self._position]

    def leave(self) -> None:
        """Stand behind the newest again."""
        self._position = None


class Prompt(TextArea):
    """Where the user types. Everything pasted is made harmless before the terminal sees it."""

    HELP = "Write a message, or / for a command."

    def __init__(self, id: str | None = None) -> None:
        super().__init__(
            id=id, soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False, placeholder=PLACEHOLDER
        )
        self.cursor_blink = False
        self.border_title = HINT
        self.past = PromptHistory()

    def action_send(self) -> None:
        """Hand the text over; white space alone is nothing.

        The prompt is emptied here and not by whoever takes the text: letters typed meanwhile belong to the next one.
        """
        text = self.text
        if text.strip():
            self.past.add(text)
            self.show_text("")
            self.post_message(PromptSubmitted(text))

    def action_new_line(self) -> None:
        """Break the line at the cursor."""
        self._replace_via_keyboard("\n", *self.selection)

    def action_complete(self) -> None:
        """Complete the command that is being typed."""
        matching = commands_starting(self.text)
        if matching:
            self.show_text(f"/{matching[0].command}" + (" " if matching[0].takes_argument else ""))

    def action_page_up(self) -> None:
        """Scroll what stands above, not this."""
        self.post_message(TranscriptScrolled(-1))

    def action_page_down(self) -> None:
        """Scroll what stands above, not this."""
        self.post_message(TranscriptScrolled(1))

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; from an empty prompt or a recalled text, recall the one sent before."""
        if not select and self.cursor_at_first_line and (not self.text or self.past.is_showing(self.text)):
            older = self.past.older()
            if older is not None:
                self.show_text(older)
            return
        super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down; from a recalled text, towards the present."""
        if not select and self.cursor_at_last_line and self.past.is_showing(self.text):
            self.show_text(self.past.newer())
            return
        super().action_cursor_down(select)

    def show_text(self, text: str) -> None:
        """Replace the text and put the cursor behind it."""
        self.text = text
        self.move_cursor(self.document.end)

    def give_back(self, text: str) -> None:
        """Return a text that was not taken, unless the user has begun the next one: then it is in the history."""
        if not self.text:
            self.show_text(text)

    def render_line(self, y: int) -> Strip:
        """Render a line; in a terminal one cell wide there is none, and Textual 8.2 fails to wrap the placeholder."""
        if self.content_size.width < 1:
            return Strip.blank(self.size.width)
        return super().render_line(y)

    async def _on_key(self, event: events.Key) -> None:
        # Not bindings: the application runs those ahead of letters that still wait in this widget's queue, and the
        # message would be sent without its last letters.
        name = _KEYS.get(event.key)
        if name is not None:
            event.prevent_default()
            event.stop()
            getattr(self, f"action_{name}")()

    async def _on_paste(self, event: events.Paste) -> None:
        # Terminals send a pasted line break as CR. The base class is kept from inserting the text as it came.
        event.prevent_default()
        event.stop()
        text = clean_text(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)
