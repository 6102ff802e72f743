"""Stop strings in streamed text: found across pieces, and nothing shown twice that was held back
for them."""

import pytest

from engine.sampling.stopping import StopStrings


@pytest.mark.parametrize(
    ("earlier", "pieces", "shown", "hit"),
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
def test_what_stands_there_already_is_not_shown_again(
    earlier: str, pieces: list[str], shown: str, hit: bool
) -> None:
    stops = StopStrings(["<|x"])
    stops.set_earlier_text(earlier)
    found = ""
    for piece in pieces:
        found += stops.push(piece)
    assert (found + ("" if stops.hit else stops.flush()), stops.hit) == (shown, hit)
