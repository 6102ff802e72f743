"""The dialect of Markdown that models write: whatever they write is shown."""

from __future__ import annotations

import re
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, reference
from markdown_it.rules_inline import StateInline
from markdown_it.tree import SyntaxTreeNode

AS_WRITTEN = "as_written"
_MATH = re.compile(
    r"\$\$[^$]{1,2000}\$\$"
    r"|\\\([^\n]{1,500}?\\\)|\\\[.{1,2000}?\\\]"
    r"|\$(?=\S)[^$\n]{0,300}?[\\^_][^$\n]{0,300}?(?<=\S)\$(?!\d)",
    re.DOTALL,
)
"""Formulas between the delimiters that models use; between single signs only what looks like one: prices do not."""
_DEEPEST_LEVEL = 18
"""The parser leaves out what lies two levels deeper, and all after it; an item of a list takes two."""


@cache
def _parser() -> MarkdownIt:
    """Tables and strikethrough, no HTML, no links made of bare words."""
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    parser.block.ruler.at("reference", _reference)
    parser.block.ruler.before("table", "too_deep", _too_deep)
    parser.inline.ruler.before("escape", "math", _math)
    return parser


def tree_of(source: str) -> SyntaxTreeNode:
    """Parse; the blocks are the root's children."""
    return SyntaxTreeNode(_parser().parse(source))


def _reference(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take what links refer to, and show it too: "[Answer]: Paris" looks the same and may be all there is."""
    if not reference(state, start, end, silent):
        return False
    if not silent:
        _show_as_written(state, start, state.line)
    return True


def _too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take what lies too deep for the parser, up to the end of the block that it lies in."""
    if state.level < _DEEPEST_LEVEL or silent:
        return False
    after = start + 1
    while after < end and (state.isEmpty(after) or state.sCount[after] >= state.blkIndent):
        after += 1
    _show_as_written(state, start, after)
    state.line = after
    return True


def _math(state: StateInline, silent: bool) -> bool:
    """Take a formula: it is shown as its source, backslashes, stars and underscores included."""
    found = _MATH.match(state.src, state.pos)
    if found is None or found.end() > state.posMax:
        return False
    if not silent:
        state.push("text", "", 0).content = found[0]
    state.pos = found.end()
    return True


def _show_as_written(state: StateBlock, start: int, after: int) -> None:
    text = state.getLines(start, after, state.blkIndent, False).rstrip()
    before = state.tokens[-1] if state.tokens else None
    if before is not None and before.type == AS_WRITTEN and before.map and before.map[1] == start:
        before.content, before.map = f"{before.content}\n{text}", [before.map[0], after]
    else:
        token = state.push(AS_WRITTEN, "", 0)
        token.content, token.map = text, [start, after]
