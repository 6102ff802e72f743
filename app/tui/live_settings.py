"""The settings in effect, which the settings screen may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.backend.engine_thread import EngineThread
from app.program import settings_file
from app.program.settings import Settings, taken_from, value_of, written

AT_ONCE = (
    "model_directories",
    "theme",
    "prefill_while_typing",
    "search_by_meaning",
    "write_titles",
    "notify",
)
"""Settings that are looked at each time they matter, other than those of ``[sampling]``."""
_THREADS = {"threads": "decode", "prefill_threads": "prefill"}


class LiveSettings:
    """The settings in effect, as ``now``; other threads and sampling go to the bridge, a theme to
    ``show_theme``.

    What does not follow a change at once holds from the next start.
    """

    def __init__(
        self, now: Settings, engine_thread: EngineThread, show_theme: Callable[[str], object]
    ) -> None:
        self.now = now
        self._engine_thread = engine_thread
        self._show_theme = show_theme

    def change(self, key: str, value: object) -> str:
        """Write a setting, None for its default, and use it if possible; return a line on it, or
        raise ``Refusal``."""
        in_file = settings_file.changed(self.now, key, value)
        new = value_of(in_file, key)
        shown = written(new) or "nothing"
        if value is not None:
            what = f"{key} = {shown}"
        else:
            what = f"{key} is the default again"
        return (
            f"{what}, {'from now on' if self._take(key, new, in_file) else 'from the next start'}"
        )

    def _take(self, key: str, value: object, in_file: Settings) -> bool:
        if key in _THREADS:
            return isinstance(value, int) and value > 0 and self._wish_threads(key, value, in_file)
        if key not in AT_ONCE and not key.startswith("sampling."):
            return False
        self.now = taken_from(self.now, key, in_file)
        if key == "theme" and value:
            self._show_theme(str(value))
        elif key.startswith("sampling.") and self._engine_thread.generation is not None:
            self._engine_thread.generation.use(self.now)
        return True

    def _wish_threads(self, key: str, n_threads: int, in_file: Settings) -> bool:
        in_use = self._engine_thread.state.threads
        if in_use is None or n_threads > in_use.most:
            return False
        self.now = taken_from(self.now, key, in_file)
        changed: dict[str, Any] = {_THREADS[key]: n_threads}
        self._engine_thread.request_threads(replace(in_use, now=replace(in_use.now, **changed)))
        return True
