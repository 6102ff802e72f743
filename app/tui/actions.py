"""Table of all actions, from which keys, slash commands, help, palette and hints are made.

``name`` is the Textual action: ``action_<name>`` on the application or on the screen of that scope.
Actions with a command take the text after the command as their only argument. An action with
``shows`` needs only the screen's file and its styles: mode, key, command and the key back follow
from the table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from app.program.samplers import SAMPLERS
from app.text.record import record
from app.tui.other_commands import ADVICE

_WITHIN = {"prompt": "chat", "message": "chat", "question": "chat", "find": "chat"}
"""Scopes of widgets, each with the scope of its screen."""
CHAT = "chat"
"""Scope and Textual mode of the chat."""
SHELL_SIGN = "!"
"""First character of a command for the shell; a space before it makes it a message."""
NO_KEY = "no-key"
"""Key name for actions without a key, because Textual requires one."""
_COMMAND_LINE = re.compile(r"/([A-Za-z_]*|\?)(?:\s+(.*))?", re.DOTALL)


@record
class Action:
    """An action that a key, a slash command or the palette runs."""

    name: str
    title: str
    """Description in help and palette."""
    scope: str
    """Object that runs the action: "app", "chat", "prompt", a screen's name, or "message" for the
    focused message."""
    keys: str = ""
    """Default keys, separated by commas, in Textual's names."""
    priority: bool = False
    """Whether the key works before the focused widget sees it."""
    slash: str = ""
    """Slash command without the slash, followed by its aliases, separated by spaces."""
    argument: str = ""
    """Argument of the command as help shows it; empty if it takes none."""
    example: str = ""
    """Example of an argument."""
    also: str = ""
    """Further words for the action, separated by spaces: the palette finds it by them, and the
    prompt takes them as commands."""
    hint: str = ""
    """Word for the action below the prompt; empty if it is not named there."""
    shows: str = ""
    """Screen that the action opens, or the chat; empty if none. The same name is the screen's
    module, its scope and its Textual mode."""

    @property
    def names(self) -> list[str]:
        """Slash command and its aliases."""
        return self.slash.split()

    @property
    def words(self) -> list[str]:
        """Words that the prompt takes as this command; empty if there is no command."""
        if not self.slash:
            return []
        return [*self.names, *self.also.split()]

    @property
    def command(self) -> str:
        """Slash command; empty if there is none."""
        return self.slash.partition(" ")[0]

    @property
    def call(self) -> str:
        """Textual action to run."""
        if self.shows:
            return f"app.show({self.shows!r})"
        if self.scope == "message":
            return f"press({self.name!r})"
        if self.scope == "chat":
            return f"act({self.name!r})"
        return self.name

    @property
    def command_line(self) -> str:
        """Command with its argument as help shows it; empty if there is no command."""
        if self.slash:
            return f"/{self.command} {self.argument}".rstrip()
        return ""

    @property
    def usage(self) -> str:
        """Line that shows how to type the command."""
        if self.example:
            example = f", for example /{self.command} {self.example}"
        else:
            example = ""
        return f"usage: {self.command_line}{example}"

    @property
    def needs_argument(self) -> bool:
        """Whether the command requires an argument."""
        return bool(self.argument) and not self.argument.startswith("[")


