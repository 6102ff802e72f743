"""Every setting with its value, its source and its meaning; a change goes into the user's file."""

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
from app.text.clean_text import clean_line
from app.text.glyphs import cut
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import Line, Span, SpanRole, line, muted, strong
from app.tui.screens.list_screen import ListScreen

_KEY = 27
_SOURCE = 13
"""Columns of the name and of the source; the source is shown from ``_SOURCE_FROM`` columns on."""
_SOURCE_FROM = 44
_LEAST_KEY = 16
_TYPED_CHARS = 30
_MOST_VALUE_CHARS = 400


class SettingsScreen(ListScreen[str]):
    """Lists every setting and changes them."""

    TITLE = "Settings"
    SCOPE = "settings"
    BINDINGS = bindings(SCOPE)

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        self._live = chat.core.live
        self._engine_thread = chat.core.engine_thread
        self._keys = tuple(setting_keys())
        self._in_file = chat.core.settings

    def start_looking(self) -> None:
        """Read the file again: it may have been changed by an editor."""
        try:
            self._in_file = load_settings()
        except Refusal as refusal:
            self.said = str(refusal)
            self._in_file = self._live.now

    def _now_and_later(self, key: str) -> tuple[str, Source, str]:
        """Return a value as it is shown, its source, and the value from the next start; "" where
        that is the same."""
        now = self._live.now
        generation = self._engine_thread.generation
        value = value_of(now, key)
        source = now.sources.get(key, Source.DEFAULT)
        if key.startswith("sampling.") and generation is not None:
            value, source = generation.source(key.removeprefix("sampling."))
        later = value_of(self._in_file, key)
        is_own = source in (Source.FILE, Source.DEFAULT)
        return _shown(key, value), source, _shown(key, later) if is_own and later != value else ""

    def items(self) -> tuple[str, ...]:
        """Return the settings in whose name or meaning all words are."""
        words = self.typed.lower().split()
        return tuple(
            key
            for key in self._keys
            if all(w in " ".join((key, *meanings()[key])).lower() for w in words)
        )

    def group_of(self, item: str) -> str:
        """Return the heading that ``config/default.toml`` has above it."""
        return meanings()[item][0]

    def heading_line(self, columns: int) -> str:
        """Name the columns."""
        key, value = _widths(columns)
        return (
            f"{'  setting':<{key + 2}}  "
            f"{'value':<{value}}{'  from' if columns >= _SOURCE_FROM else ''}"
        )

    def row_line(self, item: str, columns: int) -> Line:
        """Write a setting; one that differs from its default stands out."""
        key, width = _widths(columns)
        now, source, later = self._now_and_later(item)
        value = cut(later or now, width).ljust(width)
        if later:
            role = SpanRole.CAUTION
        elif source is Source.DEFAULT:
            role = SpanRole.MUTED
        else:
            role = SpanRole.GOOD
        if source is Source.DEFAULT:
            shown = Span(value)
        else:
            shown = strong(value)
        where = Span(f"  {'next start' if later else source.value}", role)
        return line(
            "   ", cut(item, key).ljust(key), "  ", shown, where if columns >= _SOURCE_FROM else ""
        )

    def details(self, item: str, columns: int) -> tuple[str, list[Line]]:
        """Say what it means, what it may be, what it is by default, and where its value comes
        from."""
        now, source, later = self._now_and_later(item)
        default = _shown(item, value_of(built_in_settings(), item))
        found = [line(part) for part in textwrap.wrap(meanings()[item][1], columns)]
        facts = [
            f"now {now} ({source.value})" + (f", next start {later}" if later else ""),
            f"default {default} · allowed: {allowed_of(item)}",
        ]
        return item, [
            *found,
            *(line(muted(part)) for fact in facts for part in textwrap.wrap(fact, columns)),
        ]

    def context_line(self) -> str:
        """Write the value that is typed, or the filter."""
        if self.edited is None:
            return super().context_line()
        return f"{self.edited} = {clean_line(self.new_text)[-_TYPED_CHARS:]}_"

    def state_line(self) -> str:
        """Write how many differ from their defaults."""
        n_own = sum(self._now_and_later(key)[1] is not Source.DEFAULT for key in self._keys)
        if self.edited is None:
            return f"{n_own} of {len(self._keys)} set"
        return ""

    def foot_line(self) -> str:
        """Say what a change led to, or what is allowed."""
        if self.said or self.edited is None:
            return self.said
        return f"allowed: {allowed_of(self.edited)}"

    @property
    def must_be_seen(self) -> bool:
        """Whether the foot answers a key."""
        return bool(self.said) or self.edited is not None

    def key_words(self, item: str | None) -> dict[str, str]:
        """A setting of a few words goes to its next one; others are typed."""
        if self.edited is not None:
            return {"open": "keeps it", "leave": "leaves it as it was"}
        if item is None:
            return {"leave": "back"}
        if choices_of(item) or item == "theme":
            opens = "takes the next value"
        else:
            opens = "changes it"
        return {"open": opens, "reset": "default", "leave": "back"}

    # ---- what the user asks for

    def action_open(self) -> None:
        """Take the next value, begin to type one, or keep what is typed."""
        key = self.highlighted()
        edited = self.edited
        if key is None:
            return
        if edited == key:
            self._try(key, self.new_text)
            return
        try:
            self.edited = None
            if key == "theme":
                choices = ("", *sorted(self.app.available_themes))
            else:
                choices = choices_of(key)
            now = written(value_of(load_settings(), key))
            if choices:
                self._try(
                    key,
                    choices[(choices.index(now) + 1) % len(choices)]
                    if now in choices
                    else choices[0],
                )
            else:
                self.edited = key
                self.new_text = now
                self.say("")
        except Refusal as refusal:
            self.say(clean_line(str(refusal), _MOST_VALUE_CHARS))

    def action_reset(self) -> None:
        """Take the setting out of the user's file."""
        key = self.highlighted()
        if key is not None and self.edited is None:
            self._try(key, None)

    def _try(self, key: str, text: str | None) -> None:
        """Change a setting; where that is refused, what is typed stays to be mended."""
        try:
            if text is None:
                value = None
            else:
                value = typed_value(self._live.now, key, text)
            self.said = clean_line(self._live.change(key, value), _MOST_VALUE_CHARS)
            self.edited = None
        except Refusal as refusal:
            self.said = clean_line(str(refusal), _MOST_VALUE_CHARS)
        said = self.said
        self.start_looking()
        self.say(said)


