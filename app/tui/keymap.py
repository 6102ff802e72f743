"""Keys of all actions: the defaults, overridden by the user's ``keymap.toml``.

The file has a table for each scope and a line for each action: a key, a list of keys, or "" for no
key. Every mistake in it is reported in one line that names the file and the nearest valid name.

``python -m app.tui.keymap`` prints ``config/keymap.toml``: every action with its default keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from app.program import exit_codes, paths
from app.program.refusals import Refusal
from app.program.small_file import is_present, read_toml
from app.text.clean_text import clean_line
from app.text.record import record
from app.tui.actions import ACTIONS, NO_KEY, scopes_overlap

_MODIFIERS = ("alt", "ctrl", "hyper", "meta", "shift", "super")
_ALIASES = {
    "esc": "escape", "return": "enter", "del": "delete", "ins": "insert", "pgup": "pageup",
    "pgdn": "pagedown",
    "control": "ctrl",
}  # fmt: skip
_LABELS = {"enter": "Enter", "escape": "Esc", "tab": "Tab", "pageup": "PgUp", "pagedown": "PgDn"}
_TYPED_SCOPES = ("app", "chat", "prompt")
"""Scopes in which letters are typed into the prompt."""
_RENAMED_SCOPES = {"shelf": "documents"}
"""Earlier names of scopes, which key maps may still use."""
_RENAMED_ACTIONS = {"app.shelf": "app.documents"}
"""Earlier ids of actions, which key maps may still use."""
_LATER_DEFAULTS = ("prompt.search_history", "chat.regenerate")
"""Actions that got their default keys when key maps could already give these to other actions."""


class KeymapError(Refusal):
    """Error in the user's key map; the message names file, action and key."""


@record
class Keymap:
    """Keys of every action."""

    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The user's keys by action id; actions that are missing here have their default keys."""

    def keys_of(self, action_id: str) -> tuple[str, ...]:
        """Return the keys of an action in Textual's names, the one for hints first."""
        if action_id in self.changed:
            return self.changed[action_id]
        return tuple(key for key in ACTIONS[action_id].keys.split(",") if key)

    def scope_keys(self, scope: str) -> dict[str, str]:
        """Return the names of a scope's actions by key, for widgets that handle keys."""
        return {
            key: action.name
            for action_id, action in ACTIONS.items()
            if action.scope == scope
            for key in self.keys_of(action_id)
        }

    def for_textual(self) -> dict[str, str]:
        """Return the changed keys as ``App.set_keymap`` takes them.

        Textual would read an empty entry as the default key.
        """
        return {action_id: ",".join(keys) or NO_KEY for action_id, keys in self.changed.items()}

    def first_key(self, action_id: str) -> str:
        """Return the key for a hint as people write it; empty if there is none."""
        keys = self.keys_of(action_id)
        if keys:
            return show_key(keys[0])
        return ""

    def hint(self, action_id: str, words: str) -> str:
        """Return the key with its effect, such as "Esc back"; empty if the action has no key."""
        key = self.first_key(action_id)
        if key:
            return f"{key} {words}"
        return ""

    def key_or_command(self, action_id: str) -> str:
        """Return the key of an action, or its slash command if it has no key."""
        return self.first_key(action_id) or f"/{ACTIONS[action_id].command}"

    def key_names(self, action_id: str) -> str:
        """Return all keys of an action as people write them: "ctrl+j, shift+Enter"."""
        return ", ".join(map(show_key, self.keys_of(action_id)))


def show_key(key: str) -> str:
    """Return a key as people write it: "ctrl+j", "Esc", "F1", "?"."""
    from textual.keys import format_key

    *modifiers, name = key.split("+")
    if name in _LABELS:
        name = _LABELS[name]
    elif name[0] == "f" and name[1:].isdigit():
        name = name.upper()
    elif len(sign := format_key(name)) == 1 and sign.isascii():
        name = sign
    return "+".join([*modifiers, name])


def load_keymap(user_file: Path | None = None) -> Keymap:
    """Return the default keys, overridden by the user's file.

    Raises:
        KeymapError: The file has a mistake.
    """
    path = user_file or paths.keymap_file()
    if path is None or (user_file is None and not is_present(path)):
        return Keymap()
    changed: dict[str, tuple[str, ...]] = {}
    for scope, table in read_toml(path, "key map", KeymapError).items():
        if not isinstance(table, Mapping):
            raise _error(path, f"{scope} is not a table of keys", _nearest_action(scope))
        for name, value in table.items():
            action_id = _current_id(f"{scope}.{name}")
            if action_id not in ACTIONS:
                raise _error(path, f"{action_id} is not an action", _nearest_action(action_id))
            changed[action_id] = _parse_keys(path, action_id, value)
    keymap = Keymap({**_without_later_defaults(changed), **changed})
    _check_clashes(path, keymap)
    return keymap


