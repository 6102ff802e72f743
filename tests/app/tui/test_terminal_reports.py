"""Keys and reports of terminals: keys are typed, unrequested reports are dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.events import AppBlur, AppFocus, Key, MouseMove, Paste, Resize

from app.tui.terminal_input import KEYS_PATIENCE_S, REPLY_PATIENCE_S
from app.tui.terminal_reports import MAX_SEQUENCE_BYTES
from app.tui.textual_hacks import teach_alt_enter
from tests.app.tui.terminal_hand import Hand, split
from tests.app.tui.test_pastes import CUTS

FOREIGN = [
    b"\x1b[?61;6;7;21;22;23;24;28;32;42c",  # device attributes
    b"\x1b[>0;10;1c",
    b"\x1b[?1u",  # the Kitty protocol's flags
    b"\x1b[24;80R",  # the cursor's place
    b"\x1b[0n",
    b"\x1b[8;24;80t",  # sizes
    b"\x1b[32;10;10M",  # mouse reports of other kinds
    b"\x1b[<32;NaN;NaNM",
    b"\x1b[<0;-Infinity;undefinedm",
    b"\x1b[<0;1.5;2.5M",
    b"\x1b[<0;" + b"9" * 400 + b";1M",
    b"\x1b[48;0;0;0;0t",
    b"\x1b[48;24;80;480;0t",
    b"\x1b]11;rgb:1e1e/1e1e/2e2e\x1b\\",
    b"\x1b]11;rgb:1e1e/1e1e/2e2e\x07",
    b"\x1b]4;1;rgb:0000/0000/0000\x07",
    b"\x1b]52;c;" + b"aGVsbG8K" * 2000 + b"\x07",
    b"\x1b]no number\x1b\\",
    b"\x1bP>|WezTerm 2025\x1b\\",
    b"\x1bP!|00000000\x1b\\",
    b"\x1bP1$r0m\x1b\\",
    b"\x1bP0+r\x07544e\x1b\\",
    b"\x1b_Gi=31;OK\x1b\\",
    b"\x1b^private\x1b\\",
    b"\x1bXstring\x1b\\",
    b"\x1b[1114112u",  # keys that there are not
    b"\x1b[55296u",
    b"\x1b[999999999999999999u",
    b"\x1b[57000u",
    b"\x1b[" + b"9" * 5000 + b"u",
    b"\x1b[97;" + b"1" * 5000 + b"u",
    b"\x1b[97;1:3u",  # one that is released
    b"\x1b[1;1:3A",
    b"\x1b[3;1:3~",
    b"\x1b[97;2:3;65u",
    b"\x1b[?12h",
    b"\x1b[201~",
    b"\x1b[12 q",
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda foreign: repr(foreign[:24]))
def test_unrequested_reports_are_dropped(foreign: bytes) -> None:
    assert Hand().send(b"a" + foreign + b"b").keys == ["a", "b"]
    step = max(1, len(foreign) // 40)
    for cut in range(1, len(foreign), step):
        hand = Hand().send(b"a", foreign[:cut]).wait(0.05).send(foreign[cut:] + b"b")
        assert (hand.typed, len(hand.messages)) == ("ab", 2), cut


@given(st.lists(st.sampled_from(FOREIGN), max_size=4), CUTS)
def test_foreign_reports_one_after_another_press_no_key(
    foreign: list[bytes], cuts: list[int]
) -> None:
    hand = Hand().send(*split(b"".join(foreign), cuts)).send(b"x\r")
    assert hand.keys == ["x", "enter"]


@pytest.mark.parametrize(
    "begun", [b"\x1b]11;rgb:1e", b"\x1bP>|Wez", b"\x1b_Gi=31;", b"\x1b[?61;6", b"\x1b[<0;1"]
)
def test_an_unfinished_report_is_dropped_before_keys(begun: bytes) -> None:
    hand = Hand().send(begun).wait(REPLY_PATIENCE_S).send(b"x\r")
    assert hand.keys == ["x", "enter"]
    hand = Hand().send(begun + b";1" * MAX_SEQUENCE_BYTES, b";1" * 10)
    assert len(hand.input._incomplete) <= MAX_SEQUENCE_BYTES
    assert hand.wait(REPLY_PATIENCE_S).send(b"x").keys == ["x"]


def test_a_delayed_report_is_no_text() -> None:
    hand = Hand().send(b"\x1b").wait(0.2).send(b"[?61;6;7c", b"x")
    assert hand.keys == ["escape", "x"]
    hand = Hand().send(b"\x1b]").wait(0.2).send(b"11;rgb:0/0/0\x07", b"x")
    assert hand.keys == ["right_square_bracket", "x"]


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        (b"\x1bz", "alt+z"),
        (b"\x1bZ", "alt+shift+z"),
        (b"\x1b\xc3\xa9", "alt+é"),
        (b"\x1b]", "right_square_bracket"),
        (b"\x1bP", "alt+shift+p"),
        (b"\x1bO", "alt+shift+o"),
        (b"\x1b_", "underscore"),
        (b"\x1b\x7f", "ctrl+w"),
        (b"\x1b\r", "ctrl+j"),
    ],
)
def test_a_key_with_alt_is_one_key(sent: bytes, key: str) -> None:
    teach_alt_enter()
    for cut in range(len(sent)):
        assert Hand().send(sent[:cut], sent[cut:]).wait(0.2).keys == [key]
    assert Hand().send(sent).wait(0.2).send(b"m" * 40).keys == [key, *"m" * 40]


def test_alt_bracket_and_quick_letters_are_keys() -> None:
    hand = Hand().send(b"\x1b]hello\r").wait(KEYS_PATIENCE_S)
    assert hand.typed == "]hello\r"


@pytest.mark.parametrize(
    ("sent", "key", "typed"),
    [
        (b"\x1b[228u", "ä", "ä"),
        (b"\x1b[97;1:1u", "a", "a"),
        (b"\x1b[97;1:2u", "a", "a"),
        (b"\x1b[97:65;2u", "A", "A"),
        (b"\x1b[97:65:97;2:1u", "A", "A"),
        (b"\x1b[97;2u", "A", "A"),
        (b"\x1b[97;65u", "A", "A"),
        (b"\x1b[97;66u", "a", "a"),
        (b"\x1b[49:33;2u", "exclamation_mark", "!"),
        (b"\x1b[97;129u", "a", "a"),
        (b"\x1b[99;5u", "ctrl+c", ""),
        (b"\x1b[99::99;5:1u", "ctrl+c", ""),
        (b"\x1b[13;1:1u", "enter", "\r"),
        (b"\x1b[13;2:1u", "shift+enter", ""),
        (b"\x1b[27;1:1u", "escape", ""),
        (b"\x1b[97;1:1:7;;9u", "a", "a"),
        (b"\x1b[97;;97u", "a", "a"),
        (b"\x1b[97;2;65:7u", "A", "A"),
        (b"\x1b[0;;20320u", "你", "你"),
        (b"\x1b[57417;1:1u", "left", ""),
        (b"\x1b[A", "up", ""),
        (b"\x1b[1;1:1A", "up", ""),
        (b"\x1b[1;5:2A", "ctrl+up", ""),
        (b"\x1b[1;129A", "up", ""),
        (b"\x1b[3;1:1~", "delete", ""),
        (b"\x1b[3;5~", "ctrl+delete", ""),
        (b"\x1b[1;2P", "shift+f1", ""),
        (b"\x1b[27;2;65~", "A", "A"),
        (b"\x1b[27;5;99~", "ctrl+c", ""),
        (b"\x1b[27;2;13~", "shift+enter", ""),
        (b"\x1bOP", "f1", ""),
        (b"\x1b[[A", "f1", ""),
        (b"\x1b[3$", "shift+delete", ""),
    ],
)
def test_a_detailed_key_report_is_its_key(sent: bytes, key: str, typed: str) -> None:
    for cut in range(len(sent)):
        hand = Hand().send(sent[:cut], sent[cut:])
        assert (hand.keys, hand.typed) == ([key], typed)


def test_two_characters_of_an_input_method_are_both_typed() -> None:
    assert Hand().send(b"\x1b[49;;20320:22909u").typed == "你好"


def test_requested_reports_arrive() -> None:
    hand = Hand().send(b"\x1b[I\x1b[O\x1b[<35;5;5M\x1b[48;24;80;480;800t\x1b[?2026;2$y")
    assert [type(message) for message in hand.messages[:4]] == [
        AppFocus,
        AppBlur,
        MouseMove,
        Resize,
    ]
    assert len(hand.messages) == 5


def test_a_broken_sequence_drops_no_keys() -> None:
    assert Hand().send(b"\x1b[12\r").keys == ["enter"]
    assert Hand().send(b"\x1b[12\x1b[A").keys == ["up"]
    assert Hand().send(b"\x1b]11;rgb\x1b[Ax").keys == ["up", "x"]
    assert Hand().send(b"\x1bP1$r\x18x").keys == ["x"]
    assert Hand().send(b"\x1b]11;x\x1b[200~a\rb\x1b[201~").pasted == ["a\nb"]
    assert Hand().send(b"\x1b\x1b[A").keys == ["escape", "up"]


@given(st.binary(max_size=60), CUTS)
def test_every_byte_between_two_pastes_leaves_pastes_alone(data: bytes, cuts: list[int]) -> None:
    hand = Hand().send(*split(data, cuts)).wait(60).send(b"\x1b[200~one\x1b[201~").wait(60)
    assert "".join(
        message.text for message in hand.messages if isinstance(message, Paste)
    ).endswith("one")
    assert all(
        message.character is None or len(message.character) == 1
        for message in hand.messages
        if isinstance(message, Key)
    )
