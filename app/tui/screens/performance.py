"""The performance screen: how fast, how fast it could be, where the time goes, and what the machine
does."""

from __future__ import annotations

from itertools import count

from app.backend.status import Activity
from app.program.settings import AUTO
from app.session.generation import describe_thinking
from app.text.figures import counted
from app.text.glyphs import choose_glyphs
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.graph import GraphScale
from app.tui.drawing.lines import Line, Span, SpanRole, line
from app.tui.screens.figure_screen import FigureScreen
from app.tui.speed.dashboard import dashboard_lines
from app.tui.speed.watch import PerformanceView
from app.tui.widgets.figure_lines import KeyLine, ScreenTitle


class PerformanceScreen(FigureScreen):
    """Shows figures while it is on top, and looks at nothing otherwise.

    It is a mode of its own: Textual goes on drawing what is below a pushed screen, and a streaming
    reply would redraw this one ten times a second.
    """

    BINDINGS = bindings("performance")
    TITLE = "Speed"
    PERIOD_S = 0.5

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__()
        self._watch = chat.performance
        self._keymap = chat.core.keymap
        self._chat_session = chat.core.chat_session
        self._engine_thread = chat.core.engine_thread
        self._numbers = count(1)
        self._glyphs = choose_glyphs()
        self._scale = GraphScale()

    def on_screen_resume(self) -> None:
        """On top: look."""
        self._watch.note_view(self, True)
        self._timer.resume()
        self.call_after_refresh(self.show_figures)

    def on_screen_suspend(self) -> None:
        """Another screen is on top: look no longer."""
        self._watch.note_view(self, False)

    def look(self) -> None:
        """Show the figures, unless drawing is to be rarer."""
        if not self._watch.pace.leaves_out(next(self._numbers)):
            self.show_figures()

    def show_figures(self) -> None:
        """Show the figures of this moment."""
        self._show(self._watch.look())

    def _show(self, view: PerformanceView) -> None:
        self.query_one(ScreenTitle).tell(self._about(view), _state(view))
        self.query_one(KeyLine).tell(
            [(self._keymap.first_key("performance.leave"), "back"), ("arrows", "scroll")]
        )
        self.fill(lambda width: dashboard_lines(view, width, self.room, self._glyphs, self._scale))

    def _about(self, view: PerformanceView) -> str:
        model = self._chat_session.model
        found = view.figures
        if model is None:
            return "no model is open"
        threads = found.threads or view.status.threads
        if model.server:
            return self._glyphs.between.join((model.name, f"computed by {model.server}"))
        parts = [
            model.name,
            model.quantization,
            counted(threads, "thread") if threads else "",
            found.weights_mode,
        ]
        if (thinking := self._engine_thread.inbox.thinking) not in ("", AUTO):
            parts.append(describe_thinking(thinking))
        return self._glyphs.between.join(filter(None, parts))


def _state(view: PerformanceView) -> Line:
    """Say what the engine does, in the colour that its speed has."""
    activity = view.status.activity
    roles = {Activity.READING: SpanRole.READING, Activity.WRITING: SpanRole.WRITING}
    return line(Span(activity.value, roles.get(activity, SpanRole.MUTED)))
