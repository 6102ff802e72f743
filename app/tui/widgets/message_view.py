"""Messages in the transcript: speaker, thinking and text, and figures below a finished reply."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events, on
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.css.styles import RulesMap
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from app.conversations import reply_lines
from app.conversations.conversation import ChatMessage, Role
from app.documents.pictures import REFERENCE_START, references_in, with_short_references
from app.reply.thinking import Thinking
from app.text.clean_text import screen_text
from app.tui.bindings import bindings
from app.tui.chat.draft import with_preview
from app.tui.chat.messages import MessageBlurred
from app.tui.chat.text_search import spans_in
from app.tui.textual_hacks import call_once
from app.tui.widgets.found_text import FOUND, FOUND_NOW, marked
from app.tui.widgets.picture_preview import PreviewRow

if TYPE_CHECKING:
    from app.documents.citations import Citation
    from app.tui.widgets.call_question import CallQuestion

TAIL_CHARS = 240
TAIL_LINES = 3
TAIL_SOURCE_CHARS = 2000
"""Characters at the end of the thinking from which the tail is cut."""


def tail_of(text: str) -> str:
    """Return the last lines of a text, without blank lines and indents."""
    text_lines = [line.strip() for line in text[-TAIL_SOURCE_CHARS:].splitlines()]
    tail = "\n".join([line for line in text_lines if line][-TAIL_LINES:])
    if len(tail) <= TAIL_CHARS:
        return tail
    return "... " + tail[-TAIL_CHARS:].partition(" ")[2]


class FoundText(Static):
    """Plain text with marked places.

    Attributes:
        pattern: pattern of the places; None if nothing is marked.
        number: number of the place that is shown; None if it is in another text.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {FOUND, FOUND_NOW}

    def __init__(self, classes: str) -> None:
        super().__init__(markup=False, classes=classes)
        self.pattern: re.Pattern[str] | None = None
        self.number: int | None = None
        self._plain = ""

    def show(self, text: str, *, layout: bool = True) -> None:
        """Show a text, with its marks."""
        self._plain = text
        self.update(Content(text), layout=layout)

    def render(self) -> Content:
        """Return the text with its marks."""
        content = Content(self._plain)
        if self.pattern is None:
            return content
        return marked(self, content, spans_in(self._plain, self.pattern), self.number)

    def mark_found(self, pattern: re.Pattern[str] | None, number: int | None) -> None:
        """Mark the places of a pattern; None removes the marks."""
        if (pattern, number) != (self.pattern, self.number):
            self.pattern = pattern
            self.number = number
            self.refresh()

    def row_of_found(self, number: int) -> int:
        """Return the row of a place on the screen."""
        spans = spans_in(self._plain, self.pattern)[: number + 1]
        if not spans or not self.content_size.width:
            return self.content_region.y
        before = Content(self._plain[: spans[-1][0] + 1])
        return self.content_region.y + len(before.wrap(self.content_size.width)) - 1


class ThinkingView(FoundText):
    """Thinking before an answer: plain muted text, never Markdown.

    The screen is laid out again only when the height changes.
    """

    def __init__(self) -> None:
        super().__init__(classes="thinking")
        self.text = ""
        self.thinking: Thinking | None = None
        self.is_unfolded = False

    def append(self, text: str) -> None:
        """Add text."""
        self.text += text
        self._draw()

    def finish(self, thinking: Thinking) -> None:
        """Fold the text to one line: the thinking is complete."""
        self.text = thinking.text
        self.thinking = thinking
        self._draw()

    def toggle(self) -> None:
        """Unfold or fold the text."""
        self.is_unfolded = not self.is_unfolded
        self._draw()

    on_click = toggle

    @property
    def visible_text(self) -> str:
        """The text on the screen: the end while it grows, then a summary, or all of it."""
        if self.thinking is None:
            text = self.text.strip() if self.is_unfolded else tail_of(self.text)
            return f"thinking\n{text}".rstrip()
        summary = reply_lines.thinking_summary(self.thinking)
        if self.is_unfolded:
            return f"- {summary}\n{self.text.strip()}"
        return f"+ {summary}"

    def mark_found(self, pattern: re.Pattern[str] | None, number: int | None) -> None:
        """Mark the places of a pattern, unfolded to show one of them; None removes the marks."""
        if number is not None and not self.is_unfolded:
            self.toggle()
        super().mark_found(pattern, number)

    def _draw(self) -> None:
        text = screen_text(self.visible_text)
        width, height = self.content_size
        new_height = 0
        if width:
            new_height = Content(text).get_height(cast(RulesMap, self.styles), width)
        self.show(text, layout=not width or new_height != height)


