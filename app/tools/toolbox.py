"""Tools of the user's servers: which are on, what they offer, and what comes of a call.

The screen's thread turns servers on and off and looks at what they offer; the engine's starts, asks
and ends them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from app.program.refusals import Refusal
from app.program.settings import ToolServerSetting, ToolSettings
from app.text.clean_text import clean_line, screen_text
from app.text.figures import counted
from app.tools.mcp.offered import ServedTool
from app.tools.mcp.server import ToolServer, ToolServerError
from engine.prompt.tools.calls import CallResult, ToolCall

MOST_ROUNDS = 8
"""Limit on rounds of calls for one message of the user's."""
TOO_MANY_ROUNDS = f"{MOST_ROUNDS} rounds of calls for one message are enough: this one is not run"
REFUSED = "The user refused this call."
USAGE = "/tools on or off, and perhaps the name of a server"
HOW_TO = (
    "no tools: [tools.servers.NAME] in your settings says which programs have some (jalopy help "
    "tools)"
)
_CUT = "\n[cut: it says more]"
_SHOWN_CHARS = 60
_MOST_LEFT_OUT = 8

MakeServer = Callable[[ToolServerSetting, Callable[[], bool]], ToolServer]
"""Makes a server that is not started; the second argument says when the user wants to wait no
longer."""


class _ServerState:
    """A server of the settings, and what is known of it."""

    def __init__(self, setting: ToolServerSetting, is_on: bool) -> None:
        self.setting = setting
        self.is_on = is_on
        self.server: ToolServer | None = None
        self.tools: tuple[ServedTool, ...] = ()
        self.hidden: dict[str, str] = {}
        """Its tools that another server has too, and which."""
        self.trouble = ""
        """What it did wrong: it is not asked again before it is turned on again."""

    @property
    def is_usable(self) -> bool:
        return self.is_on and not self.trouble

    def end(self) -> None:
        """End its process, if one runs."""
        if self.server is not None:
            self.server.close()
            self.server = None

    @property
    def line(self) -> str:
        """What the list says of it."""
        name = self.setting.name
        if not self.is_on:
            return f"{name}: off"
        if self.trouble:
            return f"{name}: {self.trouble}; /tools on {name} tries it again"
        if self.server is None:
            return f"{name}: on, starts with the next message"
        usable = [tool.name for tool in self.tools if tool.name not in self.hidden]
        left_out = [
            *self.server.left_out,
            *(f"{tool}: {other} has one" for tool, other in self.hidden.items()),
        ]
        more = len(left_out) - _MOST_LEFT_OUT
        if more > 0:
            left_out[_MOST_LEFT_OUT:] = [f"{more} more"]
        if left_out:
            reasons = f" (left out: {'; '.join(left_out)})"
        else:
            reasons = ""
        return f"{name}: on, {', '.join(usable) or 'no tools'}{reasons}"


