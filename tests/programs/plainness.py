"""Counts that show how plainly code reads: ``python -m tests.programs.plainness app engine``."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

WIDEST_LINE = 100
"""Limit on the columns of a line."""
_PRONOUNS = """
after asked at before begun both came each found given held how it kept kind known left made mine
more named new next one other others ours own part parts place ready rest said same shown taken
theirs there told wanted way what who whole
"""
PRONOUNS = frozenset(_PRONOUNS.split())
"""Names of variables that do not say what the variable holds."""
_RIDDLES = """
another any in it its least most no not of on one other others such that theirs these those what
whatever which who whoever whom whose
"""
RIDDLES = frozenset(_RIDDLES.split())
"""First words of docstrings that cannot be read without the code below."""
_CODE = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)


@dataclass(frozen=True)
class Plainness:
    """How often a folder has what is hard to read."""

    packed: float
    """Assignments of several values to several names, in 1,000 lines of code."""
    conditional: float
    """Conditional expressions, in 1,000 lines of code."""
    wide: float
    """Lines of more than ``WIDEST_LINE`` columns, in 1,000 lines."""
    pronoun: float
    """Per cent of names that are pronouns, participles or prepositions."""
    riddle: float
    """Per cent of docstrings that begin with one of ``RIDDLES``."""


def measure(folder: Path) -> Plainness:
    """Return the counts of all Python files below a folder."""
    n_lines = n_code = n_names = n_docstrings = 0
    n_packed = n_conditional = n_wide = n_pronouns = n_riddles = 0
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        n_lines += len(lines)
        n_wide += sum(len(line) > WIDEST_LINE for line in lines)
        tree = ast.parse(text)
        docstrings = list(_docstrings(tree))
        n_code += _count_code_lines(text, docstrings)
        n_docstrings += len(docstrings)
        n_riddles += sum(_is_riddle(docstring) for docstring in docstrings)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                has_targets = isinstance(node.targets[0], ast.Tuple)
                n_packed += has_targets and isinstance(node.value, ast.Tuple)
            elif isinstance(node, ast.IfExp):
                n_conditional += 1
            elif isinstance(node, ast.Name):
                n_names += 1
                n_pronouns += node.id in PRONOUNS
            elif isinstance(node, ast.arg):
                n_names += 1
                n_pronouns += node.arg in PRONOUNS
    return Plainness(
        packed=1000 * n_packed / n_code,
        conditional=1000 * n_conditional / n_code,
        wide=1000 * n_wide / n_lines,
        pronoun=100 * n_pronouns / n_names,
        riddle=100 * n_riddles / n_docstrings,
    )


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of a file, those below attributes included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            constant = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                yield constant


def _is_riddle(docstring: ast.Constant) -> bool:
    """Whether a docstring begins with a word that refers to something else."""
    words = str(docstring.value).split()
    if not words:
        return False
    first = words[0].strip("`\"'(").rstrip(".,:;").removesuffix("'s")
    return first.lower() in RIDDLES


def _count_code_lines(text: str, docstrings: list[ast.Constant]) -> int:
    """Return the number of lines that hold code: no blank lines, comments and docstrings."""
    prose: set[int] = set()
    for docstring in docstrings:
        prose.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _CODE and token.start[0] not in prose:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code)


def main(folders: list[str]) -> None:
    """Print the counts of each folder."""
    names = [field.name for field in fields(Plainness)]
    print(" " * 20, *(f"{name:>12}" for name in names))
    for folder in folders:
        plainness = measure(Path(folder))
        print(f"{folder:20}", *(f"{getattr(plainness, name):12.2f}" for name in names))


if __name__ == "__main__":
    main(sys.argv[1:])
