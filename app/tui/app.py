"""The application: themes, keys that work on every screen, signals, and its end.

``app.tui.start`` is the way in. Textual reads its switches when it is imported, so
``app.machine.sensors.low_power`` must have set them before this module is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from textual import on
from textual.app import App, SystemCommand
from textual.screen import Screen
from textual.scrollbar import ScrollBar
from textual.worker import WorkerFailed

from app.backend import kernel_build
from app.backend.engine_thread import EngineThread
from app.backend.options import ChatOptions
from app.machine.sensors.low_power import is_weak_machine
from app.models.downloads.background import BackgroundDownload
from app.program import exit_codes, garbage, notices, state
from app.program.manual import page
from app.program.personas import persona_names
from app.program.refusals import bug_line, exit_code_of, line_of
from app.program.remote_model import ModelPlace
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.glyphs import is_console
from app.tui.actions import ACTIONS, CHAT
from app.tui.bindings import bindings, scope_of
from app.tui.chat.messages import PasteRefused, PasteUnended
from app.tui.chat.screen import ChatScreen
from app.tui.chat_options import chat_options
from app.tui.console_letters import ConsoleLetters
from app.tui.keymap import Keymap
from app.tui.live_settings import LiveSettings
from app.tui.screens import make_screen
from app.tui.speed.watch import SLOWEST, InterfacePace, PerformanceWatch
from app.tui.terminal_graphics import GraphicsAnswer, TerminalGraphics
from app.tui.terminal_input import TerminalDriver
from app.tui.textual_hacks import (
    LineBar,
    ThriftyStylesheet,
    add_line_filter,
    call_once,
    make_thrifty,
    stop_and_go_on_between_events,
    teach_alt_enter,
)
from app.tui.themes import (
    ThemeError,
    choose_theme,
    load_themes,
    load_user_themes,
    meanings,
    no_such_theme,
)

if TYPE_CHECKING:
    from textual.dom import DOMNode

    from app.models.library.listing import ModelEntry

QUIT_WINDOW_S = 3.0
INTERFACE_COST_PERIOD_S = 1.0
DOWNLOAD_LOOK_S = 1.0
LENT_SIGNALS_S = 0.2
"""Seconds after the user's editor ends in which Ctrl+C is ignored: the editor got it too."""
EXIT_PATIENCE_S = 1.5
"""Limit in seconds on the end after a signal, since Textual waits for a dead terminal."""
SAVING_PATIENCE_S = 1.0
"""Limit on the wait for a slow disk when leaving; a signal's exit code comes within
``EXIT_PATIENCE_S``."""


