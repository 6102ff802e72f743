"""Counts that show how plainly code reads: ``python -m tests.programs.plainness app engine``."""

from __future__ import annotations

import argparse
import ast
import io
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


COMPILED_FILES = (
    "engine/kernels",
    "engine/quants",
    "engine/simd",
    "engine/plan/interpreter.py",
    "engine/sampling/candidate_kernels.py",
    "engine/sampling/repetition_kernels.py",
    "engine/sampling/sampling_kernels.py",
)
"""Sources that numba compiles: arithmetic on addresses, read and measured apart."""


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


@dataclass(frozen=True)
class ClassSize:
    """Size of a class with its bases in the same folder."""

    name: str
    n_methods: int
    n_attributes: int


@dataclass
class Source:
    """Source file, and the lines in it that are hard to read."""

    path: Path
    tree: ast.Module
    n_lines: int
    n_code_lines: int
    n_names: int
    n_docstrings: int
    packed: list[int]
    """Line numbers, as in the other lists."""
    conditional: list[int]
    wide: list[int]
    pronoun: list[int]
    riddle: list[int]


def python_files(places: list[Path]) -> list[Path]:
    """Return the Python files among and below some files and folders."""
    files: list[Path] = []
    for path in places:
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return files


def read_source(file: Path) -> Source:
    """Parse a file and find the places that are hard to read."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    docstrings = list(_docstrings(tree))
    source = Source(
        file, tree, len(lines), _count_code_lines(text, docstrings), 0, 0, [], [], [], [], []
    )
    source.wide += [n for n, line in enumerate(lines, 1) if len(line) > WIDEST_LINE]
    source.n_docstrings = len(docstrings)
    source.riddle += [docstring.lineno for docstring in docstrings if _is_riddle(docstring)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                source.packed.append(node.lineno)
        elif isinstance(node, ast.IfExp):
            source.conditional.append(node.lineno)
        elif isinstance(node, (ast.Name, ast.arg)):
            source.n_names += 1
            name = node.id if isinstance(node, ast.Name) else node.arg
            if name in PRONOUNS:
                source.pronoun.append(node.lineno)
    return source


def measure(places: list[Path], except_for: list[Path] | None = None) -> Plainness:
    """Return the counts of all Python files among and below some files and folders."""
    left_out = set(python_files(except_for or []))
    sources = [read_source(file) for file in python_files(places) if file not in left_out]
    n_code_lines = max(1, sum(source.n_code_lines for source in sources))
    return Plainness(
        packed=1000 * sum(len(source.packed) for source in sources) / n_code_lines,
        conditional=1000 * sum(len(source.conditional) for source in sources) / n_code_lines,
        wide=1000
        * sum(len(source.wide) for source in sources)
        / max(1, sum(source.n_lines for source in sources)),
        pronoun=100
        * sum(len(source.pronoun) for source in sources)
        / max(1, sum(source.n_names for source in sources)),
        riddle=100
        * sum(len(source.riddle) for source in sources)
        / max(1, sum(source.n_docstrings for source in sources)),
    )


def class_sizes(places: list[Path]) -> list[ClassSize]:
    """Return the sizes of all classes, bases in the same places included; largest first."""
    classes = {
        node.name: node
        for file in python_files(places)
        for node in ast.walk(read_source(file).tree)
        if isinstance(node, ast.ClassDef)
    }
    sizes = []
    for name in classes:
        methods, attributes = _members(name, classes, set())
        sizes.append(ClassSize(name, len(methods), len(attributes)))
    return sorted(sizes, key=lambda size: (-size.n_methods, -size.n_attributes))


def _members(
    name: str, classes: dict[str, ast.ClassDef], seen: set[str]
) -> tuple[set[str], set[str]]:
    """Return the names of methods and attributes of a class and its known bases."""
    if name in seen or name not in classes:
        return set(), set()
    seen.add(name)
    node = classes[name]
    methods: set[str] = set()
    attributes: set[str] = set()
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            methods.add(statement.name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            attributes |= {
                child.id
                for target in targets
                for child in ast.walk(target)
                if isinstance(child, ast.Name)
            }
    attributes |= {child.attr for child in ast.walk(node) if _is_own_attribute(child)}
    for base in node.bases:
        base_name = ast.unparse(base).split("[")[0].split(".")[-1]
        base_methods, base_attributes = _members(base_name, classes, seen)
        methods |= base_methods
        attributes |= base_attributes
    return methods, attributes


def _is_own_attribute(node: ast.AST) -> bool:
    """Whether a node sets an attribute of ``self``."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
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


def main() -> None:
    """Print the counts of each folder, or list the places of one kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.plainness", description=__doc__)
    parser.add_argument("places", nargs="+", type=Path)
    kinds = [field.name for field in fields(Plainness)]
    parser.add_argument("--list", choices=kinds, help="list the places of one kind")
    options = parser.parse_args()
    if options.list:
        for file in python_files(options.places):
            lines = file.read_text(encoding="utf-8").splitlines()
            for number in sorted(set(getattr(read_source(file), options.list))):
                print(f"{file}:{number}: {lines[number - 1].strip()}")
        return
    print(
        " " * 32,
        *(f"{count_name:>12}" for count_name in kinds),
        "  largest class: methods / attributes",
    )
    for path in options.places:
        plainness = measure([path])
        counts = (f"{getattr(plainness, count_name):12.2f}" for count_name in kinds)
        largest = next(iter(class_sizes([path])), ClassSize("-", 0, 0))
        print(
            f"{path!s:32}",
            *counts,
            f"  {largest.name} {largest.n_methods} / {largest.n_attributes}",
        )


if __name__ == "__main__":
    main()
