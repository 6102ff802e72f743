"""A built-in tool: a function with a description, in place of a tool server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from app.text.clean_text import clean_text
from app.text.record import record
from app.tools.mcp.served_tools import ServedTool
from app.tools.mcp.server import ToolResult

MAX_RESULT_CHARS = 1 << 16
"""Limit on a result; the rest is cut."""

Stopped = Callable[[], bool]
"""Whether the user has stopped the request."""
Function = Callable[[Mapping[str, Any]], str]
"""Returns the result of a call with these arguments.

It raises ``ToolFailure`` if the model should try otherwise.
"""


class ToolFailure(Exception):
    """Reason why a call has no result, in a line for the model."""


class ToolSource(Protocol):
    """Source of tools: a tool server or a built-in tool. Methods raise ToolServerError."""

    left_out: tuple[str, ...]
    """Lines about tools that cannot be used."""
    has_new_tools: bool
    """Whether the list of tools has changed since it was read."""

    @property
    def is_running(self) -> bool:
        """Whether calls are possible."""

    def start(self) -> tuple[ServedTool, ...]:
        """Make calls possible and return the tools."""

    def list_tools(self) -> tuple[ServedTool, ...]:
        """Return the tools."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a call."""

    def close(self) -> None:
        """End what was started."""


@record
class BuiltInTool:
    """A tool and the function that computes its results."""

    tool: ServedTool
    function: Function


class BuiltInTools:
    """Built-in tools that are turned on and off together.

    Args:
        make_tools: Returns the tools; raises ToolServerError if they cannot be used here.
    """

    def __init__(self, make_tools: Callable[[], Sequence[BuiltInTool]]) -> None:
        self._make_tools = make_tools
        self._tools: dict[str, BuiltInTool] = {}
        self.left_out: tuple[str, ...] = ()
        self.has_new_tools = False

    @property
    def is_running(self) -> bool:
        """Whether the tools were made."""
        return bool(self._tools)

    def start(self) -> tuple[ServedTool, ...]:
        """Make the tools and return them."""
        return self.list_tools()

    def list_tools(self) -> tuple[ServedTool, ...]:
        """Make the tools again and return them."""
        self.has_new_tools = False
        tools = self._make_tools()
        self._tools = {item.tool.name: item for item in tools}
        return tuple(item.tool for item in tools)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a call. A failure is a result with an error."""
        item = self._tools[name]
        required = item.tool.parameters["required"]
        missing = [parameter for parameter in required if parameter not in arguments]
        if missing:
            return ToolResult(f"The call lacks {', '.join(missing)}.", is_error=True)
        try:
            text = item.function(arguments)
        except ToolFailure as failure:
            return ToolResult(clean_text(str(failure)[:MAX_RESULT_CHARS]), is_error=True)
        is_cut = len(text) > MAX_RESULT_CHARS
        return ToolResult(clean_text(text[:MAX_RESULT_CHARS]), is_cut=is_cut)

    def close(self) -> None:
        """Forget the tools."""
        self._tools = {}


def text_parameters(
    required: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the schema of parameters that are texts.

    Args:
        required: Descriptions of the required parameters by name.
        optional: Descriptions of the others.
    """
    properties = {
        name: {"type": "string", "description": description}
        for name, description in {**required, **(optional or {})}.items()
    }
    return {"type": "object", "properties": properties, "required": list(required)}
