"""Colour themes: reads ``themes/*.toml`` as Textual themes and checks them.

The name of a file is the name of its theme. Its keys are those of Textual's ``Theme``;
``[variables]`` sets CSS variables.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from app.program import paths
from app.program.refusals import Refusal
from app.program.small_file import parse_toml, read_text
from app.text.clean_text import clean_line
from app.text.figures import counted

MIN_CONTRAST = 4.5
"""Minimum contrast of text on its background, from WCAG 2.1, level AA."""

MIN_FRAME_CONTRAST = 3.0
"""Minimum contrast of a frame on its background, from WCAG 2.1, section 1.4.11."""

CONSOLE_THEME = "jalopy-16"
MAX_USER_THEMES = 200
MAX_ENTRIES = 10_000
"""Limit on the files that are listed in the user's folder of themes."""
MAX_THEME_BYTES = 64 << 10
DEFAULT_THEME = "jalopy-dark"

_FLAGS = ("dark", "ansi")
_REQUIRED_COLOURS = (
    "primary",
    "secondary",
    "accent",
    "success",
    "warning",
    "error",
    "foreground",
    "background",
)
_COLOURS = (*_REQUIRED_COLOURS, "surface", "panel", "boost")
_READABLE_ON_BACKGROUND = ("foreground", "primary", "secondary", "success", "warning", "error")
_AREA_STRENGTH = 0.5
"""Strength of the colour below a curve, 0 to 1."""
_SCROLLBAR_GROUNDS = (
    "scrollbar-background", "scrollbar-background-hover", "scrollbar-background-active",
    "scrollbar-corner-color",
)  # fmt: skip
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,79}")
_STYLE = re.compile(
    r"\s*(?:(?:b|blink|bold|dim|i|italic|none|not|o|overline|r|reverse|strike"
    r"|u|underline|uu)\s*\b)+"
)
_OPACITY = re.compile(r"(?:100|[0-9]{1,2})(?:\.[0-9]{1,4})?%")
_MAX_COLOUR_CHARS = 60
_COLOURLESS_SUFFIXES = ("-style", "-text-style")


class ThemeError(Refusal):
    """Error in a theme file; the message names file and key."""


def load_themes() -> list[Theme]:
    """Read all bundled themes.

    Raises:
        ThemeError: A file cannot be read or has a mistake.
    """
    return [load_theme(path) for path in sorted(paths.bundled("themes").glob("*.toml"))]


def load_user_themes() -> tuple[list[Theme], str]:
    """Read the themes in the user's folder.

    Return the themes, and a line on files that cannot be used, which is empty if all can.
    """
    directory = paths.themes_dir()
    if directory is None:
        return [], ""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_ENTRIES)]
    except FileNotFoundError:
        if directory.is_symlink():
            return [], clean_line(f"{directory}: broken link (your themes are not loaded)", 250)
        return [], ""
    except OSError as error:
        return [], clean_line(f"{directory}: {error.strerror} (your themes are not loaded)", 250)
    files = sorted(name for name in names if name.endswith(".toml"))
    themes = []
    troubles = []
    for name in files[:MAX_USER_THEMES]:
        try:
            themes.append(load_theme(directory / name))
        except ThemeError as error:
            troubles.append(str(error))
    n_unread = len(files) - MAX_USER_THEMES
    if n_unread > 0:
        troubles.append(
            f"{directory}: {n_unread} of {len(files)} themes are not loaded (limit: "
            f"{MAX_USER_THEMES})"
        )
    if not troubles:
        return themes, ""
    if len(troubles) == 1:
        return themes, troubles[0]
    n_others = counted(len(troubles) - 1, "other line")
    return themes, f"{troubles[0]} (and {n_others} like this)"


