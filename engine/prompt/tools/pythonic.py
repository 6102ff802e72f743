"""Calls written as Python, such as ``[f(a=1, b="x"), g()]`` of LFM2. They are parsed, not run."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from engine.prompt.tools.calls import MAX_DEPTH, ToolCall, call, calls_of, load_json

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


def read_list(region: str) -> list[ToolCall]:
    """Read a list of calls between the tokens."""
    body = region.strip().removeprefix(START).removesuffix(END).strip()
    try:
        return calls_of(load_json(body))
    except ValueError:
        tree = _parse(body)
    nodes: list[ast.expr | None] = [tree]
    if isinstance(tree, (ast.List, ast.Tuple)):
        nodes = [*tree.elts]
    calls = [_call(node) for node in nodes]
    if all(calls):
        return [tool_call for tool_call in calls if tool_call is not None]
    return []


def read_call(text: str) -> ToolCall | None:
    """Read one call; None if the text is not a call."""
    return _call(_parse(text))


def write_list(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Write calls as the model does."""
    written = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"
        for name, values in calls
    ]
    return f"{START}[{', '.join(written)}]{END}"


def _parse(text: str) -> ast.expr | None:
    depth = 0
    deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:  # it could exhaust the stack of Python's parser
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of odd escapes would appear on the screen
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr | None) -> ToolCall | None:
    if (
        not isinstance(node, ast.Call)
        or node.args
        or any(word.arg is None for word in node.keywords)
    ):
        return None
    try:
        return call(
            ast.unparse(node.func), {str(word.arg): _value(word.value) for word in node.keywords}
        )
    except (ValueError, RecursionError):
        return None


def _value(node: ast.expr) -> Any:
    """Return the value of a literal of a JSON type."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(_value(key)): _value(item)
            for key, item in zip(node.keys, node.values, strict=True)
            if key
        }
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        if isinstance(inner, (int, float)):
            return -inner
    if isinstance(node, ast.Constant) and (
        node.value is None or isinstance(node.value, (str, int, float))
    ):
        if isinstance(node.value, float) and node.value in (float("inf"), float("-inf")):
            raise ValueError("no number in JSON")
        return node.value
    raise ValueError("not a literal")
