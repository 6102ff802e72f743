"""Markdown of a reply: nothing opens by itself, HTML is text, and code is not highlighted while it streams."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from textual.content import Content
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from app._textual_hacks import open_block_source
from app.messages import LinkChosen

PLAIN_TAIL_CHARS = 4096
"""A block that is still open and longer than this is shown as plain text until it ends; see ``shows_at_once``."""

_FENCE_START = re.compile(r"\s{0,3}(?:`{3,}|~{3,})")
_FENCE_END = re.compile(r"^\s{0,3}(?:`{3,}|~{3,})\s*$", re.MULTILINE)
_LIST_START = re.compile(r"\s{0,3}(?:[-*+]|\d{1,9}[.)])\s")
_AFTER_LIST = re.compile(r"\n\n(?![\s*+-]|\d{1,9}[.)]\s)")


def reply_parser() -> MarkdownIt:
    """Return the parser for text by a model: tables and strikethrough, no HTML, no links made of bare words."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})


def ends_block(open_source: str, tail: str) -> bool:
    """Whether the Markdown block that ``open_source`` began ends within ``tail``; a guess that errs to no."""
    if _FENCE_START.match(open_source):
        return _FENCE_END.search(tail) is not None
    joined = open_source[-2:] + tail
    if _LIST_START.match(open_source):
        return _AFTER_LIST.search(joined) is not None
    return "\n\n" in joined


def shows_at_once(open_source: str, tail: str) -> bool:
    """Whether the tail is worth parsing now.

    Each append parses the open block again, so that a long fence, list or table would cost quadratic time. A block
    past the limit is parsed again only when it ends, or when it has doubled.
    """
    if len(open_source) + len(tail) <= PLAIN_TAIL_CHARS or len(tail) >= len(open_source):
        return True
    return ends_block(open_source, tail)


class PlainFence(MarkdownFence):
    """A code block without colours: highlighting it again at every append would cost more than decoding."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Return the code as it is."""
        return Content(code)


class ReplyMarkdown(Markdown):
    """The Markdown of one reply."""

    # The Linux console's font has no other bullets.
    BULLETS = ["• ", "- ", "* ", "• ", "- "]  # noqa: RUF012 - Textual types it so

    def __init__(self) -> None:
        super().__init__(parser_factory=reply_parser, open_links=False)
        self.is_streaming = True

    @property
    def open_source(self) -> str:
        """The text of the last block, which the next append will parse again."""
        return open_block_source(self)

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        """Return the widget for a kind of block."""
        block_class = super().get_block_class(block_name)
        if self.is_streaming and issubclass(block_class, MarkdownFence):
            return PlainFence
        return block_class

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Show where a link leads; open nothing."""
        event.stop()
        self.post_message(LinkChosen(event.href))
