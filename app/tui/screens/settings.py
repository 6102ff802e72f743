"""The settings screen: every setting with its value, its source and its meaning.

Changes go into the user's settings file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from functools import cache

from app.program import paths
from app.program.refusals import Refusal
from app.program.settings import (
    Source,
    allowed_of,
    built_in_settings,
    choices_of,
    load_settings,
    setting_keys,
    typed_value,
    value_of,
    written,
)
from app.session.commands import sampling_in_effect
from app.text.clean_text import clean_line
from app.text.glyphs import cut
from app.text.record import record
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import Line, Span, SpanRole, line, muted, strong
from app.tui.screens.list_screen import ListScreen

_KEY_COLUMNS = 27
FAVOURITES = (
    "model", "system_prompt", "sampling.temperature", "thinking", "context_size", "threads", "theme",
)  # fmt: skip
"""Settings that are changed most often; they come first."""
_FAVOURITES_GROUP = "Often changed"
_CHANGING_SOURCES = (Source.FILE, Source.COMMAND_LINE, Source.CHOSEN)
"""Sources of values that the user has chosen."""
_LEAST_KEY_COLUMNS = 16
_SOURCE_COLUMNS = 13
_SOURCE_FROM_COLUMNS = 44
"""Width from which the column of sources is shown."""
_TYPED_CHARS = 30
"""Characters of a typed value that the title shows."""
_VALUE_CHARS = 400
"""Limit on a value in a line."""


@record
class _CurrentValue:
    """Value of a setting as the screen shows it."""

    text: str
    source: Source
    next_text: str
    """Value from the next start on; empty if it is the same."""


class SettingsScreen(ListScreen[str]):
    """List of all settings."""

    TITLE = "Settings"
    SCOPE = "settings"
    BINDINGS = bindings(SCOPE)

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        self._live = chat.core.live
        self._engine_thread = chat.core.engine_thread
        self._chat_session = chat.core.chat_session
        others = (key for key in setting_keys() if key not in FAVOURITES)
        self._keys = (*FAVOURITES, *others)
        self._file_settings = chat.core.settings
        """Settings at the next start, as the file has them."""

    def start_search(self) -> None:
        """Read the settings file again, since an editor may have changed it."""
        try:
            self._file_settings = load_settings()
        except Refusal as refusal:
            self.message = str(refusal)
            self._file_settings = self._live.now

    def _current_value(self, key: str) -> _CurrentValue:
        settings = self._live.now
        value = value_of(settings, key)
        source = settings.sources.get(key, Source.DEFAULT)
        if key.startswith("sampling."):
            value, source = sampling_in_effect(
                self._engine_thread, self._chat_session, key.removeprefix("sampling.")
            )

        next_text = ""
        next_value = value_of(self._file_settings, key)
        if source in (Source.FILE, Source.DEFAULT) and next_value != value:
            next_text = _label(key, next_value)
        return _CurrentValue(_label(key, value), source, next_text)

    def items(self) -> tuple[str, ...]:
        """Return the settings whose names or meanings contain all words of the filter."""
        words = self.filter_text.lower().split()
        texts = {key: " ".join((key, title_of(key), *meanings()[key])) for key in self._keys}
        return tuple(
            key for key, text in texts.items() if all(word in text.lower() for word in words)
        )

    def group_of(self, item: str) -> str:
        """Return the setting's heading in ``config/default.toml``, unless it is a favourite."""
        if item in FAVOURITES:
            return _FAVOURITES_GROUP
        return meanings()[item][0]

    def heading_line(self, columns: int) -> str:
        """Return the names of the columns."""
        key_columns, value_columns = _widths(columns)
        heading = f"{'  setting':<{key_columns + 2}}  {'value':<{value_columns}}"
        if columns >= _SOURCE_FROM_COLUMNS:
            return f"{heading}  from"
        return heading

    def row_line(self, item: str, columns: int) -> Line:
        """Return a setting's row; values that differ from the default stand out."""
        key_columns, value_columns = _widths(columns)
        current = self._current_value(item)
        text = cut(current.next_text or current.text, value_columns).ljust(value_columns)
        if current.source is Source.DEFAULT:
            value = Span(text)
        else:
            value = strong(text)
        spans: list[str | Span] = [
            "   ",
            cut(title_of(item), key_columns).ljust(key_columns),
            "  ",
            value,
        ]
        if columns >= _SOURCE_FROM_COLUMNS:
            spans.append(_source_span(current))
        return line(*spans)

    def details(self, item: str, columns: int) -> tuple[str, list[Line]]:
        """Return the setting's title, and lines on its meaning, its value and its limits."""
        current = self._current_value(item)
        default = _label(item, value_of(built_in_settings(), item))
        if current.source is Source.DEFAULT:
            value = f"now {current.text}, as by default"
        else:
            value = f"now {current.text} ({current.source.value}); default {default}"
        if current.next_text:
            value += f"; {current.next_text} from the next start"
        limits = f"in the file: {item} · allowed: {allowed_of(item)}"

        meaning = [line(row) for row in textwrap.wrap(meanings()[item][1], columns)]
        facts = [
            line(muted(row)) for text in (value, limits) for row in textwrap.wrap(text, columns)
        ]
        return title_of(item), [*meaning, *facts]

    def context_line(self) -> str:
        """Return the value as typed, or the filter."""
        if self.edited_item is None:
            return super().context_line()
        return f"{self.edited_item} = {clean_line(self.new_text)[-_TYPED_CHARS:]}_"

    def state_line(self) -> str:
        """Return how many settings differ from their defaults."""
        if self.edited_item is not None:
            return ""
        sources = [self._current_value(key).source for key in self._keys]
        n_changed = sum(source in _CHANGING_SOURCES for source in sources)
        return f"{n_changed} of {len(self._keys)} changed"

    def foot_line(self) -> str:
        """Return the result of a change, or the allowed values."""
        if self.message or self.edited_item is None:
            return self.message
        return f"allowed: {allowed_of(self.edited_item)}"

    @property
    def has_important_foot(self) -> bool:
        """Whether the foot answers a key or lists allowed values."""
        return bool(self.message) or self.edited_item is not None

    def key_words(self, item: str | None) -> dict[str, str]:
        """Return the effects of keys, by the names of their actions."""
        if self.edited_item is not None:
            return {"open": "save", "leave": "cancel"}
        if item is None:
            return {"leave": "back"}
        if choices_of(item) or item == "theme":
            effect = "next value"
        else:
            effect = "change"
        return {"open": effect, "reset": "default", "leave": "back"}

    # ---- actions

    def action_open(self) -> None:
        """Save the typed value, switch to the next value, or start to edit the value."""
        key = self.highlighted()
        edited_item = self.edited_item
        if key is None:
            return
        if edited_item == key:
            self._change(key, self.new_text)
            return
        self.edited_item = None
        try:
            value = written(value_of(load_settings(), key))
        except Refusal as refusal:
            self.say(clean_line(str(refusal), _VALUE_CHARS))
            return

        if key == "theme":
            choices = ("", *sorted(self.app.available_themes))
        else:
            choices = choices_of(key)
        if not choices:
            self.edited_item = key
            self.new_text = value
            self.say("")
        elif value in choices:
            self._change(key, choices[(choices.index(value) + 1) % len(choices)])
        else:
            self._change(key, choices[0])

    def action_reset(self) -> None:
        """Delete the setting from the user's file."""
        key = self.highlighted()
        if key is not None and self.edited_item is None:
            self._change(key, None)

    def _change(self, key: str, text: str | None) -> None:
        """Change a setting, or reset it if ``text`` is None.

        If the value is refused, it stays in the editor for correction.
        """
        try:
            if text is None:
                value = None
            else:
                value = typed_value(self._live.now, key, text)
            message = self._live.change(key, value)
            self.edited_item = None
        except Refusal as refusal:
            message = str(refusal)
        self.start_search()
        self.say(clean_line(message, _VALUE_CHARS))


