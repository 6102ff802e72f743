"""Start of the terminal application, and its messages and exit code at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from app.program import exit_codes, notices, paths, refusals, state
from app.program.remote_model import ModelPlace
from app.program.settings import Settings
from app.tui.keymap import load_keymap


def run_tui(settings: Settings, model_path: ModelPlace | None = None, persona: str = "") -> int:
    """Run the chat and return the exit code of the process.

    Args:
        persona: name of the persona that the settings have the parts of; "" for none.

    Raises:
        KeymapError: The user's key map has a mistake.
    """
    import_textual()
    from app.tui.app import JalopyApp

    _draw_on_the_terminal()
    saved_state, trouble = state.load_state()
    state_file = paths.state_file()
    if trouble and state_file is not None:
        notices.add(state_file, trouble)
    app = JalopyApp(
        settings, model_path, keymap=load_keymap(), remembered_theme=saved_state.theme or ""
    )
    app.chat.core.chat_session.change_options(persona=persona)
    app.run()
    if app.parting_line:
        refusals.say(f"jalopy: {app.parting_line}")
    code = app.return_code or exit_codes.OK
    if app.crash_line is not None:
        refusals.say(app.crash_line)
        code = app.crash_code
    if app.drafts_line:
        refusals.say(f"jalopy: {app.drafts_line}")
    if app.unsaved:
        refusals.say(
            f"jalopy: conversation not saved: {app.unsaved} (the next start resumes what was "
            f"saved before)"
        )
        code = code or exit_codes.IO_ERROR
    if app.engine_thread.is_alive:
        # The engine thread is still compiling or in a step. Shutting the interpreter down under it
        # could crash, and everything is saved by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _draw_on_the_terminal() -> None:
    """Make stderr the terminal, because Textual draws on it and it may be redirected or closed."""
    if sys.__stderr__ is None or not sys.__stderr__.isatty():
        sys.__stderr__ = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")  # type: ignore[misc]


_PALETTE = "textual.command"
_PALETTE_NAMES = (
    "CommandListItem",
    "CommandPalette",
    "DiscoveryHit",
    "Hit",
    "Hits",
    "Provider",
    "SimpleProvider",
)


def import_textual() -> None:
    """Import Textual without its command palette and without TLS, which saves a tenth of a start.

    The palette and https import the rest when they are used. Textual 8.2 imports its palette, and
    with it lists, trees and inputs, together with the application. Remove this when it does not.
    """
    if "textual.app" not in sys.modules:
        palette = ModuleType(_PALETTE)
        vars(palette).update({name: type(name, (), {}) for name in _PALETTE_NAMES})
        with _left_out("ssl", None), _left_out(_PALETTE, palette):
            import_module("textual.app")


@contextmanager
def _left_out(name: str, replacement: ModuleType | None) -> Iterator[None]:
    """Replace a module for a while. None makes its import fail, which asyncio accepts for ssl."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = replacement  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
