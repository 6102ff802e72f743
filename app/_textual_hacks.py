"""The places where Textual's public interface is not enough, each with its reason and the day it can go."""

from __future__ import annotations

from textual.widgets import Markdown


def open_block_source(markdown: Markdown) -> str:
    """Return the source from the last top-level block on, which ``Markdown.append`` parses again each time.

    Textual 8.2 keeps that line number to itself. Remove when it is public, or when append no longer re-parses.
    """
    lines = markdown.source.splitlines(keepends=True)
    return "".join(lines[markdown._last_parsed_line :])
