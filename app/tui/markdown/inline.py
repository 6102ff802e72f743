"""Inline Markdown: emphasis, code, links."""

from __future__ import annotations

import re

from markdown_it.tree import SyntaxTreeNode
from textual.content import Content
from textual.style import Style

from app.text.clean_text import clean_text

_CLASSES = {"em": ".em", "strong": ".strong", "s": ".gone"}
_BREAKS = {"softbreak": " ", "hardbreak": "\n"}
_SPACE = re.compile(r"\s+")


def inline_text(node: SyntaxTreeNode) -> Content:
    """Return the styled text of a node and all within it; line breaks are those the text insists on."""
    if node.type == "text":
        text = _SPACE.sub(" ", node.content)
        is_plain = text.isascii() and text.isprintable()  # what most text is, seen a hundred times faster
        return Content(text if is_plain else clean_text(text))  # again: entities are characters by now
    if node.type in _BREAKS:
        return Content(_BREAKS[node.type])
    if node.type == "code_inline":
        return Content(node.content).stylize(".code")
    inner = Content("").join(inline_text(child) for child in node.children)
    if node.type == "image":
        return Content(f"[image: {inner.plain or node.attrs.get('src', '')}]").stylize(_link(node.attrs.get("src", "")))
    if node.type == "link":
        return inner.stylize_before(_link(node.attrs.get("href", "")))
    if node.type in _CLASSES:
        return inner.stylize_before(_CLASSES[node.type])
    return inner if node.children else Content(node.content)


def _link(target: object) -> Style:
    """Style of a link; a click runs the widget's action that shows its target."""
    return Style.from_meta({"@click": f"link({str(target)!r})"})
