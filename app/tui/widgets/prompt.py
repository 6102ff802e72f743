"""The prompt: several lines of text, sent with Enter, large pastes folded (``app.tui.chat.draft``); and
completions."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partialmethod

from rich.text import Text
from textual import events
from textual.content import Content
from textual.document._document import EditResult, Location, Selection
from textual.document._edit import Edit
from textual.strip import Strip
from textual.style import Style
from textual.widgets import Static, TextArea

from app.documents.passages import FileText
from app.documents.read import referred, referred_so_far, split_wanted
from app.text.clean_text import editable_text
from app.tui.actions import ACTIONS, commands, split_command
from app.tui.chat import draft as drafts
from app.tui.chat.completing import Completion, dropped_command, dropped_files, quoted_names
from app.tui.chat.draft import Draft
from app.tui.chat.history import PromptHistory
from app.tui.chat.messages import (
    EmptySubmitted,
    PromptSubmitted,
    TakeBackRequested,
    TranscriptScrolled,
)
from app.tui.keymap import Keymap
from app.tui.textual_hacks import drop_bindings

_JOINERS = frozenset("\u200c\u200d")
"""Zero-width non-joiner and joiner: Persian, Indic scripts and emoji are written with them; Textual
drops them."""
PLACEHOLDER = "Type here"
PLACEHOLDER_LOADING = "Type here already; it is sent when the engine is ready"


EDGE_COLUMNS = 6
"""Of the prompt's edge, those that hold no words."""


def prompt_hint(keymap: Keymap) -> str:
    """Say at the prompt's edge how to send and how to break the line."""
    said = (
        keymap.hint("prompt.send", "sends"),
        keymap.hint("prompt.new_line", "new line"),
        "/ commands",
    )
    return " · ".join(filter(None, said))


def screens_hint(keymap: Keymap, columns: int) -> str:
    """Name the keys that lead to what else there is, as many as have room, in the table's order."""
    hinted = (
        keymap.hint(action_id, action.hint) for action_id, action in ACTIONS.items() if action.hint
    )
    said = [*filter(None, hinted)]
    while said and len(" · ".join(said)) > columns:
        said.pop()
    return " · ".join(said)


def clickable_calls(keymap: Keymap) -> dict[str, str]:
    """Return the Textual actions of keys at the prompt's edge, by the words that name them."""
    calls = {}
    for action_id, action in ACTIONS.items():
        hint = "stops the reply" if action_id == "chat.stop" else action.hint
        call = action.call
        if action.scope == "chat":
            call = f"screen.{call}"
        elif not action.shows:
            call = f"app.{call}()"
        if hint:
            calls[f"{keymap.first_key(action_id)} {hint}"] = call
    return calls


