"""One message in the transcript: who speaks, the thinking, the text, and below a finished reply its
figures."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from textual import events, on
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.css.styles import RulesMap
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from app.conversations import reply_lines as lines
from app.conversations.conversation import ChatMessage, Role
from app.reply.thinking import Thinking
from app.text.clean_text import screen_text
from app.tui.bindings import bindings
from app.tui.chat.messages import MessageBlurred
from app.tui.textual_hacks import call_once

if TYPE_CHECKING:
    from app.documents.citations import Citation

TAIL_CHARS = 240
TAIL_LINES = 3
KEPT_BACK_CHARS = 2000
"""Characters at the end of the thinking that the tail is cut from, however long the thinking is."""


def tail_of(text: str) -> str:
    """Return the last words, few enough for a glance; white space and line breaks are cut down to
    single ones."""
    lines = [line.strip() for line in text[-KEPT_BACK_CHARS:].splitlines() if line.strip()]
    tail = "\n".join(lines[-TAIL_LINES:])
    if len(tail) <= TAIL_CHARS:
        return tail
    return "... " + tail[-TAIL_CHARS:].partition(" ")[2]


class ThinkingView(Static):
    """Plain text, muted; never Markdown.

    It changes often, and lays the screen out only when its height does.
    """

    def __init__(self) -> None:
        super().__init__(markup=False, classes="thinking")
        self.text = ""
        self.thinking: Thinking | None = None
        self.is_unfolded = False

    def append(self, text: str) -> None:
        """Add text."""
        self.text += text
        self._draw()

    def finish(self, thinking: Thinking) -> None:
        """Fold to one line."""
        self.text = thinking.text
        self.thinking = thinking
        self._draw()

    def toggle(self) -> None:
        """Unfold or fold."""
        self.is_unfolded = not self.is_unfolded
        self._draw()

    on_click = toggle

    @property
    def shown(self) -> str:
        """The text as the screen shows it."""
        if self.thinking is None:
            return f"thinking\n{self.text.strip() if self.is_unfolded else tail_of(self.text)}".rstrip()
        if self.is_unfolded:
            return f"- {lines.thinking_summary(self.thinking)}\n{self.text.strip()}"
        return f"+ {lines.thinking_summary(self.thinking)}"

    def _draw(self) -> None:
        content = Content(screen_text(self.shown))
        width, height = self.content_size
        if width:
            needed = content.get_height(cast(RulesMap, self.styles), width)
        else:
            needed = 0
        self.update(content, layout=not width or needed != height)


HESITATION_S = 0.35
"""Letters of a word follow each other faster."""
WIDE_COLUMNS = 100
"""From this width on a reply shows all of its figures."""
_REPLACED = "-replaced"
_MISSING = "(missing: the file is damaged here)"


@dataclass(eq=False, repr=False)
class MessageKeyPressed(Message):
    """The user pressed a key on a focused message."""

    view: MessageView
    name: str
    """Of the action, as in ``ACTIONS``."""


class MessageView(Horizontal, can_focus=True):
    """A message of either side, which can be focused from the keyboard and acted on."""

    # A click selects text or unfolds; it must not take the cursor out of the prompt.
    FOCUS_ON_CLICK = False
    BINDINGS = bindings("message")
    SPEAKER = ""

    def __init__(self, *parts: Widget) -> None:
        self._speaker = Static(self.SPEAKER, markup=False, classes=f"speaker -{self.SPEAKER}")
        self._footer = Static(markup=False, classes="message-footer")
        self._footer.display = False
        self._body = Vertical(*parts, self._footer, classes="message-body")
        super().__init__(self._speaker, self._body, classes="message")
        self.message: ChatMessage | None = None
        """What it shows, once that is part of the conversation."""
        self.delays_keys = False
        """Whether a letter acts a moment later, since the user may be typing the next message."""
        self._is_left = False
        self._pending: events.Key | None = None
        self._below = ""

    places: tuple[Citation, ...] | None = ()
    """In documents, that it is from; None where that was not found out yet."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Text of the message."""

    @abstractmethod
    def copy(self) -> MessageView:
        """Return the same message as a widget that was never mounted; one that was taken away
        cannot come back."""

    def show_footer(self, note: str) -> None:
        """Show a line below the text, such as "queued"; "" takes it away."""
        if note != self._below:
            self._below = note
            self._footer.update(note)
            self._footer.display = bool(note)

    def set_replaced(self, is_replaced: bool) -> None:
        """Show that something takes this message's place, or that it does not after all."""
        self.set_class(is_replaced, _REPLACED)
        self._mark_speaker("-" if is_replaced else "")

    def on_focus(self) -> None:
        """Mark the message by shape, since colour may be missing."""
        self._is_left = False
        self._pending = None
        self._mark_speaker(">")

    def on_blur(self) -> None:
        """Take the mark away."""
        self.delays_keys = False
        self._mark_speaker("-" if self.has_class(_REPLACED) else "")

    def _mark_speaker(self, mark: str) -> None:
        self._speaker.update(mark + self.SPEAKER)

    def on_key(self, event: events.Key) -> None:
        """Enter leads back to the prompt; so does a letter without a meaning here, with all that is
        typed after it."""
        bound = self.screen.active_bindings.get(event.key)
        leads_down = bound is not None and bound.binding.id == "chat.focus_newer"
        if self._is_left:
            self._leave(event)
        elif (event.key == "enter" and self.places == ()) or (self._is_newest and leads_down):
            self._leave(event, is_for_prompt=False)
        elif event.is_printable:
            self._take_letter(event)

    @property
    def _is_newest(self) -> bool:
        if self.parent is not None:
            siblings = self.parent.children
        else:
            siblings = ()
        return (
            next((view for view in reversed(siblings) if isinstance(view, MessageView)), None)
            is self
        )

    def _take_letter(self, event: events.Key) -> None:
        is_bound = event.key in self.screen.active_bindings
        if self._pending is not None or not is_bound:
            if self._pending is not None:
                self._leave(self._pending)
            self._leave(event)
        elif self.delays_keys:
            event.stop()
            self._pending = event
            call_once(self, HESITATION_S, self._act_on_pending)

    async def _act_on_pending(self) -> None:
        """No second letter came: the first one was meant for this message."""
        event = self._pending
        self._pending = None
        if event is not None and not self._is_left:
            bound = self.screen.active_bindings.get(event.key)
        else:
            bound = None
        if bound is not None:
            self.delays_keys = False
            await self.app.run_action(bound.binding.action, bound.node)

    def on_paste(self, event: events.Paste) -> None:
        """Hand what is pasted to the prompt."""
        self._leave(event)

    def _leave(self, event: events.Key | events.Paste, is_for_prompt: bool = True) -> None:
        event.stop()
        self._is_left = True
        # A fresh one: this one has been handled.
        fresh = (
            events.Key(event.key, event.character)
            if isinstance(event, events.Key)
            else events.Paste(event.text)
        )
        self.post_message(MessageBlurred(fresh if is_for_prompt else None))

    def action_press(self, name: str) -> None:
        """Let the screen do what a key on a message asks for."""
        self.post_message(MessageKeyPressed(self, name))


