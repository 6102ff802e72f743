"""Adapters (LoRA) as a user names them: ``FILE`` or ``FILE:SCALE``, with absolute paths once they
are read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence

from app.program import paths
from app.program.refusals import Refusal
from app.text.clean_text import clean_line

OFF = "off"
USAGE = "/lora FILE[:SCALE] ... uses adapters, /lora off removes them"


def split_scale(name: str) -> tuple[str, float]:
    """Return a file's name and its scale; 1 if there is none, or if a file has the whole name."""
    file, colon, scale = name.rpartition(":")
    if not (colon and file) or os.path.lexists(paths.expanded(name)):
        return name, 1.0
    try:
        return file, float(scale)
    except ValueError:
        return name, 1.0


def adapters_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return adapters with absolute paths.

    Raises Refusal: a scale is not a number.
    """
    adapters = []
    for name in names:
        file, scale = split_scale(name)
        if not math.isfinite(scale):
            raise Refusal(f"the scale of {clean_line(file, 60)} is {scale}: must be a number")
        path = os.path.abspath(paths.expanded(file))
        if scale != 1.0:
            path = f"{path}:{scale:g}"
        adapters.append(path)
    return tuple(adapters)


def described(adapters: Sequence[str]) -> str:
    """Return the names of adapters, as "adapter tone.gguf:0.5"; empty for none."""
    if not adapters:
        return ""
    names = [clean_line(os.path.basename(name), 40) for name in adapters]
    plural = "s" if len(names) > 1 else ""
    return f"adapter{plural} {', '.join(names)}"