TITLES = {
    "model": "Model",
    "server": "Server",
    "model_directories": "Folders of models",
    "context_size": "Context size",
    "rope_scaling": "Beyond trained context",
    "kv_type": "Type of the KV cache",
    "checkpoints_mb": "Memory for checkpoints (MB)",
    "system_prompt": "System prompt",
    "date_in_prompt": "Date in system prompt",
    "thinking": "Thinking",
    "loop_guard": "Stop repetitions",
    "notify": "Notify after long replies",
    "threads": "Threads for writing",
    "prefill_threads": "Threads for reading",
    "pin_threads": "Pin threads to cores",
    "weights": "Weights in memory",
    "guess_ahead": "Guess ahead",
    "draft_model": "Small model that guesses",
    "prefill_while_typing": "Read while you type",
    "search_by_meaning": "Search by meaning",
    "theme": "Colours",
    "low_power": "Spare a weak machine",
    "priority": "Priority",
    "prompt_history": "History of the prompt",
    "save_conversations": "Save conversations",
    "resume": "At the start",
    "write_titles": "Write titles",
    "compact": "Summarize a full context",
    "keep_kv_states": "Save what was read",
    "kv_states_quota_gb": "Disk for saved states (GB)",
    "sampling.temperature": "Temperature",
    "sampling.top_k": "Top k",
    "sampling.top_p": "Top p",
    "sampling.min_p": "Min p",
    "sampling.typical_p": "Typical p",
    "sampling.top_n_sigma": "Top n sigma",
    "sampling.xtc_probability": "XTC probability",
    "sampling.xtc_threshold": "XTC threshold",
    "sampling.repeat_penalty": "Repeat penalty",
    "sampling.presence_penalty": "Presence penalty",
    "sampling.frequency_penalty": "Frequency penalty",
    "sampling.repeat_window": "Window of these penalties",
    "sampling.dry_multiplier": "DRY strength",
    "sampling.dry_base": "DRY base",
    "sampling.dry_allowed_length": "DRY allowed length",
    "sampling.dry_window": "DRY window",
    "sampling.max_tokens": "Longest reply (tokens)",
    "sampling.seed": "Seed",
    "tools.use": "Use tools",
    "tools.result_tokens": "Longest tool result",
    "tools.servers": "Tool servers",
    "tools.built_in": "Built-in tools",
    "tools.folders": "Folders tools may read",
    "tools.always": "Tools that never ask",
    "serve.origins": "Web pages that may ask",
    "serve.pictures": "Folder of pictures",
    "pictures.mmproj": "Encoder for pictures",
    "pictures.detail": "Detail of pictures",
    "pictures.preview": "Previews of pictures",
}
"""Titles of settings in the list; the file has other names."""


