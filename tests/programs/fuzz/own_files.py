"""Files that a person writes and a start reads, with anything in them.

Each is taken, or gives one line that names the file.

An input begins with a line that says which file it is; the rest is its content. What is taken is
used as a start does: a theme must give colours to every style sheet of the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random

from textual.css.errors import StylesheetError
from textual.css.stylesheet import Stylesheet

from app.program import paths
from app.program.personas import load_persona, persona_names
from app.program.refusals import Refusal
from app.program.settings import load_settings, setting_keys
from app.text.clean_text import clean_line
from app.tui import themes
from app.tui.actions import ACTIONS
from app.tui.keymap import load_keymap
from app.tui.themes import load_user_themes, meanings
from tests.programs.fuzz.mutation import mutate_bytes
from tests.programs.fuzz.target import LONGEST_LINE_CHARS, Fault, Target, Watch, require_clean_line

_CPU_S = 3.0
_MEMORY_BYTES = 64 << 20
THEME = "theme"
KEYS = "keys"
SETTINGS = "settings"
PERSONA = "persona"
_PLACES = {
    THEME: "themes/odd.toml",
    KEYS: "keymap.toml",
    SETTINGS: "settings.toml",
    PERSONA: "personas/odd.md",
}
_VALUES = (
    "true", "1", "-1", "0.5", "nan", "inf", '""', '"x"', '"#ffffff"', '"#ffffff 50%"', '"red"',
    '"ansi_red"', '"bold"', '"bold; } Screen {"', '"ctrl+j"', '["f1", "f2"]', "[]", "{}", "{a = 1}",
    "1979-05-27", "0x" + "f" * 40, "9" * 400, '"""\n\n"""', '"\\u0000"', '"\\u202e"', '"$primary"',
    "[" * 60 + "]" * 60, '"' + "x" * 5000 + '"',
)  # fmt: skip
_VARIABLES = (
    "text-muted",
    "muted-style",
    "block-cursor-text-style",
    "level-0",
    "x",
    "primary",
    "border",
    "a b",
    "é",
)
_PERSONAS = (b"You are brief.", b"---\ntemperature: 0.3\ntop_k: 40\n---\nYou are brief.",
             b"---\nx: 1\n---\n",
             b"---\n" * 2000, b"", b"\xff\xfe\x00", b"---\ntemperature: 9e99\n---\n")  # fmt: skip


@cache
def _bundled() -> tuple[tuple[str, bytes], ...]:
    config = paths.bundled("config")
    themes = paths.bundled("themes")
    return (
        *((THEME, path.read_bytes()) for path in sorted(themes.glob("*.toml"))),
        (KEYS, (config / "keymap.toml").read_bytes()),
        (SETTINGS, (config / "default.toml").read_bytes()),
    )


def seeds() -> list[bytes]:
    """The program's own files, and hostile ones."""
    hostile = (
        b"x = " + b"[" * 50_000 + b"]" * 50_000, b"a." * 2000 + b"a = 1",
        b"[" + b"a." * 500 + b"a]", b"\xef\xbb\xbf", b"\xff\xfea\0=\0", b"a = 1\na = 2",
        b"\0" * 100, b"#" * (1 << 20), b"[[x]]\n" * 5000, b"",
    )  # fmt: skip
    packed = [_pack(file_type, content) for file_type, content in _bundled()]
    packed += [_pack(PERSONA, content) for content in _PERSONAS]
    return packed + [
        _pack(file_type, content) for file_type in (THEME, KEYS, SETTINGS) for content in hostile
    ]


def _pack(file_type: str, content: bytes) -> bytes:
    return file_type.encode() + b"\n" + content


def _unpack(data: bytes) -> tuple[str, bytes]:
    file_type, _, content = data.partition(b"\n")
    name = file_type.decode("ascii", "replace")
    return (name if name in _PLACES else SETTINGS), content