def action_table(*actions: Action) -> dict[str, Action]:
    """Return the actions by id, with the usual "leave" action added to screens without one."""
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
    Action("new_line", "Start a new line", "prompt", "ctrl+j,shift+enter,alt+enter"),
    Action("complete", "Complete a command, name or path (Up and Down choose)", "prompt", "tab"),
    Action("older", "Previous message (or Up in an empty prompt)", "prompt", "alt+up"),
    Action("newer", "Next message", "prompt", "alt+down"),
    Action("search_history", "Search the messages that you sent", "prompt", "ctrl+r",
           also="history recall"),
    Action("select_all", "Select all text", "prompt", "alt+a"),
    Action("page_up", "Scroll the conversation up", "prompt", "pageup"),
    Action("page_down", "Scroll the conversation down", "prompt", "pagedown"),
    Action("to_end", "Go to the end (or End in an empty prompt)", "prompt", "ctrl+end"),
    Action("stop", "Stop the reply, or go back to the prompt", "chat", "escape"),
    Action("new", "Start a new conversation", "chat", slash="new clear", also="reset restart"),
    Action("private", "Start a conversation of which nothing is saved", "chat", slash="private",
           also="incognito temporary secret"),
    Action("regenerate", "Regenerate the last reply, or several to choose", "chat",
           "f9",
           slash="regen retry", argument="[2-4|model]",
           also="regenerate again redo compare swipe"),
    Action("answers", "Choose between the replies to the last message", "chat", slash="answers",
           also="alternatives"),
    Action("branch", "Branches: show the next one, or delete the shown one", "chat",
           slash="branch branches", argument="[number|delete]",
           also="versions"),
    Action("continue_reply", "Continue a stopped reply", "chat", slash="continue go",
           also="resume"),
    Action("edit", "Edit one of your messages or the reply", "chat", slash="edit",
           argument="[number|reply]", also="change"),
    Action("rename", "Rename the conversation", "chat", slash="title rename",
           argument="words",
           example="A walk by the sea", also="name"),
    Action("fork", "Continue in a copy of the conversation", "chat", slash="fork"),
    Action("delete", "Delete the conversation (asks first)", "chat", slash="delete",
           argument="[yes]", also="remove"),
    Action("context", "Show what fills the context", "chat", slash="context",
           also="tokens usage ctx cost"),
    Action("compact", "Let the model summarize the oldest turns", "chat", slash="compact",
           argument="[undo|show]", also="summary compress"),
    Action("pin", "Pin the conversation to the top of the list, or unpin it", "chat",
           slash="pin", also="favourite favorite star unpin"),
    Action("tag", "Tag the conversation (-name removes the tag)", "chat", slash="tag tags",
           argument="[name|-name]", also="label"),
    Action("system", "System prompt ('-' clears it)", "chat", slash="system",
           argument="[text|keep|forget]"),
    Action("persona", "Personas: list, use, save", "chat",
           slash="persona",
           argument="[name|save name]",
           also="personas preset presets role character characters impersonate profile style"),
    Action("prompt", "Put a prompt with blanks into the message", "chat", slash="prompt prompts",
           argument="[name]", also="template templates snippet"),
    Action("external_editor", "Write the message in your editor ($EDITOR)", "chat", "ctrl+g",
           slash="editor"),
    Action("take_back", "Cancel the queued message", "chat", slash="unsend", also="cancel pop"),
    Action("find", "Find text in the conversation", "chat", "ctrl+f", slash="find",
           argument="[text]", example="lantern", also="grep locate"),
    Action("unfold", "Unfold or fold pasted text", "chat", "ctrl+o", slash="unfold"),
    Action("read", "Attach files or folders (or type @file in the message)", "chat",
           slash="read",
           argument="file ...", example="notes.md 'two words.pdf' docs *.py",
           also="attach file upload add pdf docx html csv"),
    Action("paste", "Attach the picture in the clipboard", "chat", slash="paste",
           also="picture screenshot"),
    Action("detail", "Detail of pictures: show or choose it", "chat", slash="detail",
           argument="[low|usual|high]", also="resolution"),
    Action("copy", "Copy the last reply", "chat", slash="copy",
           argument="[code 2|thinking] [file]", also="clipboard yank"),
    Action("save", "Save the conversation as Markdown", "chat", "ctrl+s", slash="save",
           argument="[path] [+thinking]",
           also="export markdown md print"),
    Action("place", "Show the source of the last reply in its document", "chat", slash="place",
           also="citation source sources page cite"),
    Action("thinking", "Thinking: show, fold, more or less", "chat", slash="think",
           argument="[on|off|low|500]", also="thinking reasoning effort"),
    Action("schema", "JSON schema for answers", "chat", slash="schema",
           argument="[file|off]", also="json grammar"),
    Action("lora", "LoRA adapters", "chat", slash="lora",
           argument="[file|off]",
           also="adapter finetune"),
    Action("tools", "Tools: list them, turn them on or off", "chat", slash="tools",
           argument="[on|off [name]|allow folder]", also="tool mcp functions calculator python"),
    Action("focus_older", "Focus the message above", "chat", "ctrl+up,shift+tab"),
    Action("focus_newer", "Focus the message below, or the prompt", "chat", "ctrl+down"),
    Action("model", "Load a model file", "chat", slash="model", argument="path",
           also="load open switch"),
    Action("theme", "Choose the colours", "app", slash="theme", argument="[name]",
           also="themes colours colors"),
    Action("leave", "Clear the filter, or go back", "help", "escape,enter"),
    Action("leave", "Go back", "manual", "escape,q,enter"),
    Action("leave", "Keep the previous colours", "theme", "escape"),
    Action("examine", "Check again", "doctor", "r"),
    Action("get", "Download the recommended model", "doctor", "enter"),
    Action("unfold", "Show or hide passed checks", "doctor", "tab"),
    Action("more_threads", "Use one more thread", "performance", "plus,equals_sign"),
    Action("fewer_threads", "Use one thread less", "performance", "minus"),
    Action("huge_pages", "Move the weights to huge pages, or back", "performance", "h"),
    Action("pin", "Bind each thread to a core, or no longer", "performance", "p"),
    Action("kv_type", "Change the type of the KV cache", "performance", "k"),
    Action("keep", "Keep the threads for this machine and model", "performance", "enter"),
    Action("undo", "Undo the last change", "performance", "u"),
    Action("apply_best", "Measure, or keep the best or what you set", "threads", "enter"),
    Action("try_best", "Use the best for this run", "threads", "t"),
    Action("undo", "Undo the last change", "threads", "u"),
    Action("measure", "Measure again", "threads", "r"),
    Action("measure_kv", "Compare KV cache types as well", "threads", "k"),
    Action("measure_now", "Measure although other programs are busy", "threads", "m"),
    Action("other_phase", "Switch the column that 1-9 set", "threads", "c"),
    Action("race", "Replay one sentence as 1, 2, 4 ... threads write it", "threads", "a"),
    Action("battery", "Measure which number of threads makes the battery last longest",
           "threads", "b"),
    Action("details", "Show details, or the bars again", "threads", "tab"),
    Action("explain", "Explain the words", "threads", "question_mark"),
    Action("leave", "Stop measuring, or go back", "threads", "escape,q"),
    Action("explain", "Explain the words", "performance", "question_mark"),
    Action("help", "Show keys and commands", "app", "f1", slash="help", argument="[topic]",
           hint="help", also="h manual keys shortcuts hotkeys commands about"),
    Action("performance", "Speed: tokens per second and where the time goes", "app", "f2",
           slash="stats speed", also="status perf verbose",
           hint="speed",
           shows="performance"),
    Action("models", "Models: what fits and how fast it is", "app", "f3",
           slash="models", also="list ps", hint="models",
           shows="models"),
    Action("get", "Download a model that suits this machine", "app", "f7",
           priority=True, slash="get pull", argument="[owner/repo]", also="download"),
    Action("open", "Change this setting, or save the typed value", "settings", "enter"),
    Action("reset", "Reset to the default", "settings", "ctrl+d,delete"),
    Action("leave", "Cancel the change, clear the filter, or go back", "settings",
           "escape"),
    Action("open", "Open this conversation", "conversations", "enter"),
    Action("rename", "Rename it", "conversations", "ctrl+r"),
    Action("delete", "Delete it (asks first)", "conversations", "ctrl+d,delete"),
    Action("export", "Save it as Markdown", "conversations", "ctrl+s"),
    Action("export_json", "Save it as JSON", "conversations", "ctrl+e"),
    Action("free", "Free the disk of its saved state", "conversations", "ctrl+f"),
    Action("pin", "Pin it to the top, or unpin it", "conversations", "ctrl+k"),
    Action("tag", "Change its tags", "conversations", "ctrl+t"),
    Action("leave", "Clear the filter, or go back", "conversations", "escape"),
    Action("open", "Ask about this document in a new conversation", "documents", "enter"),
    Action("delete", "Delete it (asks first)", "documents", "ctrl+d,delete"),
    Action("leave", "Clear the filter, or go back", "documents", "escape"),
    Action("open", "Go to this question", "outline", "enter"),
    Action("leave", "Clear the filter, or go back", "outline", "escape"),
    Action("open", "Open this model", "models", "enter"),
    Action("inspect", "Show what the file contains", "models", "tab"),
    Action("delete", "Delete it and its encoder for pictures (asks first)", "models", "delete"),
    Action("download", "Download the typed or selected model, or show the running download",
           "models", "ctrl+d"),
    Action("stop_download", "Pause the running download", "models", "ctrl+x"),
    Action("shrink", "Make a smaller version that fits in memory", "models", "ctrl+s"),
    Action("measure", "Measure this machine for speed estimates", "models", "ctrl+r"),
    Action("rescan", "Search for models again", "models", "ctrl+l"),
    Action("leave", "Clear the filter, or go back", "models", "escape"),
    Action("leave", "Go back", "inspect", "escape,q,tab"),
    Action("choose", "Show the size of this model, or open it", "offers", "enter"),
    Action("list", "List all models", "offers", "l"),
    Action("leave", "Go back", "offers", "escape"),
    Action("proceed", "Download it, try again, or open it when done", "download", "enter"),
    Action("tiny", "Get a tiny model when the hub cannot be reached", "download", "t"),
    Action("stop", "Pause the download", "download", "ctrl+x"),
    Action("leave", "Go back; the download continues", "download", "escape"),
    Action("keep", "Continue this conversation", "switch", "enter,y"),
    Action("new", "Start a new conversation", "switch", "n"),
    Action("leave", "Cancel", "switch", "escape,q"),
    Action("load", "Open the model that wrote the conversation", "writer", "enter,y"),
    Action("keep", "Keep the open model", "writer", "k,n"),
    Action("leave", "Cancel", "writer", "escape,q"),
    Action("next", "Find the typed text, or go to the next place", "find", "enter"),
    Action("down", "Go to the next place", "find", "down"),
    Action("up", "Go to the previous place", "find", "up"),
    Action("forward", "Go to the next place, after Enter", "find", "n"),
    Action("back", "Go to the previous place, after Enter", "find", "N"),
    Action("type", "Change the text to find, after Enter", "find", "slash"),
    Action("once", "Run this call", "question", "y"),
    Action("always", "Run it, and don't ask again in this chat", "question", "a"),
    Action("leave", "Don't run it", "question", "n"),
    Action("choose", "Continue with the marked reply", "answers", "enter"),
    Action("leave", "Stop, then keep the first reply", "answers", "escape"),
    Action("next", "Show the next source", "place", "tab,right,n"),
    Action("leave", "Go back", "place", "escape,q,enter"),
    Action("agree", "Send the file to the server", "files", "y"),
    Action("leave", "Don't send the file", "files", "escape,n"),
    Action("agree", "Run shell commands after !", "shell", "y"),
    Action("leave", "Don't run the command", "shell", "escape,n"),
    Action("agree", "Delete the branch", "branch", "y"),
    Action("leave", "Keep the branch", "branch", "escape,n"),
    Action("set", "Show or set temperature, top_k ...", "chat", slash="set",
           argument="[name value]",
           also="temperature sampling parameter parameters creativity penalty"),
    Action("report", "Copy or save a card with this machine's speeds", "app",
           slash="report",
           argument="[file.svg]", also="card share"),
    Action("threads", "Show or set the number of threads", "chat", slash="threads",
           argument="[write [read]]", also="cores cpu"),
    Action("tune", "Find the best number of threads", "app", "f4", slash="tune", hint="tune",
           also="tuning", shows="threads"),
    Action("doctor", "Doctor: find what slows this machine", "app", "f5",
           slash="doctor",
           hint="doctor", also="check diagnose", shows="doctor"),
    Action("settings", "Settings: view and change", "app", slash="settings config",
           also="options preferences", shows="settings"),
    Action("copy_message", "Copy the message", "message", "y"),
    Action("copy_code", "Copy the next code block", "message", "u"),
    Action("continue_here", "Continue it", "message", "c"),
    Action("regenerate_here", "Regenerate it", "message", "r"),
    Action("edit_here", "Edit it, then resend it or continue the reply", "message", "e"),
    Action("fork_here", "Fork the conversation here", "message", "f"),
    Action("older_branch", "Show the branch before this one", "message", "left"),
    Action("newer_branch", "Show the branch after this one", "message", "right"),
    Action("delete_branch", "Delete this branch (asks first)", "message", "ctrl+d,delete"),
    Action("toggle_thinking", "Show or fold the thinking", "message", "t"),
    Action("show_place", "Show its source in the document", "message", "enter"),
    Action("command_palette", "Command palette", "app", "ctrl+p", hint="palette"),
    Action("toggle_strip", "Show or hide the speed strip", "chat", "ctrl+t",
           slash="strip", hint="speed strip"),
    Action("conversations", "Conversations: list, search, open", "app", "f8",
           slash="conversations history sessions", hint="history",
           also="search session chat chats conversation", shows="conversations"),
    Action("documents", "Documents: list and ask about one", "app", "f6", priority=True,
           slash="documents shelf", hint="documents",
           also="files document docs doc rag", shows="documents"),
    Action("interrupt", "Stop the reply, copy or clear text; twice quits",
           "app", "ctrl+c", priority=True),
    Action("outline", "Outline: your questions in this conversation", "app", slash="outline",
           also="questions contents", shows="outline"),
    Action("quit", "Quit", "app", "ctrl+q", priority=True, slash="quit exit bye", also="q"),
)  # fmt: skip
"""All actions by id, ``scope.name``. A key map refers to actions by these ids."""

