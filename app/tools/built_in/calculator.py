"""The calculator: expressions with bounded numbers, without ``eval``."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from app.tools.built_in.tool import BuiltInTool, ToolFailure, text_parameters
from app.tools.mcp.served_tools import ServedTool

MAX_CHARS = 1000
MAX_DEPTH = 300
MAX_BITS = 14_000
"""Limit on the size of a number: about 4,200 digits. Python writes at most 4,300 as text."""
MAX_ARGUMENTS = 200
_MAX_SHOWN_DIGITS = 60
"""Limit on the digits of a whole number that is shown exactly."""
_SIGNIFICANT_DIGITS = 15
_DESCRIPTION = (
    "Calculates an expression exactly. Operators: + - * / // % ** and parentheses. Functions: "
    "sqrt, cbrt, abs, round, floor, ceil, min, max, sum, mean, exp, ln, log(x, base), log2, "
    "log10, sin, cos, tan, asin, acos, atan, atan2, degrees, radians, factorial, comb, perm, gcd, "
    "lcm. Constants: pi, e. Angles are in radians."
)
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "π": "pi", "^": "**"})
_PERCENT = re.compile(r"(\d|\))\s*%(?=\s*(?:$|[-+*/),]|of\b))")
"""Percent sign after a number. Before another number the sign is the remainder."""
_OF = re.compile(r"\bof\b")

Number = Fraction | float
"""An exact number, or the rounded result of a function."""


def calculate(expression: str) -> str:
    """Return the value of an expression as text.

    Raises:
        ToolFailure: The expression is not valid, or a number is too large.
    """
    if len(expression) > MAX_CHARS:
        raise ToolFailure(f"The expression is longer than {MAX_CHARS} characters.")
    text = expression.strip().rstrip("=").translate(_SIGNS)
    text = _OF.sub("*", _PERCENT.sub(r"\1/100", text))
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ToolFailure(
            "This is not an expression. Write it like (3 + 4) * sqrt(2), without units."
        ) from None
    try:
        return show(_value(tree.body, 0))
    except ZeroDivisionError:
        raise ToolFailure("Division by zero.") from None
    except (ValueError, OverflowError, RecursionError):
        raise ToolFailure("This has no value among the real numbers, or is too large.") from None


def show(value: Number) -> str:
    """Return a number as text: exact if it is whole and not too long."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ToolFailure("The number is too large.")
        if value.is_integer() and abs(value) < 10**_SIGNIFICANT_DIGITS:
            return str(int(value))
        return f"{value:.{_SIGNIFICANT_DIGITS}g}"
    if value.denominator == 1:
        digits = str(value.numerator)
        if len(digits) <= _MAX_SHOWN_DIGITS:
            return digits
        return f"about {_in_powers_of_ten(value)} ({len(digits.lstrip('-'))} digits)"
    if abs(value) >= 10**_SIGNIFICANT_DIGITS or abs(value) < Fraction(1, 10**6):
        return _in_powers_of_ten(value)
    return _decimal(value)


def _decimal(value: Fraction) -> str:
    whole_digits = len(str(int(abs(value))))
    n_places = max(0, _SIGNIFICANT_DIGITS + 1 - whole_digits)
    scaled = round(abs(value) * 10**n_places)
    digits = f"{scaled:0{n_places + 1}d}"
    text = digits
    if n_places:
        text = f"{digits[:-n_places]}.{digits[-n_places:]}".rstrip("0").rstrip(".")
    sign = "-" if value < 0 else ""
    return f"{sign}{text}"


def _in_powers_of_ten(value: Fraction) -> str:
    from decimal import Context, Decimal

    context = Context(prec=_SIGNIFICANT_DIGITS)
    quotient = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    mantissa, _, exponent = f"{quotient:.{_SIGNIFICANT_DIGITS - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _value(node: ast.expr, depth: int) -> Number:
    """Return the value of a node."""
    if depth > MAX_DEPTH:
        raise ToolFailure("The expression is nested too deeply.")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _checked(_literal(node, number))
        case ast.Name(id=name) if name.lower() in _CONSTANTS:
            return _CONSTANTS[name.lower()]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, depth + 1)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, depth + 1)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _power(_value(left, depth + 1), _value(right, depth + 1))
        case ast.BinOp(op=sign, left=left, right=right) if type(sign) in _OPERATORS:
            function = _OPERATORS[type(sign)]
            return _checked(function(_value(left, depth + 1), _value(right, depth + 1)))
        case ast.Call(func=ast.Name(id=name), args=nodes, keywords=[]):
            return _call(name.lower(), nodes, depth)
    raise ToolFailure(
        f"{ast.unparse(node)[:40]!r} cannot be calculated: only numbers, + - * / // % **, "
        "parentheses and functions such as sqrt."
    )