# ---- what is made


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Change bytes, or set a key to a value."""
    file_type, content = _unpack(data)
    if file_type == PERSONA or rng.randrange(3) == 0:
        return _pack(
            file_type,
            mutate_bytes(rng, content, [_unpack(donor)[1] for donor in rng.choices(inputs, k=3)]),
        )
    lines = content.splitlines()
    line = f"{_key(rng, file_type)} = {rng.choice(_VALUES)}".encode()
    if lines and rng.randrange(2):
        setting_lines = [
            index for index, line in enumerate(lines) if b"=" in line and not line.startswith(b"#")
        ]
        index = rng.choice(setting_lines) if setting_lines else 0
        if setting_lines and rng.randrange(2):  # the same key with another value
            line = lines[index].partition(b"=")[0] + b"= " + rng.choice(_VALUES).encode()
        lines[index] = line
    else:
        lines.insert(rng.randrange(len(lines) + 1), line)
    return _pack(file_type, b"\n".join(lines))


def _key(rng: Random, file_type: str) -> str:
    if file_type == THEME:
        return rng.choice(
            (
                "dark",
                "ansi",
                "primary",
                "surface",
                "boost",
                *(f'variables."{v}"' for v in _VARIABLES),
            )
        )
    if file_type == KEYS:
        return rng.choice(list(ACTIONS))
    return rng.choice(
        [*setting_keys(), "tools.servers.x.command", "tools.servers.x.headers", "server.origins"]
    )


# ---- what must hold


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Put the file into its place and begin with it."""
    file_type, content = _unpack(data)
    with _config_below(folder):
        file = folder / "jalopy" / _PLACES[file_type]
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        with watch.bounded(f"reading a file of kind {file_type}", _CPU_S, _MEMORY_BYTES):
            line = _READERS[file_type]()
    if not line:
        return f"{file_type}: taken"
    visible = clean_line(line, LONGEST_LINE_CHARS)
    if file.name not in visible and file.stem not in visible:
        raise Fault(f"the line does not name the file: {visible}")
    return f"{file_type}: {require_clean_line(visible)}"


@contextmanager
def _config_below(folder: Path) -> Iterator[None]:
    old_value = os.environ.get("XDG_CONFIG_HOME")
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    try:
        yield
    finally:
        if old_value is None:
            del os.environ["XDG_CONFIG_HOME"]
        else:
            os.environ["XDG_CONFIG_HOME"] = old_value


def _begin_with_theme() -> str:
    names, line = load_user_themes()
    if bool(names) == bool(line):
        raise Fault(f"{len(names)} themes are taken, and the line is {line!r}")
    for theme in names:
        variables = {**theme.to_color_system().generate(), **theme.variables}
        sheet = Stylesheet(variables={**variables, **meanings(theme, variables)})
        sheet.read_all(_style_sheets())
        try:
            sheet.parse()
        except StylesheetError as error:
            raise Fault(f"a theme that is taken breaks the style sheets: {error}") from None
    return line


@cache
def _style_sheets() -> tuple[Path, ...]:
    return tuple(sorted(Path(themes.__file__).parent.rglob("*.tcss")))


def _begin_with_persona() -> str:
    if persona_names() != ["odd"]:
        raise Fault(f"the personas are {persona_names()}")
    return _refused(lambda: load_persona("odd"))


def _refused(load: Callable[[], object]) -> str:
    try:
        load()
    except Refusal as refusal:
        return str(refusal)
    return ""


_READERS: dict[str, Callable[[], str]] = {
    THEME: _begin_with_theme,
    KEYS: lambda: _refused(load_keymap),
    SETTINGS: lambda: _refused(load_settings),
    PERSONA: _begin_with_persona,
}

TARGET = Target(
    seeds,
    mutate,
    run,
    ("app/program/small_file.py", "app/program/settings.py", "app/program/personas.py",
     "app/tui/themes.py",
     "app/tui/keymap.py"),
)  # fmt: skip
