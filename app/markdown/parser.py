"""The dialect of Markdown that models write."""

from __future__ import annotations

from functools import cache

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode


@cache
def _parser() -> MarkdownIt:
    """Tables and strikethrough, no HTML, no links made of bare words."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})


def tree_of(source: str) -> SyntaxTreeNode:
    """Parse; the blocks are the root's children."""
    return SyntaxTreeNode(_parser().parse(source))
