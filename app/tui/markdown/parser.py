"""Parser for the Markdown that models write. No text is dropped."""

from __future__ import annotations

import re
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, reference
from markdown_it.rules_inline import StateInline
from markdown_it.tree import SyntaxTreeNode

RAW_TEXT = "as_written"
MATH = "math"
MATH_BLOCK = "math_block"
_MATH = re.compile(
    r"\$\$(?P<lone>[^$]{1,2000})\$\$"
    r"|\\\((?P<round>[^\n]{1,500}?)\\\)|\\\[(?P<square>.{1,2000}?)\\\]"
    r"|(?<![\w$])\$(?P<formula>(?=\S)[^$\n`]{0,300}?[\\^_][^$\n`]{0,300}?(?<=\S))\$(?!\d)"
    r"|(?<![\w$])\$(?P<plain>(?=\S)(?:[a-zA-Z](?![a-zA-Z])|[\d\s+\-*/=<>().,|!'])+(?<=\S))\$(?:(?!\w)|(?=(?:th|s)\b))",
    re.DOTALL,
)
"""Formulas between the delimiters that models use.

Text between single dollar signs must look like a formula, unlike prices.
"""
_BLOCK_START = re.compile(r"\$\$|\\\[|\\begin\{(?:align|gather|equation|multline|eqnarray)\*?\}")
_BLOCK_ENDS = {"$$": "$$", "\\[": "\\]"}
_MAX_FORMULA_LINES = 60
"""Limit on the lines of a formula."""
_MAX_LEVEL = 18
"""Deepest level of nesting that is parsed.

The parser drops text two levels deeper and everything after it. A list item takes two levels.
"""


@cache
def _parser() -> MarkdownIt:
    """Return a parser with tables, strikethrough and formulas, without HTML and bare links."""
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    parser.block.ruler.at("reference", _reference)
    parser.block.ruler.before("table", "too_deep", _too_deep)
    parser.block.ruler.before(
        "table", MATH_BLOCK, _math_block, {"alt": ["paragraph", "blockquote", "list"]}
    )
    parser.inline.ruler.before("escape", "math", _math)
    return parser


def tree_of(source: str) -> SyntaxTreeNode:
    """Parse a text; the children of the root are its blocks."""
    return SyntaxTreeNode(_parser().parse(source))


def _reference(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a link reference, and show it as well, because "[Answer]: Paris" looks the same."""
    if not reference(state, start, end, silent):
        return False
    if not silent:
        _push_raw_text(state, start, state.line)
    return True


def _too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take blocks that are nested too deeply as raw text, up to the end of the outer block."""
    if state.level < _MAX_LEVEL or silent:
        return False
    end_line = start + 1
    while end_line < end and (state.isEmpty(end_line) or state.sCount[end_line] >= state.blkIndent):
        end_line += 1
    _push_raw_text(state, start, end_line)
    state.line = end_line
    return True


def _math_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a formula on lines of its own, in which nothing is a list, a heading or a table."""
    opening = _BLOCK_START.match(
        state.src, state.bMarks[start] + state.tShift[start], state.eMarks[start]
    )
    if opening is None or state.is_code_block(start):
        return False
    closing = _BLOCK_ENDS.get(opening[0], opening[0].replace("begin", "end"))
    for end_line in range(start + 1, min(end, start + _MAX_FORMULA_LINES) + 1):
        text = state.getLines(start, end_line, state.blkIndent, False).strip()
        if closing in text[len(opening[0]) :] or state.isEmpty(end_line - 1):
            break
    else:
        return False
    if not text.endswith(closing) or text.find(closing, len(opening[0])) < len(text) - len(closing):
        return False
    if not silent:
        token = state.push(MATH_BLOCK, "", 0)
        token.markup = text
        token.map = [start, end_line]
        if opening[0].startswith("\\begin"):
            token.content = text
        else:
            token.content = text[len(opening[0]) : -len(closing)]
        state.line = end_line
    return True


def _math(state: StateInline, silent: bool) -> bool:
    """Parse a formula in a line, including its backslashes, stars and underscores."""
    match = _MATH.match(state.src, state.pos)
    if match is None or match.end() > state.posMax:
        return False
    if not silent:
        token = state.push(MATH, "", 0)
        token.markup = match[0]
        token.content = match[str(match.lastgroup)]
        token.meta["is_display"] = match.lastgroup in ("lone", "square")
    state.pos = match.end()
    return True


def _push_raw_text(state: StateBlock, start: int, end_line: int) -> None:
    text = state.getLines(start, end_line, state.blkIndent, False).rstrip()
    if state.tokens:
        previous = state.tokens[-1]
        if previous.type == RAW_TEXT and previous.map and previous.map[1] == start:
            previous.content = f"{previous.content}\n{text}"
            previous.map = [previous.map[0], end_line]
            return
    token = state.push(RAW_TEXT, "", 0)
    token.content = text
    token.map = [start, end_line]
