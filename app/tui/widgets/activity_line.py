"""One line above the prompt that is there only while the user waits for something that has an end."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from app.chat.status import Activity, EngineStatus
from app.text import figures
from app.tui.widgets.status_line import activity_text

_MOST_BAR_CELLS = 14
_LEAST_BAR_CELLS = 5
_WAITING = (Activity.LOADING, Activity.COMPILING, Activity.READING)


def activity_line(status: EngineStatus, now_s: float, columns: int) -> str:
    """Return what the user waits for; "" when there is nothing to wait for."""
    if status.activity not in _WAITING:
        return ""
    text = activity_text(status, now_s)
    if len(text) > columns - 2:
        text = activity_text(status, now_s, is_short=True)
    if status.activity is Activity.COMPILING:
        text = f"Getting ready for this CPU (once): {status.done}/{status.total} {status.step}"
        text += f" · {figures.seconds(max(0.0, now_s - status.since_s))}"
    elif status.activity is Activity.LOADING and status.step:
        text = f"{text} · {status.step}"
    cells = min(_MOST_BAR_CELLS, columns - len(text) - 4)
    if status.total and cells >= _LEAST_BAR_CELLS:
        text += "  " + figures.bar(status.done, status.total, cells)
    return text


class ActivityLine(Static):
    """Shows progress of loading, compiling and reading."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.display = False
        self.line = ""

    def show(self, status: EngineStatus, now_s: float) -> None:
        """Show what is waited for, or go away."""
        line = activity_line(status, now_s, self.app.size.width)
        if line != self.line:
            self.line = line
            self.display = bool(line)
            self.update(Content(" " + line), layout=False)
