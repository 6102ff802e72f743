r"""Formulas in LaTeX as rows of Unicode text: what a terminal can show of them.

The parser and most symbols are pylatexenc's. The layout is ours: its own text drops braces, and a
fraction would read ``a+b/2``. A formula is a box of rows that are joined at their base line; most
boxes have one row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from app.text.clean_text import screen_text
from app.tui.markdown.formula_boxes import Box, between_brackets, joined, spaced, stacked
from app.tui.markdown.formula_symbols import (
    ACCENTS,
    ALIGNED,
    CHARACTERS,
    DOUBLE_STRUCK,
    FLAT_BRACKETS,
    FUNCTIONS,
    GRIDS,
    LIGATURES,
    PLAIN,
    ROOTS,
    SEPARATORS,
    SILENT,
    SUBSCRIPTS,
    SUPERSCRIPTS,
    SYMBOLS,
    VULGAR_FRACTIONS,
)

if TYPE_CHECKING:
    from pylatexenc.latexwalker import LatexNode

MOST_CHARS = 2000
"""A longer formula is shown as its source."""
_DEEPEST_GROUP = 40
"""The parser calls itself for each group in a group."""
_MARKS = "[\u0300-\u036f\u20d7\u2032\u2033⁰¹²³⁴-₎ₐ-ₜᵢⱼᵣᵤᵥᵃ-ᵡ]*"
_ATOM = re.compile(rf"(?:\d+(?:[.,]\d+)*|[^\W\d]|[d∂Δ]\w|[a-zA-Z]{{4,}}|√\w|[^\w\s]){_MARKS}")
"""What needs no parentheses after a slash, a root or a power: a number, a letter, a differential, a
word."""
_PRODUCT = re.compile(rf"(?:[\w∂∇√!.]{_MARKS})+(?:\([^()]*\))?")
"""What needs none before a slash."""


@lru_cache(256)
def formula_rows(source: str, *, is_display: bool) -> tuple[str, ...]:
    r"""Return a formula as rows of text; none where it cannot be shown as anything but its source.

    Args:
        source: LaTeX without its delimiters.
        is_display: it is by itself and may have several rows; else it is one row in a line of text.
    """
    if len(source) > MOST_CHARS or _depth(source) > _DEEPEST_GROUP:
        return ()
    from pylatexenc.latexwalker import LatexWalker

    try:
        nodes, _, _ = LatexWalker(source, tolerant_parsing=True).get_latex_nodes()
        box = _Layout(is_display).of(nodes or [])
    except (
        Exception
    ):  # the parser has many ways to fail on half a formula, and so has what it leaves to us
        return ()
    rows = tuple(screen_text(normalize("NFC", row)).rstrip() for row in box.stripped().rows)
    if any(rows):
        return rows
    return ()


def _depth(source: str) -> int:
    deepest = depth = 0
    for found in re.finditer(r"\\begin|\\end|\\.|[{}]", source, re.DOTALL):
        depth += {"{": 1, "\\begin": 1, "}": -1, "\\end": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest


class _UnknownMacroError(Exception):
    """A macro without a meaning here: its formula is shown as its source."""


class _Layout:
    """Makes boxes of nodes."""

    def __init__(self, is_display: bool) -> None:
        self._is_display = is_display

    def of(self, nodes: Sequence[LatexNode]) -> Box:
        r"""Return nodes next to each other; ``\\`` begins a new row, ``&`` aligns columns."""
        grid = _cells(nodes)
        if len(grid) == 1 and len(grid[0]) == 1:
            return self._in_line(grid[0][0])
        if self._is_display:
            return stacked(
                [[self._in_line(cell).stripped() for cell in row] for row in grid], "rl", " "
            )
        return Box(
            ("; ".join(spaced("".join(self.text(cell) for cell in row)).strip() for row in grid),)
        )

    def text(self, nodes: Sequence[LatexNode]) -> str:
        """Return nodes as one row."""
        return " ".join(_Layout(False).of(nodes).rows)

    def _in_line(self, nodes: Sequence[LatexNode]) -> Box:
        parts: list[Box] = []
        queue = _Queue(nodes)
        while (node := queue.next()) is not None:
            if isinstance(node, str) and node in "^_'":
                self._add_script(parts, node, queue)
            else:
                parts.append(self._box(node, queue))
        return joined(parts)

    def _add_script(self, parts: list[Box], sign: str, queue: _Queue) -> None:
        if sign == "'":
            text = _script("^", "′")
        else:
            text = _script(sign, self._script_argument(queue))
        if parts and len(parts[-1].rows) > 1:
            parts[-1] = parts[-1].with_script(text, is_below=sign == "_")
        else:
            needs_space = text[:1] == sign and _begins_word(queue.peek())
            parts.append(Box((text + " " * needs_space,)))

    def _script_argument(self, queue: _Queue) -> str:
        node = queue.next()
        while isinstance(node, str) and node.isspace():
            node = queue.next()
        if node is None:
            return ""
        return _Layout(False)._box(node, queue).rows[0].strip()

    def _box(self, node: Any, queue: _Queue) -> Box:
        if isinstance(node, str):
            return Box((CHARACTERS.get(node, node),))
        match type(node).__name__:
            case "LatexMacroNode":
                return self._macro(node, queue)
            case "LatexEnvironmentNode":
                return self._environment(node)
            case "LatexGroupNode" if node.delimiters[0] == "[":
                return joined([Box(("[",)), self.of(node.nodelist), Box(("]",))])
            case "LatexGroupNode" | "LatexMathNode":
                return self.of(node.nodelist)
            case "LatexSpecialsNode":
                return Box((LIGATURES.get(node.specials_chars, node.specials_chars),))
            case "LatexCommentNode":
                return Box()
        raise _UnknownMacroError

    def _macro(self, node: Any, queue: _Queue) -> Box:
        name = node.macroname
        if node.nodeargd:
            arguments = list(node.nodeargd.argnlist)
        else:
            arguments = []
        if name in SILENT:
            if name in ("left", "right") and _is(queue.peek(), "."):
                queue.next()  # a bracket that is not drawn
            return Box()
        if name in PLAIN:
            return self._plain(name, arguments, queue)
        if name == "sqrt":
            degree, inner = (self.text([each]).strip() if each else "" for each in arguments)
            return Box((_root(degree.strip("[]"), inner),))
        if name.removeprefix("d").removeprefix("t").removeprefix("c") == "frac":
            over, under = (self.text([each]) for each in _two(arguments, queue))
            return Box((_fraction(over, under, queue),))
        if name.removeprefix("d").removeprefix("t") == "binom":
            over, under = (self.text([each]) for each in _two(arguments, queue))
            return Box((f"C({over}, {under})",))
        if name in ACCENTS:
            inner = self.text([_last(arguments, queue)]).strip()
            return Box(("".join(letter + ACCENTS[name] for letter in inner),))
        if name in ("pmod", "pod"):
            return Box((f" (mod {self.text([_last(arguments, queue)])})",))
        if name == "not":
            after = self.text([_last(arguments, queue)]).strip()
            return Box(({"=": "≠", "∈": "∉", "⊂": "⊄"}.get(after, after + "\u0338"),))
        return Box((_symbol(name) + " " * (name in FUNCTIONS and _begins_word(queue.peek())),))

    def _plain(self, name: str, arguments: Sequence[Any], queue: _Queue) -> Box:
        if name in ("stackrel", "overset") and len(arguments) < 2:
            _last(arguments, queue)  # what is above
            return self._box(_last((), queue), queue)
        last = _last(arguments, queue)
        if name in ("boxed", "fbox"):
            return joined([Box(("[",)), self.of([last]), Box(("]",))])
        if isinstance(last, str):
            inner = last
        else:
            inner = "".join(_verbatim(last, self))
        match name:
            case "phantom":
                return Box()
            case "tag":
                return Box((f"  ({inner})",))
            case "mathbb":
                return Box(("".join(DOUBLE_STRUCK.get(letter, letter) for letter in inner),))
            case "operatorname" if _begins_word(queue.peek()):
                return Box((inner + " ",))
        return Box((inner,))

    def _environment(self, node: Any) -> Box:
        name = node.environmentname.rstrip("*")
        if name in ALIGNED:
            return self.of(node.nodelist)
        if name not in GRIDS:
            raise _UnknownMacroError
        cells = [[self._in_line(cell).stripped() for cell in row] for row in _cells(node.nodelist)]
        left, right = GRIDS[name]
        if self._is_display and len(cells) > 1:
            return between_brackets(
                stacked(cells, "l" if "cases" in name else "c", "  "), left, right
            )
        rows = "; ".join(", ".join(cell.rows[0] for cell in row) for row in cells)
        return Box((FLAT_BRACKETS.get(left[:1], "") + rows + FLAT_BRACKETS.get(right[:1], ""),))


def _is(part: Any, char: str) -> bool:
    return isinstance(part, str) and part == char


class _Queue:
    """Nodes one after another; text character by character, since scripts take one."""

    def __init__(self, nodes: Iterable[LatexNode]) -> None:
        self._parts = [part for node in nodes for part in _split(node)][::-1]
        self.before: Any = None
        """The part before the one that was taken last."""
        self._last: Any = None

    def next(self) -> Any:
        """Take the next part; None after the last."""
        self.before, self._last = self._last, self._parts.pop() if self._parts else None
        return self._last

    def peek(self) -> Any:
        """The part that comes next."""
        if self._parts:
            return self._parts[-1]
        return None


def _split(node: Any) -> Iterator[Any]:
    if type(node).__name__ == "LatexCharsNode":
        yield from (
            re.findall(r"\s+|\d+(?:[.,]\d+)*|.", node.chars)
            if "^" not in node.chars
            else node.chars
        )
    else:
        yield node


def _cells(nodes: Sequence[Any]) -> list[list[list[Any]]]:
    rows: list[list[list[Any]]] = [[[]]]
    for node in nodes:
        if getattr(node, "macroname", "") == "\\":
            rows.append([[]])
        elif getattr(node, "specials_chars", "") == "&":
            rows[-1].append([])
        else:
            rows[-1][-1].append(node)
    if len(rows) > 1 and all(
        not getattr(node, "chars", "x").strip() for cell in rows[-1] for node in cell
    ):
        rows.pop()
    return rows


def _last(arguments: Sequence[Any], queue: _Queue) -> Any:
    """The argument of a macro; of one that the parser does not know, what follows."""
    found = [argument for argument in arguments if argument is not None]
    while not found:
        following = queue.next()
        if following is None:
            raise _UnknownMacroError
        if isinstance(following, str) and following.isspace():
            found = []
        else:
            found = [following]
    return found[-1]


def _two(arguments: Sequence[Any], queue: _Queue) -> tuple[Any, Any]:
    if len(arguments) == 2:
        return (arguments[0], arguments[1])
    return (_last((), queue), _last((), queue))


def _verbatim(node: Any, layout: _Layout) -> Iterator[str]:
    """The words of ``\\text{...}``, with their spaces."""
    for each in getattr(node, "nodelist", [node]):
        yield re.sub(r"\s+", " ", each.chars) if hasattr(each, "chars") else layout.text([each])


@cache
def _symbols() -> Callable[[str], Any]:
    from pylatexenc.latex2text import get_default_latex_context_db

    return get_default_latex_context_db().get_macro_spec  # type: ignore[no-any-return]


def _symbol(name: str) -> str:
    found = SYMBOLS.get(name) or getattr(_symbols()(name), "simplify_repl", None)
    if not isinstance(found, str) or ("%" in found and name != "%"):
        raise _UnknownMacroError
    return found


def _begins_word(part: Any) -> bool:
    return part is not None and not (
        isinstance(part, str) and (part.isspace() or part in "^_()[]{},")
    )


def _script(sign: str, text: str) -> str:
    if sign == "^":
        table = SUPERSCRIPTS
    else:
        table = SUBSCRIPTS
    if text in ("∘", "°") and sign == "^":
        return "°"
    text = text.replace(" ", "")
    if all(letter in table for letter in text):
        return "".join(map(table.__getitem__, text))
    is_name = sign == "_" and text.isalnum()
    return sign + (text if is_name or _ATOM.fullmatch(text) else f"({text})")


def _fraction(over: str, under: str, queue: _Queue) -> str:
    over = spaced(over).strip()
    under = spaced(under).strip()
    vulgar = VULGAR_FRACTIONS.get(f"{over}/{under}")
    if vulgar:
        return vulgar
    if not _PRODUCT.fullmatch(over):
        over = f"({over})"
    if not _ATOM.fullmatch(under):
        under = f"({under})"
    touches = (
        (isinstance(queue.before, str) and queue.before.isalnum())
        or _begins_word(queue.peek())
        or _is(queue.peek(), "(")
    )
    if touches and not _is_operator(queue.peek()):
        return f"({over}/{under})"
    return f"{over}/{under}"


def _is_operator(part: Any) -> bool:
    return (isinstance(part, str) and part in "+-=<>,.;:|/!") or getattr(
        part, "macroname", ""
    ) in SEPARATORS


def _root(degree: str, inner: str) -> str:
    sign = ROOTS.get(degree)
    return (sign or _script("^", degree) + "√") + (
        inner if _ATOM.fullmatch(inner) else f"({inner})"
    )