@cache
def meanings() -> Mapping[str, tuple[str, str]]:
    """Return the group of each setting and what it means: headings and comments of
    ``config/default.toml``."""
    found: dict[str, tuple[str, str]] = {}
    comment: list[str] = []
    table = group = ""
    for one in (paths.bundled("config") / "default.toml").read_text(encoding="utf-8").splitlines():
        if one.startswith("# "):
            comment.append(one.removeprefix("# "))
            continue
        if one.startswith("## "):
            group = one.removeprefix("## ")
        elif one.startswith("["):
            table = f"{one.strip('[]')}."
        elif "=" in one:
            found[f"{table}{one.partition(' = ')[0]}"] = group, " ".join(comment)
        comment = []
    return found


_IN_WORDS = {
    "model": {"": "last used"}, "theme": {"": "last used"},
    "model_directories": {"": "the usual ones"},
    **{key: {"0": "automatic"} for key in ("context_size", "threads", "prefill_threads")},
    "sampling.max_tokens": {"0": "no limit"}, "sampling.seed": {"-1": "another each time"},
}  # fmt: skip
"""Values that a word says better than what is in the file."""


def _shown(key: str, value: object) -> str:
    text = clean_line(written(value), _MOST_VALUE_CHARS)
    return _IN_WORDS.get(key, {}).get(text) or {"": "none", "auto": "automatic"}.get(text, text)


def _widths(columns: int) -> tuple[int, int]:
    if columns >= _SOURCE_FROM:
        source = _SOURCE + 2
    else:
        source = 0
    key = max(_LEAST_KEY, min(_KEY, columns - source - 14))
    return key, max(4, columns - key - source - 5)
