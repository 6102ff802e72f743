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
"""Length of a formula above which its source is shown."""
_MAX_DEPTH = 40
"""Limit on nested groups, because the parser is recursive."""
_MARKS = "[\u0300-\u036f\u20d7\u2032\u2033⁰¹²³⁴-₎ₐ-ₜᵢⱼᵣᵤᵥᵃ-ᵡ]*"
_ATOM = re.compile(rf"(?:\d+(?:[.,]\d+)*|[^\W\d]|[d∂Δ]\w|[a-zA-Z]{{4,}}|√\w|[^\w\s]){_MARKS}")
"""Text that needs no parentheses after a slash, a root or a power, such as a number or a word."""
_PRODUCT = re.compile(rf"(?:[\w∂∇√!.]{_MARKS})+(?:\([^()]*\))?")
"""Text that needs no parentheses before a slash."""


@lru_cache(256)
def formula_rows(source: str, *, is_display: bool) -> tuple[str, ...]:
    r"""Return a formula as rows of text; empty if only its source can be shown.

    Args:
        source: LaTeX without its delimiters.
        is_display: whether the formula stands alone and may have several rows.
    """
    if len(source) > MOST_CHARS or _depth(source) > _MAX_DEPTH:
        return ()
    from pylatexenc.latexwalker import LatexWalker

    try:
        nodes, _, _ = LatexWalker(source, tolerant_parsing=True).get_latex_nodes()
        box = _Layout(is_display).of(nodes or [])
    except Exception:  # the parser and its incomplete nodes fail in many ways on half a formula
        return ()
    rows = tuple(screen_text(normalize("NFC", row)).rstrip() for row in box.stripped().rows)
    if any(rows):
        return rows
    return ()


def _depth(source: str) -> int:
    deepest = depth = 0
    for match in re.finditer(r"\\begin|\\end|\\.|[{}]", source, re.DOTALL):
        depth += {"{": 1, "\\begin": 1, "}": -1, "\\end": -1}.get(match[0], 0)
        deepest = max(deepest, depth)
    return deepest


class _UnknownMacroError(Exception):
    """Error for an unknown macro; the source of its formula is shown."""


class _Layout:
    """Layout of LaTeX nodes as boxes."""

    def __init__(self, is_display: bool) -> None:
        self._is_display = is_display

    def of(self, nodes: Sequence[LatexNode]) -> Box:
        r"""Return nodes side by side; ``\\`` starts a new row, ``&`` aligns columns."""
        grid = _cells(nodes)
        if len(grid) == 1 and len(grid[0]) == 1:
            return self._in_line(grid[0][0])
        if self._is_display:
            return stacked(
                [[self._in_line(cell).stripped() for cell in row] for row in grid], "rl", " "
            )
        texts = [spaced("".join(self.text(cell) for cell in row)).strip() for row in grid]
        return Box(("; ".join(texts),))

    def text(self, nodes: Sequence[LatexNode]) -> str:
        """Return nodes as one row."""
        return " ".join(_Layout(False).of(nodes).rows)

    def _in_line(self, nodes: Sequence[LatexNode]) -> Box:
        boxes: list[Box] = []
        queue = _TokenQueue(nodes)
        while (node := queue.next()) is not None:
            if isinstance(node, str) and node in "^_'":
                self._add_script(boxes, node, queue)
            else:
                boxes.append(self._box(node, queue))
        return joined(boxes)

    def _add_script(self, boxes: list[Box], sign: str, queue: _TokenQueue) -> None:
        if sign == "'":
            text = _script("^", "′")
        else:
            text = _script(sign, self._script_argument(queue))
        if boxes and len(boxes[-1].rows) > 1:
            boxes[-1] = boxes[-1].with_script(text, is_below=sign == "_")
        else:
            needs_space = text[:1] == sign and _begins_word(queue.peek())
            boxes.append(Box((text + " " * needs_space,)))

    def _script_argument(self, queue: _TokenQueue) -> str:
        node = queue.next()
        while isinstance(node, str) and node.isspace():
            node = queue.next()
        if node is None:
            return ""
        return _Layout(False)._box(node, queue).rows[0].strip()

    def _box(self, node: Any, queue: _TokenQueue) -> Box:
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

    def _macro(self, node: Any, queue: _TokenQueue) -> Box:
        name = node.macroname
        arguments: list[Any] = []
        if node.nodeargd:
            arguments = list(node.nodeargd.argnlist)
        if name in SILENT:
            if name in ("left", "right") and _is_character(queue.peek(), "."):
                queue.next()  # a bracket that is not drawn
            return Box()
        if name in PLAIN:
            return self._plain(name, arguments, queue)
        if name == "sqrt":
            degree, inner = (
                self.text([argument]).strip() if argument else "" for argument in arguments
            )
            return Box((_root(degree.strip("[]"), inner),))
        if name.removeprefix("d").removeprefix("t").removeprefix("c") == "frac":
            numerator, denominator = (
                self.text([argument]) for argument in _two_arguments(arguments, queue)
            )
            return Box((_fraction(numerator, denominator, queue),))
        if name.removeprefix("d").removeprefix("t") == "binom":
            numerator, denominator = (
                self.text([argument]) for argument in _two_arguments(arguments, queue)
            )
            return Box((f"C({numerator}, {denominator})",))
        if name in ACCENTS:
            inner = self.text([_last_argument(arguments, queue)]).strip()
            return Box(("".join(letter + ACCENTS[name] for letter in inner),))
        if name in ("pmod", "pod"):
            return Box((f" (mod {self.text([_last_argument(arguments, queue)])})",))
        if name == "not":
            operand = self.text([_last_argument(arguments, queue)]).strip()
            return Box(({"=": "≠", "∈": "∉", "⊂": "⊄"}.get(operand, operand + "\u0338"),))
        return Box((_symbol(name) + " " * (name in FUNCTIONS and _begins_word(queue.peek())),))

    def _plain(self, name: str, arguments: Sequence[Any], queue: _TokenQueue) -> Box:
        if name in ("stackrel", "overset") and len(arguments) < 2:
            _last_argument(arguments, queue)  # what is above
            return self._box(_last_argument((), queue), queue)
        last = _last_argument(arguments, queue)
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


