"""All actions in one table, read by keys, slash commands, help, palette and hints.

``name`` is the Textual action: ``action_<name>`` on the application or on the screen of that scope.
Actions with a command take the text after the command as their one argument. A line with ``shows``
is all that a screen needs next to its file and its styles: its mode, its key, its command and the
key that leads back follow from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from app.text.record import record

_WITHIN = {"prompt": "chat", "message": "chat"}
"""Scopes of widgets by the scope of the screen they are in."""
CHAT = "chat"
"""The scope of the chat, and what Textual calls its mode."""
NO_KEY = "no-key"
"""Placeholder for actions without a key, where Textual requires one."""
_COMMAND_LINE = re.compile(r"/([A-Za-z]*)(?:\s+(.*))?", re.DOTALL)


@record
class Action:
    """One thing to ask for."""

    name: str
    title: str
    """Description in help and palette."""
    scope: str
    """Who carries it out: "app", "chat", "prompt", or "message" for the message that has the
    focus."""
    keys: str = ""
    """Default keys, separated by commas, in Textual's names."""
    priority: bool = False
    """Whether the key acts before the focused widget sees it."""
    slash: str = ""
    """Slash command without the slash, and other words for it, separated by spaces."""
    argument: str = ""
    """The command's argument as help shows it; "" for none."""
    example: str = ""
    """An argument as a user would type it."""
    also: str = ""
    """More words that the palette finds it by."""
    hint: str = ""
    """The word for it at the prompt's lower edge; "" for what is not named there."""
    shows: str = ""
    """The screen it leads to, or the chat; "" for none. It is the screen's module, its scope and
    Textual's mode."""

    @property
    def names(self) -> list[str]:
        """The slash command and the other words for it."""
        return self.slash.split()

    @property
    def command(self) -> str:
        """The slash command; "" for none."""
        return self.slash.partition(" ")[0]

    @property
    def call(self) -> str:
        """The Textual action that carries it out."""
        if self.shows:
            return f"app.show({self.shows!r})"
        if self.scope == "message":
            return f"press({self.name!r})"
        if self.scope == "chat":
            return f"act({self.name!r})"
        return self.name

    @property
    def written(self) -> str:
        """The command with its argument, as help shows it; "" for none."""
        if self.slash:
            return f"/{self.command} {self.argument}".rstrip()
        return ""

    @property
    def usage(self) -> str:
        """How to write the command."""
        if self.example:
            example = f", for example /{self.command} {self.example}"
        else:
            example = ""
        return f"usage: {self.written}{example}"

    @property
    def needs_argument(self) -> bool:
        """Whether the command means nothing without text after it."""
        return bool(self.argument) and not self.argument.startswith("[")


def action_table(*actions: Action) -> dict[str, Action]:
    """Return the actions by id; a screen that has no action of its own to leave it gets the usual
    one."""
    table = {f"{action.scope}.{action.name}": action for action in actions}
    for action in actions:
        if action.shows:
            table.setdefault(
                f"{action.shows}.leave",
                Action("leave", "Go back", action.shows, "escape,q", shows=CHAT),
            )
    return table