KEY_DELAY_S = 0.35
"""Seconds after a letter before it acts on a message. The letters of a word come faster."""
WIDE_COLUMNS = 100
"""Width of the screen from which a reply shows all of its figures."""
_REPLACED = "-replaced"
_MISSING = "(missing: the file is damaged here)"


@dataclass(eq=False, repr=False)
class MessageKeyPressed(Message):
    """The user pressed a key on a focused message."""

    view: MessageView
    name: str
    """Name of the action in ``ACTIONS``."""


class MessageView(Horizontal, can_focus=True):
    """A message of the user or the model, which can have the focus and keys of its own."""

    # A click selects or unfolds text. The focus stays in the prompt.
    FOCUS_ON_CLICK = False
    BINDINGS = bindings("message")
    SPEAKER = ""

    def __init__(self, *contents: Widget) -> None:
        self._speaker = Static(self.SPEAKER, markup=False, classes=f"speaker -{self.SPEAKER}")
        self._footer = Static(markup=False, classes="message-footer")
        self._footer.display = False
        self._body = Vertical(*contents, self._footer, classes="message-body")
        super().__init__(self._speaker, self._body, classes="message")
        self._message: ChatMessage | None = None
        self._shown_footer = ""
        self.delays_keys = False
        """Whether a letter acts only after a delay, because the user may be typing a message."""
        self._has_left = False
        self._pending_key: events.Key | None = None
        self._footer_text = ""
        """Line below the message, without the number of its branch."""

    places: tuple[Citation, ...] | None = ()
    """Passages of documents that a reply is from; None if they were not looked for yet."""

    @property
    def message(self) -> ChatMessage | None:
        """The message; None until it is in the conversation."""
        return self._message

    @message.setter
    def message(self, message: ChatMessage | None) -> None:
        self._message = message
        self._draw_footer()

    @property
    def branch_mark(self) -> str:
        """Number of the branch, such as "‹ 1/2 ›"; "" if there is only one from here."""
        if self._message is None:
            return ""
        return self._message.branch_mark

    @property
    @abstractmethod
    def text(self) -> str:
        """Text of the message."""

    @abstractmethod
    def copy(self) -> MessageView:
        """Return a new widget of the message: a removed widget cannot be mounted again."""

    @abstractmethod
    def mark_found(self, pattern: re.Pattern[str] | None, number: int | None) -> None:
        """Mark the places of a text in the message; None removes the marks.

        Args:
            number: number of the place in the message that is shown; None if it is in another one.
        """

    @abstractmethod
    def row_of_found(self, number: int) -> int:
        """Return the row of a marked place on the screen."""

    def show_footer(self, text: str) -> None:
        """Show a line below the message, such as "queued"; "" hides it."""
        self._footer_text = text
        self._draw_footer()

    def _draw_footer(self) -> None:
        text = " · ".join(filter(None, (self.branch_mark, self._footer_text)))
        if text != self._shown_footer:
            self._shown_footer = text
            self._footer.update(text)
            self._footer.display = bool(text)

    def on_click(self, event: events.Click) -> None:
        """Show the branch before or after this one: a click on a half of the branch's number."""
        columns = len(self.branch_mark)
        if event.widget is self._footer and event.y == 0 and event.x < columns:
            event.stop()
            self.action_press("older_branch" if event.x < columns // 2 else "newer_branch")

    def set_replaced(self, is_replaced: bool) -> None:
        """Mark the message as one that will be replaced, or remove the mark."""
        self.set_class(is_replaced, _REPLACED)
        self._mark_speaker("-" if is_replaced else "")

    def on_focus(self) -> None:
        """Mark the focused message by a sign, since there may be no colours."""
        self._has_left = False
        self._pending_key = None
        self._mark_speaker(">")

    def on_blur(self) -> None:
        """Remove the mark."""
        self.delays_keys = False
        self._mark_speaker("-" if self.has_class(_REPLACED) else "")

    def _mark_speaker(self, sign: str) -> None:
        self._speaker.update(sign + self.SPEAKER)

    def on_key(self, event: events.Key) -> None:
        """Go to the prompt for Enter, or for a letter without a binding and the keys after it."""
        active = self.screen.active_bindings.get(event.key)
        leads_down = active is not None and active.binding.id == "chat.focus_newer"
        if self._has_left:
            self._leave(event)
        elif (event.key == "enter" and self.places == ()) or (self._is_newest and leads_down):
            self._leave(event, is_for_prompt=False)
        elif event.is_printable:
            self._take_letter(event)

    @property
    def _is_newest(self) -> bool:
        if self.parent is None:
            return False
        views = [view for view in self.parent.children if isinstance(view, MessageView)]
        return views[-1:] == [self]

    def _take_letter(self, event: events.Key) -> None:
        is_bound = event.key in self.screen.active_bindings
        if self._pending_key is not None or not is_bound:
            if self._pending_key is not None:
                self._leave(self._pending_key)
            self._leave(event)
        elif self.delays_keys:
            event.stop()
            self._pending_key = event
            call_once(self, KEY_DELAY_S, self._act_on_pending)

    async def _act_on_pending(self) -> None:
        """Act on a letter that no second letter followed: it was meant for this message."""
        event = self._pending_key
        self._pending_key = None
        if event is None or self._has_left:
            return
        active = self.screen.active_bindings.get(event.key)
        if active is not None:
            self.delays_keys = False
            await self.app.run_action(active.binding.action, active.node)

    def on_paste(self, event: events.Paste) -> None:
        """Hand a paste to the prompt."""
        self._leave(event)

    def _leave(self, event: events.Key | events.Paste, is_for_prompt: bool = True) -> None:
        event.stop()
        self._has_left = True
        new_event: events.Key | events.Paste | None = None  # this event is handled already
        if is_for_prompt and isinstance(event, events.Key):
            new_event = events.Key(event.key, event.character)
        elif is_for_prompt and isinstance(event, events.Paste):
            new_event = events.Paste(event.text)
        self.post_message(MessageBlurred(new_event))

    def action_press(self, name: str) -> None:
        """Let the screen carry out an action on the message."""
        self.post_message(MessageKeyPressed(self, name))


class UserView(MessageView):
    """A message of the user."""

    SPEAKER = "you"
    text = ""

    def __init__(self, text: str, folded: str = "", *others: Widget) -> None:
        self._text_widget = FoundText(classes="user-text")
        if REFERENCE_START in text:
            others = (*others, PreviewRow(list(references_in(text))))
        super().__init__(self._text_widget, *others)
        self.text = text
        self.folded = folded
        """The text with large pastes folded; "" if it has none."""
        self._show_text(with_preview(text, folded) if folded else with_short_references(text))
        self.is_unfolded = False

    def copy(self) -> UserView:
        """Return a new widget of the message."""
        view = type(self)(self.text, self.folded)
        view.message = self.message
        view.show_footer(self._footer_text)
        return view

    def unfold(self, is_unfolded: bool) -> None:
        """Show the text, or its folded form."""
        if self.folded and is_unfolded != self.is_unfolded:
            self.is_unfolded = is_unfolded
            text = with_preview(self.text, self.folded)
            if is_unfolded:
                text = with_short_references(self.text)
            self._show_text(text)

    def mark_found(self, pattern: re.Pattern[str] | None, number: int | None) -> None:
        """Mark the places of a text in the message; large pastes are unfolded to show one."""
        if number is not None:
            self.unfold(True)
        self._text_widget.mark_found(pattern, number)

    def row_of_found(self, number: int) -> int:
        """Return the row of a marked place on the screen."""
        return self._text_widget.row_of_found(number)

    def _show_text(self, text: str) -> None:
        self._text_widget.show(screen_text(text))


class ToolView(UserView):
    """Calls of tools: a question about one, then a line for each result until they are unfolded."""

    SPEAKER = "tool"
    is_stopped = False
    """Whether the calls have no results, because they were stopped."""

    def __init__(self, text: str, folded: str = "", question: CallQuestion | None = None) -> None:
        super().__init__(text, folded, *filter(None, [question]))
        self.question = question
        """Asks about the calls; None if they have results."""

    def show_calls(self, lines: str) -> None:
        """Show a line for each call that has no result yet."""
        self._show_text(lines)
        self._text_widget.display = bool(lines)

    def show_results(self, message: ChatMessage) -> None:
        """Show the results of all calls."""
        self.message = message
        self.text = message.text
        self.folded = message.folded
        self._show_text(self.folded or self.text)
        self._text_widget.display = True

    def on_focus(self) -> None:
        """Let an open question have the focus."""
        if self.question is None or not self.question.display:
            super().on_focus()
        else:
            self.question.focus()


class ReplyView(MessageView):
    """A reply of the model: a saved one, or one that grows."""

    SPEAKER = "model"

    def __init__(self, finished: str | None = None) -> None:
        # Not needed for the first frame, and slow to import.
        from app.tui.widgets.reply_body import ReplyBody

        self.thinking = ThinkingView()
        self.body = ReplyBody(finished)
        self.thinking.display = False
        super().__init__(self.thinking, self.body)
        self.footer = self.details = self.sources = self._hint = ""
        self.places = None
        self.next_block = 0
        """Index of the code block that the key copies next."""

    @classmethod
    def of(cls, message: ChatMessage) -> ReplyView:
        """Return the widget of a finished reply."""
        view = cls(message.text)
        view.message = message
        view.finish_thinking(message.thinking)
        if message.is_missing:
            view.footer = _MISSING
            view._fit_footer()
        else:
            view.finish(message)
        return view

    @property
    def text(self) -> str:
        """Text of the answer so far."""
        return self.body.text

    @property
    def has_only_calls(self) -> bool:
        """Whether there is nothing to read in the reply but its tool calls."""
        has_calls = self.message is not None and bool(self.message.calls)
        return has_calls and not self.text.strip() and not self.thinking.display

    def copy(self) -> ReplyView:
        """Return a new widget of the reply."""
        if self.message is not None:
            view = ReplyView.of(self.message)
        else:
            view = ReplyView(self.text)
        view.next_block = self.next_block
        view.sources = self.sources
        view.places = self.places
        view._hint = self._hint
        view._fit_footer()
        return view

    def think(self, text: str) -> None:
        """Show more of the thinking before the answer."""
        self.thinking.display = True
        self.thinking.append(text)

    def finish_thinking(self, thinking: Thinking | None) -> None:
        """Fold the thinking; None if the model did not think."""
        self.thinking.display = thinking is not None
        if thinking is not None:
            self.thinking.finish(thinking)

    def mark_found(self, pattern: re.Pattern[str] | None, number: int | None) -> None:
        """Mark the places of a text in the thinking and the answer; None removes the marks."""
        if self.thinking.display and number is not None and number < self._n_in_thinking(pattern):
            self.thinking.mark_found(pattern, number)
            self.body.mark_found(pattern, None)
        else:
            if self.thinking.display:
                self.thinking.mark_found(pattern, None)
            if number is not None:
                number -= self._n_in_thinking(pattern)
            self.body.mark_found(pattern, number)

    def row_of_found(self, number: int) -> int:
        """Return the row of a marked place on the screen."""
        n_in_thinking = self._n_in_thinking(self.body.found_pattern)
        if number < n_in_thinking:
            return self.thinking.row_of_found(number)
        return self.body.row_of_found(number - n_in_thinking)

    def _n_in_thinking(self, pattern: re.Pattern[str] | None) -> int:
        if not self.thinking.display:
            return 0
        return len(spans_in(self.thinking.text, pattern))

    def toggle_thinking(self) -> bool:
        """Unfold or fold the thinking; False if the reply has no thinking."""
        if self.thinking.display:
            self.thinking.toggle()
        return self.thinking.display

    def finish(self, message: ChatMessage) -> None:
        """Show the figures of a reply that has ended.

        Details follow them on a wide screen, or if the reply has the focus.
        """
        self.message = message
        self.body.finish()
        self.sources = reply_lines.sources_line(message.sources)
        calls = ", ".join(call.name for call in message.calls)
        prefix = ""
        if calls:
            prefix = f"(calls {calls}) "
        elif not self.text and self.thinking.display:
            prefix = "(no answer yet) "
        elif not self.text:
            prefix = "(empty reply) "
        model = reply_lines.model_among_branches(message)
        footer = reply_lines.reply_footer(message.figures, message.ending, message.is_edited)
        self.footer = f"{prefix}{' · '.join(filter(None, (model, footer)))}".rstrip()
        self.details = reply_lines.reply_details(message.figures)
        self._fit_footer()

    def show_places(self, places: tuple[Citation, ...]) -> None:
        """Name the passages that the reply is from, other than those that were sent with it."""
        self.places = places
        sent_passages = self.message.sources if self.message is not None else ()
        names = [place.shown for place in places if place.shown not in sent_passages]
        self.sources = reply_lines.sources_line(names, "see") or self.sources
        self._fit_footer()

    def offer(self, hint: str) -> None:
        """Name a command for the reply after its figures; "" for none."""
        if hint != self._hint:
            self._hint = hint
            self._fit_footer()

    @on(events.Focus)
    @on(events.Blur)
    @on(events.Resize)
    def _fit_footer(self) -> None:
        is_wide = self.is_attached and self.app.size.width >= WIDE_COLUMNS
        details = self.details if is_wide or self.has_focus else ""
        figures = " · ".join(filter(None, (self.footer, self._hint, details)))
        columns = self._body.size.width
        if self.branch_mark:
            columns = max(1, columns - len(f"{self.branch_mark} · "))
        if figures and columns and not self.has_focus:
            figures = reply_lines.shortened(figures, columns)
        self.show_footer("\n".join(filter(None, (figures, self.sources))))


def saved_view(message: ChatMessage) -> MessageView:
    """Return the widget of a saved message."""
    if message.role is not Role.USER:
        return ReplyView.of(message)
    view_class = ToolView if message.results else UserView
    view = view_class(message.text, message.folded)
    view.message = message
    if message.is_missing:
        view.show_footer(_MISSING)
    return view


class Note(Static):
    """A line of the program between the messages.

    Args:
        style: "error", "greeting" or "news" for a line that stands out.
        text_without_offer: text once what it offers is over; "" if it offers nothing.
    """

    def __init__(self, text: str, style: str = "", text_without_offer: str = "") -> None:
        classes = f"note -{style}" if style else "note"
        super().__init__(_note_content(text, style), markup=False, classes=classes)
        self.text = text
        self._style = style
        self._text_without_offer = text_without_offer

    def end_offer(self) -> None:
        """Remove what the line offers."""
        if self._text_without_offer:
            self.say(self._text_without_offer, self._style)
            self._text_without_offer = ""

    def say(self, text: str, style: str = "") -> None:
        """Change the line."""
        self.text = text
        if style != self._style:
            self.remove_class(f"-{self._style}")
            self.set_class(bool(style), f"-{style}")
            self._style = style
        self.update(_note_content(text, style))

    def copy(self) -> Note:
        """Return a new widget of the line."""
        return Note(self.text, self._style, self._text_without_offer)


def _note_content(text: str, style: str) -> Content:
    if style != "greeting":
        return Content(screen_text(text))
    from app.tui.widgets.figure_lines import welcome  # only a first start needs it

    return welcome(text)