def load_theme(path: Path) -> Theme:
    """Read and check a theme file.

    Raises:
        ThemeError: The file cannot be read or has a mistake.
    """
    name = clean_line(path.name, 100)
    if not path.stem.strip() or not path.stem.isprintable():
        raise ThemeError(f"{name}: a theme cannot have this name (rename the file)")
    text = read_text(path, "theme", MAX_THEME_BYTES, ThemeError)
    values = parse_toml(text, name, ThemeError)
    _check_keys(name, values)
    variables = values.pop("variables", {})
    _check_colours(name, values, variables)
    if values.get("ansi"):
        # Textual's style sheets need these variables in a theme of ANSI colours, but define them
        # for its own two themes only.
        base_name = "ansi-dark" if values["dark"] else "ansi-light"
        base = BUILTIN_THEMES[base_name]
        variables = {**base.variables, **variables}
    else:
        background = Color.parse(values["background"])
        for key in _READABLE_ON_BACKGROUND:
            ratio = contrast(Color.parse(values[key]), background)
            if ratio < MIN_CONTRAST:
                raise ThemeError(
                    f"{name}: {key} on background has a contrast of {ratio:.1f}; {MIN_CONTRAST} is "
                    "needed"
                )
    return Theme(name=path.stem, variables=variables, **values)


def _check_keys(name: str, values: dict[str, Any]) -> None:
    known_keys = (*_FLAGS, *_COLOURS, "variables")
    for key in values:
        if key not in known_keys:
            nearest = difflib.get_close_matches(key, known_keys, n=1)
            if nearest:
                hint = f"; did you mean {nearest[0]}?"
            else:
                hint = ""
            raise ThemeError(f"{name}: {clean_line(key, 40)} is not a key of a theme{hint}")
    for key in ("dark", *_REQUIRED_COLOURS):
        if key not in values:
            raise ThemeError(f"{name}: {key} is missing")
    for key in _FLAGS:
        if not isinstance(values.get(key, False), bool):
            raise ThemeError(f"{name}: {key} must be true or false")
    if not isinstance(values.get("variables", {}), dict):
        raise ThemeError(f"{name}: variables must be a table")


def _check_colours(name: str, values: dict[str, Any], variables: dict[str, Any]) -> None:
    for key in _COLOURS:
        if key in values and not _is_colour(values[key]):
            raise _not_a_colour(name, key, values[key])
    for key, value in variables.items():
        if not _VARIABLE.fullmatch(key):
            raise ThemeError(
                f"{name}: {clean_line(key, 60)} is no variable's name (letters, digits, - and _)"
            )
        if key.endswith(_COLOURLESS_SUFFIXES):
            if not (isinstance(value, str) and _STYLE.fullmatch(value)):
                text = clean_line(str(value), 40)
                raise ThemeError(
                    f"{name}: variables.{key} is not a style, such as bold or dim: {text}"
                )
        elif not _is_colour(value, may_have_opacity=True):
            raise _not_a_colour(name, f"variables.{key}", value)


def _is_colour(value: object, may_have_opacity: bool = False) -> bool:
    """Whether a value is a colour, or in variables a colour with an opacity: "#ffffff 50%"."""
    if not isinstance(value, str) or len(value) > _MAX_COLOUR_CHARS:
        return False
    colour, space, opacity = value.strip().partition(" ")
    if space and not (may_have_opacity and _OPACITY.fullmatch(opacity.strip())):
        return False
    try:
        Color.parse(colour)
    except ColorParseError:
        return False
    return True


def _not_a_colour(name: str, key: str, value: object) -> ThemeError:
    return ThemeError(
        f"{name}: {clean_line(key, 60)} is not a colour: {clean_line(str(value), 40)}"
    )


