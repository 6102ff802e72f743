"""The prompt: several lines of text with large pastes folded, and the completions above it."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partialmethod
from pathlib import Path

from rich.text import Text
from textual import events
from textual.content import Content
from textual.document._document import EditResult, Location, Selection
from textual.document._edit import Edit
from textual.strip import Strip
from textual.style import Style
from textual.widgets import Static, TextArea

from app.documents.passages import FileText
from app.documents.pictures import SUFFIXES
from app.documents.read import referred, referred_so_far, split_wanted
from app.program.prompts import BLANK
from app.text.clean_text import clean_line, editable_text
from app.tui.actions import ACTIONS, commands, shell_command_of, split_command
from app.tui.chat import draft as drafts
from app.tui.chat.completing import Completion, dropped_command, dropped_files, quoted_names
from app.tui.chat.draft import Draft
from app.tui.chat.history import HistorySearch, PromptHistory
from app.tui.chat.messages import (
    EmptySubmitted,
    PromptSubmitted,
    TakeBackRequested,
    TranscriptScrolled,
)
from app.tui.keymap import Keymap
from app.tui.textual_hacks import drop_bindings

_JOINERS = frozenset("\u200c\u200d")
"""Zero-width non-joiner and joiner, which Persian, Indic scripts and emoji need.

Textual drops them.
"""
PLACEHOLDER = "Type here"
PLACEHOLDER_LOADING = "You can type now; it is sent as soon as the model is ready"
_SEARCH_CHARS = 24
"""Limit on the searched text at the prompt's edge."""
EDGE_COLUMNS = 6
"""Columns of the prompt's edge that hold no words."""


def prompt_hint(keymap: Keymap) -> str:
    """Return the keys that send and that begin a new line."""
    hints = (
        keymap.hint("prompt.send", "sends"),
        keymap.hint("prompt.new_line", "new line"),
        "/ commands",
    )
    return " · ".join(filter(None, hints))


def screens_hint(keymap: Keymap, columns: int) -> str:
    """Return the keys of other screens, as many as fit, in the order of ``ACTIONS``."""
    hints = [
        keymap.hint(action_id, action.hint) for action_id, action in ACTIONS.items() if action.hint
    ]
    hints = [hint for hint in hints if hint]
    while hints and len(" · ".join(hints)) > columns:
        hints.pop()
    return " · ".join(hints)


def search_hint(keymap: Keymap) -> str:
    """Return the keys of a search of the history."""
    hints = (
        keymap.hint("prompt.search_history", "older"),
        keymap.hint("prompt.send", "takes it"),
        keymap.hint("chat.stop", "leaves"),
    )
    return " · ".join(filter(None, hints))


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


def _is_command(text: str) -> bool:
    """Whether a text is a command of the program or of the shell."""
    return split_command(text) is not None or bool(shell_command_of(text))


