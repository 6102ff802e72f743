"""Adapters (LoRA) as a user names them: ``FILE`` or ``FILE:SCALE``, whole paths once they are
read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence

from app.program import paths
from app.program.refusals import Refusal
from app.text.clean_text import clean_line

OFF = "off"
USAGE = "/lora FILE[:SCALE] ... changes the model by adapters, /lora off by none"


def split_scale(name: str) -> tuple[str, float]:
    """Return a file's name and its scale; a file that is named so has no scale."""
    file, colon, scale = name.rpartition(":")
    if not (colon and file) or os.path.lexists(paths.expanded(name)):
        return name, 1.0
    try:
        return file, float(scale)
    except ValueError:
        return name, 1.0


def adapters_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return adapters that a user names, each by its whole path.

    Raises Refusal: a scale is no number.
    """
    found = []
    for name in names:
        file, scale = split_scale(name)
        if not math.isfinite(scale):
            raise Refusal(f"the scale of {clean_line(file, 60)} is {scale}: must be a number")
        path = os.path.abspath(paths.expanded(file))
        found.append(path if scale == 1.0 else f"{path}:{scale:g}")
    return tuple(found)


def described(adapters: Sequence[str]) -> str:
    """Name adapters: "adapter tone.gguf:0.5"; "" for none."""
    names = [clean_line(os.path.basename(name), 40) for name in adapters]
    if names:
        return f"adapter{'s' if len(names) > 1 else ''} {', '.join(names)}"
    return ""