ACTIONS = action_table(
    Action("send", "Send the message", "prompt", "enter"),
    Action("new_line", "Begin a new line", "prompt", "ctrl+j,shift+enter,alt+enter"),
    Action("complete", "Complete a command, a name or a path (Up and Down choose)", "prompt",
           "tab"),
    Action("older", "Recall what was sent before (Up in an empty prompt does it too)", "prompt",
           "alt+up"),
    Action("newer", "Recall what was sent after that", "prompt", "alt+down"),
    Action("select_all", "Select all that is typed", "prompt", "alt+a"),
    Action("page_up", "Scroll the conversation up", "prompt", "pageup"),
    Action("page_down", "Scroll the conversation down", "prompt", "pagedown"),
    Action("to_end", "Go to the newest text (End in an empty prompt does it too)", "prompt",
           "ctrl+end"),
    Action("stop", "Stop the reply, keep its text; back to the prompt", "chat", "escape"),
    Action("new", "Start a new conversation", "chat", slash="new clear"),
    Action("regenerate", "Answer the last message again; several times at once, to choose", "chat",
           "ctrl+r",
           slash="regen retry", argument="[2-4]"),
    Action("answers", "Choose among the answers to the last message", "chat", slash="answers"),
    Action("continue_reply", "Go on with a reply that was stopped", "chat", slash="continue go"),
    Action("edit", "Edit a message of yours or the reply", "chat", slash="edit",
           argument="[number|reply]"),
    Action("rename", "Give the conversation a title", "chat", slash="title rename",
           argument="words",
           example="A walk by the sea"),
    Action("system", "Show or set the system prompt ('-' for none)", "chat", slash="system",
           argument="[text]"),
    Action("persona", "List personas, start again with one, or keep what is set as one", "chat",
           slash="persona preset",
           argument="[name|save name]"),
    Action("external_editor", "Write the message in your editor ($EDITOR)", "chat", "ctrl+g",
           slash="editor"),
    Action("take_back", "Take back the message that waits", "chat", slash="unsend"),
    Action("unfold", "Show pasted text whole, or folded again", "chat", "ctrl+o", slash="unfold"),
    Action("read", "Attach files or folders to the next message (so does @file in it)", "chat",
           slash="read",
           argument="file ...", example="notes.md 'two words.pdf' docs *.py",
           also="upload document pdf docx html"),
    Action("copy", "Copy the last reply", "chat", slash="copy",
           argument="[code 2|thinking] [file]"),
    Action("save", "Save the conversation as Markdown", "chat", "ctrl+s", slash="save",
           argument="[path] [+thinking]",
           also="export file"),
    Action("place", "Show where in a document the last reply is from", "chat", slash="place",
           also="citation source page"),
    Action("thinking", "Show or fold a thought; think more or less", "chat", slash="think",
           argument="[on|off|low|500]"),
    Action("schema", "Have answers follow a JSON schema", "chat", slash="schema",
           argument="[file|off]"),
    Action("lora", "Change the model by adapters (LoRA)", "chat", slash="lora",
           argument="[file|off]",
           also="adapter finetune"),
    Action("tools", "List servers of tools, turn them on or off", "chat", slash="tools",
           argument="[on|off [server]]"),
    Action("focus_older", "Go up to a message", "chat", "ctrl+up,shift+tab"),
    Action("focus_newer", "Go down to a message or the prompt", "chat", "ctrl+down"),
    Action("model", "Load a model file", "chat", slash="model", argument="path"),
    Action("theme", "Choose the colours", "app", slash="theme", argument="[name]"),
    Action("leave", "Go back", "help", "escape,q,enter"),
    Action("leave", "Leave the colours as they were", "theme", "escape"),
    Action("examine", "Examine again", "doctor", "r"),
    Action("unfold", "Show or hide the checks that are fine", "doctor", "enter"),
    Action("apply_best", "Measure; then use the best, and remember it", "threads", "enter"),
    Action("undo", "Take back the last choice", "threads", "u"),
    Action("measure", "Measure again", "threads", "r"),
    Action("measure_kv", "Compare types of the KV cache too", "threads", "k"),
    Action("other_phase", "Let 1-9 choose for the other column", "threads", "tab"),
    Action("leave", "Stop measuring, or go back", "threads", "escape,q"),
    Action("toggle_strip", "Show or hide the speed strip next to the chat", "chat", "ctrl+t",
           slash="strip"),
    Action("help", "Show keys and commands", "app", "f1", slash="help", argument="[topic]",
           hint="help"),
    Action("performance", "Show speed, and where the time goes", "app", "f2", slash="stats speed",
           hint="speed",
           shows="performance"),
    Action("models", "Choose a model: what is here, what fits, how fast", "app", "f3",
           slash="models", hint="models",
           shows="models"),
    Action("get", "Get the model that suits this machine", "app", "f7",
           priority=True, slash="get pull", argument="[owner/repo]", also="download"),
    Action("open", "Change this setting, or keep what is typed", "settings", "enter"),
    Action("reset", "Back to the default: takes it out of your file", "settings", "ctrl+d,delete"),
    Action("leave", "Leave the value as it was, clear the filter, or go back", "settings",
           "escape"),
    Action("open", "Open this conversation", "conversations", "enter"),
    Action("rename", "Give it another title", "conversations", "ctrl+r"),
    Action("delete", "Delete it, after asking", "conversations", "ctrl+d,delete"),
    Action("export", "Save it as Markdown", "conversations", "ctrl+s"),
    Action("export_json", "Save it as JSON", "conversations", "ctrl+e"),
    Action("leave", "Clear the filter, or go back", "conversations", "escape"),
    Action("open", "Ask about this document in a new conversation", "shelf", "enter"),
    Action("delete", "Delete it, after asking", "shelf", "ctrl+d,delete"),
    Action("leave", "Clear the filter, or go back", "shelf", "escape"),
    Action("open", "Open this model", "models", "enter"),
    Action("inspect", "Show what the file holds", "models", "tab"),
    Action("download", "Download what is typed or under the cursor, or show the running download",
           "models", "ctrl+d"),
    Action("stop_download", "Stop the running download, and keep what came", "models", "ctrl+x"),
    Action("shrink", "Make a smaller file of it, where memory is short", "models", "ctrl+s"),
    Action("measure", "Measure this machine, for the speeds", "models", "ctrl+r"),
    Action("rescan", "Look again for models", "models", "ctrl+l"),
    Action("leave", "Clear the filter, or go back", "models", "escape"),
    Action("leave", "Go back", "inspect", "escape,q,tab"),
    Action("proceed", "Download it; once it is here, open it", "download", "enter"),
    Action("stop", "Stop it, and keep what came", "download", "ctrl+x"),
    Action("leave", "Go back; what is coming goes on", "download", "escape"),
    Action("keep", "Go on with this conversation", "switch", "enter,y"),
    Action("new", "Begin a new conversation", "switch", "n"),
    Action("leave", "Open no other model", "switch", "escape,q"),
    Action("once", "Run this call", "question", "y"),
    Action("always", "Run it, and ask no more for this tool in this conversation", "question", "a"),
    Action("leave", "Refuse the call", "question", "escape,n"),
    Action("choose", "Go on with the marked answer", "answers", "enter"),
    Action("leave", "Stop the answers; then keep the first", "answers", "escape"),
    Action("next", "Show the next place that the reply is from", "place", "tab,right,n"),
    Action("leave", "Go back", "place", "escape,q,enter"),
    Action("agree", "Send the file to the server", "files", "y"),
    Action("leave", "Keep the file here", "files", "escape,n"),
    Action("set", "Show or set temperature, top_k ...", "chat", slash="set",
           argument="[name value]",
           also="sampling creativity penalty"),
    Action("report", "Copy a card with machine, model and speeds; or into a file", "app",
           slash="report",
           argument="[file.svg]"),
    Action("threads", "Show or set the threads", "chat", slash="threads",
           argument="[write [read]]"),
    Action("tune", "Find the best number of threads", "app", "f4", slash="tune", hint="tune",
           shows="threads"),
    Action("doctor", "Examine machine, terminal and model: what costs speed", "app", "f5",
           slash="doctor",
           hint="doctor", shows="doctor"),
    Action("settings", "See and change every setting", "app", slash="settings config",
           shows="settings"),
    Action("copy_message", "Copy the message", "message", "y"),
    Action("copy_code", "Copy its next code block", "message", "u"),
    Action("continue_here", "Go on with it where it stopped", "message", "c"),
    Action("regenerate_here", "Answer it again", "message", "r"),
    Action("edit_here", "Edit it, then ask again or let a reply go on", "message", "e"),
    Action("fork_here", "Go on from here with a copy of the conversation", "message", "f"),
    Action("toggle_thinking", "Show or fold what the model thought", "message", "t"),
    Action("show_place", "Show where in a document it is from", "message", "enter"),
    Action("command_palette", "Command palette", "app", "ctrl+p", hint="palette"),
    Action("conversations", "Open an earlier conversation: list and search", "app", "f8",
           slash="conversations history sessions", hint="history", shows="conversations"),
    Action("shelf", "List the documents that were read, and ask about one", "app", "f6",
           priority=True, slash="shelf documents", hint="documents", also="files pdf",
           shows="shelf"),
    Action("interrupt", "Stop the reply; twice quits; copies selected text", "app", "ctrl+c",
           priority=True),
    Action("quit", "Quit", "app", "ctrl+q", priority=True, slash="quit exit bye"),
)  # fmt: skip
"""All actions by id, ``scope.name``; ids are what a key map refers to."""