class ToolBox:
    """The servers of the settings.

    Args:
        make: makes their servers.
        can_ask: whether the user can be asked about a call; else only tools are told of that always
            run.
    """

    def __init__(self, settings: ToolSettings, make: MakeServer, can_ask: bool = True) -> None:
        self._make = make
        self._can_ask = can_ask
        self.result_tokens = settings.result_tokens
        servers = [one for one in settings.servers if can_ask or one.always]
        self._served = {one.name: _ServerState(one, settings.use == "on") for one in servers}
        self._owners: dict[str, _ServerState] = {}
        """Whose each tool is until the model is told of tools again: a yes to a call counts for
        this server."""

    # ---- the screen's thread

    @property
    def is_on(self) -> bool:
        """Whether a server is on."""
        return any(one.is_on for one in self._served.values())

    @property
    def starts_next(self) -> bool:
        """Whether the next message starts a server, whose tools no one knows yet."""
        return any(one.is_usable and one.server is None for one in self._served.values())

    def obey(self, wanted: str) -> str:
        """Do what comes after ``/tools``; returns what to show.

        Raises Refusal: it means nothing.
        """
        if not self._served:
            return HOW_TO
        word, _, name = wanted.strip().partition(" ")
        if word:
            self._turn(word.lower(), name.strip())
        return "\n".join(one.line for one in self._served.values())

    def _turn(self, word: str, name: str) -> None:
        if word not in ("on", "off") or (name and name not in self._served):
            known = ", ".join(self._served)
            raise Refusal(
                f"'{clean_line(f'{word} {name}'.strip(), 40)}' means nothing here "
                f"({USAGE}: {known})"
            )
        for one in [self._served[name]] if name else self._served.values():
            one.is_on = word == "on"
            one.trouble = ""

    def owner_of(self, tool_name: str) -> str:
        """Return the server that has a tool of this name; "" for none."""
        found = self._find(tool_name)
        if found is not None:
            return found.setting.name
        return ""

    def runs_always(self, tool_name: str) -> bool:
        """Whether a tool runs without a question: its server's settings say so, or no one has it
        and nothing runs."""
        found = self._find(tool_name)
        return found is None or tool_name in found.setting.always

    def _find(self, tool_name: str) -> _ServerState | None:
        owner = self._owners.get(tool_name)
        if owner is not None and owner.is_usable:
            return owner
        return None

    # ---- the engine's thread

    def start(self, is_stopped: Callable[[], bool], note: Callable[[str], object]) -> None:
        """Start the servers that are on, and end the others; ``note``: takes a line on a fault.

        Raises StoppedError.
        """
        for one in self._served.values():
            if not one.is_usable:
                one.end()
                one.tools = ()
            elif one.server is None or not one.server.is_running or one.server.has_new_tools:
                try:
                    told = self._tools_of(one, is_stopped)
                    one.tools = tuple(
                        tool for tool in told if self._can_ask or tool.name in one.setting.always
                    )
                    self._note_left_out(one, note)
                except ToolServerError as error:
                    self._give_up(one, error, note)
                except BaseException:
                    one.end()
                    raise
        self._owners = {}
        for one in self._served.values():
            one.hidden = {}
            for tool in one.tools if one.is_usable else ():
                owner = self._owners.setdefault(tool.name, one)
                if owner is not one:
                    one.hidden[tool.name] = owner.setting.name

    def _tools_of(
        self, one: _ServerState, is_stopped: Callable[[], bool]
    ) -> tuple[ServedTool, ...]:
        """Return the tools of a server, which starts if it does not run.

        Raises ToolServerError, or StoppedError.
        """
        if one.server is not None and one.server.is_running:
            return one.server.list_tools()
        one.server = self._make(one.setting, is_stopped)
        return one.server.start()

    def _note_left_out(self, one: _ServerState, note: Callable[[str], object]) -> None:
        """Say that a server has tools that cannot be used."""
        if one.server is not None:
            n_left_out = len(one.server.left_out)
        else:
            n_left_out = 0
        if n_left_out:
            name = one.setting.name
            note(f"tool server {name}: {counted(n_left_out, 'tool')} left out (/tools says why)")

    @property
    def offered(self) -> tuple[dict[str, Any], ...]:
        """The tools of the servers that run, as templates take them; of two with the same name, the
        first."""
        running = [one for one in self._served.values() if one.is_usable and one.server is not None]
        return tuple(
            tool.for_template
            for one in running
            for tool in one.tools
            if self._find(tool.name) is one
        )

    def call(self, call: ToolCall, note: Callable[[str], object]) -> str:
        """Run a call; returns what the model is told.

        ``note``: takes a line on a fault. Raises StoppedError.
        """
        found = self._find(call.name)
        if found is None or found.server is None:
            if call.name in self._owners:
                return "The tool's server has ended."
            return "There is no tool of this name."
        try:
            result = found.server.call(call.name, call.values)
        except ToolServerError as error:
            self._give_up(found, error, note)
            return f"The tool failed: {found.trouble}"
        except BaseException:
            found.end()
            raise
        if result.is_error:
            error_word = "The tool reports an error:\n"
        else:
            error_word = ""
        return f"{error_word}{result.text}{_CUT if result.is_cut else ''}" or "(nothing)"

    def _give_up(
        self, one: _ServerState, error: ToolServerError, note: Callable[[str], object]
    ) -> None:
        one.end()
        one.trouble = clean_line(str(error), 300)
        note(f"{one.trouble}: the reply goes on without it")

    def close(self) -> None:
        """End all servers."""
        for one in self._served.values():
            one.end()


def shown_arguments(call: ToolCall) -> str:
    """Return the arguments of a call in one line."""
    return clean_line(json.dumps(call.values, ensure_ascii=False), _SHOWN_CHARS)


def whole_arguments(call: ToolCall) -> str:
    """Return the arguments of a call, one a line; nothing in them acts on the terminal or hides."""
    lines = [
        json.dumps({name: value}, ensure_ascii=False)[1:-1] for name, value in call.values.items()
    ]
    return screen_text("\n".join(lines) or "(no arguments)")


def folded(calls: Sequence[ToolCall], results: Sequence[CallResult]) -> str:
    """Return a line for each call with its result."""
    lines = []
    for call, result in zip(calls, results, strict=True):
        said = result.text.strip()
        more = said.count("\n")
        if more:
            end = f" (and {more} more {'line' if more == 1 else 'lines'})"
        else:
            end = ""
        lines.append(
            f"+ {call.name} {shown_arguments(call)}: "
            f"{clean_line(said.partition(chr(10))[0], _SHOWN_CHARS)}{end}"
        )
    return "\n".join(lines)
