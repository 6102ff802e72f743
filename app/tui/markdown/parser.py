"""The dialect of Markdown that models write: whatever they write is shown."""

from __future__ import annotations

import re
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, reference
from markdown_it.rules_inline import StateInline
from markdown_it.tree import SyntaxTreeNode

AS_WRITTEN = "as_written"
MATH = "math"
MATH_BLOCK = "math_block"
_MATH = re.compile(
    r"\$\$(?P<lone>[^$]{1,2000})\$\$"
    r"|\\\((?P<round>[^\n]{1,500}?)\\\)|\\\[(?P<square>.{1,2000}?)\\\]"
    r"|(?<![\w$])\$(?P<formula>(?=\S)[^$\n`]{0,300}?[\\^_][^$\n`]{0,300}?(?<=\S))\$(?!\d)"
    r"|(?<![\w$])\$(?P<plain>(?=\S)(?:[a-zA-Z](?![a-zA-Z])|[\d\s+\-*/=<>().,|!'])+(?<=\S))\$(?:(?!\w)|(?=(?:th|s)\b))",
    re.DOTALL,
)
"""Formulas between the delimiters that models use; between single signs only what looks like one:
prices do not."""
_BLOCK_START = re.compile(r"\$\$|\\\[|\\begin\{(?:align|gather|equation|multline|eqnarray)\*?\}")
_BLOCK_ENDS = {"$$": "$$", "\\[": "\\]"}
_MOST_LINES = 60
"""A formula is looked for in so many lines after its beginning."""
_DEEPEST_LEVEL = 18
"""The parser leaves out what is two levels deeper, and all after it; an item of a list takes
two."""


@cache
def _parser() -> MarkdownIt:
    """Tables and strikethrough, no HTML, no links made of bare words."""
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    parser.block.ruler.at("reference", _reference)
    parser.block.ruler.before("table", "too_deep", _too_deep)
    parser.block.ruler.before(
        "table", MATH_BLOCK, _math_block, {"alt": ["paragraph", "blockquote", "list"]}
    )
    parser.inline.ruler.before("escape", "math", _math)
    return parser


def tree_of(source: str) -> SyntaxTreeNode:
    """Parse; the blocks are the root's children."""
    return SyntaxTreeNode(_parser().parse(source))


def _reference(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take what links refer to, and show it too: "[Answer]: Paris" looks the same and may be all
    there is."""
    if not reference(state, start, end, silent):
        return False
    if not silent:
        _show_as_written(state, start, state.line)
    return True


def _too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take what is too deep for the parser, up to the end of the block that it is in."""
    if state.level < _DEEPEST_LEVEL or silent:
        return False
    after = start + 1
    while after < end and (state.isEmpty(after) or state.sCount[after] >= state.blkIndent):
        after += 1
    _show_as_written(state, start, after)
    state.line = after
    return True


def _math_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take a formula that fills lines of its own: nothing in it is a list, a heading or a table."""
    opening = _BLOCK_START.match(
        state.src, state.bMarks[start] + state.tShift[start], state.eMarks[start]
    )
    if opening is None or state.is_code_block(start):
        return False
    closing = _BLOCK_ENDS.get(opening[0], opening[0].replace("begin", "end"))
    for after in range(start + 1, min(end, start + _MOST_LINES) + 1):
        text = state.getLines(start, after, state.blkIndent, False).strip()
        if closing in text[len(opening[0]) :] or state.isEmpty(after - 1):
            break
    else:
        return False
    if not text.endswith(closing) or text.find(closing, len(opening[0])) < len(text) - len(closing):
        return False
    if not silent:
        token = state.push(MATH_BLOCK, "", 0)
        token.markup = text
        token.map = [start, after]
        if opening[0].startswith("\\begin"):
            token.content = text
        else:
            token.content = text[len(opening[0]) : -len(closing)]
        state.line = after
    return True


def _math(state: StateInline, silent: bool) -> bool:
    """Take a formula, backslashes, stars and underscores included."""
    found = _MATH.match(state.src, state.pos)
    if found is None or found.end() > state.posMax:
        return False
    if not silent:
        token = state.push(MATH, "", 0)
        token.markup = found[0]
        token.content = found[str(found.lastgroup)]
        token.meta["is_display"] = found.lastgroup in ("lone", "square")
    state.pos = found.end()
    return True


def _show_as_written(state: StateBlock, start: int, after: int) -> None:
    text = state.getLines(start, after, state.blkIndent, False).rstrip()
    if state.tokens:
        before = state.tokens[-1]
    else:
        before = None
    if before is not None and before.type == AS_WRITTEN and before.map and before.map[1] == start:
        before.content = f"{before.content}\n{text}"
        before.map = [before.map[0], after]
    else:
        token = state.push(AS_WRITTEN, "", 0)
        token.content = text
        token.map = [start, after]
