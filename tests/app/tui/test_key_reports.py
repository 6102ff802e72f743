"""Key reports with numbers that are no characters: a terminal, or what reaches it, may say any."""

import pytest
from textual import events
from textual._xterm_parser import XTermParser

from app.tui.textual_hacks import ignore_impossible_keys

IMPOSSIBLE = ["\x1b[999999999999999999u", "\x1b[1114112u", "\x1b[97;1;1114112u", "\x1b[55296u", "\x1b[97;1;55296u"]


@pytest.mark.parametrize("report", IMPOSSIBLE)
def test_a_key_that_no_character_has_is_no_key(report: str):
    ignore_impossible_keys()
    found = list(XTermParser().feed(f"{report}a"))
    typed = [event.character for event in found if isinstance(event, events.Key)]
    assert typed[-1] == "a"
    assert all(character is None or character.isascii() for character in typed)


def test_a_key_that_has_one_is_typed():
    ignore_impossible_keys()
    (event,) = XTermParser().feed("\x1b[228u")
    assert isinstance(event, events.Key)
    assert event.character == "ä"
