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
    made = [_pack(kind, content) for kind, content in _bundled()]
    made += [_pack(PERSONA, content) for content in _PERSONAS]
    return made + [_pack(kind, content) for kind in (THEME, KEYS, SETTINGS) for content in hostile]


def _pack(kind: str, content: bytes) -> bytes:
    return kind.encode() + b"\n" + content


def _unpack(data: bytes) -> tuple[str, bytes]:
    kind, _, content = data.partition(b"\n")
    name = kind.decode("ascii", "replace")
    return (name if name in _PLACES else SETTINGS), content


# ---- what is made


def mutate(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change bytes, or set a key to a value."""
    kind, content = _unpack(data)
    if kind == PERSONA or rng.randrange(3) == 0:
        return _pack(
            kind,
            mutate_bytes(rng, content, [_unpack(other)[1] for other in rng.choices(others, k=3)]),
        )
    lines = content.splitlines()
    line = f"{_key(rng, kind)} = {rng.choice(_VALUES)}".encode()
    if lines and rng.randrange(2):
        own = [index for index, one in enumerate(lines) if b"=" in one and not one.startswith(b"#")]
        index = rng.choice(own) if own else 0
        if own and rng.randrange(2):  # the same key with another value
            line = lines[index].partition(b"=")[0] + b"= " + rng.choice(_VALUES).encode()
        lines[index] = line
    else:
        lines.insert(rng.randrange(len(lines) + 1), line)
    return _pack(kind, b"\n".join(lines))


def _key(rng: Random, kind: str) -> str:
    if kind == THEME:
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
    if kind == KEYS:
        return rng.choice(list(ACTIONS))
    return rng.choice(
        [*setting_keys(), "tools.servers.x.command", "tools.servers.x.headers", "server.origins"]
    )


# ---- what must hold


def run(data: bytes, place: Path, watch: Watch) -> str:
    """Put the file into its place and begin with it."""
    kind, content = _unpack(data)
    with _config_below(place):
        file = place / "jalopy" / _PLACES[kind]
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        with watch.bounded(f"reading a file of kind {kind}", _CPU_S, _MEMORY_BYTES):
            line = _READERS[kind]()
    if not line:
        return f"{kind}: taken"
    shown = clean_line(line, LONGEST_LINE_CHARS)
    if file.name not in shown and file.stem not in shown:
        raise Fault(f"the line does not name the file: {shown}")
    return f"{kind}: {require_clean_line(shown)}"


@contextmanager
def _config_below(place: Path) -> Iterator[None]:
    before = os.environ.get("XDG_CONFIG_HOME")
    os.environ["XDG_CONFIG_HOME"] = str(place)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CONFIG_HOME"]
        else:
            os.environ["XDG_CONFIG_HOME"] = before


def _begin_with_theme() -> str:
    taken, line = load_user_themes()
    if bool(taken) == bool(line):
        raise Fault(f"{len(taken)} themes are taken, and the line is {line!r}")
    for theme in taken:
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
