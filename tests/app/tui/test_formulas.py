"""Formulas of a reply as Unicode text, and text that only looks like a formula."""

import pytest

from app.tui.markdown.formulas import formula_rows
from tests.app.tui.test_markdown_rows import rows


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (r"x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}", "x = (−b ± √(b² − 4ac))/(2a)"),
        (r"\frac{1}{2} m v^2", "½ m v²"),
        (r"\frac{5}{9}(F-32)", "(5/9)(F−32)"),
        (r"\frac{\partial f}{\partial x}", "∂f/∂x"),
        (r"\frac12 + \frac{\frac{1}{a}}{b}", "½ + (1/a)/b"),
        (r"\sqrt[3]{x} + \sqrt{2\pi}", "∛x + √(2π)"),
        (r"\sum_{i=1}^{n} i = \frac{n(n+1)}{2}", "∑ᵢ₌₁ⁿ i = n(n+1)/2"),
        (r"\int_0^\infty e^{-x}\,dx", "∫₀^∞ e⁻ˣ dx"),
        (r"e^{i\pi}+v_{avg}", "e^(iπ) + v_avg"),
        (r"\alpha \leq\beta \implies \mathbb{R}^n", "α ≤ β ⟹ ℝⁿ"),
        (r"\sin^2\theta + \cos 90^\circ", "sin²θ + cos 90°"),
        (r"\text{Area of } A = \left( \pi r^2 \right.", "Area of A = ( πr²"),
        (r"\vec{v} \cdot \hat{y}, f''(x)", "v⃗ ⋅ ŷ, f″(x)"),
        (r"P(A \mid B) \in [0, 1]", "P(A ∣ B) ∈ [0, 1]"),
        (r"\binom{n}{k} \not= \operatorname{argmax} x", "C(n, k) ≠ argmax x"),
        (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "(a, b; c, d)"),
    ],
)
def test_a_formula_in_a_line_has_one_row(source: str, shown: str) -> None:
    assert formula_rows(source, is_display=False) == (shown,)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (
            r"|x| = \begin{cases} x & \text{if } x>0 \\ -x & \text{otherwise} \end{cases}",
            ("|x| = ⎧ x   if x > 0", "      ⎩ −x  otherwise"),
        ),
        (
            r"A = \begin{bmatrix} 1 & 0 \\ 0 & 10 \\ 2 & 3 \end{bmatrix}^T + B",
            ("    ⎡ 1  0  ⎤ᵀ", "A = ⎢ 0  10 ⎥  + B", "    ⎣ 2  3  ⎦"),
        ),
        (r"\begin{align} a &= b + c \\ &= 2d \\ \end{align}", ("a = b + c", "  = 2d")),
    ],
)
def test_a_formula_by_itself_has_rows(source: str, shown: tuple[str, ...]) -> None:
    assert formula_rows(source, is_display=True) == shown


@pytest.mark.parametrize(
    "source",
    [
        r"\foo{x}",
        r"\ce{H2O}",
        "{" * 1900,
        r"\frac" * 300,
        "x" * 2001,
        r"\text'> ^\verb",
        r"\begin{tikzpicture}\end{x}",
        " ",
    ],
)
def test_an_unknown_or_hostile_formula_has_no_rows(source: str) -> None:
    assert formula_rows(source, is_display=True) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so $x$ is $n = 5$, the $n$th of $2^{10}$", ["so x is n = 5, the nth of 2¹⁰"]),
        ("costs $5 or $6, $5-$10, US$3, $a/$b", ["costs $5 or $6, $5-$10, US$3,", "$a/$b"]),
        ("run `$x$ + $y_1$` in $HOME and $USER", ["run $x$ + $y_1$ in $HOME and", "$USER"]),
        ("Then \\[ x_1 = 2 \\] holds", ["Then", "x₁ = 2", " holds"]),
        ("- a\n\n  $$\n  x_1\n  = 2\n  $$\n- b", ["• a", "    x₁ = 2", "• b"]),
        ("\\[\n- a\n= b\n\\]\nend", ["  − a = b", "", "end"]),
        ("\\begin{align*}\na &= b\\\\\n&= c\n\\end{align*}", ["  a = b", "    = c"]),
        ("$$\nx_1\n\nend", ["$$ x_1", "", "end"]),
        ("| $a_1$ | b |\n|---|---|\n| $$b^2$$ | \\(c\\) |", [" a₁ │ b", "────┼───", " b² │ c"]),
        (r"an unknown $\foo_1$ stays", [r"an unknown $\foo_1$ stays"]),
    ],
)
def test_formulas_and_prices_differ_in_a_reply(text: str, expected: list[str]) -> None:
    assert rows(text) == expected


def test_a_console_without_symbols_shows_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "linux")
    assert rows(r"so $x^2$") == ["so $x^2$"]
