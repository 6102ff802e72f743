"""Keys of all actions: the defaults with the user's ``keymap.toml`` laid over them.

The file has a table for each scope and a line for each action: a key, a list of keys, or "" for
none. Every mistake in it is one line that names the file and what was probably meant.

``python -m app.tui.keymap`` writes the file with every action and its default keys, which is
``config/keymap.toml``.
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
from app.tui.actions import ACTIONS, NO_KEY, scopes_meet

_MODIFIERS = ("alt", "ctrl", "hyper", "meta", "shift", "super")
_ALIASES = {
    "esc": "escape", "return": "enter", "del": "delete", "ins": "insert", "pgup": "pageup",
    "pgdn": "pagedown",
    "control": "ctrl",
}  # fmt: skip
_SHOWN = {"enter": "Enter", "escape": "Esc", "tab": "Tab", "pageup": "PgUp", "pagedown": "PgDn"}
_TYPED_SCOPES = ("app", "chat", "prompt")
"""Scopes in which letters are typed into the prompt."""


class KeymapError(Refusal):
    """The key map cannot be used; the message names file, action and key."""


@record
class Keymap:
    """The keys of every action."""

    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The user's own, by action id; whatever is not there has its default."""

    def keys_of(self, action_id: str) -> tuple[str, ...]:
        """Return the keys of an action in Textual's names, the one to name first; () for none."""
        if action_id in self.changed:
            return self.changed[action_id]
        return tuple(key for key in ACTIONS[action_id].keys.split(",") if key)

    def scope_keys(self, scope: str) -> dict[str, str]:
        """Return the names of one scope's actions by key, for widgets that handle keys
        themselves."""
        return {
            key: a.name
            for action_id, a in ACTIONS.items()
            if a.scope == scope
            for key in self.keys_of(action_id)
        }

    def for_textual(self) -> dict[str, str]:
        """Return what ``App.set_keymap`` takes; an empty entry there would mean the default."""
        return {action_id: ",".join(keys) or NO_KEY for action_id, keys in self.changed.items()}

    def first_key(self, action_id: str) -> str:
        """Return the key to name in a hint, as people write it; "" for none."""
        keys = self.keys_of(action_id)
        if keys:
            return show_key(keys[0])
        return ""

    def hint(self, action_id: str, words: str) -> str:
        """Return the key with what it does, as "Esc back"; "" where the action has none."""
        key = self.first_key(action_id)
        if key:
            return f"{key} {words}"
        return ""

    def key_or_command(self, action_id: str) -> str:
        """Return the key to name in a sentence, or the slash command of an action that has no
        key."""
        return self.first_key(action_id) or f"/{ACTIONS[action_id].command}"

    def shown_keys(self, action_id: str) -> str:
        """Return all keys of an action as people write them: "ctrl+j, shift+Enter"."""
        return ", ".join(map(show_key, self.keys_of(action_id)))


def show_key(key: str) -> str:
    """Write a key as people do: "ctrl+j", "Esc", "F1", "?"."""
    from textual.keys import format_key

    *modifiers, name = key.split("+")
    if name in _SHOWN:
        name = _SHOWN[name]
    elif name[0] == "f" and name[1:].isdigit():
        name = name.upper()
    elif len(sign := format_key(name)) == 1 and sign.isascii():
        name = sign
    return "+".join([*modifiers, name])


def load_keymap(user_file: Path | None = None) -> Keymap:
    """Return the defaults with the user's file over them; raises ``KeymapError`` where that cannot
    be used."""
    path = user_file or paths.keymap_file()
    if path is None or (user_file is None and not is_present(path)):
        return Keymap()
    changed: dict[str, tuple[str, ...]] = {}
    for scope, table in read_toml(path, "key map", KeymapError).items():
        if not isinstance(table, Mapping):
            raise _wrong(path, f"{scope} is not a table of keys", _nearest_action(scope))
        for name, value in table.items():
            action_id = f"{scope}.{name}"
            if action_id not in ACTIONS:
                raise _wrong(path, f"{action_id} is not an action", _nearest_action(action_id))
            changed[action_id] = _parse_keys(path, action_id, value)
    keymap = Keymap(changed)
    _check_clashes(path, keymap)
    return keymap


