"""What the characters of symbol fonts look like: documents name them by font and place."""

from __future__ import annotations

UNKNOWN = "\u25a1"
"""A symbol, whichever."""


def _placed(first: int, characters: str) -> dict[int, str]:
    return {first + index: one for index, one in enumerate(characters)}


_SYMBOL = {
    **_placed(0x41, "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ"),
    **_placed(0x61, "αβχδεφγηιϕκλμνοπθρστυϖωξψζ"),
    **_placed(0xA1, "ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…"),
    **_placed(0xC0, "ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊"),
    **dict(zip(b"\"$'*-@\\^\xe5\xf2", "∀∃∋∗−≅∴⊥∑∫", strict=True)),
}
_WINGDINGS = dict(zip(b"(*JKLlnoquv\x9f\xa7\xa8\xd8", "☎✉☺😐☹●■□❑◆❖•▪◻➢", strict=True))
_WINGDINGS |= {**_placed(0xDF, "←→↑↓"), **_placed(0xFB, "✗✓☒☑"), 0xE8: "➔"}
_WINGDINGS_2 = {0x4F: "✗", 0x50: "✓", 0x51: "☒", 0x52: "☑", 0x53: "☒", 0x54: "☒", 0xA3: "□"}
_FONTS = {"symbol": _SYMBOL, "wingdings": _WINGDINGS, "wingdings 2": _WINGDINGS_2}


def symbol(font: str, code: str) -> str:
    """Return the character at a place, in hexadecimal figures, of a font."""
    try:
        place = int(code, 16)
    except ValueError:
        return UNKNOWN
    is_private = 0xF000 <= place <= 0xF0FF
    if font.lower() in _FONTS:
        return _FONTS[font.lower()].get(place & 0xFF if is_private else place, UNKNOWN)
    if is_private or not 0x20 <= place <= 0xFFFD:
        return UNKNOWN
    return chr(place)
