"""Settings in effect, which the settings screen may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.backend.engine_thread import EngineThread
from app.machine.tuning.threads_in_use import ChoiceOrigin
from app.program import settings_file
from app.program.settings import Settings, taken_from, value_of, written

LIVE_SETTINGS = (
    "model_directories",
    "theme",
    "prefill_while_typing",
    "search_by_meaning",
    "write_titles",
    "compact",
    "notify",
)
"""Settings that take effect at once, besides those of ``[sampling]``."""
_THREADS = {"threads": "decode", "prefill_threads": "prefill"}


class LiveSettings:
    """Settings in effect. Changes that cannot take effect at once do so at the next start.

    Attributes:
        now: the settings in effect.
    """

    def __init__(
        self, now: Settings, engine_thread: EngineThread, show_theme: Callable[[str], object]
    ) -> None:
        self.now = now
        self._engine_thread = engine_thread
        self._show_theme = show_theme

    def change(self, key: str, value: object) -> str:
        """Write a setting to the user's file and apply it if possible.

        Return a line that says so. A value of None resets the setting.

        Raises:
            Refusal: The value is not allowed or the file cannot be written.
        """
        file_settings = settings_file.changed(self.now, key, value)
        new_value = value_of(file_settings, key)
        if value is not None:
            text = f"Saved: {key} = {written(new_value) or 'nothing'}"
        else:
            text = f"Reset {key} to its default"
        if self._apply(key, new_value, file_settings):
            return text
        return f"{text} (from the next start)"

    def _apply(self, key: str, value: object, file_settings: Settings) -> bool:
        if key in _THREADS:
            return (
                isinstance(value, int)
                and value > 0
                and self._request_threads(key, value, file_settings)
            )
        if key not in LIVE_SETTINGS and not key.startswith("sampling."):
            return False
        self.now = taken_from(self.now, key, file_settings)
        if key == "theme" and value:
            self._show_theme(str(value))
        elif key.startswith("sampling."):
            self._engine_thread.settings = self.now
        return True

    def _request_threads(self, key: str, n_threads: int, file_settings: Settings) -> bool:
        in_use = self._engine_thread.state.threads
        if in_use is None or n_threads > in_use.most:
            return False
        self.now = taken_from(self.now, key, file_settings)
        threads: dict[str, Any] = {_THREADS[key]: n_threads}
        self._engine_thread.request_threads(
            replace(in_use, now=replace(in_use.now, **threads), origin=ChoiceOrigin.START)
        )
        return True