def _wrong(path: Path, what: str, hint: str) -> KeymapError:
    return KeymapError(f"{path}: {clean_line(what, 120)} ({hint})", exit_codes.BAD_DATA)


def _nearest_action(wanted: str) -> str:
    near = difflib.get_close_matches(wanted, ACTIONS, n=1, cutoff=0.4)
    by_name = {action.name: action_id for action_id, action in ACTIONS.items()}
    near = near or [
        by_name[n]
        for n in difflib.get_close_matches(wanted.rpartition(".")[2], by_name, n=1, cutoff=0.0)
    ]
    scope, _, name = near[0].partition(".")
    return f"nearest: {name} under [{scope}]"


def _parse_keys(path: Path, action_id: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        if value.strip() != ",":
            value = [part for part in value.split(",") if part.strip()]
        else:
            value = [","]
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise _wrong(path, f"{action_id} must be a key or a list of keys", 'for example "ctrl+j"')
    return tuple(dict.fromkeys(_parse_key(path, action_id, key) for key in value))


def _parse_key(path: Path, action_id: str, text: str) -> str:
    """Return a key in Textual's name for it: modifiers in order, signs by their Unicode name."""
    *modifiers, name = [_ALIASES.get(part, part) for part in _split_key(text.strip())]
    names = _key_names()
    if len(name) == 1 and set(modifiers) <= {"shift"}:
        plain = name
    else:
        plain = name.lower()
    if plain not in names or not set(modifiers) <= set(_MODIFIERS):
        known = [
            *names.values(),
            *(f"{one}+{key}" for one in ("ctrl", "alt", "shift") for key in names.values()),
        ]
        near = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.0)
        raise _wrong(path, f"{action_id}: {text!r} is not a key", f"nearest: {near[0]}")
    if modifiers == ["shift"] and len(plain) == 1 and plain.isalpha():
        modifiers = []
        plain = plain.upper()
    if ACTIONS[action_id].scope in _TYPED_SCOPES and not modifiers and _is_typed(names[plain]):
        raise _wrong(
            path, f"{action_id}: {text!r} could not be typed any more", "add ctrl+ or alt+"
        )
    return "+".join([*sorted(set(modifiers)), names[plain]])


def _split_key(text: str) -> list[str]:
    """Split "ctrl+shift+a" at its signs; "+" itself is a key. Only a letter alone may be large."""
    if text.endswith("+"):
        name = "+"
    else:
        name = text.rpartition("+")[2].strip()
    modifiers = text.removesuffix(name).lower().split("+")
    return [
        *(part.strip() for part in modifiers if part.strip()),
        name if len(name) == 1 else name.lower(),
    ]


def _key_names() -> dict[str, str]:
    """Return every key by how it may be written."""
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
    """Refuse two meanings of one key where both could be meant; only what the user changed can be
    to blame."""
    for action_id, keys in keymap.changed.items():
        for other_id, other in ACTIONS.items():
            if other_id == action_id or not scopes_meet(ACTIONS[action_id].scope, other.scope):
                continue
            for key in keys:
                if key in keymap.keys_of(other_id):
                    raise _wrong(
                        path,
                        f"{action_id} and {other_id} both have {key}",
                        'change one; "" is none',
                    )


def default_file() -> str:
    """Return the text of a key map with every action and its default keys."""
    lines = [_EXPLANATION]
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


_EXPLANATION = """\
# Every action of Jalopy with its keys. Do not edit this file: put the lines you want to change into a file of the same
# name next to your settings file (`jalopy --help` names that one), under their [table].
#
# A value is a key, a list of keys, or "" for none. Keys are letters, digits and signs, names such as enter, escape,
# tab, space, up, pagedown, home, delete, f1, and any of them after ctrl+, alt+ or shift+. Which combinations arrive is
# the terminal's business: many send the same for ctrl+m and enter, or for shift+enter and enter."""


if __name__ == "__main__":
    print(default_file(), end="")
