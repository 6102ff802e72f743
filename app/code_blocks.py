"""The code blocks of a reply, as text to copy. Knows no screen."""

from __future__ import annotations


def code_blocks(markdown: str) -> list[str]:
    """Return the fenced blocks in order, as they would be typed; one that is still open counts."""
    # Not with the module: it is imported with the chat, and the parser would hold up the first frame.
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(markdown)
    return [token.content.removesuffix("\n") for token in tokens if token.type == "fence"]
