"""The user's tool servers and the built-in tools: which are on, and the results of calls.

The screen's thread turns servers on and off and looks at their tools. The engine thread starts the
servers, sends requests and ends them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from app.program.paths import expanded
from app.program.refusals import Refusal
from app.program.settings import ToolServerSetting, ToolSettings
from app.text.clean_text import clean_line, screen_text
from app.text.figures import counted
from app.tools.built_in.catalog import FOLDERS, PURPOSES
from app.tools.built_in.tool import ToolSource
from app.tools.mcp.served_tools import ServedTool
from app.tools.mcp.server import ToolServerError
from engine.prompt.tools.calls import CallResult, ToolCall

MOST_ROUNDS = 8
"""Limit on the rounds of calls for one message of the user."""
TOO_MANY_ROUNDS = f"no more than {MOST_ROUNDS} rounds of tool calls for one message: not run"
REFUSED = "The user refused this call."
USAGE = "/tools on or off, with a name for one of them; /tools allow FOLDER"
HOW_TO = (
    "no tools: add tool servers as [tools.servers.NAME] to your settings (see jalopy help tools)"
)
TURN_ON = "/tools on turns them on, /tools on NAME one of them"
OWN = "Jalopy"
"""Owner of the built-in tools in questions."""
_MAX_FOLDERS = 20
_CUT = "\n[cut: there is more]"
_LINE_CHARS = 60
_QUESTION_CHARS = 40
"""Limit on the arguments in the line of a question; longer ones are below it."""
_MAX_LEFT_OUT = 8
"""Limit on the tools in a line that cannot be used."""

MakeServer = Callable[[ToolServerSetting, Callable[[], bool]], ToolSource]
"""Makes a server that is not started. The second argument says whether the user has stopped the
request."""
MakeBuiltIn = Callable[[str, Sequence[str], Callable[[], bool]], ToolSource]
"""Makes built-in tools from a name, the allowed folders, and whether the user has stopped the
request."""
Report = Callable[[str], object]
"""Shows a line about a fault to the user."""


class _ServerState:
    """A tool server of the settings, or built-in tools.

    Attributes:
        setting: Its settings.
        purpose: Purpose of built-in tools; "" for a server of the settings.
        is_on: Whether the user has it on.
        server: The server. None if it is not started.
        tools: Its tools.
        hidden: Names of tools that another server has, too, with the name of that server.
        is_outdated: Whether the tools changed since they were read.
        trouble: Fault of the server; "" without a fault. It is not used until it is turned on
            again.
    """

    def __init__(self, setting: ToolServerSetting, is_on: bool, purpose: str = "") -> None:
        self.setting = setting
        self.is_on = is_on
        self.purpose = purpose
        self.server: ToolSource | None = None
        self.tools: tuple[ServedTool, ...] = ()
        self.hidden: dict[str, str] = {}
        self.is_outdated = False
        self.trouble = ""

    @property
    def is_usable(self) -> bool:
        return self.is_on and not self.trouble

    def end(self) -> None:
        """End the server if it runs."""
        if self.server is not None:
            self.server.close()
            self.server = None

    @property
    def line(self) -> str:
        """Line for the list of servers."""
        name = self.setting.name
        if not self.is_on and self.purpose:
            return f"{name}: off ({self.purpose})"
        if not self.is_on:
            return f"{name}: off"
        if self.trouble:
            return f"{name}: {self.trouble}; /tools on {name} tries it again"
        if self.server is None and self.purpose:
            return f"{name}: on from the next message ({self.purpose})"
        if self.server is None:
            return f"{name}: on, starts with the next message"

        usable = ", ".join(tool.name for tool in self.tools if tool.name not in self.hidden)
        line = f"{name}: on, {usable or 'no tools'}"
        left_out = [
            *self.server.left_out,
            *(f"{tool}: {other} has one" for tool, other in self.hidden.items()),
        ]
        n_more = len(left_out) - _MAX_LEFT_OUT
        if n_more > 0:
            left_out[_MAX_LEFT_OUT:] = [f"{n_more} more"]
        if left_out:
            line += f" (left out: {'; '.join(left_out)})"
        return line


class ToolBox:
    """The tool servers of the settings, and the built-in tools.

    Args:
        settings: Settings of tools.
        make_server: Makes a server.
        can_ask: Whether the user can be asked about a call. Otherwise the model gets only tools
            that always run.
        make_built_in: Makes built-in tools; None if there are none.
    """

    def __init__(
        self,
        settings: ToolSettings,
        make_server: MakeServer,
        can_ask: bool = True,
        make_built_in: MakeBuiltIn | None = None,
    ) -> None:
        self._make_server = make_server
        self._make_built_in = make_built_in
        self._can_ask = can_ask
        self._chosen = settings.built_in
        self.result_tokens = settings.result_tokens
        self.folders = list(settings.folders)
        """Folders with files that may be read."""
        states = [_ServerState(server, settings.use == "on") for server in settings.servers]
        names = {server.name for server in settings.servers}
        for name, purpose in PURPOSES.items():
            if make_built_in is not None and name not in names:
                setting = ToolServerSetting(name, always=settings.always)
                is_on = settings.use == "on" and name in settings.built_in
                states.append(_ServerState(setting, is_on, purpose))
        self._servers = {
            state.setting.name: state for state in states if can_ask or state.setting.always
        }
        self._owners: dict[str, _ServerState] = {}
        """Servers by the names of their tools, until the model gets tools again: a yes to a call
        counts for this server."""

    # ---- the screen's thread

    @property
    def is_on(self) -> bool:
        """Whether a server is on."""
        return any(state.is_on for state in self._servers.values())

    @property
    def starts_next(self) -> bool:
        """Whether the next message starts a server, whose tools are not known yet."""
        return any(state.is_usable and state.server is None for state in self._servers.values())

    def run_command(self, arguments: str) -> str:
        """Run the command ``/tools`` and return the list of servers and built-in tools.

        Raises:
            Refusal: The arguments are wrong.
        """
        if not self._servers:
            return HOW_TO
        word, _, name = arguments.strip().partition(" ")
        if word.lower() == "allow":
            self._allow(name.strip())
        elif word:
            self._turn(word.lower(), name.strip())
        lines = [self._line(state) for state in self._servers.values()]
        if not self.is_on and self._make_built_in is not None:
            lines.append(TURN_ON)
        return "\n".join(lines)

    def _line(self, state: _ServerState) -> str:
        if state.purpose and state.setting.name == FOLDERS and state.is_on and not self.folders:
            return f"{FOLDERS}: on, but no folder is allowed (/tools allow FOLDER)"
        return state.line

    def _allow(self, folder: str) -> None:
        """Let the model read files of a folder until the program ends."""
        state = self._servers.get(FOLDERS)
        if state is None or not state.purpose:
            raise Refusal("there is no built-in tool for folders here")
        folder = folder.strip("'\"")
        path = expanded(folder)
        if not folder or not path.is_dir():
            raise Refusal(
                f"{clean_line(folder, 100) or 'nothing'} is not a folder (/tools allow FOLDER)"
            )
        name = str(path.resolve())
        if name not in self.folders:
            if len(self.folders) >= _MAX_FOLDERS:
                raise Refusal(f"no more than {_MAX_FOLDERS} folders can be allowed")
            self.folders.append(name)
        state.is_on = True
        state.trouble = ""
        state.is_outdated = True

    def _turn(self, word: str, name: str) -> None:
        """Turn a server, or all without a name, on or off."""
        if word not in ("on", "off") or (name and name not in self._servers):
            arguments = clean_line(f"{word} {name}".strip(), 40)
            names = ", ".join(self._servers)
            raise Refusal(f"unknown option '{arguments}' ({USAGE}: {names})")
        states = list(self._servers.values())
        if name:
            states = [self._servers[name]]
        elif word == "on":
            states = [
                state for state in states if not state.purpose or state.setting.name in self._chosen
            ]
        for state in states:
            state.is_on = word == "on"
            state.trouble = ""

    def owner_of(self, tool_name: str) -> str:
        """Return the name of the server that has a tool; "" for none."""
        state = self._find(tool_name)
        if state is None:
            return ""
        if state.purpose:
            return OWN
        return state.setting.name

    def runs_always(self, tool_name: str) -> bool:
        """Whether a tool runs without a question: by the settings, or because no server has it."""
        state = self._find(tool_name)
        return state is None or tool_name in state.setting.always

    def _find(self, tool_name: str) -> _ServerState | None:
        state = self._owners.get(tool_name)
        if state is not None and state.is_usable:
            return state
        return None

    # ---- the engine thread

    def start(self, is_stopped: Callable[[], bool], report: Report) -> None:
        """Start the servers that are on, and end the others.

        Raises:
            StoppedError: The user stops it.
        """
        for state in self._servers.values():
            if not state.is_usable:
                state.end()
                state.tools = ()
                continue
            server = state.server
            needs_tools = server is None or not server.is_running or server.has_new_tools
            if needs_tools or state.is_outdated:
                state.is_outdated = False
                self._update_tools(state, is_stopped, report)

        self._owners = {}
        for state in self._servers.values():
            state.hidden = {}
            if not state.is_usable:
                continue
            for tool in state.tools:
                owner = self._owners.setdefault(tool.name, state)
                if owner is not state:
                    state.hidden[tool.name] = owner.setting.name

    def _update_tools(
        self, state: _ServerState, is_stopped: Callable[[], bool], report: Report
    ) -> None:
        try:
            tools = self._list_tools(state, is_stopped)
            state.tools = tuple(
                tool for tool in tools if self._can_ask or tool.name in state.setting.always
            )
            self._report_left_out(state, report)
        except ToolServerError as error:
            self._give_up(state, error, report)
        except BaseException:
            state.end()
            raise

    def _list_tools(
        self, state: _ServerState, is_stopped: Callable[[], bool]
    ) -> tuple[ServedTool, ...]:
        """Return the tools of a server, and start it if it does not run."""
        if state.server is not None and state.server.is_running:
            return state.server.list_tools()
        if state.purpose:
            assert self._make_built_in is not None
            state.server = self._make_built_in(state.setting.name, self.folders, is_stopped)
        else:
            state.server = self._make_server(state.setting, is_stopped)
        return state.server.start()

    def _report_left_out(self, state: _ServerState, report: Report) -> None:
        """Report that some tools cannot be used."""
        if state.server is None or not state.server.left_out:
            return
        n_left_out = len(state.server.left_out)
        report(
            f"tool server {state.setting.name}: {counted(n_left_out, 'tool')} left out "
            "(/tools says why)"
        )

    @property
    def definitions(self) -> tuple[dict[str, Any], ...]:
        """Definitions of the tools of all running servers for templates. Of two tools with the same
        name, the first counts."""
        return tuple(
            tool.definition
            for state in self._servers.values()
            if state.is_usable and state.server is not None
            for tool in state.tools
            if self._find(tool.name) is state
        )

    def call(self, call: ToolCall, report: Report) -> str:
        """Run a call and return the result for the model.

        Raises:
            StoppedError: The user stops it.
        """
        state = self._find(call.name)
        if state is None or state.server is None:
            if call.name in self._owners:
                return "The tool's server has ended."
            return "There is no tool of this name."
        try:
            result = state.server.call(call.name, call.values)
        except ToolServerError as error:
            self._give_up(state, error, report)
            return f"The tool failed: {state.trouble}"
        except BaseException:
            state.end()
            raise

        text = result.text
        if result.is_error:
            text = f"The tool reports an error:\n{text}"
        if result.is_cut:
            text += _CUT
        return text or "(nothing)"

    def _give_up(self, state: _ServerState, error: ToolServerError, report: Report) -> None:
        state.end()
        state.trouble = clean_line(str(error), 300)
        report(f"{state.trouble}: continuing without it")

    def close(self) -> None:
        """End all servers."""
        for state in self._servers.values():
            state.end()


def short_arguments(call: ToolCall) -> str:
    """Return the arguments of a call in one line."""
    return clean_line(json.dumps(call.values, ensure_ascii=False), _LINE_CHARS)


def call_question(server: str, call: ToolCall) -> str:
    """Return the question whether a call may run, up to the keys that answer it.

    It is one line if all arguments fit into it; otherwise each has a line of its own.
    """
    origin = "" if server == OWN else f' from "{server}"'
    arguments = json.dumps(call.values, ensure_ascii=False) if call.values else ""
    if len(arguments) <= _QUESTION_CHARS and screen_text(arguments) == arguments:
        return f"Run {f'{call.name} {arguments}'.rstrip()}{origin}? "
    return f"Run {call.name}{origin}?\n{full_arguments(call)}\n"


def full_arguments(call: ToolCall) -> str:
    """Return the arguments of a call, one per line; text of several lines is indented below its
    name. Control and hidden characters are replaced."""
    lines = []
    for name, value in call.values.items():
        if isinstance(value, str) and "\n" in value.strip():
            lines.append(f"{json.dumps(name, ensure_ascii=False)}:")
            lines += [f"    {line}" for line in value.strip().splitlines()]
        else:
            lines.append(json.dumps({name: value}, ensure_ascii=False)[1:-1])
    return screen_text("\n".join(lines) or "(no arguments)")


def summarize_calls(calls: Sequence[ToolCall], results: Sequence[CallResult]) -> str:
    """Return one line for each call with its result."""
    lines = []
    for call, result in zip(calls, results, strict=True):
        text = result.text.strip()
        first_line = clean_line(text.partition("\n")[0], _LINE_CHARS)
        line = f"+ {call.name} {short_arguments(call)}: {first_line}"
        n_more = text.count("\n")
        if n_more:
            line += f" (and {n_more} more {'line' if n_more == 1 else 'lines'})"
        lines.append(line)
    return "\n".join(lines)
