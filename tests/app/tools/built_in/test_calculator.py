"""Tests of the calculator."""

from __future__ import annotations

import pytest

from app.tools.built_in.calculator import calculate
from app.tools.built_in.tool import ToolFailure


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("0.1 + 0.2", "0.3"),
        ("15% of 249.90", "37.485"),
        ("17 % 5", "2"),
        ("2^10", "1024"),
        ("-2 ** 2", "-4"),
        ("7 // 2", "3"),
        ("1/3", "0.333333333333333"),
        ("3 × 4 ÷ 2 =", "6"),
        ("sqrt(16) + cbrt(27)", "7"),
        ("2 ** 0.5", "1.4142135623731"),
        ("log(8, 2) + log10(1000)", "6"),
        ("round(2.675, 2)", "2.68"),
        ("round(-2.5)", "-3"),
        ("sum([1, 2, 3]) / mean(1, 2)", "4"),
        ("comb(49, 6)", "13983816"),
        ("factorial(100)", "about 9.33262154439442e157 (158 digits)"),
        ("10 ** 4200", "about 1e4200 (4201 digits)"),
        ("1e-9", "1e-9"),
        ("sin(pi / 2)", "1"),
        ("+".join(["1"] * 250), "250"),
    ],
)
def test_expressions_have_exact_values(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "5 apples",
        "__import__('os').system('id')",
        "().__class__",
        "a.b",
        "[1][0]",
        "lambda: 1",
        "'x' * 5",
        "True",
        "x := 1",
        "f'{1}'",
        "open(1)",
        "sqrt(1, 2, 3)",
        "max(*[1, 2])",
        "1 if 2 else 3",
        "sqrt(-1)",
        "(-8) ** (1/3)",
        "1 / 0",
        "0 ** -1",
        "1" * 2000,
        "(" * 400,
        "-" * 900 + "1",
    ],
)
def test_other_code_is_refused_in_a_line(expression: str) -> None:
    with pytest.raises(ToolFailure) as failure:
        calculate(expression)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "2 ** 20000",
        "10 ** 100000000",
        "(1/3) ** 100000",
        "1e400",
        "exp(1000)",
        "factorial(10 ** 6)",
        "factorial(1500) ** 1500",
        "comb(10 ** 9, 10 ** 8)",
        "round(1, 10 ** 9)",
    ],
)
def test_large_numbers_are_refused_at_once(expression: str) -> None:
    with pytest.raises(ToolFailure):
        calculate(expression)
