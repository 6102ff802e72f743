"""Markdown of a reply: nothing opens by itself, HTML is text, and code is not highlighted while it streams."""

from __future__ import annotations

from markdown_it import MarkdownIt
from textual.content import Content
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from app._textual_hacks import open_block_source
from app.messages import LinkChosen


def reply_parser() -> MarkdownIt:
    """Return the parser for text by a model: tables and strikethrough, no HTML, no links made of bare words."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})


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