def _without_later_defaults(
    changed: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """Return the remaining keys of actions whose later default keys the user gave to others."""
    remaining = {}
    for action_id in _LATER_DEFAULTS:
        taken = {
            key
            for other_id, keys in changed.items()
            if scopes_overlap(ACTIONS[action_id].scope, ACTIONS[other_id].scope)
            for key in keys
        }
        keys = Keymap().keys_of(action_id)
        if taken.intersection(keys):
            remaining[action_id] = tuple(key for key in keys if key not in taken)
    return remaining


def _current_id(action_id: str) -> str:
    scope, _, name = action_id.partition(".")
    return _RENAMED_ACTIONS.get(action_id, f"{_RENAMED_SCOPES.get(scope, scope)}.{name}")


def _error(path: Path, problem: str, hint: str) -> KeymapError:
    return KeymapError(f"{path}: {clean_line(problem, 120)} ({hint})", exit_codes.BAD_DATA)


def _nearest_action(text: str) -> str:
    near = difflib.get_close_matches(text, ACTIONS, n=1, cutoff=0.4)
    by_name = {action.name: action_id for action_id, action in ACTIONS.items()}
    near = near or [
        by_name[name]
        for name in difflib.get_close_matches(text.rpartition(".")[2], by_name, n=1, cutoff=0.0)
    ]
    scope, _, name = near[0].partition(".")
    return f"nearest: {name} under [{scope}]"


def _parse_keys(path: Path, action_id: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        if value.strip() != ",":
            value = [key for key in value.split(",") if key.strip()]
        else:
            value = [","]
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise _error(path, f"{action_id} must be a key or a list of keys", 'for example "ctrl+j"')
    return tuple(dict.fromkeys(_parse_key(path, action_id, key) for key in value))


def _parse_key(path: Path, action_id: str, text: str) -> str:
    """Return a key in Textual's notation: sorted modifiers, punctuation by its Unicode name."""
    *modifiers, name = [_ALIASES.get(word, word) for word in _split_key(text.strip())]
    names = _key_names()
    if len(name) == 1 and set(modifiers) <= {"shift"}:
        plain = name
    else:
        plain = name.lower()
    if plain not in names or not set(modifiers) <= set(_MODIFIERS):
        key_names = [
            *names.values(),
            *(
                f"{modifier}+{key}"
                for modifier in ("ctrl", "alt", "shift")
                for key in names.values()
            ),
        ]
        near = difflib.get_close_matches(text.lower(), key_names, n=1, cutoff=0.0)
        raise _error(path, f"{action_id}: {text!r} is not a key", f"nearest: {near[0]}")
    if modifiers == ["shift"] and len(plain) == 1 and plain.isalpha():
        modifiers = []
        plain = plain.upper()
    if ACTIONS[action_id].scope in _TYPED_SCOPES and not modifiers and _is_typed(names[plain]):
        raise _error(path, f"{action_id}: {text!r} could no longer be typed", "add ctrl+ or alt+")
    return "+".join([*sorted(set(modifiers)), names[plain]])


def _split_key(text: str) -> list[str]:
    """Split "ctrl+shift+a" into its keys; "+" itself is a key. Only single letters keep their
    case."""
    if text.endswith("+"):
        name = "+"
    else:
        name = text.rpartition("+")[2].strip()
    if len(name) > 1:
        key = name.lower()
    else:
        key = name
    modifiers = [word.strip() for word in text.removesuffix(name).lower().split("+")]
    return [*filter(None, modifiers), key]


def _key_names() -> dict[str, str]:
    """Return Textual's names of all keys by the ways to write them."""
    from textual.keys import Keys, _character_to_key

    names = {value: value for key in Keys if "+" not in (value := key.value) and "<" not in value}
    for code in range(0x21, 0x7F):
        name = _character_to_key(chr(code))
        names |= {chr(code): name, name: name}
    return names | {"space": "space"}


def _is_typed(key: str) -> bool:
    from textual.keys import key_to_character

    character = key_to_character(key)
    return key == "space" or len(key) == 1 or (character is not None and character.isprintable())


def _check_clashes(path: Path, keymap: Keymap) -> None:
    """Raise KeymapError if a key that the user changed runs two actions at once.

    The default keys do not clash among themselves.
    """
    for action_id, keys in keymap.changed.items():
        for other_id, other_action in ACTIONS.items():
            scope = ACTIONS[action_id].scope
            if other_id == action_id or not scopes_overlap(scope, other_action.scope):
                continue
            for key in keys:
                if key in keymap.keys_of(other_id):
                    raise _error(
                        path,
                        f"{action_id} and {other_id} both have {key}",
                        'change one; "" is none',
                    )


def default_file() -> str:
    """Return the text of ``config/keymap.toml``."""
    lines = [_HEADER]
    for scope in dict.fromkeys(action.scope for action in ACTIONS.values()):
        lines.append(f"\n[{scope}]")
        for action in ACTIONS.values():
            if action.scope == scope:
                keys = [f'"{key}"' for key in action.keys.split(",") if key]
                if len(keys) > 1:
                    value = f"[{', '.join(keys)}]"
                else:
                    value = "".join(keys) or '""'
                lines.append(f"# {action.title}.\n{action.name} = {value}")
    return "\n".join(lines) + "\n"


_HEADER = """\
# All actions of Jalopy with their default keys. Do not edit this file. Copy the lines you want to
# change, with their [table], into a file named keymap.toml next to your settings file
# (`jalopy --help` shows where that is).
#
# A value is a key, a list of keys, or "" for no key. A key is a letter, a digit, a punctuation mark
# or a name such as enter, escape, tab, space, up, pagedown, home, delete or f1, optionally after
# ctrl+, alt+ or shift+. Not every terminal can tell all of them apart: many send the same code for
# ctrl+m and enter, or for shift+enter and enter."""


if __name__ == "__main__":
    print(default_file(), end="")