FIRST_NEEDED = (
    "prompt.send", "chat.stop", "prompt.new_line", "prompt.complete", "app.performance",
    "app.models", "app.get", "app.conversations", "app.command_palette", "app.quit",
)  # fmt: skip
"""Ids of the actions that a newcomer needs first, the most useful first."""


_PARAMETER_COMMANDS = {name: name for name in SAMPLERS} | {
    "temp": "temperature",
    "topk": "top_k",
    "topp": "top_p",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
}
"""Parameters of ``/set`` that are commands themselves, by command."""


def scopes_overlap(scope: str, other_scope: str) -> bool:
    """Whether keys of two scopes work at the same time and must therefore differ."""
    return (
        scope == other_scope
        or "app" in (scope, other_scope)
        or _WITHIN.get(scope) == other_scope
        or _WITHIN.get(other_scope) == scope
    )


def commands() -> Iterator[Action]:
    """Yield the actions that have a slash command, in the order of the table."""
    return (action for action in ACTIONS.values() if action.slash)


def find_command(word: str) -> Action | None:
    """Return the action of a command, an alias or another word for it, ignoring case; None if there
    is none."""
    word = word.lower()
    return next((action for action in commands() if word in action.words), None)


def nearest_command(word: str) -> str:
    """Return the command that looks most like a mistyped one; empty if none does."""
    names = [name for action in commands() for name in action.names]
    words = [other for action in commands() for other in action.words]
    action = find_command(nearest_name(word, [*names, *words]))
    return action.command if action is not None else ""