class JalopyApp(App[None], inherit_bindings=False):
    """The terminal application."""

    TITLE = "jalopy"
    CSS_PATH = "app.tcss"
    DEFAULT_MODE = CHAT
    BINDINGS = bindings("app")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-normal"), (120, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (12, "-high"), (36, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        settings: Settings,
        model_path: ModelPlace | None = None,
        *,
        options: ChatOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        keymap: Keymap | None = None,
        remembered_theme: str = "",
    ) -> None:
        # With NO_COLOR, Textual would show greys, and mark the cursor by a shade alone.
        super().__init__(TerminalDriver, ansi_color=True if "NO_COLOR" in os.environ else None)
        teach_alt_enter()
        ScrollBar.renderer = LineBar
        self.stylesheet = ThriftyStylesheet(self.get_css_variables())
        self.engine_thread = EngineThread(options or chat_options(settings), clock)
        self.live = LiveSettings(settings, self.engine_thread, self._show_theme)
        self.crash_line: str | None = None
        self.crash_code = exit_codes.INTERNAL
        self.kernels = kernel_build.KernelBuild(self.engine_thread, self._say_kernels_are_built)
        self.downloads = BackgroundDownload()
        self.parting_line = ""
        self.graphics: TerminalGraphics | None = None
        """Pictures that the terminal shows as such; None without a terminal."""
        self._interrupted_s: float | None = None
        self._is_lent = False
        self.keymap = keymap or Keymap()
        self._theme_error = self._set_up_theme(remembered_theme)
        # On weak machines drawing begins at its slowest, until it is measured as cheap.
        self.performance = PerformanceWatch(
            self.engine_thread, InterfacePace(SLOWEST if is_weak_machine() else 1)
        )
        self.chat = ChatScreen(
            self.live, self.keymap, self.engine_thread, self.performance, self.downloads, model_path
        )
        self.drafts_line: str | None = None
        """Line for stderr about unsent messages; None until the program ends."""
        self.used_commands: list[str] = []
        """Titles of the palette's commands that were used, the last one first."""
        self.unsaved = ""
        """Reason why the conversation could not be saved, set at the end; "" if it was."""
        if is_console():
            add_line_filter(self, ConsoleLetters())
        # A mode, so Textual lays out no empty screen below the chat.
        self.add_mode(CHAT, lambda: self.chat)
        for action in ACTIONS.values():
            if action.shows not in ("", CHAT):
                self.add_mode(action.shows, partial(make_screen, action.shows, self.chat))

    def on_mount(self) -> None:
        """Begin to watch signals, downloads, notices and the cost of drawing."""
        if isinstance(self._driver, TerminalDriver):
            self.graphics = self._driver.graphics
        self.set_keymap(self.keymap.for_textual())
        self.set_class(is_console(), "-console")
        self.set_interval(INTERFACE_COST_PERIOD_S, self.performance.look)
        self.set_interval(DOWNLOAD_LOOK_S, self._look_at_download)
        self.set_interval(DOWNLOAD_LOOK_S, self._show_notices)
        self.set_interval(kernel_build.PERIOD_S, self.kernels.poll)
        self.call_after_refresh(self._show_notices)
        if self._theme_error:
            self.call_after_refresh(self.chat.core.say, self._theme_error, True)
        if not self.is_headless:
            self._watch_signals()
            self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
            self.call_after_refresh(garbage.settle)

    def _load_screen_css(self, screen: Screen[object]) -> None:
        make_thrifty(screen)  # what every screen comes by, before it has widgets
        super()._load_screen_css(screen)

    def on_unmount(self) -> None:
        """Save the conversation, and end the engine thread and a download, which can be resumed."""
        self._queue_running_reply()
        self._save_drafts()
        self.parting_line = self.downloads.leave()
        self.kernels.close()
        self.engine_thread.close()
        self.unsaved = self.chat.core.chat_session.journal.close(SAVING_PATIENCE_S)

    def _queue_running_reply(self) -> None:
        """Queue the running reply for the saver; an error must not keep the program from ending."""
        with suppress(Exception):
            self.chat.core.chat_session.save_partial()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the palette's entries for a screen: actions with their keys and commands."""
        carriers: dict[str, DOMNode] = {scope_of(screen.BINDINGS): screen, "app": self}
        if screen is self.chat:
            carriers["prompt"] = self.chat.prompt
        for action_id, action in ACTIONS.items():
            carrier = carriers.get(action.scope)
            if carrier is not None and action.name != "command_palette":
                help_text = "   ".join(
                    filter(None, (self.keymap.key_names(action_id), action.command_line))
                )
                begin = partial(self.chat.prompt.begin_command, action.command)
                act = partial(self.run_action, action.call, carrier)
                yield SystemCommand(
                    action.title, help_text, begin if action.needs_argument else act
                )
        if screen is self.chat:
            for name in persona_names():
                yield SystemCommand(
                    f"Persona: {name}",
                    f"/persona {name}",
                    partial(self.chat.conversations.action_persona, name),
                )

    # ---- actions

    def action_help(self, topic: str = "") -> None:
        """Show keys and commands, or a topic of the manual."""
        if topic:
            with self.chat.core.refusals_said():
                self._show_page(topic)
        elif not self.screen.is_modal:
            from app.tui.screens.help import HelpScreen, help_sections

            sections = help_sections(self.screen, self.keymap)
            self.push_screen(HelpScreen(sections, self.keymap.first_key("help.leave")))

    def _show_page(self, topic: str) -> None:
        text = page(topic)
        if not self.screen.is_modal:
            from app.tui.screens.manual import ManualScreen

            self.push_screen(ManualScreen(text, self.keymap.first_key("manual.leave")))

    def action_command_palette(self) -> None:
        """Open the command palette."""
        if not self.screen.is_modal:
            from app.tui.screens.palette import Palette

            self.push_screen(Palette())

    async def action_report(self, path: str = "") -> None:
        """Copy a card with machine, model and speeds, or write it to a file."""
        # no first frame waits for it
        from app.models.library.report_card import (
            as_text,
            report_of_chat,
            write_card,
        )

        with self.chat.core.refusals_said():
            card = report_of_chat(self.engine_thread, self.chat.core.chat_session)
            if path:
                self.chat.core.say(write_card(card, path))
            else:
                self.chat.core.say(as_text(card))
                await self.chat.messages.copy_out(as_text(card))

    def action_theme(self, name: str = "") -> None:
        """Choose a theme by its name, or from a list."""
        if not name:
            if not self.screen.is_modal:
                from app.tui.screens.theme_picker import ThemePicker

                # A new screen each time, which remembers the present theme.
                self.push_screen(ThemePicker(self.keymap), self._keep_theme)
        elif name in self.available_themes:
            self.theme = name
            self._keep_theme(name)
        else:
            self.chat.core.say(no_such_theme(name, self.available_themes), True)

    def action_show(self, mode: str) -> None:
        """Go to a screen, or from that screen back to the chat."""
        if self.screen.is_modal:
            return
        if self.current_mode == "threads":
            self.chat.core.chat_session.stop_tuning()
        if mode in ("conversations", "documents") and self.chat.core.storage.store is None:
            self.switch_mode(CHAT)  # where the line is seen
            self.chat.core.say(
                "conversations are not saved: save_conversations in your settings is off"
            )
        else:
            self.switch_mode(CHAT if self.current_mode == mode else mode)

    def action_get(self, repository: str = "") -> None:
        """Show the running download, or download a model: a given one, or one of the offers for
        this machine.
        """
        if self.screen.is_modal:
            return
        if self.downloads.is_running:
            self._show_download()
        elif repository:
            self._download(repository)
        else:
            screen = make_screen("offers", self.live.now, self.engine_thread, self.keymap)
            self.push_screen(screen, self._take_offer)

    def _take_offer(self, choice: ModelEntry | Literal["list"] | None) -> None:
        """Open a chosen file, download a chosen model, or list all models."""
        if choice is None:
            return
        if choice == "list":
            self.action_show("models")
        elif choice.is_here:
            self._open_downloaded(str(choice.path))
        else:
            self._download(choice.repository)

    def _download(self, repository: str) -> None:
        from app.models.downloads.job import PullJob

        self.downloads.take(PullJob(repository, self.live.now).start())
        self._show_download()

    def _show_download(self) -> None:
        screen = make_screen("download", self.downloads.job, self.keymap)
        self.push_screen(screen, self._open_downloaded)

    def _open_downloaded(self, path: str | None) -> None:
        if path is not None and not self.chat.models.open(Path(path), clean_line(Path(path).name)):
            self.chat.core.say(self.chat.core.busy_line())

    def _show_notices(self) -> None:
        """Say in the chat which files were repaired or cannot be used."""
        if not self.screen_stack:  # screens go away before the timers do
            return
        store = self.chat.core.storage.store
        if store is not None:
            mended = store.take_chat_notice()
        else:
            mended = ""
        for line in filter(None, [mended, *notices.take_all()]):
            self.chat.core.say(line, True)

    def _say_kernels_are_built(self) -> None:
        if self.screen_stack:  # screens go away before the timers do
            self.chat.core.say("Faster code for this processor is ready: the next start uses it")

    def _look_at_download(self) -> None:
        """Say in the chat how a download ended, whatever screen is shown."""
        # screens go away before the timers do
        if self.downloads.job is None or not self.screen_stack:
            return
        from app.tui.screens.download import DownloadScreen
        from app.tui.screens.models import ModelsScreen

        if ending := self.downloads.take_ending(is_seen=isinstance(self.screen, DownloadScreen)):
            line, is_error = ending
            key = self.keymap.first_key("app.models")
            self.chat.core.say(line if is_error or not key else f"{line}. Press {key}", is_error)
            if isinstance(self.screen, ModelsScreen):
                self.screen.end_download(line)

    async def action_interrupt(self) -> None:
        """Copy selected text, else stop the reply, else clear the prompt; else quit the second
        time in a row.
        """
        prompt = self.chat.prompt
        if prompt.leave_search():
            return
        selected = self.screen.get_selected_text() or (
            prompt.selected_text if self.focused is prompt else ""
        )
        if selected:
            self.screen.clear_selection()
            await self.chat.messages.copy_out(selected)
            return

        now_s = time.monotonic()
        is_again = self._interrupted_s is not None and now_s - self._interrupted_s < QUIT_WINDOW_S
        chat_session = self.chat.core.chat_session
        is_running = chat_session.is_busy and not chat_session.is_loading
        can_clear = self.focused is prompt and self.chat.composer.can_clear
        hint = self.keymap.hint("app.interrupt", "again quits")
        if can_clear and (is_again or not is_running):
            hint = f"{self.chat.composer.clear_into_history()} · {hint}"
        elif is_again:
            self.exit()
            return
        else:
            chat_session.stop()
            if can_clear:
                hint = self.keymap.hint("app.interrupt", "again clears the prompt")
        self._interrupted_s = now_s
        self.chat.core.edge.hint_for(QUIT_WINDOW_S, hint)

    @on(PasteRefused)
    @on(PasteUnended)
    def tell_of_paste(self, message: PasteRefused | PasteUnended) -> None:
        """Say why a paste was refused, or why keys did nothing."""
        self.chat.core.say(message.line)

    # ---- graphics of the terminal

    @on(GraphicsAnswer)
    def take_graphics_answer(self, message: GraphicsAnswer) -> None:
        """Draw pictures as the terminal can, now that it has answered."""
        if self.graphics is not None and self.graphics.take(message.sequence):
            self._draw_previews_again()

    def on_resize(self) -> None:
        """Draw pictures again if the cells have another size in pixels."""
        if self.graphics is not None and self.graphics.resize():
            self._draw_previews_again()

    def _draw_previews_again(self) -> None:
        from app.tui.widgets.picture_preview import PicturePreview

        for preview in self.chat.query(PicturePreview):
            preview.show_graphics()
        # All of it: a picture for larger cells may cover more than its preview.
        self.refresh(layout=True)

    # ---- themes

    def get_css_variables(self) -> dict[str, str]:
        """Return Textual's variables of the theme, and those for the meanings of colours."""
        variables = super().get_css_variables()
        return {**variables, **meanings(self.current_theme, variables)}

    def _keep_theme(self, name: str | None) -> None:
        """Save the theme for the next start, except on a console, whose colours are special."""
        if name is None:
            return
        if is_console():
            trouble = None
        else:
            trouble = state.remember_theme(name)
        if trouble:
            self.chat.core.say(trouble, True)
        elif self.live.now.theme not in ("", name):
            self.chat.core.say(
                f"theme: {name}, until you leave: your settings name {self.live.now.theme}"
            )
        else:
            self.chat.core.say(f"theme: {name}")

    def _show_theme(self, name: str) -> None:
        if name in self.available_themes:
            self.theme = name

    def _set_up_theme(self, remembered: str) -> str | None:
        try:
            for theme in load_themes():
                self.register_theme(theme)
        except ThemeError as error:
            return str(error)
        user_themes, trouble = load_user_themes()
        for theme in user_themes:
            self.register_theme(theme)
        name = self.live.now.theme or ("" if is_console() else remembered)
        self.theme = choose_theme(
            name, self.available_themes, is_console() or self._has_few_colours()
        )
        if self.live.now.theme and self.live.now.theme not in self.available_themes:
            return no_such_theme(self.live.now.theme, self.available_themes)
        return trouble or None

    def _has_few_colours(self) -> bool:
        """Return whether the terminal has only 16 colours, for which there is a special theme."""
        return bool(os.environ.get("TERM")) and self.console.color_system == "standard"

    # ---- the end

    def _watch_signals(self) -> None:
        if self._driver is not None and hasattr(signal, "SIGCONT"):
            stop_and_go_on_between_events(self._driver)
        # signal.signal with App.exit does not end Textual; the loop's own handlers do
        # (Textual#5140).
        loop = asyncio.get_running_loop()
        for number, code in exit_codes.BY_SIGNAL.items():
            loop.add_signal_handler(number, self._leave, code)

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Lend the terminal to another program, and ignore Ctrl+C typed there."""
        self._is_lent = True
        try:
            with super().suspend():
                yield
        finally:
            # The event loop handles the signals of that time only now.
            call_once(self, LENT_SIGNALS_S, partial(setattr, self, "_is_lent", False))

    def _leave(self, code: int) -> None:
        """Exit with a code, even if Textual waits for a terminal that is gone."""
        if self._is_lent and code == exit_codes.INTERRUPTED:
            return
        watchdog = threading.Timer(EXIT_PATIENCE_S, os._exit, [code])
        watchdog.daemon = True
        with suppress(RuntimeError, MemoryError):  # the system refuses another thread
            watchdog.start()
        self._queue_running_reply()  # The watchdog may end the process before on_unmount.
        self._save_drafts()
        self.exit(return_code=code)

    def _handle_exception(self, error: Exception) -> None:
        """Handle an exception, unless the application is exiting already."""
        if not self._exit:
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """End after an unhandled exception without Textual's traceback.

        A traceback shows local variables, and so text of the conversation.
        """
        self._crash(self._exception or sys.exc_info()[1])

    def panic(self, *renderables: object) -> None:
        """End after an error in Textual, such as one in its input thread."""
        self._crash(sys.exc_info()[1])

    def _save_drafts(self) -> None:
        if self.drafts_line is None:
            self.drafts_line = ""
            with suppress(Exception):  # it may be what is broken; the end goes on without
                self.drafts_line = self.chat.composer.save_drafts(SAVING_PATIENCE_S)

    def _crash(self, error: BaseException | None) -> None:
        if isinstance(error, WorkerFailed):
            error = error.error  # where it happened, and what
        if self.crash_line is None:
            if error is not None:
                line = bug_line(error)
            else:
                line = "internal error: unknown error (not logged)"
            self.crash_line = f"jalopy: {line}"
            if error is not None and exit_code_of(error) == exit_codes.NO_MEMORY:
                self.crash_line = line_of(error)
                self.crash_code = exit_codes.NO_MEMORY
        self._save_drafts()
        self._return_code = self.crash_code
        self._close_messages_no_wait()