class Prompt(TextArea):
    """Where the user types. What is pasted comes clean (``app.tui.terminal_input``)."""

    HELP = "Write a message, or / for a command."

    def __init__(self, id: str | None = None, keymap: Keymap | None = None) -> None:
        self._folds: Mapping[str, str] = {}
        self._references: frozenset[str] = frozenset()
        super().__init__(
            id=id,
            soft_wrap=True,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder=PLACEHOLDER,
        )
        keymap = keymap or Keymap()
        self.cursor_blink = False
        self.border_title = prompt_hint(keymap)
        self.past = PromptHistory()
        self.submitted: deque[Draft] = deque()
        """Drafts that were sent from here and not yet taken."""
        self.carry_out_at_once: Callable[[Draft], bool] = lambda draft: False
        """Does what must be done before the next key: a file comes before what is typed after its
        command."""
        self.attach_chosen: Callable[[str], object] = lambda path: None
        self.takes_commands = True
        """Whether text that begins like a command is one; in a reply that is edited it is not."""
        self.offered: Sequence[Completion] = ()
        """Completions of the typed text; ``offered_at`` is the index of the marked one."""
        self.offered_at = 0
        self._has_chosen = self._is_pasting = False
        self.show_offered: Callable[[Sequence[Completion], int], object] = lambda offered, at: None
        self.waiting: Collection[object] = ()
        """Messages that wait for their turn: from an empty prompt one is taken back before history
        is."""
        self._estimate = self._keys = self._stop = self._below = self._edge = ""
        self._hint = self.border_title
        self._clickable_calls = clickable_calls(keymap)
        self._action_of_key = keymap.scope_keys("prompt")
        drop_bindings(self, [key for keys in keymap.changed.values() for key in keys])

    @property
    def draft(self) -> Draft:
        """The whole text of the prompt, pastes included."""
        return Draft(self.text, self._folds, self._references)

    @property
    def typed(self) -> str:
        """The text after the chips that it opens with."""
        return self.text[drafts.after_chips(self.text, self._folds) :]

    def action_send(self) -> None:
        """Hand the text over, unless it is blank, and empty the prompt: letters typed now belong to
        the next one."""
        if self._has_chosen and self.offered:
            is_whole = self.offered[self.offered_at].text in {
                f"/{one.command}" for one in commands()
            }
            self.action_complete()
            self._has_chosen = False
            if not is_whole:
                return
        named = frozenset(self.draft.referred)
        draft = Draft(self.text, self.draft.used_folds(), named)
        rest = Draft()
        at = drafts.after_chips(draft.shown, draft.folds)
        # chips are not sent with a command
        if self.takes_commands and split_command(draft.shown[at:]) is not None:
            rest = Draft(draft.shown[:at], draft.folds)
            draft = Draft(draft.shown[at:], draft.folds, named)
        if draft.text.strip():
            self.past.add(draft)
            self.show_draft(rest)
            if not self.carry_out_at_once(draft):
                self.submitted.append(draft)
                self.post_message(PromptSubmitted(draft))
        elif not self.text:
            self.post_message(EmptySubmitted())

    def action_new_line(self) -> None:
        """Break the line at the cursor."""
        self._replace_via_keyboard("\n", *self.selection)

    def action_complete(self) -> None:
        """Complete the command, the name or the path that is being typed."""
        if self.offered:
            chosen = self.offered[self.offered_at]
            text = self.text.removesuffix(self.typed) + chosen.text
            completed = Counter(referred_so_far(text)) - Counter(referred_so_far(self.text))
            self.show_draft(Draft(text, self._folds, self._references.union(completed)))
            if chosen.attaches:
                self.attach_chosen(chosen.attaches)

    @property
    def _is_choosing(self) -> bool:
        """Whether the arrows belong to what is offered, and not to what was sent before."""
        return bool(self.offered) and not self.past.is_showing(self.draft)

    def offer(self, offered: Sequence[Completion]) -> None:
        """Take what the typed text could become; the first is completed to until the arrows choose
        another."""
        self.offered = offered
        self.offered_at = 0
        self._has_chosen = False
        self.show_offered(offered, 0)

    def _choose(self, step: int) -> None:
        self.offered_at = (self.offered_at + step) % len(self.offered)
        self._has_chosen = True
        self.show_offered(self.offered, self.offered_at)

    def _scroll(self, pages: int) -> None:
        """Scroll the conversation, not the prompt; 0 leads to its newest text."""
        self.post_message(TranscriptScrolled(pages))

    action_page_up = partialmethod(_scroll, -1)
    action_page_down = partialmethod(_scroll, 1)
    action_to_end = partialmethod(_scroll, 0)

    def action_cursor_line_end(self, select: bool = False) -> None:
        """Go to the end of the line; from the end of the text, to the newest text of the
        conversation."""
        if not select and self.cursor_at_end_of_text:
            self.action_to_end()
        else:
            super().action_cursor_line_end(select)

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; from an empty prompt, a recalled text or the very beginning, recall the one sent
        before."""
        if self._is_choosing and not select:
            self._choose(-1)
            return
        at_edge = self.cursor_at_start_of_text or self.past.is_showing(self.draft)
        if select or not self.cursor_at_first_line or not at_edge:
            super().action_cursor_up(select)
        elif self.waiting and not self.text:
            self.post_message(TakeBackRequested())
        else:
            self.action_older()

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down; from a recalled text, towards the present and the draft that was left."""
        if self._is_choosing and not select:
            self._choose(1)
        elif not select and self.cursor_at_last_line and self.past.is_showing(self.draft):
            self.show_draft(self.past.newer())
        else:
            super().action_cursor_down(select)

    def action_older(self) -> None:
        """Recall the text sent before; what is here waits below."""
        if (older := self.past.older(self.draft)) is not None:
            self.show_draft(older)

    def action_newer(self) -> None:
        """Come back towards the present."""
        if self.past.is_showing(self.draft):
            self.show_draft(self.past.newer())

    def begin_command(self, command: str) -> None:
        """Let the user write what a command takes; what is here already is recalled after it."""
        if self.text.strip():
            self.past.add(self.draft)
        self.show_text(f"/{command} ")

    def show_text(self, text: str) -> None:
        """Replace the text, as if it were typed."""
        self.show_draft(Draft(text, references=frozenset(referred(text))))

    def show_draft(self, draft: Draft) -> None:
        """Replace the text, folds included, and put the cursor after it."""
        self._folds = draft.folds
        self._references = draft.references
        self.text = draft.shown
        self.move_cursor(self.document.end)

    def show_estimate(self, text: str) -> None:
        """Say at the lower edge what sending would cost; "" for nothing to say."""
        self._estimate = text
        self._show_lower_edge()

    def show_files(self, files: str) -> None:
        """Say at the upper edge which files are sent along because their names were typed; "" for
        none."""
        hint = Content(f"sends along {files}") if files else self._hint
        if self.border_title != hint:
            self.border_title = hint

    def show_keys(self, text: str, stop: str = "", below: str = "") -> None:
        """Name keys at the lower edge: what stops the reply, what leads to text below; else those
        of other screens."""
        self._keys = text
        self._stop = stop
        self._below = below
        self._show_lower_edge()

    def _show_lower_edge(self) -> None:
        said = list(filter(None, (self._below, self._estimate, self._stop)))
        room = self.size.width - EDGE_COLUMNS
        while len(said) > 1 and len(" · ".join(said)) > room:
            said.pop(0)
        line = " · ".join(said) or self._keys
        if line != self._edge:
            self._edge = line
            self.border_subtitle = self._clickable(line)

    def _clickable(self, line: str) -> Content:
        """Return the line; a click on the words of a key does what the key does."""
        edge = Content(line)
        for words, call in self._clickable_calls.items():
            start = line.find(words)
            if start >= 0:
                edge = edge.stylize(Style.from_meta({"@click": call}), start, start + len(words))
        return edge

    def give_back(self, text: str) -> None:
        """Return a text that was not taken, unless the user has begun the next one: then it is in
        the history."""
        if not self.text:
            self.show_draft(self.past.find(text) or Draft(text))

    def edit(self, edit: Edit) -> EditResult:
        """Edit the text; a fold is changed as a whole or not at all."""
        top = edit.top
        bottom = edit.bottom
        if top == bottom:
            top = bottom = self._outside_folds(top, forward=True)
        else:
            top = self._outside_folds(top, forward=False)
            bottom = self._outside_folds(bottom, forward=True)
        if (top, bottom) != (edit.top, edit.bottom):
            edit = dataclasses.replace(edit, from_location=top, to_location=bottom)
        before = self.text
        result = super().edit(edit)
        if not self._is_pasting and len(edit.text) <= 1:
            self._references = drafts.typed_references(
                self._references, before, self.text, edit.text
            )
        return result

    def validate_selection(self, selection: Selection) -> Selection:
        """Keep the cursor out of folds: it steps over them."""
        if not self._folds:
            return selection
        end = self._outside_folds(selection.end, forward=selection.end > self.selection.end)
        return Selection(
            end if selection.is_empty else self._outside_folds(selection.start, forward=True), end
        )

    def _outside_folds(self, location: Location, forward: bool) -> Location:
        """Return the edge of the fold that a place is inside of, else the place."""
        row, column = location
        if self._folds and row < self.document.line_count:
            for start, end, _ in drafts.chip_spans(self.document.get_line(row), self._folds):
                if start < column < end:
                    return row, end if forward else start
        return location

    def get_line(self, line_index: int) -> Text:
        """Return a line as it is shown.

        Nothing in it reorders or hides text, and each character keeps its column.
        """
        return Text(editable_text(self.document.get_line(line_index)), end="", no_wrap=True)

    def render_line(self, y: int) -> Strip:
        """Render a line; in a terminal one cell wide there is none, and Textual 8.2 fails to wrap
        the placeholder."""
        if self.content_size.width < 1:
            return Strip.blank(self.size.width)
        return super().render_line(y)

    async def _on_key(self, event: events.Key) -> None:
        # Not bindings: the application runs those ahead of letters that still wait in this widget's
        # queue, and the message would be sent without its last letters.
        if name := self._action_of_key.get(event.key):
            getattr(self, f"action_{name}")()
        elif event.character in _JOINERS:
            self._insert(event.character)
        elif own := self._bindings.key_to_bindings.get(event.key):
            # Here for the reverse reason: a binding is carried out by the application, and letters
            # typed after a Backspace would be there before it.
            await self.run_action(own[0].action)
        else:
            return
        event.prevent_default()
        event.stop()

    def _recompute_cursor_offset(self) -> None:
        # Textual's undo takes lines away, and looks for the cursor in them, before it takes the
        # cursor out of them.
        if self.cursor_location[0] < self.document.line_count:
            super()._recompute_cursor_offset()  # type: ignore[no-untyped-call]

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        text = drafts.without_chips(event.text)
        self._is_pasting = True
        command = self._dropped_command(text)
        self._insert(self._fold(text) if drafts.is_large(text) and not command else text)
        if command:
            self.replace(command, (0, 0), self.document.end, maintain_selection_offset=False)
            self.move_cursor(self.document.end)
        self._is_pasting = False

    def _dropped_command(self, pasted: str) -> str:
        """Return the command for dropped files; "" for other text.

        It also names the files that were dropped before.
        """
        if not self.text:
            return dropped_command(pasted)
        earlier = self.text.strip().removeprefix("/read ")
        if earlier != self.text.strip():
            more = dropped_files(pasted)
        else:
            more = []
        if more:
            return f"/read {quoted_names([*split_wanted(earlier), *more])}"
        return ""

    def attach(self, files: Sequence[FileText]) -> None:
        """Put files before the message, folded; the cursor stays where it is in the words."""
        at = drafts.files_end(self.text, self._folds)
        new = self.draft.with_files(files)
        self._folds = new.folds
        chips = new.shown[: len(new.shown) - len(self.text) + at]
        row, column = self.cursor_location
        self.replace(chips, (0, 0), (0, at), maintain_selection_offset=False)
        self.move_cursor((row, max(len(chips), column + len(chips) - at) if row == 0 else column))

    def _insert(self, text: str) -> None:
        if result := self._replace_via_keyboard(text, *self.selection):
            self.move_cursor(result.end_location)

    def _fold(self, text: str) -> str:
        """Keep a paste aside and return the chip that stands for it."""
        # Not the chips in sight: one that was deleted comes back when that is undone.
        number = 1 + drafts.highest_number(self._folds)
        chip = drafts.write_chip(number, text)
        self._folds = {**self._folds, chip: text}
        return chip