def _is_character(token: Any, char: str) -> bool:
    return isinstance(token, str) and token == char


class _TokenQueue:
    """Queue of nodes, in which text is split into characters, since scripts take one."""

    def __init__(self, nodes: Iterable[LatexNode]) -> None:
        self._tokens = [token for node in nodes for token in _split(node)][::-1]
        self.previous: Any = None
        """Token before the one that was taken last."""
        self._last: Any = None

    def next(self) -> Any:
        """Take the next token; None after the last."""
        self.previous = self._last
        self._last = None
        if self._tokens:
            self._last = self._tokens.pop()
        return self._last

    def peek(self) -> Any:
        """Return the next token without taking it; None after the last."""
        if self._tokens:
            return self._tokens[-1]
        return None


def _split(node: Any) -> Iterator[Any]:
    if type(node).__name__ == "LatexCharsNode":
        if "^" in node.chars:
            yield from node.chars
        else:
            yield from re.findall(r"\s+|\d+(?:[.,]\d+)*|.", node.chars)
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


def _last_argument(arguments: Sequence[Any], queue: _TokenQueue) -> Any:
    """Return the last argument of a macro, or the next token if the parser found none."""
    present = [argument for argument in arguments if argument is not None]
    while not present:
        token = queue.next()
        if token is None:
            raise _UnknownMacroError
        if not (isinstance(token, str) and token.isspace()):
            present = [token]
    return present[-1]


def _two_arguments(arguments: Sequence[Any], queue: _TokenQueue) -> tuple[Any, Any]:
    if len(arguments) == 2:
        return (arguments[0], arguments[1])
    return (_last_argument((), queue), _last_argument((), queue))


def _verbatim(node: Any, layout: _Layout) -> Iterator[str]:
    """Yield the words of ``\\text{...}`` with their spaces."""
    for child in getattr(node, "nodelist", [node]):
        yield re.sub(r"\s+", " ", child.chars) if hasattr(child, "chars") else layout.text([child])


@cache
def _symbols() -> Callable[[str], Any]:
    from pylatexenc.latex2text import get_default_latex_context_db

    return get_default_latex_context_db().get_macro_spec  # type: ignore[no-any-return]


def _symbol(name: str) -> str:
    text = SYMBOLS.get(name) or getattr(_symbols()(name), "simplify_repl", None)
    if not isinstance(text, str) or ("%" in text and name != "%"):
        raise _UnknownMacroError
    return text


def _begins_word(token: Any) -> bool:
    return token is not None and not (
        isinstance(token, str) and (token.isspace() or token in "^_()[]{},")
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
    if is_name or _ATOM.fullmatch(text):
        return f"{sign}{text}"
    return f"{sign}({text})"


def _fraction(numerator: str, denominator: str, queue: _TokenQueue) -> str:
    numerator = spaced(numerator).strip()
    denominator = spaced(denominator).strip()
    vulgar = VULGAR_FRACTIONS.get(f"{numerator}/{denominator}")
    if vulgar:
        return vulgar
    if not _PRODUCT.fullmatch(numerator):
        numerator = f"({numerator})"
    if not _ATOM.fullmatch(denominator):
        denominator = f"({denominator})"
    touches = (
        (isinstance(queue.previous, str) and queue.previous.isalnum())
        or _begins_word(queue.peek())
        or _is_character(queue.peek(), "(")
    )
    if touches and not _is_operator(queue.peek()):
        return f"({numerator}/{denominator})"
    return f"{numerator}/{denominator}"


def _is_operator(token: Any) -> bool:
    return (isinstance(token, str) and token in "+-=<>,.;:|/!") or getattr(
        token, "macroname", ""
    ) in SEPARATORS


def _root(degree: str, inner: str) -> str:
    sign = ROOTS.get(degree) or f"{_script('^', degree)}√"
    if _ATOM.fullmatch(inner):
        return f"{sign}{inner}"
    return f"{sign}({inner})"