def title_of(key: str) -> str:
    """Return the title of a setting."""
    return TITLES.get(key, key)


@cache
def meanings() -> Mapping[str, tuple[str, str]]:
    """Return group and meaning of each setting, from the comments of ``config/default.toml``."""
    result: dict[str, tuple[str, str]] = {}
    comment: list[str] = []
    table = ""
    group = ""
    text = (paths.bundled("config") / "default.toml").read_text(encoding="utf-8")
    for row in text.splitlines():
        if row.startswith("# "):
            comment.append(row.removeprefix("# "))
            continue
        if row.startswith("## "):
            group = row.removeprefix("## ")
        elif row.startswith("["):
            table = f"{row.strip('[]')}."
        elif "=" in row:
            result[f"{table}{row.partition(' = ')[0]}"] = group, " ".join(comment)
        comment = []
    return result


_LABELS = {
    "model": {"": "last used"}, "theme": {"": "last used"},
    "model_directories": {"": "the usual ones"},
    **{key: {"0": "automatic"} for key in ("context_size", "threads", "prefill_threads")},
    "sampling.max_tokens": {"0": "no limit"}, "sampling.seed": {"-1": "random"},
}  # fmt: skip
"""Values that a word explains better than the text in the file."""


def _label(key: str, value: object) -> str:
    text = clean_line(written(value), _VALUE_CHARS)
    return _LABELS.get(key, {}).get(text) or {"": "none", "auto": "automatic"}.get(text, text)


def _source_span(current: _CurrentValue) -> Span:
    if current.next_text:
        return Span("  next start", SpanRole.CAUTION)
    if current.source is Source.DEFAULT:
        return Span("")
    return Span(f"  {current.source.value}", SpanRole.GOOD)


def _widths(columns: int) -> tuple[int, int]:
    """Return the columns of the name and of the value."""
    source_columns = 0
    if columns >= _SOURCE_FROM_COLUMNS:
        source_columns = _SOURCE_COLUMNS + 2
    key_columns = max(_LEAST_KEY_COLUMNS, min(_KEY_COLUMNS, columns - source_columns - 14))
    return key_columns, max(4, columns - key_columns - source_columns - 5)