def advice_on(word: str) -> str:
    """Return what to do instead of a command that other programs have; empty if unknown."""
    return ADVICE.get(word.lower(), "")


def nearest_name(word: str, names: Iterable[str]) -> str:
    """Return the first name that starts with the word, or else the most similar name.

    Return an empty string if no name is similar.
    """
    word = word.lower()
    names = list(names)
    matches = [name for name in names if word and name.startswith(word)]
    return next(iter(matches or difflib.get_close_matches(word, names, n=1, cutoff=0.55)), "")


def commands_starting(text: str) -> list[Action]:
    """Return the commands that the typed text could become; none after the command's name."""
    match = re.fullmatch(r"/([A-Za-z]*)", text)
    if match is None:
        return []
    word = match[1].lower()
    by_name = [
        action for action in commands() if any(name.startswith(word) for name in action.names)
    ]
    return by_name or [
        action for action in commands() if any(other.startswith(word) for other in action.words)
    ]


def shell_command_of(text: str) -> str:
    """Return the shell command in the text of the prompt, such as "!git diff"; empty if there is
    none."""
    if not text.startswith(SHELL_SIGN) or "\n" in text:
        return ""
    return text.removeprefix(SHELL_SIGN).strip()


def split_command(text: str) -> tuple[str, str] | None:
    """Split "/save notes.md" into ("save", "notes.md"); None for other text.

    A first word with a second slash or with punctuation is a path or a comment and belongs to the
    message, and so does an unknown one with an underscore: some models know "/no_think".
    "/temperature 0.3" is "/set temperature 0.3".
    """
    match = _COMMAND_LINE.fullmatch(text.strip())
    if match is None or not match[1]:
        return None
    word = match[1]
    argument = (match[2] or "").strip()
    parameter = _PARAMETER_COMMANDS.get(word.lower())
    if parameter is not None:
        return "set", f"{parameter} {argument}".strip()
    if word == "?":
        return "help", argument
    if "_" in word and not advice_on(word):
        return None
    return word, argument
