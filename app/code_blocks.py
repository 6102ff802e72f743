"""The code blocks of a reply, as text to copy. Knows no screen."""

from __future__ import annotations


def code_blocks(markdown: str) -> list[str]:
    """Return the fenced blocks in order, as they would be typed; one that is still open counts."""
    # Not with the module: it is imported with the chat, and the parser would hold up the first frame.
    from app.markdown.parser import tree_of

    return [node.content.removesuffix("\n") for node in tree_of(markdown).walk() if node.type == "fence"]
