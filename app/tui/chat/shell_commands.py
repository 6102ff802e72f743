"""Shell commands typed after "!": their output goes with the next message."""

from __future__ import annotations

from asyncio import CancelledError, Task, create_task, sleep
from contextlib import suppress

from app.documents.passages import FileText
from app.documents.text_file import attached
from app.program.shell_output import shell_output
from app.text.clean_text import clean_line
from app.tui.actions import SHELL_SIGN
from app.tui.chat.core import ChatCore
from app.tui.chat.draft import Draft
from app.tui.screens import make_screen

_NAME_CHARS = 60
_HINT_PERIOD_S = 1.0


class ShellCommands:
    """Runs shell commands for the user, who is asked once before the first."""

    def __init__(self, core: ChatCore) -> None:
        self._core = core
        self._is_allowed = False
        """Whether the user has agreed since the program started."""
        self._running: Task[FileText] | None = None

    async def run(self, command: str) -> None:
        """Run a command after the user has agreed, and attach its output to the next message."""
        core = self._core
        if not await self._may_run(command):
            if not core.prompt.text:
                core.prompt.show_draft(Draft(f" {SHELL_SIGN}{command}"))
            core.edge.hint_for(8.0, "a message may begin with ! after a space")
            return
        self._running = create_task(_output_of(command))
        hint = create_task(self._show_progress(command))
        try:
            core.prompt.attach([await self._running])
        except CancelledError:
            core.say(f"Stopped: {clean_line(command, _NAME_CHARS)}")
        except OSError as error:
            core.say(f"{clean_line(command, _NAME_CHARS)}: {error.strerror}", is_error=True)
        finally:
            self._running = None
            hint.cancel()
            core.edge.hint()

    async def _may_run(self, command: str) -> bool:
        if not self._is_allowed:
            core = self._core
            question = make_screen(
                "question",
                clean_line(command, 500),
                core.keymap,
                core.engine_thread.now_s,
                kind="RunShellScreen",
            )
            self._is_allowed = bool(await core.screen.app.push_screen_wait(question))
        return self._is_allowed

    async def _show_progress(self, command: str) -> None:
        """Name the running command and the key that stops it, until this is cancelled."""
        name = clean_line(command, _NAME_CHARS)
        stop = self._core.keymap.hint("chat.stop", "stops it")
        with suppress(CancelledError):
            while True:
                await sleep(_HINT_PERIOD_S)
                self._core.edge.hint(" · ".join(filter(None, (f"running {name}", stop))))

    def stop(self) -> bool:
        """Stop the running command; return False if none is running."""
        if self._running is None:
            return False
        self._running.cancel()
        return True


async def _output_of(command: str) -> FileText:
    output = await shell_output(command)
    name = f"$ {clean_line(command, _NAME_CHARS)}"
    return FileText(name, attached(name, output.text), output.text)
