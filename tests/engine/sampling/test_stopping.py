"""Stop strings in streamed text: they match across pieces, and withheld text is shown only once."""

import pytest

from engine.sampling.stopping import StopStrings


@pytest.mark.parametrize(
    ("earlier", "pieces", "visible", "hit"),
    [
        ("ab<", ["c", "d"], "cd", False),
        ("ab<", ["|", "c"], "|c", False),
        ("ab<", ["|x", "c"], "", True),
        ("ab", ["c<", "|x"], "c", True),
        ("<|", [], "", False),
        ("a<|xb", ["c", "d"], "cd", False),
        ("a<|xb<", ["|x", "d"], "", True),
    ],
)
def test_earlier_text_is_not_shown_again(
    earlier: str, pieces: list[str], visible: str, hit: bool
) -> None:
    stops = StopStrings(["<|x"])
    stops.set_earlier_text(earlier)
    text = ""
    for piece in pieces:
        text += stops.push(piece)
    assert (text + ("" if stops.hit else stops.flush()), stops.hit) == (visible, hit)