class Prompt(TextArea):
    """Text area for the next message. Pasted text is clean already (``app.tui.terminal_input``)."""

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
        """Drafts that were submitted, and are not handled yet."""
        self.carry_out_at_once: Callable[[Draft], bool] = lambda draft: False
        """Carries out a command before the next key; returns whether it was such a command."""
        self.attach_chosen: Callable[..., object] = lambda *paths: None
        self.takes_commands = True
        """Whether text after a slash is a command; False while a reply is edited."""
        self.completions: Sequence[Completion] = ()
        self.completion_index = 0
        """Index of the marked completion."""
        self.show_completions: Callable[[Sequence[Completion], int], object] = lambda *_: None
        self.waiting: Collection[object] = ()
        """Messages that wait for their turn. Up in an empty prompt takes one back."""
        self._search: HistorySearch | None = None
        """Running search of the history; None if there is none."""
        self._has_chosen = False
        """Whether the user chose a completion with the arrows."""
        self._is_pasting = False
        self._estimate = ""
        self._screens_hint = ""
        self._stop_hint = ""
        self._below_hint = ""
        self._edge = ""
        self._hint = self.border_title
        self._clickable_calls = clickable_calls(keymap)
        self._action_of_key = keymap.scope_keys("prompt")
        self._keymap = keymap
        drop_bindings(self, [key for keys in keymap.changed.values() for key in keys])

    @property
    def draft(self) -> Draft:
        """Text of the prompt, with its pastes and references."""
        return Draft(self.text, self._folds, self._references)

    @property
    def typed(self) -> str:
        """Text after the chips at the beginning."""
        return self.text[drafts.after_chips(self.text, self._folds) :]

    def action_send(self) -> None:
        """Submit the text unless it is blank, and empty the prompt for the next message."""
        if self._has_chosen and self.completions:
            chosen = self.completions[self.completion_index].text
            self.action_complete()
            self._has_chosen = False
            # A command without an argument is sent at once.
            if chosen not in {f"/{action.command}" for action in commands()}:
                return

        references = frozenset(self.draft.referred)
        draft = Draft(self.text, self.draft.used_folds(), references)
        remaining = Draft()
        start = drafts.after_chips(draft.folded_text, draft.folds)
        # A command leaves the chips before it in the prompt.
        if self.takes_commands and _is_command(draft.folded_text[start:]):
            remaining = Draft(draft.folded_text[:start], draft.folds)
            draft = Draft(draft.folded_text[start:], draft.folds, references)

        if draft.text.strip():
            self.past.add(draft)
            self.show_draft(remaining)
            if not self.carry_out_at_once(draft):
                self.submitted.append(draft)
                self.post_message(PromptSubmitted(draft))
        elif not self.text:
            self.post_message(EmptySubmitted())

    def action_new_line(self) -> None:
        """Break the line at the cursor."""
        self._replace_via_keyboard("\n", *self.selection)

    def action_complete(self) -> None:
        """Complete the typed command, name or path, or select the next blank of a prompt."""
        if not self.completions:
            self._select_blank()
        else:
            chosen = self.completions[self.completion_index]
            text = self.text.removesuffix(self.typed) + chosen.text
            references = Counter(referred_so_far(text)) - Counter(referred_so_far(self.text))
            self.show_draft(Draft(text, self._folds, self._references.union(references)))
            if chosen.attaches:
                self.attach_chosen(chosen.attaches)

    @property
    def _is_choosing(self) -> bool:
        """Whether the arrows choose a completion, rather than recall messages."""
        return bool(self.completions) and not self.past.is_showing(self.draft)

    def offer(self, completions: Sequence[Completion]) -> None:
        """Show completions of the typed text, and mark the first."""
        self.completions = completions
        self.completion_index = 0
        self._has_chosen = False
        self.show_completions(completions, 0)

    def _choose(self, step: int) -> None:
        self.completion_index = (self.completion_index + step) % len(self.completions)
        self._has_chosen = True
        self.show_completions(self.completions, self.completion_index)

    def _scroll(self, pages: int) -> None:
        """Scroll the conversation by pages, or to its end for 0."""
        self.post_message(TranscriptScrolled(pages))

    action_page_up = partialmethod(_scroll, -1)
    action_page_down = partialmethod(_scroll, 1)
    action_to_end = partialmethod(_scroll, 0)

    def action_cursor_line_end(self, select: bool = False) -> None:
        """Go to the end of the line, or from there to the end of the conversation."""
        if not select and self.cursor_at_end_of_text:
            self.action_to_end()
        else:
            super().action_cursor_line_end(select)

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; at the beginning of the text, take back or recall a message."""
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
        """Move down; at the end of a recalled message, recall the one after it."""
        if self._is_choosing and not select:
            self._choose(1)
        elif not select and self.cursor_at_last_line and self.past.is_showing(self.draft):
            self.show_draft(self.past.newer())
        else:
            super().action_cursor_down(select)

    def action_older(self) -> None:
        """Recall the message before, and remember the draft."""
        draft = self.past.older(self.draft)
        if draft is not None:
            self.show_draft(draft)

    def action_newer(self) -> None:
        """Recall the message after the recalled one, or the draft."""
        if self.past.is_showing(self.draft):
            self.show_draft(self.past.newer())

    # ---- searching the history

    def action_search_history(self) -> None:
        """Begin to search the messages that were sent; from a match, go to an older one."""
        if self._search is None:
            self._search = HistorySearch(self.past, self.draft)
        else:
            self._search.older()
        self._show_search(self._search)

    @property
    def is_searching(self) -> bool:
        """Whether the history is searched."""
        return self._search is not None

    def leave_search(self) -> bool:
        """End a search, with the draft from before it; return whether there was one."""
        search = self._search
        if search is None:
            return False
        self._end_search()
        self.show_draft(search.leave())
        return True

    def _end_search(self) -> None:
        """End the search; the match stays in the prompt."""
        self._search = None
        self.border_title = self._hint

    def _show_search(self, search: HistorySearch) -> None:
        if self.draft != search.draft:
            self.show_draft(search.draft)
        self._search = search
        state = "searching" if search.has_match else "no match"
        words = clean_line(search.text, _SEARCH_CHARS)
        self.border_title = Content(f"{state}: {words}_ · {search_hint(self._keymap)}")

    def _is_search_key(self, event: events.Key) -> bool:
        """Search on with a key; return False for a key that is not for the search, which ends."""
        search = self._search
        action = self._action_of_key.get(event.key)
        if search is None or action == "search_history":
            return False
        if event.key in self._keymap.keys_of("chat.stop"):
            return self.leave_search()
        if action == "send":
            self._end_search()
            return True
        if event.key == "backspace":
            search.erase()
        elif event.is_printable and event.character:
            search.add(event.character)
        else:
            self._end_search()
            return False
        self._show_search(search)
        return True

    def begin_command(self, command: str) -> None:
        """Begin a command for the user to complete; the draft goes to the history."""
        if self.text.strip():
            self.past.add(self.draft)
        self.show_text(f"/{command} ")

    def begin_with_blanks(self, text: str) -> None:
        """Put a text with blanks after what is typed, and select the first blank."""
        typed = f"{self.text.rstrip()}\n\n" if self.text.strip() else ""
        self.show_draft(Draft(typed + text, self._folds, self._references))
        self._select_blank()

    @property
    def has_blanks(self) -> bool:
        """Whether the text has blanks to fill."""
        return BLANK.search(self.text) is not None

    def _select_blank(self) -> None:
        """Select the next blank after the cursor, or the first one."""
        blanks = [
            Selection((row, blank.start()), (row, blank.end()))
            for row, line in enumerate(self.text.split("\n"))
            for blank in BLANK.finditer(line)
        ]
        later = (blank for blank in blanks if blank.start >= self.selection.end)
        if blanks:
            blank = next(later, blanks[0])
            self.move_cursor(blank.start)
            self.move_cursor(blank.end, select=True)

    def show_text(self, text: str) -> None:
        """Replace the text as if the user had typed it."""
        self.show_draft(Draft(text, references=frozenset(referred(text))))

    def show_draft(self, draft: Draft) -> None:
        """Replace the text and its folds, and put the cursor at the end."""
        if self._search is not None:
            self._end_search()
        self._folds = draft.folds
        self._references = draft.references
        self.text = draft.folded_text
        self.move_cursor(self.document.end)

    def show_estimate(self, text: str) -> None:
        """Show the cost of sending at the lower edge; "" for none."""
        self._estimate = text
        self._show_lower_edge()

    def show_files(self, files: str) -> None:
        """Show at the upper edge which files the message refers to; "" for none."""
        hint = Content(f"attaches {files}") if files else self._hint
        if self._search is None and self.border_title != hint:
            self.border_title = hint

    def show_keys(self, screens_hint: str, stop_hint: str = "", below_hint: str = "") -> None:
        """Show keys at the lower edge.

        Args:
            screens_hint: keys of other screens, shown if there is nothing else.
            stop_hint: the key that stops the reply.
            below_hint: the key that leads to new text below.
        """
        self._screens_hint = screens_hint
        self._stop_hint = stop_hint
        self._below_hint = below_hint
        self._show_lower_edge()

    def _show_lower_edge(self) -> None:
        hints = [hint for hint in (self._below_hint, self._estimate, self._stop_hint) if hint]
        columns = self.size.width - EDGE_COLUMNS
        while len(hints) > 1 and len(" · ".join(hints)) > columns:
            hints.pop(0)
        line = " · ".join(hints) or self._screens_hint
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

    def give_back(self, text: str) -> bool:
        """Put back a message that was not sent; if the user is writing, it is in the history alone.

        Returns:
            Whether it is in the prompt.
        """
        draft = self.past.find(text) or drafts.draft_of(text)
        if self.text:
            self.past.add(draft)
            return False
        self.show_draft(draft)
        return True

    def edit(self, edit: Edit) -> EditResult:
        """Edit the text; a chip is changed as a whole or not at all."""
        top = edit.top
        bottom = edit.bottom
        if top == bottom:
            top = bottom = self._outside_folds(top, forward=True)
        else:
            top = self._outside_folds(top, forward=False)
            bottom = self._outside_folds(bottom, forward=True)
        if (top, bottom) != (edit.top, edit.bottom):
            edit = dataclasses.replace(edit, from_location=top, to_location=bottom)
        old_text = self.text
        result = super().edit(edit)
        if not self._is_pasting and len(edit.text) <= 1:
            self._references = drafts.typed_references(
                self._references, old_text, self.text, edit.text
            )
        return result

    def validate_selection(self, selection: Selection) -> Selection:
        """Keep the cursor out of chips: it steps over them."""
        if not self._folds:
            return selection
        end = self._outside_folds(selection.end, forward=selection.end > self.selection.end)
        if selection.is_empty:
            return Selection(end, end)
        return Selection(self._outside_folds(selection.start, forward=True), end)

    def _outside_folds(self, location: Location, forward: bool) -> Location:
        """Return the edge of the chip that a location is in, else the location."""
        row, column = location
        if self._folds and row < self.document.line_count:
            for start, end, _ in drafts.chip_spans(self.document.get_line(row), self._folds):
                if start < column < end:
                    return row, end if forward else start
        return location

    def get_line(self, line_index: int) -> Text:
        """Return a line for the screen.

        No character in it reorders or hides text, and each keeps its column.
        """
        return Text(editable_text(self.document.get_line(line_index)), end="", no_wrap=True)

    def render_line(self, y: int) -> Strip:
        """Render a line; a blank one in a terminal of one column, where Textual 8.2 fails."""
        if self.content_size.width < 1:
            return Strip.blank(self.size.width)
        return super().render_line(y)

    async def _on_key(self, event: events.Key) -> None:
        # Not bindings: the application runs those before letters that wait in this widget's queue,
        # and the message would be sent without its last letters.
        if self._is_search_key(event):
            event.prevent_default()
            event.stop()
            return
        name = self._action_of_key.get(event.key)
        bindings = self._bindings.key_to_bindings.get(event.key)
        if name:
            getattr(self, f"action_{name}")()
        elif event.character in _JOINERS:
            self._insert(event.character)
        elif bindings:
            # Here for the reverse reason: letters typed after a Backspace would come before it.
            await self.run_action(bindings[0].action)
        else:
            return
        event.prevent_default()
        event.stop()

    def _recompute_cursor_offset(self) -> None:
        # Textual's undo removes lines and looks for the cursor there before it moves the cursor.
        if self.cursor_location[0] < self.document.line_count:
            super()._recompute_cursor_offset()  # type: ignore[no-untyped-call]

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        if self._search is not None:
            self._end_search()
        text = drafts.without_chips(event.text)
        if self._attaches(text):
            return
        self._is_pasting = True
        command = self._dropped_command(text)
        self._insert(self._fold(text) if drafts.is_large(text) and not command else text)
        if command:
            self.replace(command, (0, 0), self.document.end, maintain_selection_offset=False)
            self.move_cursor(self.document.end)
        self._is_pasting = False

    def _attaches(self, pasted: str) -> bool:
        """Attach pictures whose paths are pasted into a message; False for other text."""
        if not self.takes_commands or _is_command(self.typed):
            return False
        files = dropped_files(pasted)
        if not files or not all(Path(file).suffix.lower() in SUFFIXES for file in files):
            return False
        self.attach_chosen(*files)
        return True

    def _dropped_command(self, pasted: str) -> str:
        """Return the command for files that were dropped now and before; "" for other text."""
        text = self.text.strip()
        if not self.text:
            return dropped_command(pasted)
        if not text.startswith("/read "):
            return ""
        files = dropped_files(pasted)
        if not files:
            return ""
        earlier_files = split_wanted(text.removeprefix("/read "))
        return f"/read {quoted_names([*earlier_files, *files])}"

    def attach(self, files: Sequence[FileText]) -> None:
        """Put the chips of files before the message; the cursor stays at its word."""
        end = drafts.files_end(self.text, self._folds)
        draft = self.draft.with_files(files)
        self._folds = draft.folds
        chips = draft.folded_text[: len(draft.folded_text) - len(self.text) + end]
        row, column = self.cursor_location
        if row == 0:
            column = max(len(chips), column + len(chips) - end)
        self.replace(chips, (0, 0), (0, end), maintain_selection_offset=False)
        self.move_cursor((row, column))

    def _insert(self, text: str) -> None:
        result = self._replace_via_keyboard(text, *self.selection)
        if result:
            self.move_cursor(result.end_location)

    def _fold(self, text: str) -> str:
        """Store a paste, and return its chip."""
        # Deleted chips count, since they come back when that is undone.
        number = 1 + drafts.highest_number(self._folds)
        chip = drafts.write_chip(number, text)
        self._folds = {**self._folds, chip: text}
        return chip


MAX_ROWS = 12
"""Limit on the rows of completions."""
_LOW_ROWS = 3
"""The same on a screen of less than ``_LOW_SCREEN_ROWS`` rows."""
_LOW_SCREEN_ROWS = 12
_MIN_TITLE_COLUMNS = 24


def suggestion_lines(
    completions: Sequence[Completion], columns: int, key: str, index: int, n_rows: int
) -> list[str]:
    """Return completions in two columns and at most ``n_rows`` lines.

    Args:
        key: the key that completes, which is named in the marked line.
        index: index of the marked completion.
    """
    n_visible = n_rows
    if len(completions) > n_rows:
        n_visible -= 1
    start = min(max(0, index - n_visible + 1), max(0, len(completions) - n_visible))
    visible = completions[start : start + n_visible]
    longest = max((len(completion.usage) for completion in visible), default=0)
    width = min(longest, max(1, columns - _MIN_TITLE_COLUMNS))
    lines = [f"{completion.usage:<{width}}  {completion.title}".rstrip() for completion in visible]
    if lines and key:
        marked_line = f"{lines[index - start]}  ({key})"
        if len(marked_line) <= columns:
            lines[index - start] = marked_line
    if len(completions) > n_visible:
        lines.append(f"{index + 1} of {len(completions)}: Up and Down choose")
    return [_shortened(line, columns) for line in lines]


def _shortened(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    return f"{line[: max(0, columns - 3)]}..."


class Suggestions(Static):
    """List of completions, visible while there are any."""

    def __init__(self, key: str, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._key = key
        self.display = False
        self._completions: Sequence[Completion] = ()
        self._index = 0

    def on_resize(self) -> None:
        """Write the lines for the new width."""
        self.show(self._completions, self._index)

    def show(self, completions: Sequence[Completion], index: int) -> None:
        """List completions, and mark one."""
        self._completions = completions
        self._index = index
        self.display = bool(completions)
        if not completions:
            return
        n_rows = MAX_ROWS
        if self.app.size.height < _LOW_SCREEN_ROWS:
            n_rows = _LOW_ROWS
        lines = suggestion_lines(completions, self.app.size.width - 2, self._key, index, n_rows)
        key_mark = f"({self._key})"
        marked_index = 0
        for line_index, line in enumerate(lines):
            if line.endswith(key_mark):
                marked_index = line_index
                break
        rows = [Content(f" {line}") for line in lines]
        rows[marked_index] = rows[marked_index].stylize("bold")
        self.update(Content("\n").join(rows))
