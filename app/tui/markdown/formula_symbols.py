"""LaTeX names and letters as Unicode text, where pylatexenc has none or none for a terminal."""

from __future__ import annotations


def _pairs(table: str) -> dict[str, str]:
    words = table.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SUPERSCRIPTS = dict(
    zip(
        "0123456789+-−=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVWαβγδεθφχ′⊤",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂᵅᵝᵞᵟᵋᶿᵠᵡ′ᵀ",
        strict=True,
    )
)
SUBSCRIPTS = dict(
    zip(
        "0123456789+-−=()aehijklmnoprstuvxβγρφχ",
        "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ",
        strict=True,
    )
)
VULGAR_FRACTIONS = _pairs("1/2 ½ 1/3 ⅓ 2/3 ⅔ 1/4 ¼ 3/4 ¾ 1/5 ⅕ 1/6 ⅙ 1/8 ⅛")
DOUBLE_STRUCK = _pairs("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ")
ROOTS = {"": "√", "2": "√", "3": "∛", "4": "∜"}
CHARACTERS = {"-": "−", "*": "∗", "\n": " ", "~": " "}
LIGATURES = {"~": " ", "``": "“", "''": "″", "--": "−−", "---": "−−−", "&": " "}

ACCENTS = _pairs(
    "hat \u0302 widehat \u0302 bar \u0304 overline \u0305 vec \u20d7 overrightarrow \u20d7 "
    "dot \u0307 ddot \u0308 "
    "tilde \u0303 widetilde \u0303 underline \u0332"
)
"""Combining characters: they follow the letter."""
SYMBOLS = _pairs(
    "implies ⟹ impliedby ⟸ iff ⟺ ne ≠ land ∧ lor ∨ neg ¬ Re Re Im Im | ‖ colon : degree ° "
    "triangle △ cdot ⋅ mid ∣ "
    "gcd gcd argmax argmax argmin argmin Pr Pr lVert ‖ rVert ‖ Vert ‖ lvert | rvert | vert | "
    "lbrace { rbrace } "
    "coloneqq ≔ gets ← { { } } % % $ $ # # & & _ _ blacksquare ■ square □ Box □ dots …"
) | {
    ",": " ",
    ";": " ",
    ":": " ",
    " ": " ",
    "\\": " ",
    "quad": "  ",
    "qquad": "    ",
    "mod": " mod ",
    "bmod": " mod ",
}
FUNCTIONS = _words(
    "sin cos tan cot sec csc log ln lg exp lim max min sup inf det dim arcsin arccos arctan "
    "sinh cosh tanh gcd arg "
    "ker deg argmax argmin Pr"
)
"""Names that need a space before their argument."""
PLAIN = _words(
    "text textbf textit textrm textsf texttt textnormal mathrm mathbf mathit mathsf mathtt "
    "mathcal mathfrak mathscr "
    "mathbb boldsymbol bm pmb operatorname mbox hbox ensuremath underbrace overbrace cancel "
    "phantom boxed fbox "
    "stackrel overset tag"
)
"""Macros whose argument is shown without what they do to it."""
SILENT = _words(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr displaystyle "
    "textstyle scriptstyle limits "
    "nolimits ! hline nonumber notag label"
)
"""Macros that show nothing."""
SEPARATORS = _words(
    "right cdot times leq geq le ge approx quad qquad neq ne , ; pm implies Rightarrow to "
    "text equiv \\ rightarrow in"
)
"""Macros that may follow a fraction without making it part of a product."""
GRIDS = {
    "matrix": ("", ""),
    "smallmatrix": ("", ""),
    "array": ("", ""),
    "pmatrix": ("⎛⎜⎝", "⎞⎟⎠"),
    "bmatrix": ("⎡⎢⎣", "⎤⎥⎦"),
    "Bmatrix": ("⎧⎨⎩", "⎫⎬⎭"),
    "vmatrix": ("│││", "│││"),
    "Vmatrix": ("║║║", "║║║"),
    "cases": ("⎧⎨⎩", ""),
    "dcases": ("⎧⎨⎩", ""),
    "rcases": ("", "⎫⎬⎭"),
}
"""Environments of rows and columns, with the pieces of their brackets from top to bottom."""
FLAT_BRACKETS = _pairs("⎛ ( ⎞ ) ⎡ [ ⎤ ] ⎧ { ⎫ } │ | ║ ‖")
ALIGNED = _words("align aligned alignat gather gathered equation split multline eqnarray math")