FIRST_NEEDED = (
    "prompt.send", "chat.stop", "prompt.new_line", "prompt.complete", "app.get", "app.models",
    "app.performance",
    "app.conversations", "app.command_palette", "app.quit",
)  # fmt: skip
"""What a newcomer needs first, in this order."""


def scopes_meet(one: str, other: str) -> bool:
    """Whether keys of two scopes are listened to at the same time, so that one key cannot mean
    both."""
    return (
        one == other
        or "app" in (one, other)
        or _WITHIN.get(one) == other
        or _WITHIN.get(other) == one
    )


def commands() -> Iterator[Action]:
    """Yield the actions that have a slash command, in the table's order."""
    return (action for action in ACTIONS.values() if action.slash)


def find_command(word: str) -> Action | None:
    """Return the action of a command or alias, whatever its case."""
    word = word.lower()
    return next((action for action in commands() if word in action.names), None)


def nearest_command(word: str) -> str:
    """Return the command that looks most like a mistyped one; "" where none does."""
    names = {name: action.command for action in commands() for name in action.names}
    return names.get(nearest_name(word, names), "")


def nearest_name(word: str, names: Iterable[str]) -> str:
    """Return the name that a word begins, or else looks most like; "" where neither is so."""
    word = word.lower()
    names = list(names)
    begun = [name for name in names if word and name.startswith(word)]
    return next(iter(begun or difflib.get_close_matches(word, names, n=1, cutoff=0.55)), "")


def commands_starting(text: str) -> list[Action]:
    """Return the commands that what is typed so far could become; none once an argument has
    begun."""
    match = re.fullmatch(r"/([A-Za-z]*)", text)
    if match is None:
        return []
    word = match[1].lower()
    return [a for a in commands() if any(name.startswith(word) for name in a.names)]


def split_command(text: str) -> tuple[str, str] | None:
    """Split "/save notes.md" into ("save", "notes.md"); None for other text.

    A first word with a second slash or other signs in it is a path or a comment, and belongs to the
    message.
    """
    match = _COMMAND_LINE.fullmatch(text.strip())
    if match is None or not match[1]:
        return None
    return match[1], (match[2] or "").strip()
