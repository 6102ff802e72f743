"""A picture from the desktop's clipboard, by the programs that desktops have for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from threading import Timer

from app.program.refusals import Refusal

MOST_BYTES = 100 << 20
"""Limit on the file of a picture, as for files on disk."""
PATIENCE_S = 10.0
PICTURE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/bmp", "image/tiff", "image/gif")
"""Types of pictures in the order in which they are asked for."""
_MOST_TYPES_BYTES = 1 << 16
_NO_PICTURE = "the clipboard has no picture"


def read_picture(environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the picture in the clipboard as a file's content.

    Raises:
        Refusal: there is none, or no program that reads it.
    """
    if environ.get("WAYLAND_DISPLAY") and shutil.which("wl-paste"):
        return _read(["wl-paste", "--list-types"], ["wl-paste", "--no-newline", "--type"])
    if environ.get("DISPLAY") and shutil.which("xclip"):
        command = ["xclip", "-selection", "clipboard", "-out", "-target"]
        return _read([*command, "TARGETS"], command)
    if shutil.which("pngpaste"):
        content = _output(["pngpaste", "-"], MOST_BYTES)
        if content:
            return content
        raise Refusal(_NO_PICTURE)
    if environ.get("WAYLAND_DISPLAY"):
        raise Refusal("reading pictures from the clipboard needs wl-paste (package wl-clipboard)")
    if environ.get("DISPLAY"):
        raise Refusal("reading pictures from the clipboard needs xclip (install it)")
    raise Refusal("no clipboard can be reached from here (/read photo.png attaches a file)")


def _read(list_types: Sequence[str], read_type: Sequence[str]) -> bytes:
    types = _output(list_types, _MOST_TYPES_BYTES).decode("utf-8", "replace").split()
    for picture_type in PICTURE_TYPES:
        if picture_type in types:
            content = _output([*read_type, picture_type], MOST_BYTES)
            if content:
                return content
    raise Refusal(_NO_PICTURE)


def _output(command: Sequence[str], most_bytes: int) -> bytes:
    """Return what a program prints; empty if it fails.

    Raises:
        Refusal: it prints too much, takes too long, or does not start.
    """
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as child:
            return _bounded(child, most_bytes)
    except OSError as error:
        raise Refusal(f"{command[0]} does not start: {error.strerror}") from None


def _bounded(child: subprocess.Popen[bytes], most_bytes: int) -> bytes:
    assert child.stdout is not None
    timer = Timer(PATIENCE_S, child.kill)
    timer.start()
    try:
        content = child.stdout.read(most_bytes + 1)
    finally:
        is_late = not timer.is_alive()
        timer.cancel()
    if len(content) > most_bytes:
        child.kill()
        raise Refusal(f"the clipboard has more than {most_bytes >> 20} MiB (save it as a file)")
    if is_late:
        raise Refusal(f"the clipboard has not answered within {PATIENCE_S:.0f} s")
    if child.wait() != 0:
        return b""
    return content
