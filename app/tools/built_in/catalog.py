"""The built-in tools by name. Their modules are imported when they are turned on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.program.settings import BUILT_IN_TOOLS
from app.tools.built_in.tool import BuiltInTool, BuiltInTools, Stopped

FOLDERS = "folders"
PYTHON = "python"
PURPOSES = dict(
    zip(
        BUILT_IN_TOOLS,
        (
            "calculates exactly",
            "date and time",
            "reads files in folders that you allow",
            "searches your documents",
            "runs Python in a sandbox",
        ),
        strict=True,
    )
)
"""Purposes of the tools, by name."""


def make_built_in(name: str, folders: Sequence[str], is_stopped: Stopped) -> BuiltInTools:
    """Return built-in tools, which are not started.

    Args:
        name: Name in ``PURPOSES``.
        folders: Folders with files that may be read; the list may grow later.
        is_stopped: Whether the user has stopped the request.
    """
    makers: dict[str, Callable[[], Sequence[BuiltInTool]]] = {
        "calculator": _calculator,
        "clock": _clock,
        FOLDERS: lambda: _folders(folders, is_stopped),
        "documents": lambda: _documents(is_stopped),
        PYTHON: lambda: _python(is_stopped),
    }
    return BuiltInTools(makers[name])


def _calculator() -> Sequence[BuiltInTool]:
    from app.tools.built_in.calculator import calculator_tools

    return calculator_tools()


def _clock() -> Sequence[BuiltInTool]:
    from app.tools.built_in.clock import clock_tools

    return clock_tools()


def _folders(folders: Sequence[str], is_stopped: Stopped) -> Sequence[BuiltInTool]:
    from app.tools.built_in.folders import folder_tools

    if not folders:
        return ()
    return folder_tools(lambda: folders, is_stopped)


def _documents(is_stopped: Stopped) -> Sequence[BuiltInTool]:
    from app.tools.built_in.documents import document_tools

    return document_tools(is_stopped)


def _python(is_stopped: Stopped) -> Sequence[BuiltInTool]:
    from app.tools.built_in.python import python_tools

    return python_tools(is_stopped)
