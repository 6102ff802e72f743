"""The growing text of a reply: cheap while it streams, complete and coloured when it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.crash_log import log_without_text
from app.widgets.complete_blocks import complete_chars, ready_chars
from app.widgets.growing_text import GrowingText
from app.widgets.reply_markdown import ReplyMarkdown

_TAIL_PIECE_CHARS = 2048
"""The plain tail is cut into widgets of about this size, so that only the last one is wrapped again."""
_LEAST_ROOM, _MOST_ROOM = 2, 8
_ROOM_SHARE = 5
"""A growing reply gets room for a fifth of the screen at once: every row that it gains lays out the screen again and
scrolls it, which costs more than all else that the interface does meanwhile."""


class PlainTail(Vertical):
    """Text that is not parsed yet, in the room that its reply has left."""

    def __init__(self) -> None:
        super().__init__()
        self._last: GrowingText | None = None
        self._last_chars = 0

    async def add(self, text: str) -> None:
        """Append text, in a new piece when the last one is long."""
        if self._last is None or self._last_chars > _TAIL_PIECE_CHARS:
            if self._last is not None:
                self._last.remove_class("-last")
            self._last, self._last_chars, text = GrowingText("-last"), 0, text.lstrip("\n")
            await self.mount(self._last)
        self._last_chars += len(text)
        self._last.grow(text)

    async def clear(self) -> None:
        """Forget everything."""
        if self._last is not None:
            self._last = None
            await self.remove_children()

    def missing_rows(self, n_rows: int) -> int:
        """Return how many rows the text lacks if the reply has ``n_rows``; below 0, so many are free.

        Known once the reply was laid out.
        """
        own = self._last.virtual_region.y + self._last.needed_rows if self._last is not None else 0
        return self.virtual_region.y + own - n_rows


def _plain(text: str) -> Static:
    return Static(Content(text), markup=False, classes="plain-reply")


class ReplyBody(Vertical):
    """Markdown that grows ten times a second at most and gets one full pass at the end.

    Args:
        finished: the text of an old reply, shown as one plain widget.
    """

    def __init__(self, finished: str | None = None) -> None:
        super().__init__()
        self.text = finished or ""
        """Everything appended so far."""
        self._markdown = ReplyMarkdown()
        self._tail = PlainTail()
        self._pending: list[str] = []
        self._tail_text = ""
        self._is_block_open = False
        """Whether the parsed part ends within a block."""
        self._is_scheduled = False
        self._rows = 0
        """Held while it grows."""
        self._plain: Static | None = None
        self._is_unparsable = False
        if finished is not None:
            self._plain, self._markdown.is_streaming = _plain(finished), False

    def compose(self) -> ComposeResult:
        """Lay out the parsed part and the tail."""
        if self._plain is not None:
            yield self._plain
        else:
            yield self._markdown
            yield self._tail

    def on_mount(self) -> None:
        """Take the first room of a reply that will grow."""
        if self._plain is None:
            self._set_rows(self._room)

    def on_resize(self) -> None:
        """See whether what came before the first layout has room."""
        if self._rows:
            self.call_later(self._guarded, self._fit)

    def append(self, text: str) -> None:
        """Add text; it is shown soon, together with what else arrives until then."""
        self.text += text
        self._pending.append(text)
        if not self._is_scheduled:
            self._is_scheduled = True
            self.call_later(self._guarded, self._show_pending)

    def finish(self) -> None:
        """The text is complete: parse it once more as a whole, with highlighted code."""
        self.call_later(self._guarded, self._show_whole)

    @property
    def shown_source(self) -> str:
        """What the screen shows by now, parsed or plain."""
        return self._markdown.source + self._tail_text

    @property
    def is_final(self) -> bool:
        """Whether the full pass has begun."""
        return not self._markdown.is_streaming

    @property
    def is_simplified(self) -> bool:
        """Whether the text is shown as one plain widget."""
        return self._plain is not None

    async def simplify(self) -> None:
        """Show the text as one plain widget: an old reply should cost no layout."""
        if self.is_final and self._plain is None:
            self._plain = _plain(self.text)
            self._set_rows(0)
            await self.remove_children()
            await self.mount(self._plain)

    async def on_click(self) -> None:
        """Show a simplified reply in full again."""
        await self.enrich()

    async def enrich(self) -> None:
        """Show a simplified reply in full again."""
        if self._plain is not None and not self._is_unparsable and self.is_attached:
            self._plain = None
            self._markdown = ReplyMarkdown()
            self._markdown.is_streaming = False
            await self.remove_children()
            await self.mount(self._markdown)
            await self._markdown.update(self.text)

    async def _guarded(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step, unless the transcript was cleared; a text that Textual's Markdown cannot show stays plain."""
        if not self.is_attached:
            return
        try:
            if self._plain is None:
                await step()
            else:
                self._plain.update(Content(self.text))
        except Exception as error:
            # Widgets that are going away refuse to mount: no fault then.
            if self.is_attached and not getattr(self.app, "is_leaving", False):
                log_without_text(error)
                self._is_unparsable, self._markdown.is_streaming = True, False
                await self.simplify()

    async def _show_pending(self) -> None:
        self._is_scheduled = False
        text = "".join(self._pending)
        self._pending.clear()
        if not text or self.is_final:
            return
        self._tail_text += text
        await self._tail.add(text)
        await self._fit()

    async def _fit(self) -> None:
        """Parse what is complete when new room is needed, and not before: both lay the screen out."""
        if self.size.height == self._rows and self._tail.missing_rows(self._rows) > 0 and not self.is_final:
            self._set_rows(self._rows + self._room)
            await self._parse_ready()
            self.call_after_refresh(self._make_room)

    async def _parse_ready(self) -> None:
        context = self._markdown.open_source if self._is_block_open else ""
        n_ready = ready_chars(context, self._tail_text)
        if n_ready:
            ready, self._tail_text = self._tail_text[:n_ready], self._tail_text[n_ready:]
            self._is_block_open = complete_chars(context + ready) < len(context + ready)
            await self._markdown.append(ready)
            await self._tail.clear()
            if self._tail_text:
                await self._tail.add(self._tail_text)

    async def _show_whole(self) -> None:
        self._pending.clear()
        self._tail_text = ""
        self._markdown.is_streaming = False
        await self._markdown.update(self.text)
        self._tail.display = False
        self._set_rows(0)

    @property
    def _room(self) -> int:
        return min(_MOST_ROOM, max(_LEAST_ROOM, self.app.size.height // _ROOM_SHARE))

    def _make_room(self) -> None:
        missing = self._tail.missing_rows(self._rows)
        if missing > 0 and not self.is_final:
            self._set_rows(self._rows + missing + self._room - 1)

    def _set_rows(self, n_rows: int) -> None:
        """Hold so many rows; 0 for as many as the content has."""
        self._rows = n_rows
        self.styles.height = n_rows or "auto"