MOST_ROWS = 12
_LOW_ROWS = 3
_LOW_SCREEN_ROWS = 12
_LEAST_TITLE_COLUMNS = 24


def suggestion_lines(
    offered: Sequence[Completion], columns: int, key: str, at: int, n_rows: int
) -> list[str]:
    """Write what is offered in two columns and ``n_rows`` lines at most, with the key at the one
    that is chosen."""
    if len(offered) <= n_rows:
        n_shown = n_rows
    else:
        n_shown = n_rows - 1
    first = min(max(0, at - n_shown + 1), max(0, len(offered) - n_shown))
    shown = offered[first : first + n_shown]
    widest = min(
        max((len(one.usage) for one in shown), default=0), max(1, columns - _LEAST_TITLE_COLUMNS)
    )
    lines = [f"{one.usage:<{widest}}  {one.title}".rstrip() for one in shown]
    if lines and key and len(completes := f"{lines[at - first]}  ({key})") <= columns:
        lines[at - first] = completes
    if len(offered) > n_shown:
        lines.append(f"{at + 1} of {len(offered)}: Up and Down choose")
    return [line if len(line) <= columns else f"{line[: max(0, columns - 3)]}..." for line in lines]


class Suggestions(Static):
    """Shown only while a command is being typed; the marked line is what the key completes to."""

    def __init__(self, key: str, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._key = key
        self.display = False
        self._shown: tuple[Sequence[Completion], int] = ((), 0)

    def on_resize(self) -> None:
        """Write the lines for the new width."""
        self.show(*self._shown)

    def show(self, offered: Sequence[Completion], at: int) -> None:
        """List what is offered, the chosen one marked."""
        self._shown = offered, at
        self.display = bool(offered)
        if not offered:
            return
        if self.app.size.height < _LOW_SCREEN_ROWS:
            n_rows = _LOW_ROWS
        else:
            n_rows = MOST_ROWS
        lines = suggestion_lines(offered, self.app.size.width - 2, self._key, at, n_rows)
        marked = next((n for n, line in enumerate(lines) if line.endswith(f"({self._key})")), 0)
        rows = [
            Content(f" {line}").stylize("bold" if n == marked else "")
            for n, line in enumerate(lines)
        ]
        self.update(Content("\n").join(rows))