class UserView(MessageView):
    """A message of the user."""

    SPEAKER = "you"
    text = ""

    def __init__(self, text: str, folded: str = "") -> None:
        self._shown = Static(screen_text(folded or text), markup=False, classes="user-text")
        super().__init__(self._shown)
        self.text = text
        self.folded = folded
        """The text with large pastes folded; "" where there are none."""
        self.is_unfolded = False

    def copy(self) -> UserView:
        """Return the same message, never mounted."""
        twin = type(self)(self.text, self.folded)
        twin.message = self.message
        twin.show_footer(self._below)
        return twin

    def unfold(self, whole: bool) -> None:
        """Show the whole text, or its folded form."""
        if self.folded and whole != self.is_unfolded:
            self.is_unfolded = whole
            self._shown.update(screen_text(self.text if whole else self.folded))


class ToolView(UserView):
    """Results of tools, a line for each until it is unfolded."""

    SPEAKER = "tool"


class ReplyView(MessageView):
    """A reply of the model: an old one with its finished text, or one that grows."""

    SPEAKER = "model"

    def __init__(self, finished: str | None = None) -> None:
        # Markdown costs an import that the first frame must not wait for.
        from app.tui.widgets.reply_body import ReplyBody

        self.thinking = ThinkingView()
        self.body = ReplyBody(finished)
        self.thinking.display = False
        super().__init__(self.thinking, self.body)
        self.footer = self.details = self.sources = self._hint = ""
        self.places = None
        self.next_block = 0
        """Index of the code block that the copying key takes next."""

    @classmethod
    def of(cls, message: ChatMessage) -> ReplyView:
        """Return the widget of a whole reply."""
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
        """The answer so far."""
        return self.body.text

    def copy(self) -> ReplyView:
        """Return the same reply, never mounted."""
        if self.message is not None:
            twin = ReplyView.of(self.message)
        else:
            twin = ReplyView(self.text)
        twin.next_block = self.next_block
        twin.sources = self.sources
        twin.places = self.places
        twin.offer(self._hint)
        return twin

    def think(self, text: str) -> None:
        """Show more of the thinking before the answer."""
        self.thinking.display = True
        self.thinking.append(text)

    def finish_thinking(self, thinking: Thinking | None) -> None:
        """Fold the thinking; None where there was nothing in it."""
        self.thinking.display = thinking is not None
        if thinking is not None:
            self.thinking.finish(thinking)

    def toggle_thinking(self) -> bool:
        """Unfold or fold the thinking; False if the reply has no thinking."""
        if self.thinking.display:
            self.thinking.toggle()
        return self.thinking.display

    def finish(self, message: ChatMessage) -> None:
        """The reply has ended.

        Details come after its footer where the screen is wide or the reply has the focus.
        """
        self.message = message
        self.body.finish()
        self.sources = lines.sources_line(message.sources)
        calls = ", ".join(call.name for call in message.calls)
        if self.text:
            missing = ""
        elif self.thinking.display:
            missing = "(no answer yet) "
        else:
            missing = "(empty reply) "
        if calls:
            empty = f"(calls {calls}) "
        else:
            empty = missing
        footer = lines.reply_footer(message.figures, message.ending, message.is_edited)
        self.footer, self.details = (
            f"{empty}{footer}".rstrip(),
            lines.reply_details(message.figures),
        )
        self._fit_footer()

    def show_places(self, places: tuple[Citation, ...]) -> None:
        """Name the places that it is from; without any, the passages stay named that it was written
        from."""
        self.places = places
        if self.message is not None:
            passages = self.message.sources
        else:
            passages = ()
        found = [one.shown for one in places if one.shown not in passages]
        self.sources = lines.sources_line(found, "see") or self.sources
        self._fit_footer()

    def offer(self, hint: str) -> None:
        """Name after the figures what goes on with the reply; "" for nothing."""
        if hint != self._hint:
            self._hint = hint
            self._fit_footer()

    @on(events.Focus)
    @on(events.Blur)
    @on(events.Resize)
    def _fit_footer(self) -> None:
        is_wide = self.is_attached and self.app.size.width >= WIDE_COLUMNS
        if is_wide or self.has_focus:
            details = self.details
        else:
            details = ""
        figures = " · ".join(filter(None, (self.footer, self._hint, details)))
        columns = self._body.size.width
        if figures and columns and not self.has_focus:
            figures = lines.shortened(figures, columns)
        self.show_footer("\n".join(filter(None, (figures, self.sources))))


def saved_view(message: ChatMessage) -> MessageView:
    """Return the widget of a message that was saved."""
    if message.role is Role.USER:
        user = (ToolView if message.results else UserView)(message.text, message.folded)
        user.message = message
        if message.is_missing:
            user.show_footer(_MISSING)
        return user
    return ReplyView.of(message)


class Note(Static):
    """A line by the program between the messages; the kinds "error", "greeting" and "news" stand
    out."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(
            _shown(text, kind), markup=False, classes=f"note -{kind}" if kind else "note"
        )
        self.text = text
        self._kind = kind

    def say(self, text: str, kind: str = "") -> None:
        """Say something else."""
        self.text = text
        if kind != self._kind:
            self.remove_class(f"-{self._kind}")
            self.set_class(bool(kind), f"-{kind}")
            self._kind = kind
        self.update(_shown(text, kind))

    def copy(self) -> Note:
        """Return the same note, never mounted."""
        return Note(self.text, self._kind)


def _shown(text: str, kind: str) -> Content:
    if kind != "greeting":
        return Content(screen_text(text))
    from app.tui.widgets.figure_lines import welcome  # only a first start needs it

    return welcome(text)