def _literal(node: ast.Constant, number: int | float) -> Fraction:
    """Return a written number exactly: 0.1 is a tenth."""
    if isinstance(number, int):
        return Fraction(number)
    if not math.isfinite(number):
        raise ToolFailure("The number is too large.")
    return Fraction(repr(number))


def _call(name: str, nodes: Sequence[ast.expr], depth: int) -> Number:
    function = _FUNCTIONS.get(name)
    if function is None:
        raise ToolFailure(f"There is no function {name[:40]!r}.")
    if len(nodes) == 1 and isinstance(nodes[0], (ast.List, ast.Tuple)):
        nodes = nodes[0].elts
    if len(nodes) > MAX_ARGUMENTS:
        raise ToolFailure(f"A function takes at most {MAX_ARGUMENTS} numbers.")
    try:
        return _checked(function(*(_value(node, depth + 1) for node in nodes)))
    except TypeError:
        raise ToolFailure(f"{name} takes another number of arguments.") from None


def _checked(value: Number) -> Number:
    """Return a number if its size is allowed."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ToolFailure("The number is too large.")
        return value
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolFailure("The number is too large.")
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        n_bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) != 1 and base and n_bits * abs(exponent) > 2 * MAX_BITS:
            raise ToolFailure("The number is too large.")
        return _checked(base ** int(exponent))
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ValueError
    return _checked(result)


def _whole(value: Number, limit: int) -> int:
    """Return a whole number from 0 to a limit."""
    if value != int(value) or not 0 <= value <= limit:
        raise ToolFailure(f"This function takes whole numbers from 0 to {limit}.")
    return int(value)


def _integers(values: Sequence[Number]) -> list[int]:
    if any(value != int(value) for value in values):
        raise ToolFailure("This function takes whole numbers.")
    return [int(value) for value in values]


def _sqrt(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if root * root == value:
            return root
    return math.sqrt(value)


def _cbrt(value: Number) -> Number:
    root = math.copysign(abs(float(value)) ** (1 / 3), value)
    nearest = round(root)
    if nearest**3 == value:
        return Fraction(nearest)
    return root


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    n_digits = int(digits)
    if not -300 <= n_digits <= 300:
        raise ToolFailure("round takes at most 300 digits.")
    unit = Fraction(10) ** -n_digits
    half = math.floor(abs(Fraction(value)) / unit + Fraction(1, 2))
    return (
        math.copysign(1, value) * half * unit
        if isinstance(value, float)
        else (half * unit if value >= 0 else -half * unit)
    )


def _log(value: Number, base: Number = math.e) -> Number:
    result = math.log(value) if base == math.e else math.log(value) / math.log(base)
    nearest = round(result)
    if abs(result - nearest) < 1e-9 and _is_power(value, base, nearest):
        return Fraction(nearest)
    return result


def _is_power(value: Number, base: Number, exponent: int) -> bool:
    """Whether a value is exactly a power of a base."""
    if not isinstance(base, Fraction) or abs(exponent) > MAX_BITS:
        return False
    return _power(base, Fraction(exponent)) == value


def _mean(*values: Number) -> Number:
    return _total(*values) / len(values)


def _total(*values: Number) -> Number:
    total: Number = Fraction(0)
    for value in values:
        total = _checked(total + value)
    return total


def _rounded(function: Callable[..., float]) -> Callable[..., Number]:
    """Return a function of ``math`` for numbers of the calculator."""

    def call(*values: Number) -> Number:
        return function(*map(float, values))

    return call


_CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "sqrt": _sqrt,
    "cbrt": _cbrt,
    "abs": abs,
    "round": _round,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sum": _total,
    "mean": _mean,
    "average": _mean,
    "ln": _log,
    "log": _log,
    "log2": lambda value: _log(value, Fraction(2)),
    "log10": lambda value: _log(value, Fraction(10)),
    "factorial": lambda value: Fraction(math.factorial(_whole(value, 1500))),
    "comb": lambda n, k: Fraction(math.comb(_whole(n, 5000), _whole(k, 5000))),
    "perm": lambda n, k: Fraction(math.perm(_whole(n, 1500), _whole(k, 1500))),
    "gcd": lambda *values: Fraction(math.gcd(*_integers(values))),
    "lcm": lambda *values: Fraction(math.lcm(*_integers(values))),
    "pow": lambda base, exponent: _power(base, exponent),
    **{
        name: _rounded(getattr(math, name))
        for name in (
            "exp", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh",
            "degrees", "radians", "hypot",
        )
    },
}  # fmt: skip


def calculator_tools() -> list[BuiltInTool]:
    """Return the calculator."""
    tool = ServedTool(
        "calculate",
        _DESCRIPTION,
        text_parameters({"expression": "The expression, such as 0.15 * 249.90"}),
    )

    def run(arguments: Mapping[str, Any]) -> str:
        expression = str(arguments["expression"])
        # Small models repeat a number more exactly if the result is an equation.
        return f"{expression.strip().rstrip('= ')} = {calculate(expression)}"

    return [BuiltInTool(tool, run)]