def meanings(theme: Theme, variables: dict[str, str]) -> dict[str, str]:
    """Return Jalopy's own CSS variables for a theme: colours by meaning, frames and scroll bars.

    Frames, titles and scroll bars replace those of the theme where they would be hard to see.
    """
    own_variables = theme.variables
    if theme.ansi:
        levels = [variables[name] for name in ("error", "error", "warning", "success", "success")]
        areas = [*levels, variables["accent"]]
        derived = {
            "muted-style": "dim",
            **dict.fromkeys(("muted", "frame", "unfilled"), variables["foreground"]),
        }
        # The background of the terminal is unknown: black or white could be a slab on it.
        always = {
            "title": variables["primary"],
            **dict.fromkeys(_SCROLLBAR_GROUNDS, "ansi_default"),
        }
    else:
        worst, middle, best = (
            Color.parse(variables[name]) for name in ("error", "warning", "success")
        )
        mixed = (worst, worst.blend(middle, 0.5), middle, middle.blend(best, 0.5), best)
        levels = [colour.hex for colour in mixed]
        ground = Color.parse(variables["background"])
        ink = Color.parse(variables["foreground"])
        grounds = ground, Color.parse(variables["surface"])
        areas = [
            ground.blend(colour, _AREA_STRENGTH).hex
            for colour in (*mixed, Color.parse(variables["accent"]))
        ]
        derived = {
            "muted-style": "none",
            "muted": _legible(ground.blend(ink, 0.68), ink, grounds, MIN_CONTRAST).hex,
            "frame": ground.blend(ink, 0.28).hex,
            "unfilled": ground.blend(ink, 0.2).hex,
            "scrollbar": ground.blend(ink, 0.3).hex,
            **dict.fromkeys(("scrollbar-hover", "scrollbar-active"), variables["primary"]),
            **dict.fromkeys(_SCROLLBAR_GROUNDS, ground.hex),
        }
        primary = Color.parse(variables["primary"])
        border = Color.parse(variables["border"])
        always = {
            "title": _legible(primary, ink, grounds, MIN_CONTRAST).hex,
            "border": _legible(border, ink, grounds, MIN_FRAME_CONTRAST).hex,
            "border-blurred": derived["frame"],
        }
    derived |= {f"level-{number}": colour for number, colour in enumerate(levels)}
    derived |= {
        f"area-{name}": colour for name, colour in zip((*range(5), "plain"), areas, strict=True)
    }
    if "text-muted" in own_variables:
        derived["muted"] = own_variables["text-muted"]
    derived |= {"reading": variables["secondary"], "writing": variables["primary"]}
    own_names = own_variables.keys() - always.keys()
    return {name: value for name, value in (derived | always).items() if name not in own_names}


def _legible(colour: Color, ink: Color, grounds: Iterable[Color], least: float) -> Color:
    """Return the colour, blended with the text's colour until it is legible on all grounds."""
    grounds = tuple(grounds)
    for tenths in range(11):
        blended = colour.blend(ink, tenths / 10)
        if min(contrast(blended, ground) for ground in grounds) >= least:
            return blended
    return ink


def contrast(colour: Color, other_colour: Color) -> float:
    """Return the contrast ratio of two opaque colours, 1 to 21, as WCAG 2.1 defines it."""
    lighter, darker = sorted((_luminance(colour), _luminance(other_colour)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Color) -> float:
    shares = (channel / 255 for channel in colour.rgb)
    linear = (
        share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return sum(
        weight * light for weight, light in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


def choose_theme(requested_theme: str, available: Iterable[str], has_few_colours: bool) -> str:
    """Return the theme to start with.

    That is the requested theme if there is one of this name, else the default. Without a choice, a
    terminal of 16 colours gets ``CONSOLE_THEME``.
    """
    names = set(available)
    if has_few_colours and requested_theme in ("", DEFAULT_THEME) and CONSOLE_THEME in names:
        return CONSOLE_THEME
    if requested_theme in names:
        return requested_theme
    return DEFAULT_THEME


def no_such_theme(name: str, available: Iterable[str]) -> str:
    """Return the error line for an unknown theme, with the nearest name and all names."""
    names = sorted(available)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return (
        f"Unknown theme: {clean_line(name, 60)!r} (nearest: {near[0]}). Themes: {', '.join(names)}"
    )
