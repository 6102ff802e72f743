"""Stop strings in streamed text: they match across pieces, and withheld text is shown only once."""

import pytest

from engine.sampling.stopping import StopStrings


@pytest.mark.parametrize(
    ("earlier", "pieces", "visible", "hit"),
    [
        ("ab<", ["c", "d"], "cd", ""),
        ("ab<", ["|", "c"], "|c", ""),
        ("ab<", ["|x", "c"], "", "<|x"),
        ("ab", ["c<", "|x"], "c", "<|x"),
        ("<|", [], "", ""),
        ("a<|xb", ["c", "d"], "cd", ""),
        ("a<|xb<", ["|x", "d"], "", "<|x"),
    ],
)
def test_earlier_text_is_not_shown_again(
    earlier: str, pieces: list[str], visible: str, hit: str
) -> None:
    stops = StopStrings(["<|x"])
    stops.set_earlier_text(earlier)
    text = ""
    for piece in pieces:
        text += stops.push(piece)
    assert (text + ("" if stops.hit else stops.flush()), stops.hit) == (visible, hit)


def test_the_first_of_several_stop_strings_counts() -> None:
    stops = StopStrings(["b", "abc", "d"])
    assert (stops.push("xa"), stops.push("bcd")) == ("x", "")
    assert stops.hit == "abc"
