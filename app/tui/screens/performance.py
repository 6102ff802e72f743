"""The performance screen: speed, its limit, where the time goes, and the state of the machine."""

from __future__ import annotations

from itertools import count

from app.backend.status import Activity
from app.program.settings import AUTO
from app.session.reply_options import describe_thinking
from app.text.figures import counted
from app.text.glyphs import choose_glyphs
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.graph import GraphScale
from app.tui.drawing.lines import Line, Span, SpanRole, line
from app.tui.screens.figure_screen import FigureScreen
from app.tui.speed.dashboard import dashboard_lines
from app.tui.speed.watch import PerformanceView
from app.tui.speed.writing_lines import absent_model_text
from app.tui.widgets.figure_lines import KeyLine, ScreenTitle


class PerformanceScreen(FigureScreen):
    """Screen with live figures, which polls only while it is shown.

    It is a Textual mode of its own: Textual also draws the screen below a pushed one, so a
    streaming reply would redraw this screen ten times a second.
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
        self._refresh_numbers = count(1)
        self._glyphs = choose_glyphs()
        self._scale = GraphScale()

    def on_screen_resume(self) -> None:
        """Start to watch the machine."""
        self._watch.register_view(self, True)
        self._timer.resume()
        self.call_after_refresh(self.show_figures)

    def on_screen_suspend(self) -> None:
        """Stop watching the machine."""
        self._watch.register_view(self, False)

    def poll(self) -> None:
        """Show the figures, unless the pace of drawing leaves out this refresh."""
        if not self._watch.pace.leaves_out(next(self._refresh_numbers)):
            self.show_figures()

    def show_figures(self) -> None:
        """Show the present figures."""
        self._show(self._watch.read_view())

    def _show(self, view: PerformanceView) -> None:
        self.query_one(ScreenTitle).set_content(self._context_text(view), _state(view))
        key = self._keymap.first_key
        self.query_one(KeyLine).set_content(
            [
                (key("performance.leave"), "back"),
                ("arrows", "scroll"),
                (key("performance.explain"), "words"),
            ]
        )
        self.fill(
            lambda width: dashboard_lines(view, width, self.body_rows, self._glyphs, self._scale)
        )

    def _context_text(self, view: PerformanceView) -> str:
        model = self._chat_session.model
        figures = view.figures
        if model is None:
            return absent_model_text(view.status)
        if model.server:
            return self._glyphs.between.join((model.name, f"computed by {model.server}"))
        words = [model.name, model.quantization]
        if threads := self._threads(view):
            words.append(counted(threads, "thread"))
        words.append(figures.weights_mode)
        if (thinking := self._chat_session.request_options.thinking) not in ("", AUTO):
            words.append(describe_thinking(thinking))
        return self._glyphs.between.join(filter(None, words))

    def _threads(self, view: PerformanceView) -> int:
        """Return the number of threads that compute, or will compute the next reply."""
        in_use = self._engine_thread.state.threads
        if in_use is None:
            return view.figures.threads or view.status.threads
        if view.status.activity is Activity.READING:
            return in_use.now.prefill
        return in_use.now.decode


def _state(view: PerformanceView) -> Line:
    """Return the engine's activity in the colour of its speed."""
    activity = view.status.activity
    roles = {Activity.READING: SpanRole.READING, Activity.WRITING: SpanRole.WRITING}
    return line(Span(activity.value, roles.get(activity, SpanRole.MUTED)))
